"""A sketch in several pieces is the same sketch: the same rows, the same blocks, the same bits of every fit."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import moments
from sketchmix.moments import Block
from sketchmix.pieces import Pieces

Array = NDArray[Any]

N_ROWS = 400
CUTS = {
    "one": [],
    "two": [123],
    "on the grid": [100, 200],
    "single rows": list(range(1, 40)),
    "many": [3, 4, 9, 11, 60, 61, 250, 399],
}


def rows(n_features: int = 24) -> Array:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(3, n_features))
    return centers[rng.integers(3, size=N_ROWS)] + rng.normal(size=(N_ROWS, n_features))


def in_pieces(sketch: sm.Sketch, cuts: list[int]) -> sm.Sketch:
    bounds = [0, *cuts, len(sketch)]
    parts = [sketch[a:b] for a, b in pairwise(bounds)]
    joined = sm.concatenate(parts)
    assert len(joined.kept.pieces) == len(bounds) - 1
    return sm.Sketch._trusted(joined.kept, joined.sketcher, sketch.reservoir)


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_blocks_are_all_rows_in_order_and_begin_at_multiples(cuts: list[int], exactly: bool, step: int) -> None:
    values = np.arange(N_ROWS * 2, dtype=float).reshape(N_ROWS, 2)
    indices = np.tile(np.array([0, 1], np.uint16), (N_ROWS, 1))
    bounds = [0, *cuts, N_ROWS]
    kept = Pieces.of(*[Block.of(values[a:b], indices[a:b]) for a, b in pairwise(bounds)])
    blocks = list(kept.blocks(step, exactly=exactly))
    np.testing.assert_array_equal(np.concatenate([block.values for block in blocks]), values)
    sizes = [block.n_rows for block in blocks]
    assert all(size % step == 0 for size in sizes[:-1])
    if exactly:
        assert all(size == step for size in sizes[:-1])
        assert 0 < sizes[-1] <= step
    np.testing.assert_array_equal(kept.whole().values, values)
    assert kept.largest == 2 * N_ROWS - 1


def test_no_rows_are_one_block_of_none() -> None:
    nothing = Block.of(np.empty((0, 2)), np.empty((0, 2), np.uint16))
    for kept in (Pieces.of(nothing), Pieces.of(nothing, nothing)):
        for exactly in (False, True):
            assert [block.n_rows for block in kept.blocks(5, exactly=exactly)] == [0]


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    "which",
    [
        np.s_[:],
        np.s_[50:300],
        np.s_[7::9],
        np.s_[::-3],
        np.s_[-5:],
        np.s_[500:],
        np.arange(N_ROWS) % 5 == 0,
        np.array([5, 300, 301]),
        np.array([399, 0, 0, 17]),
        np.array([-1, 3]),
        np.array([], int),
    ],
    ids=str,
)
def test_some_of_the_rows(cuts: list[int], which: Any) -> None:
    sketch = sm.Sketcher(sketch_size=5, random_state=0).fit_transform(rows())
    some = in_pieces(sketch, cuts)[which]
    np.testing.assert_array_equal(some.values, sketch.values[which])
    np.testing.assert_array_equal(some.indices, sketch.indices[which])
    held, whole = some.reservoir, sketch.reservoir
    assert held is not None
    assert whole is not None
    chosen = np.arange(N_ROWS)[which]
    np.testing.assert_array_equal(held.rows, whole.rows[chosen[np.isin(chosen, whole.positions)]])


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "diag": lambda: sm.GaussianMixture(3, random_state=0, n_init=2, max_iter=20),
    "spherical": lambda: sm.GaussianMixture(3, covariance_type="spherical", random_state=0, max_iter=20),
    "low_rank": lambda: sm.GaussianMixture(2, covariance_type="low_rank", rank=2, random_state=0, max_iter=20),
    "auto": lambda: sm.GaussianMixture(2, covariance_type="low_rank", rank="auto", random_state=0, max_iter=5),
    "full": lambda: sm.GaussianMixture(2, covariance_type="full", random_state=0, max_iter=10),
    "tied": lambda: sm.GaussianMixture(2, covariance_type="tied", random_state=0, max_iter=10),
    "k-means": lambda: sm.KMeans(3, random_state=0, n_init=2),
    "pca": lambda: sm.PCA(2, random_state=0),
}


def bits_of(fitted: Any, sketch: sm.Sketch) -> dict[str, bytes]:
    found = {name: np.asarray(value) for name, value in vars(fitted).items() if name.endswith("_")}
    found["scores"] = np.asarray(fitted.score(sketch))
    found["of rows"] = fitted.transform(sketch) if hasattr(fitted, "transform") else fitted.predict_proba(sketch)
    return {name: value.tobytes() for name, value in found.items() if value.dtype != object}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_whole", [False, True], ids=["sketched", "whole"])
def test_a_fit_has_the_same_bits_in_any_pieces(
    make: Callable[[], Any], dtype: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)  # float32 where values are
    monkeypatch.setattr(moments, "ROWS_PER_COORDINATE", 8)  # several shards
    for name in ("full.MOST_SHARDS", "full.DENSE_ROWS_AT_A_TIME", "full.ROWS_OF_PAIRS", "low_rank.WHOLE_ROWS"):
        monkeypatch.setattr(f"sketchmix.families.{name}", 37)
    sketcher = sm.Sketcher(sketch_size=24 if is_whole else 9, dtype=dtype, transform="dct", random_state=0)
    sketch = sketcher.fit_transform(rows())
    expected = bits_of(make().fit(sketch), sketch)
    for cuts in CUTS.values():
        parts = in_pieces(sketch, cuts)
        assert bits_of(make().fit(parts), parts) == expected
    weight = np.random.default_rng(1).uniform(size=N_ROWS)
    expected = bits_of(make().fit(sketch, sample_weight=weight), sketch)
    parts = in_pieces(sketch, CUTS["many"])
    assert bits_of(make().fit(parts, sample_weight=weight), parts) == expected


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_estimates_do_not_depend_on_pieces(cuts: list[int]) -> None:
    sketch = sm.Sketcher(sketch_size=9, random_state=0).fit_transform(rows())
    parts = in_pieces(sketch, cuts)
    assert parts.nbytes == sketch.nbytes
    assert repr(parts) == repr(sketch)
    np.testing.assert_array_equal(parts.mean(return_std=True), sketch.mean(return_std=True))
    np.testing.assert_array_equal(parts.variance(), sketch.variance())
    np.testing.assert_array_equal(parts.covariance(), sketch.covariance())
    np.testing.assert_array_equal(parts.distances(rows()[:3]), sketch.distances(rows()[:3]))
    np.testing.assert_array_equal(parts.to_csr().toarray(), sketch.to_csr().toarray())
