"""Which entries rows keep: exactly those of the slow twin, uniform, and a function of (seed, row number) alone."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from threadpoolctl import threadpool_limits

import sketchmix as sm
from tests import reference

Array = NDArray[Any]


def sketcher_of(n_features: int, sketch_size: int, **parameters: Any) -> sm.Sketcher:
    chosen: dict[str, Any] = {"transform": "none", "random_state": 0} | parameters
    return sm.Sketcher(sketch_size, **chosen).fit(np.zeros((1, n_features)))


def masks(sketcher: sm.Sketcher, n_rows: int, first_row: int = 0) -> Array:
    X = np.zeros((n_rows, sketcher.n_features_in_), np.float32)
    return sketcher.transform(X, first_row=first_row).indices


def expected_masks(sketcher: sm.Sketcher, rows: range) -> Array:
    shared = sketcher.shared_indices_.tolist()
    size = (sketcher.n_rotated_, sketcher.sketch_size_)
    return np.array([reference.kept_entries(sketcher.seed_, row, *size, shared) for row in rows])


# -- exactly ----------------------------------------------------------------------------------------------


def sizes_to_keep(n: int) -> list[int]:
    """One, about a third, half and one more or less, all but one, all."""
    return sorted({1, max(1, n // 3), max(1, n // 2 - 1), max(1, n // 2), n // 2 + 1, max(1, n - 1), n})


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 63, 64, 65, 100, 127, 128, 129, 784])
def test_masks_are_those_of_the_twin(n: int) -> None:
    for sketch_size in sizes_to_keep(n):
        sketcher = sketcher_of(n, sketch_size)
        np.testing.assert_array_equal(masks(sketcher, 20), expected_masks(sketcher, range(20)))


@pytest.mark.parametrize(("n", "sketch_size"), [(10, 4), (10, 8), (64, 5), (65, 40), (200, 20)])
def test_masks_with_shared_entries_are_those_of_the_twin(n: int, sketch_size: int) -> None:
    for n_shared in sorted({0, 1, sketch_size // 2, sketch_size - 1, sketch_size}):
        sketcher = sketcher_of(n, sketch_size, n_shared=n_shared)
        np.testing.assert_array_equal(masks(sketcher, 20), expected_masks(sketcher, range(20)))


@pytest.mark.parametrize("n_shared", [0, 3])
@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier"])
@pytest.mark.parametrize("n", [24, 257, 997])  # 997: no kernel for dct and fourier, padding for hadamard
def test_masks_do_not_depend_on_how_rows_are_mixed(transform: str, n: int, n_shared: int) -> None:
    sketcher = sketcher_of(n, 9, transform=transform, n_shared=n_shared)
    np.testing.assert_array_equal(masks(sketcher, 20), expected_masks(sketcher, range(20)))


@pytest.mark.parametrize("first_row", [1, 1000, 2**32 - 3, 2**53 + 1, 2**62])
def test_masks_of_late_rows_are_those_of_the_twin(first_row: int) -> None:
    sketcher = sketcher_of(50, 7)
    expected = expected_masks(sketcher, range(first_row, first_row + 10))
    np.testing.assert_array_equal(masks(sketcher, 10, first_row), expected)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 2])
def test_masks_of_extreme_seeds_are_those_of_the_twin(seed: int) -> None:
    sketcher = sketcher_of(50, 7)
    sketcher.seed_ = seed
    np.testing.assert_array_equal(masks(sketcher, 40), expected_masks(sketcher, range(40)))


@pytest.mark.parametrize("sketch_size", [1, 13, 50, 99, 100])
def test_each_row_keeps_distinct_entries_in_order(sketch_size: int) -> None:
    indices = masks(sketcher_of(100, sketch_size, n_shared=sketch_size // 3), 500).astype(int)
    assert (np.diff(indices, axis=1) > 0).all()
    assert indices.min() >= 0
    assert indices.max() <= 99


def test_keeping_everything_keeps_everything() -> None:
    indices = masks(sketcher_of(70, 70), 5)
    np.testing.assert_array_equal(indices, np.tile(np.arange(70), (5, 1)))


def test_shared_entries_are_in_every_row() -> None:
    sketcher = sketcher_of(100, 12, n_shared=5)
    shared = sketcher.shared_indices_
    assert len(set(shared.tolist())) == 5
    assert (np.diff(shared.astype(int)) > 0).all()
    for row in masks(sketcher, 200):
        assert set(shared.tolist()) <= set(row.tolist())


def test_only_shared_entries_are_the_same_in_every_row() -> None:
    sketcher = sketcher_of(100, 12, n_shared=12)
    np.testing.assert_array_equal(masks(sketcher, 50), np.tile(sketcher.shared_indices_, (50, 1)))


# -- index types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "dtype"), [(1, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (70_000, "uint32")]
)
def test_indices_are_as_narrow_as_they_can_be(n: int, dtype: str) -> None:
    assert masks(sketcher_of(n, 1), 2).dtype == np.dtype(dtype)


@pytest.mark.parametrize("n", [65_536, 65_537, 100_000])
def test_indices_of_wide_rows_are_those_of_the_twin(n: int) -> None:
    sketcher = sketcher_of(n, 60)
    np.testing.assert_array_equal(masks(sketcher, 3), expected_masks(sketcher, range(3)))


@pytest.mark.parametrize("n", [65_536, 65_537])
def test_the_last_index_of_wide_rows(n: int) -> None:
    X = np.arange(2 * n, dtype=np.float64).reshape(2, n)
    sketch = sm.Sketcher(n, transform="none", dtype="float64", random_state=0).fit_transform(X)
    assert int(sketch.indices[0, -1]) == n - 1
    np.testing.assert_array_equal(sketch.values, X)


# -- uniform ----------------------------------------------------------------------------------------------


def kept(indices: Array, n: int) -> Array:
    """Whether each row kept each entry."""
    indicators = np.zeros((len(indices), n), bool)
    np.put_along_axis(indicators, indices.astype(int), True, axis=1)
    return indicators


def z_scores(counts: Array, n_rows: int, probability: float) -> Array:
    """How many standard deviations binomial counts are from their mean."""
    scores: Array = (counts - n_rows * probability) / np.sqrt(n_rows * probability * (1 - probability))
    return scores


@pytest.mark.parametrize(("n", "sketch_size"), [(30, 1), (30, 7), (30, 15), (30, 22), (30, 29), (784, 30)])
def test_every_entry_is_kept_equally_often(n: int, sketch_size: int) -> None:
    counts = kept(masks(sketcher_of(n, sketch_size), 30_000), n).sum(axis=0)
    assert np.abs(z_scores(counts, 30_000, sketch_size / n)).max() < 5


@pytest.mark.parametrize(("n", "sketch_size"), [(20, 2), (20, 7), (20, 10), (20, 13), (100, 10)])
def test_every_pair_is_kept_equally_often(n: int, sketch_size: int) -> None:
    indicators = kept(masks(sketcher_of(n, sketch_size), 30_000), n).astype(np.float32)
    together = indicators.T @ indicators
    pairs = together[np.triu_indices(n, 1)]
    probability = sketch_size * (sketch_size - 1) / (n * (n - 1))
    assert np.abs(z_scores(pairs, 30_000, probability)).max() < 5


@pytest.mark.parametrize(("sketch_size", "n_shared"), [(3, 0), (4, 0), (4, 1), (3, 2)])
def test_every_subset_is_kept_equally_often(sketch_size: int, n_shared: int) -> None:
    n, n_rows = 7, 20_000
    sketcher = sketcher_of(n, sketch_size, n_shared=n_shared)
    shared = sketcher.shared_indices_.tolist()
    free = [p for p in range(n) if p not in shared]
    subsets = [tuple(sorted([*shared, *s])) for s in combinations(free, sketch_size - n_shared)]
    seen = [tuple(row) for row in masks(sketcher, n_rows).tolist()]
    expected = n_rows / len(subsets)
    statistic = sum((seen.count(s) - expected) ** 2 / expected for s in subsets)
    assert set(seen) == set(subsets)
    assert statistic < chi2.ppf(1 - 1e-6, len(subsets) - 1)


@pytest.mark.parametrize("n_shared", [2, 5])
def test_free_entries_are_kept_equally_often_beside_shared_ones(n_shared: int) -> None:
    sketcher = sketcher_of(25, 8, n_shared=n_shared)
    counts = kept(masks(sketcher, 20_000), 25).sum(axis=0)
    free = np.setdiff1d(np.arange(25), sketcher.shared_indices_)
    probability = (8 - n_shared) / (25 - n_shared)
    assert np.abs(z_scores(counts[free], 20_000, probability)).max() < 5


def test_shared_entries_are_drawn_uniformly() -> None:
    draws = [sketcher_of(12, 5, n_shared=3, random_state=seed).shared_indices_ for seed in range(2000)]
    counts = np.bincount(np.concatenate(draws), minlength=12)
    assert np.abs(z_scores(counts, 2000, 3 / 12)).max() < 5


@pytest.mark.parametrize("lag", [1, 2, 1024])
def test_rows_are_independent_of_each_other(lag: int) -> None:
    n, sketch_size, n_pairs = 20, 5, 20_000
    sketcher = sketcher_of(n, sketch_size)
    indicators = kept(masks(sketcher, 2 * lag * -(-n_pairs // lag)), n).astype(np.float32)
    # Pairs of rows that share no row with another pair: (0, lag), (1, lag + 1), ..., (2 lag, 3 lag), ...
    blocks = indicators.reshape(-1, 2, lag, n)
    first, second = blocks[:, 0].reshape(-1, n), blocks[:, 1].reshape(-1, n)
    together = first.T @ second
    assert np.abs(z_scores(together, len(first), (sketch_size / n) ** 2)).max() < 5


def test_sketchers_of_neighbouring_seeds_are_independent() -> None:
    n, sketch_size, n_rows = 20, 5, 20_000
    one = kept(masks(sketcher_of(n, sketch_size, random_state=0), n_rows), n)
    other = kept(masks(sketcher_of(n, sketch_size, random_state=1), n_rows), n)
    together = one.astype(np.float32).T @ other.astype(np.float32)
    assert np.abs(z_scores(together, n_rows, (sketch_size / n) ** 2)).max() < 5


def test_rows_of_the_reservoir_have_masks_like_all_others() -> None:
    n, sketch_size = 20, 5
    sketcher = sketcher_of(n, sketch_size)
    sketch = sketcher.transform(np.zeros((60_000, n), np.float32))
    assert sketch.reservoir is not None
    positions = sketch.reservoir.positions
    counts = kept(sketch.indices[positions], n).sum(axis=0)
    assert len(positions) > 1000
    assert np.abs(z_scores(counts, len(positions), sketch_size / n)).max() < 5


def test_the_reservoir_is_spread_over_the_rows() -> None:
    sketch = sketcher_of(20, 5).transform(np.zeros((60_000, 20), np.float32))
    assert sketch.reservoir is not None
    counts = np.histogram(sketch.reservoir.positions, bins=20, range=(0, 60_000))[0]
    expected = len(sketch.reservoir.positions) / 20
    # Without replacement the counts vary a little less than a chi-square test takes for granted.
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 19)


# -- a function of (seed, row) alone ----------------------------------------------------------------------


@pytest.mark.parametrize("n_shared", [0, 2])
def test_masks_do_not_depend_on_the_batch(n_shared: int) -> None:
    sketcher = sketcher_of(40, 6, n_shared=n_shared)
    at_once = masks(sketcher, 300)
    for starts in ([0, 1, 2, 33, 300], [0, 299, 300], [0, 128, 256, 300]):
        parts = [masks(sketcher, b - a, first_row=a) for a, b in pairwise(starts)]
        np.testing.assert_array_equal(np.concatenate(parts), at_once)


def test_masks_do_not_depend_on_the_order_of_batches_or_on_what_was_sketched_before() -> None:
    sketcher = sketcher_of(40, 6)
    later, earlier = masks(sketcher, 50, first_row=50), masks(sketcher, 50)
    np.testing.assert_array_equal(np.concatenate([earlier, later]), masks(sketcher, 100))


def test_masks_do_not_depend_on_blocks_of_conversion() -> None:
    sketcher = sketcher_of(1000, 6)
    # 8 MB of float32: several blocks where uint8 is converted, one where nothing is.
    converted = sketcher.transform(np.zeros((2000, 1000), np.uint8))
    direct = sketcher.transform(np.zeros((2000, 1000), np.float32))
    np.testing.assert_array_equal(converted.indices, direct.indices)


def test_masks_do_not_depend_on_the_data() -> None:
    sketcher = sketcher_of(40, 6)
    X = np.random.default_rng(0).normal(size=(100, 40))
    np.testing.assert_array_equal(sketcher.transform(X).indices, masks(sketcher, 100))


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_masks_do_not_depend_on_threads(n_threads: int) -> None:
    sketcher = sketcher_of(100, 30, n_shared=4)
    with threadpool_limits(limits=1, user_api="openmp"):
        alone = masks(sketcher, 1000)
    with threadpool_limits(limits=n_threads, user_api="openmp"):
        np.testing.assert_array_equal(masks(sketcher, 1000), alone)


def test_other_rows_and_other_seeds_keep_other_entries() -> None:
    sketcher = sketcher_of(100, 10)
    indices = masks(sketcher, 1000)
    assert len({tuple(row) for row in indices.tolist()}) == 1000  # of 1.7e13 subsets
    other = masks(sketcher_of(100, 10, random_state=1), 1000)
    assert not (indices == other).all(axis=1).any()
