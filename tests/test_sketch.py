"""`Sketcher` and `Sketch`: what is kept, from whatever a user has, and what a sketch says about its rows."""

import copy
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

import sketchmix as sm
from sketchmix import _core
from sketchmix.reservoir import row_keys
from tests import reference

Array = NDArray[Any]

TRANSFORMS = ["hadamard", "dct", "fourier", "none"]
every_transform = pytest.mark.parametrize("transform", TRANSFORMS)
many_small_sketches = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Thousands of sketches of a few rows: on a busy machine, waiting for a second thread takes longest."""
    with threadpool_limits(limits=1):
        yield


def normal_rows(n: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, width))


def sketch_of(X: Any, sketch_size: int | float | str = 6, **parameters: Any) -> sm.Sketch:
    chosen: dict[str, Any] = {"random_state": 0} | parameters
    return sm.Sketcher(sketch_size, **chosen).fit_transform(X)


def taken(rotated: Array, indices: Array) -> Array:
    """The entries of rotated rows that were kept."""
    return np.take_along_axis(rotated, indices.astype(int), axis=1)


def assert_same_sketch(a: sm.Sketch, b: sm.Sketch) -> None:
    """The same bits, in the reservoir too."""
    np.testing.assert_array_equal(a.values, b.values)
    np.testing.assert_array_equal(a.indices, b.indices)
    assert (a.values.dtype, a.indices.dtype) == (b.values.dtype, b.indices.dtype)
    assert a.reservoir is not None
    assert b.reservoir is not None
    np.testing.assert_array_equal(a.reservoir.positions, b.reservoir.positions)
    np.testing.assert_array_equal(a.reservoir.keys, b.reservoir.keys)
    np.testing.assert_array_equal(a.reservoir.rows, b.reservoir.rows)


# -- what is kept -----------------------------------------------------------------------------------------


@every_transform
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 30, 33, 64, 100, 255, 257, 384, 784, 997, 1000])
def test_values_are_the_kept_entries_of_the_rotated_rows(transform: str, n: int) -> None:
    X = normal_rows(40, n)
    for sketch_size in sorted({1, max(1, n // 10), max(1, n // 2), n}):
        sketch = sketch_of(X, sketch_size, transform=transform, dtype="float64")
        assert sketch.values.shape == sketch.indices.shape == (40, sketch_size)
        expected = taken(sketch.sketcher.rotate(X), sketch.indices)
        np.testing.assert_allclose(sketch.values, expected, rtol=0, atol=1e-11)


@every_transform
@pytest.mark.parametrize("input_dtype", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [49, 784, 997])
def test_values_are_right_in_every_precision(transform: str, input_dtype: str, dtype: str, n: int) -> None:
    X = normal_rows(50, n).astype(input_dtype)
    sketch = sketch_of(X, 20, transform=transform, dtype=dtype)
    assert sketch.values.dtype == np.dtype(dtype)
    exact = taken(sketch.sketcher.rotate(X.astype(float)), sketch.indices)
    # The arithmetic is float64 if the rows or the sketch are; the stored type rounds once more.
    arithmetic = 1e-11 if "float64" in (input_dtype, dtype) else 1e-5
    stored = float(np.finfo(dtype).eps) / 2
    np.testing.assert_allclose(sketch.values.astype(float), exact, rtol=1.01 * stored, atol=arithmetic)


@every_transform
def test_shared_entries_have_the_right_values(transform: str) -> None:
    X = normal_rows(50, 60)
    sketch = sketch_of(X, 9, transform=transform, n_shared=4, dtype="float64")
    expected = taken(sketch.sketcher.rotate(X), sketch.indices)
    np.testing.assert_allclose(sketch.values, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("sketch_size", "n_features", "expected"),
    [
        (5, 100, 5),
        (np.int64(5), 100, 5),
        (100, 100, 100),
        (1, 100, 1),
        (1.0, 100, 100),
        (0.1, 784, 78),
        (0.5, 7, 4),  # 3.5 rounds to the even neighbour
        (0.001, 100, 1),
        (np.float32(0.25), 100, 25),
        ("auto", 10, 10),
        ("auto", 64, 64),
        ("auto", 65, 64),
        ("auto", 640, 64),
        ("auto", 784, 78),
        ("auto", 1000, 100),
    ],
)
def test_how_many_entries_are_kept(sketch_size: int | float | str, n_features: int, expected: int) -> None:
    sketcher = sm.Sketcher(sketch_size).fit(np.zeros((1, n_features)))
    assert sketcher.sketch_size_ == expected


@pytest.mark.parametrize(("dtype", "bytes_per_entry"), [("float16", 4), ("float32", 6), ("float64", 10)])
def test_bytes_of_a_kept_entry(dtype: str, bytes_per_entry: int) -> None:
    sketch = sketch_of(normal_rows(100, 50), 7, dtype=dtype)
    assert sketch.nbytes == 100 * 7 * bytes_per_entry


def test_the_same_seed_gives_the_same_sketch() -> None:
    X = normal_rows(30, 20)
    assert_same_sketch(sketch_of(X, random_state=3), sketch_of(X, random_state=3))
    generators = [np.random.RandomState(5), np.random.RandomState(5)]
    assert_same_sketch(*(sketch_of(X, random_state=generator) for generator in generators))


def test_other_seeds_give_other_rotations() -> None:
    X = np.zeros((1, 64))
    one, other = (sm.Sketcher(transform="dct", random_state=seed).fit(X).signs_ for seed in (0, 1))
    assert not np.array_equal(one, other)
    one, other = (sm.Sketcher(transform="dct").fit(X).signs_ for _ in range(2))
    assert not np.array_equal(one, other)


def test_fit_uses_the_width_of_the_rows_only() -> None:
    nan = np.full((3, 20), np.nan)
    fitted = sm.Sketcher(4, random_state=0).fit(nan)
    X = normal_rows(10, 20)
    assert_same_sketch(fitted.transform(X), sketch_of(X, 4))


def test_rotate_and_unrotate() -> None:
    X = normal_rows(10, 257)
    sketcher = sm.Sketcher(5, transform="hadamard", random_state=0).fit(X)
    rotated = sketcher.rotate(X)
    assert rotated.shape == (10, sketcher.n_rotated_) == (10, 258)
    np.testing.assert_allclose(sketcher.unrotate(rotated), X, rtol=0, atol=1e-12)
    assert sketcher.rotate(X.astype(np.float32)).dtype == np.float32
    assert sketcher.unrotate(rotated.astype(np.float32)).dtype == np.float32


@every_transform
def test_no_rows(transform: str) -> None:
    sketcher = sm.Sketcher(6, transform=transform, random_state=0).fit(np.zeros((1, 24)))
    nothings: list[Any] = [np.empty((0, 24)), np.empty((0, 24), np.uint8), sp.csr_array((0, 24))]
    for nothing in nothings:
        sketch = sketcher.transform(nothing)
        assert len(sketch) == sketch.nbytes == 0
        assert sketch.values.shape == sketch.indices.shape == (0, 6)
    assert sketcher.rotate(np.empty((0, 24))).shape == (0, 24)
    assert sketcher.unrotate(np.empty((0, 24))).shape == (0, 24)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_data_frame_without_rows(frame: Callable[[Array], Any]) -> None:
    data = frame(normal_rows(3, 10))
    sketcher = sm.Sketcher(4, random_state=0).fit(data)
    assert len(sketcher.transform(data[:0])) == 0


@every_transform
def test_one_row(transform: str) -> None:
    X = normal_rows(1, 30)
    sketch = sketch_of(X, 8, transform=transform, dtype="float64")
    expected = taken(sketch.sketcher.rotate(X), sketch.indices)
    np.testing.assert_allclose(sketch.values, expected, rtol=0, atol=1e-13)
    assert len(sketch) == 1


# -- batches and threads ----------------------------------------------------------------------------------


@every_transform
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_batches_give_the_same_bits(transform: str, dtype: type) -> None:
    X: Array = (40 * normal_rows(300, 100)).clip(0, 255).astype(dtype)
    sketcher = sm.Sketcher(9, transform=transform, n_shared=2, random_state=0).fit(X)
    whole = sketcher.transform(X)
    for starts in ([0, 1, 2, 33, 300], [0, 150, 300]):
        parts = [sketcher.transform(X[a:b], first_row=a) for a, b in pairwise(starts)]
        np.testing.assert_array_equal(np.concatenate([p.values for p in parts]), whole.values)
        np.testing.assert_array_equal(np.concatenate([p.indices for p in parts]), whole.indices)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
def test_the_limit_of_threads_reaches_the_core(n_threads: int) -> None:
    with threadpool_limits(limits=n_threads, user_api="openmp"):
        assert _core.max_threads() == n_threads


@every_transform
@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(transform: str, n_threads: int) -> None:
    X = normal_rows(2000, 96)
    with threadpool_limits(limits=1, user_api="openmp"):
        alone = sketch_of(X, 40, transform=transform)
        mean, distances = alone.mean(), alone.distances(X[:5])
    with threadpool_limits(limits=n_threads, user_api="openmp"):
        together = sketch_of(X, 40, transform=transform)
        assert_same_sketch(together, alone)
        np.testing.assert_array_equal(together.mean(), mean)
        np.testing.assert_array_equal(together.distances(X[:5]), distances)


def test_blocks_of_conversion_give_the_same_bits() -> None:
    # 12 MB as float32 and 24 MB as float64: several blocks for all but the first.
    X = np.random.default_rng(0).integers(0, 256, size=(3000, 1000)).astype(np.float32)
    direct = sketch_of(X, 10)
    assert_same_sketch(sketch_of(X.astype(np.uint8), 10), direct)
    assert_same_sketch(sketch_of(np.asfortranarray(X), 10), direct)


# -- whatever a user has ----------------------------------------------------------------------------------

WIDTH = 24


def whole_numbers() -> Array:
    """Rows that every numeric type holds exactly."""
    return np.random.default_rng(0).integers(0, 100, size=(60, WIDTH)).astype(float)


def spread_out(X: Array) -> Array:
    """The same rows as every second column and third row of something larger."""
    large = np.full((3 * len(X), 2 * X.shape[1]), -7.0)
    large[::3, ::2] = X
    return large[::3, ::2]


def unaligned(X: Array) -> Array:
    buffer = bytearray(X.nbytes + 1)
    view = np.frombuffer(buffer, np.uint8)[1:].view(X.dtype).reshape(X.shape)
    view[...] = X
    return view


def in_structures(X: Array) -> Array:
    """Rows whose distance is no multiple of an entry."""
    records = np.zeros(len(X), [("label", "u1"), ("row", X.dtype, X.shape[1])])
    records["row"] = X
    view: Array = records["row"]
    return view


def read_only(X: Array) -> Array:
    X = X.copy()
    X.flags.writeable = False
    return X


def as_type(name: str) -> Callable[[Array], Array]:
    return lambda X: X.astype(name)


def as_sparse(name: Any) -> Callable[[Array], Any]:
    return lambda X: sp.csr_array(X).asformat(name)


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "list": lambda X: X.tolist(),
    "Fortran": np.asfortranarray,
    "float32": lambda X: X.astype(np.float32),
    "float32 Fortran": lambda X: np.asfortranarray(X.astype(np.float32)),
    "spread out": spread_out,
    "reversed": lambda X: X[::-1, ::-1].copy()[::-1, ::-1],
    "rows reversed": lambda X: X[::-1].copy()[::-1],
    "float32 rows reversed": lambda X: X.astype(np.float32)[::-1].copy()[::-1],
    "column slice": lambda X: np.hstack([X, X, X])[:, WIDTH : 2 * WIDTH],
    "float32 column slice": lambda X: np.hstack([X, X, X]).astype(np.float32)[:, WIDTH : 2 * WIDTH],
    "read-only": read_only,
    "unaligned": unaligned,
    "in structures": in_structures,
    "big-endian": lambda X: X.astype(">f8"),
    "big-endian float32": lambda X: X.astype(">f4"),
    "big-endian int16": lambda X: X.astype(">i2"),
    "long double": lambda X: X.astype(np.longdouble),
    "object": lambda X: X.astype(object),
    **{
        name: as_type(name)
        for name in ("float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
    **{f"sparse {name}": as_sparse(name) for name in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")},
    "sparse matrix": sp.csr_matrix,
    "sparse float32": lambda X: sp.csc_matrix(X.astype(np.float32)),
    "sparse int8": lambda X: sp.csr_array(X.astype(np.int8)),
    "pandas": pd.DataFrame,
    "pandas with an index": lambda X: pd.DataFrame(X, index=np.arange(len(X))[::-1] // 2),
    "pandas of int16": lambda X: pd.DataFrame(X.astype(np.int16)),
    "pandas of many types": lambda X: pd.DataFrame(X).astype({0: "int8", 3: "float32", 5: "uint16", 8: "Int64"}),
    "pandas of nullable types": lambda X: pd.DataFrame(X).astype("Float32"),
    "pandas of objects": lambda X: pd.DataFrame(X.astype(object)),
    "polars": pl.DataFrame,
    "polars of uint8": lambda X: pl.DataFrame(X.astype(np.uint8)),
    "polars of many types": lambda X: pl.DataFrame(
        {f"c{j}": column.astype(["i1", "f4", "f8"][j % 3]) for j, column in enumerate(X.T)}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transform", ["hadamard", "none"])
def test_every_kind_of_rows_gives_the_same_sketch(layout: str, transform: str) -> None:
    X = whole_numbers()
    expected = sketch_of(X, transform=transform)
    got = sketch_of(LAYOUTS[layout](X), transform=transform)
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_allclose(got.values, expected.values, rtol=0, atol=1e-4)
    assert got.reservoir is not None
    assert expected.reservoir is not None
    np.testing.assert_array_equal(got.reservoir.positions, expected.reservoir.positions)
    np.testing.assert_allclose(got.reservoir.rows, expected.reservoir.rows, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotate_takes_every_kind_of_rows(layout: str) -> None:
    X = whole_numbers()
    rows = LAYOUTS[layout](X)
    sketcher = sm.Sketcher(6, transform="hadamard", random_state=0).fit(rows)
    expected = sm.Sketcher(6, transform="hadamard", random_state=0).fit(X).rotate(X)
    np.testing.assert_allclose(sketcher.rotate(rows), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda X: X,
        sp.csr_array,
        sp.coo_matrix,
        pd.DataFrame,
        pl.DataFrame,
        lambda X: X.tolist(),
        np.asfortranarray,
    ],
)
def test_truth_values_are_zero_and_one(make: Callable[[Array], Any]) -> None:
    X = whole_numbers() > 50
    expected, got = sketch_of(X.astype(np.float32)), sketch_of(make(X))
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_allclose(got.values, expected.values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_memory_maps(tmp_path: Path, dtype: type) -> None:
    X: Array = whole_numbers().astype(dtype)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert_same_sketch(sketch_of(mapped), sketch_of(X))
    part = np.memmap(tmp_path / "rows.npy", dtype, "r", offset=mapped.offset, shape=X.shape)[5:20]
    np.testing.assert_array_equal(sketch_of(part).values, sketch_of(X[5:20]).values)


def test_rows_that_are_all_one() -> None:
    row = whole_numbers()[:1]
    repeated = np.broadcast_to(row, (50, WIDTH))
    assert_same_sketch(sketch_of(repeated), sketch_of(np.array(repeated)))


def test_one_column_of_many() -> None:
    wide = normal_rows(40, 7)
    np.testing.assert_array_equal(sketch_of(wide[:, 2:3], 1).values, wide[:, 2:3].astype(np.float32))


def test_whole_numbers_beyond_float32_are_not_rounded_before_the_sketch() -> None:
    X = np.full((4, 8), 2**24 + 1)
    sketch = sketch_of(X, 8, transform="none", dtype="float64")
    assert (sketch.values == 2**24 + 1).all()


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_names_of_features(frame: Callable[..., Any]) -> None:
    X = normal_rows(20, 3)
    data = frame({name: X[:, j] for j, name in enumerate("abc")})
    sketcher = sm.Sketcher(2, random_state=0).fit(data)
    assert sketcher.feature_names_in_.tolist() == ["a", "b", "c"]
    shuffled = frame({name: X[:, j] for j, name in enumerate("bac")})
    with pytest.raises(ValueError, match="feature names"):
        sketcher.transform(shuffled)


def test_fitting_again_forgets_the_names_of_features() -> None:
    sketcher = sm.Sketcher(2, random_state=0).fit(pd.DataFrame(normal_rows(5, 3), columns=list("abc")))
    sketcher.fit(normal_rows(5, 4))
    assert not hasattr(sketcher, "feature_names_in_")
    assert sketcher.n_features_in_ == 4
    assert sketcher.transform(normal_rows(5, 4)).values.shape == (5, 2)


def test_centers_need_no_names_of_features() -> None:
    X = normal_rows(20, 3)
    sketch = sketch_of(pd.DataFrame(X, columns=list("abc")), 3)
    assert sketch.distances(X[:2]).shape == (20, 2)


def test_the_rows_are_not_changed_or_held() -> None:
    X = normal_rows(30, 10)
    before = X.copy()
    for transform in TRANSFORMS:
        sketch = sketch_of(X, 10, transform=transform, dtype="float64")
        np.testing.assert_array_equal(X, before)
        assert not np.shares_memory(sketch.values, X)
        assert sketch.reservoir is not None
        assert not np.shares_memory(sketch.reservoir.rows, X)


@pytest.mark.parametrize(
    ("transform", "dtype"),
    [(transform, np.uint8) for transform in TRANSFORMS] + [("hadamard", np.float32), ("none", np.float64)],
)
def test_working_memory_is_small(transform: str, dtype: type) -> None:
    X = np.random.default_rng(0).integers(0, 256, size=(60_000, 784), dtype=np.uint8)
    X = np.asfortranarray(X[:20_000].astype(dtype)) if dtype != np.uint8 else X
    sketcher = sm.Sketcher(40, transform=transform, random_state=0).fit(X)
    tracemalloc.start()
    try:
        sketch = sketcher.transform(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < sketch.nbytes + 24 * 2**20


# -- the reservoir ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["hadamard", "none", "dct"])
@pytest.mark.parametrize(("first_row", "share"), [(0, 1024 / 1500), (8500, 1024 / 10_000)])
def test_the_reservoir_holds_the_rows_with_small_keys(transform: str, first_row: int, share: float) -> None:
    # 4 MB hold 1024 rows of 512 float64: of all rows up to these, about as many.
    X = normal_rows(1500, 512)
    sketcher = sm.Sketcher(5, transform=transform, random_state=0).fit(X)
    reservoir = sketcher.transform(X, first_row=first_row).reservoir
    assert reservoir is not None
    keys = row_keys(sketcher.seed_, first_row + np.arange(1500))
    expected = np.flatnonzero(keys / 2.0**64 < share)
    np.testing.assert_array_equal(reservoir.positions, expected)
    np.testing.assert_array_equal(reservoir.keys, keys[expected])
    np.testing.assert_allclose(reservoir.rows, sketcher.rotate(X)[expected], rtol=0, atol=1e-12)


def test_small_batches_hold_few_dense_rows() -> None:
    sketcher = sm.Sketcher(5, transform="none", random_state=0).fit(np.zeros((1, 512)))
    parts = [sketcher.transform(np.zeros((500, 512)), first_row=a) for a in range(0, 500_000, 500)]
    held = sum(len(part.reservoir.positions) for part in parts if part.reservoir)
    # 1024 rows of all that went before: the harmonic series, 1024 (1 + log(500,000 / 1024)).
    assert abs(held - 7365) < 5 * np.sqrt(7365)


def test_the_reservoir_of_few_rows_holds_them_all() -> None:
    X = normal_rows(100, 50)
    sketch = sketch_of(X, 5)
    assert sketch.reservoir is not None
    np.testing.assert_array_equal(sketch.reservoir.positions, np.arange(100))
    np.testing.assert_allclose(sketch.reservoir.rows, sketch.sketcher.rotate(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("n_rows", "width", "dtype", "held"),
    [
        (5000, 20, np.float64, 2048),
        (2048, 20, np.float64, 2048),
        (5000, 512, np.float32, 2048),  # 4 MB
        (5000, 1024, np.float32, 1024),  # 4 MB
        (300, 8192, np.float64, 64),  # 4 MB, and not less
        (150, 16384, np.float64, 64),  # 8 MB: not less
        (40, 16384, np.float64, 40),
    ],
)
def test_how_many_rows_the_reservoir_holds(n_rows: int, width: int, dtype: type, held: int) -> None:
    sketch = sketch_of(np.zeros((n_rows, width), dtype), 2, transform="none")
    assert sketch.reservoir is not None
    assert sketch.reservoir.rows.shape[1] == width
    assert abs(len(sketch.reservoir.rows) - held) <= 5 * np.sqrt(held * (1 - held / n_rows))


def test_the_reservoir_of_some_rows_points_at_them() -> None:
    X = normal_rows(3000, 16)
    sketch = sketch_of(X, 4)
    rotated = sketch.sketcher.rotate(X)
    shuffled = np.random.default_rng(1).permutation(3000)[:1000]
    mask = X[:, 0] > 0
    chosen: list[Any] = [slice(500, 2500), slice(None, None, -3), shuffled, mask]
    for rows in chosen:
        part = sketch[rows]
        assert part.reservoir is not None
        assert 0 < len(part.reservoir.positions) < len(part)
        assert (np.diff(part.reservoir.positions) > 0).all()
        expected = rotated[rows][part.reservoir.positions]
        np.testing.assert_allclose(part.reservoir.rows, expected, rtol=0, atol=1e-12)


def test_a_row_that_is_taken_twice_is_held_twice() -> None:
    X = normal_rows(30, 16)
    part = sketch_of(X, 4)[[7, 7, 2, 7]]
    assert part.reservoir is not None
    np.testing.assert_array_equal(part.reservoir.positions, [0, 1, 2, 3])
    np.testing.assert_allclose(part.reservoir.rows, part.sketcher.rotate(X[[7, 7, 2, 7]]), rtol=0, atol=1e-12)


# -- parts of a sketch, and parts joined ------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        slice(None),
        slice(3, 17),
        slice(None, None, 3),
        slice(None, None, -1),
        slice(-5, None),
        slice(4, 4),
        np.arange(40) % 3 == 0,
        [True, False] * 20,
        np.array([5, 3, 3, -1]),
        [0],
        np.array([7], np.uint8),
        np.zeros(40, bool),
        np.array([], int),
        [],
        range(3, 9),
    ],
    ids=str,
)
def test_parts_of_a_sketch(rows: Any) -> None:
    sketch = sketch_of(normal_rows(40, 20))
    part = sketch[rows]
    which = rows if isinstance(rows, slice | np.ndarray) else np.array(rows, None if len(rows) else int)
    np.testing.assert_array_equal(part.values, sketch.values[which])
    np.testing.assert_array_equal(part.indices, sketch.indices[which])
    assert part.sketcher is sketch.sketcher
    assert len(part) == part.n_samples == len(sketch.values[which])
    assert not part.values.flags.writeable


@pytest.mark.parametrize("step", [2, -1, -3])
def test_statistics_of_parts_that_are_not_contiguous(step: int) -> None:
    sketch = sketch_of(normal_rows(90, 20))
    part = sketch[::step]
    packed = sm.Sketch(part.values.copy(), part.indices.copy(), part.sketcher)
    centers = normal_rows(3, 20, seed=1)
    np.testing.assert_array_equal(part.mean(), packed.mean())
    np.testing.assert_array_equal(part.distances(centers), packed.distances(centers))
    np.testing.assert_array_equal(part.distances(), packed.distances())


@pytest.mark.parametrize("layout", ["F", "every second column"])
@pytest.mark.parametrize("which", ["values", "indices"])
def test_a_sketch_of_arrays_whose_rows_are_not_contiguous(layout: str, which: str) -> None:
    sketch = sketch_of(normal_rows(50, 20))
    arrays = {"values": sketch.values, "indices": sketch.indices}
    given = arrays[which]
    if layout == "F":
        arrays[which] = np.asfortranarray(given)
    else:
        arrays[which] = np.repeat(given, 2, axis=1)[:, ::2]
    made = sm.Sketch(arrays["values"], arrays["indices"], sketch.sketcher)
    centers = normal_rows(3, 20, seed=1)
    np.testing.assert_array_equal(made.mean(), sketch.mean())
    np.testing.assert_array_equal(made.distances(centers), sketch.distances(centers))
    np.testing.assert_array_equal(made.to_csr().toarray(), sketch.to_csr().toarray())


def test_a_sketch_of_arrays_in_the_byte_order_of_another_machine() -> None:
    sketch = sketch_of(normal_rows(50, 20))
    made = sm.Sketch(sketch.values.astype(">f4"), sketch.indices.astype(">u2"), sketch.sketcher)
    np.testing.assert_array_equal(made.mean(), sketch.mean())


def test_a_sketch_of_arrays_has_no_reservoir_and_is_otherwise_the_same() -> None:
    sketch = sketch_of(normal_rows(50, 20))
    made = sm.Sketch(sketch.values, sketch.indices, sketch.sketcher)
    assert made.reservoir is None
    assert made[::2].reservoir is None
    np.testing.assert_array_equal(made.mean(), sketch.mean())
    assert (made.n_samples, made.n_features, made.sketch_size, made.nbytes) == (50, 20, 6, 50 * 6 * 6)


@every_transform
def test_parts_joined_are_the_whole(transform: str) -> None:
    X = normal_rows(3000, 36).astype(np.float32)
    sketcher = sm.Sketcher(5, transform=transform, n_shared=1, random_state=0).fit(X)
    whole = sketcher.transform(X)
    parts = [sketcher.transform(X[a:b], first_row=a) for a, b in pairwise([0, 1, 2, 1000, 2990, 3000])]
    assert_same_sketch(sm.concatenate(parts), whole)
    assert_same_sketch(sm.concatenate(part for part in parts), whole)  # type: ignore[arg-type]
    assert_same_sketch(sm.concatenate([sm.concatenate(parts[:3]), sm.concatenate(parts[3:])]), whole)


def test_parts_of_wide_rows_joined_are_the_whole() -> None:
    # 1024 rows are held of 3000; of each part at first a larger share.
    X = normal_rows(3000, 512)
    sketcher = sm.Sketcher(5, transform="none", random_state=0).fit(X)
    parts = [sketcher.transform(X[a:b], first_row=a) for a, b in pairwise([0, 200, 1700, 3000])]
    assert_same_sketch(sm.concatenate(parts), sketcher.transform(X))


def test_slices_joined_are_the_whole() -> None:
    sketch = sketch_of(normal_rows(3000, 16), 4)
    assert_same_sketch(sm.concatenate([sketch[:700], sketch[700:700], sketch[700:]]), sketch)
    assert_same_sketch(sm.concatenate([sketch]), sketch)


def test_the_reservoir_of_parts_joined_favours_none_of_them() -> None:
    # Of the first part's 5,000 rows about 1,000 are left in its reservoir; the second part has all of its 1,000.
    sketcher = sm.Sketcher(2, transform="none", random_state=0).fit(np.zeros((1, 4)))
    first = sketcher.transform(np.zeros((10_000, 4)))[:5000]
    second = sketcher.transform(np.zeros((1000, 4)), first_row=10_000)
    joined = sm.concatenate([first, second]).reservoir
    assert joined is not None
    # Rows are held for their small keys alone: none has a larger key than one that is missing.
    keys = row_keys(sketcher.seed_, np.r_[0:5000, 10_000:11_000])
    smallest = np.sort(np.argsort(keys)[: len(joined.positions)])
    np.testing.assert_array_equal(joined.positions, smallest)


def test_joining_with_a_sketch_of_no_rows() -> None:
    sketcher = sm.Sketcher(4, transform="none", random_state=0).fit(np.zeros((1, 16)))
    nothing = sketcher.transform(np.empty((0, 16)))
    sketch = sketcher.transform(normal_rows(30, 16))
    assert_same_sketch(sm.concatenate([nothing, sketch, nothing]), sketch)


def test_joining_sketches_of_which_one_has_no_reservoir() -> None:
    sketch = sketch_of(normal_rows(30, 16))
    bare = sm.Sketch(sketch.values, sketch.indices, sketch.sketcher)
    joined = sm.concatenate([sketch, bare])
    assert joined.reservoir is None
    assert len(joined) == 60


def test_sketches_of_equal_sketchers_can_be_joined() -> None:
    X = normal_rows(30, 16)
    one, other = sketch_of(X, random_state=4), sketch_of(X, random_state=4)
    assert one.sketcher is not other.sketcher
    assert len(sm.concatenate([one, other])) == 60


# -- other forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [20, 257])
def test_as_a_sparse_matrix(dtype: str, n: int) -> None:
    sketch = sketch_of(normal_rows(30, n), transform="hadamard", dtype=dtype)
    matrix = sketch.to_csr()
    dense = np.zeros((30, {20: 20, 257: 258}[n]))
    np.put_along_axis(dense, sketch.indices.astype(int), sketch.values.astype(float), axis=1)
    np.testing.assert_array_equal(matrix.toarray(), dense)
    assert matrix.nnz == 30 * 6
    assert matrix.has_sorted_indices
    assert matrix.dtype == np.dtype("float32" if dtype == "float16" else dtype)


def test_a_kept_zero_is_not_an_absent_entry() -> None:
    sketch = sketch_of(np.zeros((5, 20)), 6)
    assert sketch.to_csr().nnz == 30
    assert sketch[:0].to_csr().shape == (0, 20)


def test_the_sparse_matrix_does_not_open_the_sketch() -> None:
    sketch = sketch_of(normal_rows(5, 20))
    before = sketch.values.copy()
    matrix = sketch.to_csr()
    if matrix.data.flags.writeable:
        matrix.data[:] = 0
    np.testing.assert_array_equal(sketch.values, before)


def test_what_a_sketch_says_of_itself() -> None:
    sketch = sketch_of(normal_rows(30, 257), 6, transform="hadamard", dtype="float16")
    for word in ("30 rows", "6 of 258", "'hadamard'", "'float16'", "720 bytes"):
        assert word in repr(sketch)
    assert (len(sketch), sketch.n_samples, sketch.n_features, sketch.sketch_size) == (30, 30, 257, 6)
    assert sketch.scale == 258 / 6


copies = pytest.mark.parametrize(
    "copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy], ids=["pickle", "deep", "copy"]
)


@copies
@every_transform
def test_a_copied_sketcher_makes_the_same_sketch(copied: Callable[[Any], Any], transform: str) -> None:
    X = normal_rows(50, 40)
    sketcher = sm.Sketcher(6, transform=transform, n_shared=2, dtype="float16", random_state=0).fit(X)
    before = copied(sketcher).transform(X)  # no tables yet
    expected = sketcher.transform(X)
    after = copied(sketcher)
    assert_same_sketch(before, expected)
    assert_same_sketch(after.transform(X), expected)
    assert after.get_params() == sketcher.get_params()
    assert after.is_same_operator(sketcher)


def test_a_sketcher_can_be_copied_before_it_is_fitted() -> None:
    sketcher = pickle.loads(pickle.dumps(sm.Sketcher(6, transform="dct", random_state=0)))
    assert sketcher.get_params()["transform"] == "dct"
    assert len(sketcher.fit_transform(normal_rows(5, 20))) == 5


@copies
def test_a_copied_sketch_is_the_same(copied: Callable[[Any], Any]) -> None:
    sketch = sketch_of(normal_rows(50, 40))
    again = copied(sketch)
    assert_same_sketch(again, sketch)
    np.testing.assert_array_equal(again.mean(), sketch.mean())
    assert len(sm.concatenate([sketch, again])) == 100


@copies
def test_a_copied_sketch_is_as_read_only(copied: Callable[[Any], Any]) -> None:
    again = copied(sketch_of(normal_rows(50, 40)))
    assert not again.values.flags.writeable
    assert not again.indices.flags.writeable


def test_a_pickled_part_does_not_carry_the_whole() -> None:
    sketch = sketch_of(normal_rows(20_000, 40))
    part = sketch[:10]
    assert len(pickle.dumps(part)) < len(pickle.dumps(sketch)) / 20


# -- the parameter `transform` beside the method of that name ---------------------------------------------


def test_clone_has_the_same_parameters_and_no_fit() -> None:
    sketcher = sm.Sketcher(6, transform="dct", n_shared=1, dtype="float16", random_state=3)
    sketcher.fit(normal_rows(5, 20))
    cloned = clone(sketcher)
    expected = {"sketch_size": 6, "transform": "dct", "n_shared": 1, "dtype": "float16", "random_state": 3}
    assert cloned.get_params() == sketcher.get_params() == expected
    assert not hasattr(cloned, "signs_")
    assert cloned.fit(normal_rows(5, 20)).transform_ == "dct"


def test_set_params_changes_the_parameter_and_leaves_the_method() -> None:
    X = normal_rows(5, 20)
    sketcher = sm.Sketcher(6, random_state=0).set_params(transform="fourier", sketch_size=7)
    assert sketcher.get_params()["transform"] == "fourier"
    sketch = sketcher.fit(X).transform(X)
    assert sketch.sketcher.transform_ == "fourier"
    assert sketch.sketch_size == 7
    with pytest.raises(ValueError, match="Invalid parameter"):
        sketcher.set_params(rotation="dct")


def test_new_parameters_wait_for_the_next_fit() -> None:
    X = normal_rows(5, 20)
    sketcher = sm.Sketcher(6, transform="dct", random_state=0).fit(X)
    before = sketcher.transform(X)
    sketcher.set_params(transform="none", sketch_size=3, n_shared=2, random_state=9)
    assert_same_sketch(sketcher.transform(X), before)


def test_a_sketch_outlives_a_new_fit_of_its_sketcher() -> None:
    X = normal_rows(200, 24) + 3
    sketcher = sm.Sketcher(12)
    sketch = sketcher.fit_transform(X)
    mean, distances = sketch.mean(), sketch.distances(X[:2])
    other = sketcher.fit_transform(X)  # other signs and other masks
    np.testing.assert_array_equal(sketch.mean(), mean)
    np.testing.assert_array_equal(sketch.distances(X[:2]), distances)
    with pytest.raises(ValueError, match="another sketcher"):
        sm.concatenate([sketch, other])


def test_a_model_outlives_a_new_fit_of_its_sketcher() -> None:
    X = normal_rows(200, 24) + 3
    sketcher = sm.Sketcher(12)
    mixture = sm.GaussianMixture(2, tol=1.0, reg_covar=0.1, random_state=0).fit(sketcher.fit_transform(X))
    score = mixture.score(X)
    sketcher.fit(X)
    assert mixture.score(X) == score


def test_repr_shows_what_was_chosen() -> None:
    assert repr(sm.Sketcher()) == "Sketcher()"
    assert repr(sm.Sketcher(6, transform="dct")) == "Sketcher(sketch_size=6, transform='dct')"
    assert "dct" in sm.Sketcher(6, transform="dct")._repr_html_()


def test_in_a_pipeline() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    X = 4 * rng.normal(size=(2, 40))[y] + rng.normal(size=(300, 40))
    pipeline = make_pipeline(sm.Sketcher(10), sm.KMeans(2, random_state=0))
    pipeline.set_params(sketcher__transform="dct", sketcher__random_state=0)
    labels = pipeline.fit(X).predict(X)
    assert pipeline[0].transform_ == "dct"
    assert (labels == y).mean() in (0, 1)


# -- the mean ---------------------------------------------------------------------------------------------


def skewed_rows(n: int, width: int) -> Array:
    """Rows whose features differ in mean and spread and depend on each other."""
    rng = np.random.default_rng(7)
    X = rng.gamma(2.0, size=(n, width)) * np.linspace(0.2, 2, width) + np.linspace(-2, 3, width)
    X[:, 1:] += 0.5 * X[:, :-1]
    return X


def assert_unbiased(estimates: Array, truth: Array) -> None:
    """The mean of independent estimates is within 5 of its standard errors, by their own spread."""
    error = np.abs(estimates.mean(axis=0) - truth)
    standard_error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    assert (error <= 5 * standard_error + 1e-6 * (1 + np.abs(truth))).all()


@many_small_sketches
@every_transform
@pytest.mark.parametrize("n_shared", [0, 3, 5])
def test_mean_is_unbiased_and_knows_its_error(transform: str, n_shared: int) -> None:
    X = skewed_rows(1000, 24)
    means, errors = [], []
    for seed in range(250):
        sketch = sketch_of(X, 7, transform=transform, n_shared=n_shared, random_state=seed)
        mean, error = sketch.mean(return_std=True)
        means.append(mean)
        errors.append(error)
    truth = X.mean(axis=0)
    assert_unbiased(np.array(means), truth)
    uncertain = np.array(errors) > 1e-6  # a shared entry that is not mixed is exact
    z = ((np.array(means) - truth) / np.where(uncertain, errors, 1))[uncertain]
    assert 0.88 < (z**2).mean() < 1.12
    np.testing.assert_allclose(np.array(means)[~uncertain], np.tile(truth, (250, 1))[~uncertain], atol=1e-5)


@many_small_sketches
def test_mean_of_padded_rows_is_unbiased_and_knows_its_error() -> None:
    X = skewed_rows(150, 257)
    estimates = []
    z = []
    for seed in range(60):
        mean, error = sketch_of(X, 40, transform="hadamard", random_state=seed).mean(return_std=True)
        estimates.append(mean)
        z.append((mean - X.mean(axis=0)) / error)
    assert_unbiased(np.array(estimates), X.mean(axis=0))
    assert 0.85 < np.mean(np.square(z)) < 1.15


@every_transform
def test_mean_of_shared_entries_alone_is_a_projection(transform: str) -> None:
    X = skewed_rows(50, 24)
    sketch = sketch_of(X, 7, transform=transform, n_shared=7, dtype="float64")
    sketcher = sketch.sketcher
    rotated = np.zeros((1, 24))
    shared = sketcher.shared_indices_
    rotated[0, shared] = sketcher.rotate(X).mean(axis=0)[shared]
    np.testing.assert_allclose(sketch.mean(), sketcher.unrotate(rotated)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier"])
@pytest.mark.parametrize("sketch_size", [1, 7, 23])
def test_no_error_is_claimed_for_a_mean_of_shared_entries_alone(transform: str, sketch_size: int) -> None:
    # What was never kept may be anything, and it is a part of every feature.
    sketch = sketch_of(skewed_rows(50, 24), sketch_size, transform=transform, n_shared=sketch_size)
    assert np.isnan(sketch.mean(return_std=True)[1]).all()


def test_no_error_is_claimed_for_unmixed_features_that_are_never_kept() -> None:
    X = skewed_rows(50, 24)
    sketch = sketch_of(X, 7, transform="none", n_shared=7)
    shared = sketch.sketcher.shared_indices_
    mean, error = sketch.mean(return_std=True)
    np.testing.assert_allclose(mean[shared], X.mean(axis=0)[shared], rtol=1e-6)
    assert (error[shared] == 0).all()
    assert np.isnan(np.delete(error, shared)).all()


def test_no_error_is_claimed_for_unmixed_features_that_hardly_any_row_kept() -> None:
    # One number says nothing about its spread, and none still less.
    X = skewed_rows(40, 50)
    sketch = sketch_of(X, 2, transform="none")
    count = np.bincount(sketch.indices.ravel(), minlength=50)
    _, error = sketch.mean(return_std=True)
    assert (count == 0).any()
    assert (count == 1).any()
    assert (error[count > 1] > 0).all()
    assert not (error[count <= 1] == 0).any()


@every_transform
@pytest.mark.parametrize("n_shared", [0, 5, 24])
def test_mean_of_everything_is_exact(transform: str, n_shared: int) -> None:
    X = skewed_rows(50, 24)
    sketch = sketch_of(X, 24, transform=transform, n_shared=n_shared, dtype="float64")
    mean, error = sketch.mean(return_std=True)
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(error, 0, atol=1e-7)


@pytest.mark.parametrize("transform", ["none", "hadamard"])
def test_rounding_of_the_mean_is_far_below_its_standard_error(transform: str) -> None:
    # More than a million kept entries of a float32 sketch, with an offset that is large beside the spread.
    X = 1e5 + normal_rows(40_000, 64)
    sketch = sketch_of(X, 30, transform=transform)
    indices, values = sketch.indices.astype(int).ravel(), sketch.values.astype(float).ravel()
    by_coordinate = np.bincount(indices, weights=values) / np.bincount(indices)
    exact = sketch.sketcher.unrotate(by_coordinate[None])[0]
    mean, error = sketch.mean(return_std=True)
    assert (np.abs(mean - exact) < 0.1 * error).all()


def test_mean_alone_is_the_mean_with_its_error() -> None:
    sketch = sketch_of(skewed_rows(50, 24))
    np.testing.assert_array_equal(sketch.mean(), sketch.mean(return_std=True)[0])


# -- the variance -----------------------------------------------------------------------------------------


@many_small_sketches
@every_transform
@pytest.mark.parametrize("n_shared", [0, 3, 5])
def test_variance_is_unbiased(transform: str, n_shared: int) -> None:
    X = skewed_rows(120, 24)
    estimates = [
        sketch_of(X, 7, transform=transform, n_shared=n_shared, random_state=seed).variance()
        for seed in range(300)
    ]
    assert_unbiased(np.array(estimates), X.var(axis=0))


@many_small_sketches
@pytest.mark.parametrize("transform", ["hadamard", "none"])
def test_variance_is_unbiased_beside_a_large_offset(transform: str) -> None:
    X = 1e4 + normal_rows(100, 16)
    estimates = [
        sketch_of(X, 5, transform=transform, dtype="float64", random_state=seed).variance() for seed in range(300)
    ]
    assert_unbiased(np.array(estimates), X.var(axis=0))
    # The offset adds nothing to the noise: with 100 rows and 5 of 16 entries it is of the order of 1.
    assert np.std(estimates, axis=0).max() < 3


@many_small_sketches
def test_variance_is_unbiased_for_few_rows() -> None:
    X = skewed_rows(3, 12)
    estimates = [sketch_of(X, 4, transform="hadamard", random_state=seed).variance() for seed in range(2000)]
    assert_unbiased(np.array(estimates), X.var(axis=0))


@many_small_sketches
def test_variance_of_padded_rows_is_unbiased() -> None:
    X = skewed_rows(100, 257)
    estimates = [sketch_of(X, 60, transform="hadamard", random_state=seed).variance() for seed in range(60)]
    assert_unbiased(np.array(estimates), X.var(axis=0))


@many_small_sketches
def test_variance_of_arrays_joined_and_parts_is_unbiased() -> None:
    X = skewed_rows(100, 12)
    estimates = []
    for seed in range(300):
        sketch = sketch_of(X, 4, transform="dct", random_state=seed)
        joined = sm.concatenate([sketch[50:], sketch[:50]])
        bare = sm.Sketch(sketch.values, sketch.indices, sketch.sketcher)
        estimates.append([joined.variance(), bare.variance()])
    assert_unbiased(np.array(estimates), np.tile(X.var(axis=0), (2, 1)))


@every_transform
@pytest.mark.parametrize("n_shared", [0, 5, 23, 24])
@pytest.mark.parametrize("offset", [0, 1e4])
def test_variance_of_everything_is_exact(transform: str, n_shared: int, offset: float) -> None:
    X = offset + skewed_rows(50, 24)
    sketch = sketch_of(X, 24, transform=transform, n_shared=n_shared, dtype="float64")
    np.testing.assert_allclose(sketch.variance(), X.var(axis=0), rtol=1e-9)


@many_small_sketches
def test_variance_of_one_unmixed_entry_is_unbiased() -> None:
    X = skewed_rows(100, 6)
    estimates = [sketch_of(X, 1, transform="none", random_state=seed).variance() for seed in range(400)]
    assert_unbiased(np.array(estimates), X.var(axis=0))


@pytest.mark.parametrize(("sketch_size", "n_shared"), [(1, 0), (6, 5), (6, 6)])
@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier"])
def test_variance_of_mixed_rows_needs_two_free_entries(transform: str, sketch_size: int, n_shared: int) -> None:
    sketch = sketch_of(normal_rows(20, 24), sketch_size, transform=transform, n_shared=n_shared)
    with pytest.raises(ValueError, match=r"at least 2 entries .* larger sketch_size"):
        sketch.variance()


def test_variance_of_unmixed_features_that_are_never_kept_is_not_zero() -> None:
    X = skewed_rows(50, 24)
    sketch = sketch_of(X, 7, transform="none", n_shared=7)
    with pytest.raises(ValueError, match="shared"):
        sketch.variance()


# -- the covariance ---------------------------------------------------------------------------------------


def dense_frame(sketcher: sm.Sketcher) -> Array:
    """H D as a matrix, (n_rotated, n_features)."""
    return sketcher.rotate(np.eye(sketcher.n_features_in_)).T


@every_transform
@pytest.mark.parametrize("n_shared", [0, 2, 3])
@pytest.mark.parametrize("bare", [False, True])
def test_covariance_is_that_of_a_loop(transform: str, n_shared: int, bare: bool) -> None:
    sketch = sketch_of(skewed_rows(20, 12), 5, transform=transform, n_shared=n_shared, dtype="float64")
    reservoir = sketch.reservoir
    assert reservoir is not None
    centre = reservoir.rows.mean(axis=0)
    if bare:
        sketch, centre = sm.Sketch(sketch.values, sketch.indices, sketch.sketcher), np.zeros(12)
    shared = sketch.sketcher.shared_indices_.tolist()
    expected = reference.covariance(sketch.values, sketch.indices, shared, centre, dense_frame(sketch.sketcher))
    np.testing.assert_allclose(sketch.covariance(), expected, rtol=1e-9, atol=1e-10)


def test_covariance_of_padded_rows_is_that_of_a_loop() -> None:
    sketch = sketch_of(skewed_rows(10, 257), 9, transform="hadamard", n_shared=2, dtype="float64")
    bare = sm.Sketch(sketch.values, sketch.indices, sketch.sketcher)
    frame, shared = dense_frame(sketch.sketcher), sketch.sketcher.shared_indices_.tolist()
    assert frame.shape == (258, 257)
    expected = reference.covariance(sketch.values, sketch.indices, shared, np.zeros(258), frame)
    np.testing.assert_allclose(bare.covariance(), expected, rtol=1e-9, atol=1e-8)


@many_small_sketches
@every_transform
@pytest.mark.parametrize("n_shared", [0, 3, 5])
def test_covariance_is_unbiased(transform: str, n_shared: int) -> None:
    X = skewed_rows(100, 12)
    estimates = [
        sketch_of(X, 7, transform=transform, n_shared=n_shared, random_state=seed).covariance()
        for seed in range(300)
    ]
    assert_unbiased(np.array(estimates), np.cov(X.T, bias=True))


@many_small_sketches
def test_covariance_is_unbiased_for_few_rows() -> None:
    X = skewed_rows(3, 8)
    estimates = [sketch_of(X, 4, transform="hadamard", random_state=seed).covariance() for seed in range(2000)]
    assert_unbiased(np.array(estimates), np.cov(X.T, bias=True))


@many_small_sketches
def test_covariance_of_padded_rows_is_unbiased() -> None:
    X = skewed_rows(60, 257)
    estimates = [sketch_of(X, 60, transform="hadamard", random_state=seed).covariance() for seed in range(60)]
    # Of 66,000 entries some are beyond 5 standard errors that 60 estimates give: their squares tell as well.
    errors = np.mean(estimates, axis=0) - np.cov(X.T, bias=True)
    z = errors / (np.std(estimates, axis=0, ddof=1) / np.sqrt(60))
    assert 0.9 < (z**2).mean() < 1.2
    assert abs(z.mean()) < 0.1


@every_transform
@pytest.mark.parametrize("n_shared", [0, 5, 23, 24])
@pytest.mark.parametrize("offset", [0, 1e4])
def test_covariance_of_everything_is_exact(transform: str, n_shared: int, offset: float) -> None:
    X = offset + skewed_rows(50, 24)
    sketch = sketch_of(X, 24, transform=transform, n_shared=n_shared, dtype="float64")
    np.testing.assert_allclose(sketch.covariance(), np.cov(X.T, bias=True), rtol=1e-8, atol=1e-8)


@every_transform
@pytest.mark.parametrize("n_shared", [0, 4])
@pytest.mark.parametrize("n", [1, 40, 1500])
def test_covariance_has_the_variances_on_its_diagonal(transform: str, n_shared: int, n: int) -> None:
    sketch = sketch_of(skewed_rows(n, 257), 40, transform=transform, n_shared=n_shared)
    covariance = sketch.covariance()
    np.testing.assert_array_equal(covariance, covariance.T)
    np.testing.assert_allclose(covariance.diagonal(), sketch.variance(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("sketch_size", "n_shared"), [(1, 0), (6, 5), (6, 6)])
@every_transform
def test_covariance_needs_two_free_entries(transform: str, sketch_size: int, n_shared: int) -> None:
    sketch = sketch_of(normal_rows(20, 24), sketch_size, transform=transform, n_shared=n_shared)
    keeps = f"this sketch keeps {sketch_size - n_shared}. Sketch with a larger sketch_size, or a smaller n_shared"
    with pytest.raises(ValueError, match=keeps):
        sketch.covariance()


def test_statistics_of_no_rows_are_refused() -> None:
    nothing = sketch_of(normal_rows(5, 24))[:0]
    statistics: list[Callable[[], Any]] = [
        nothing.mean,
        nothing.variance,
        nothing.covariance,
        lambda: nothing.mean(return_std=True),
    ]
    for statistic in statistics:
        with pytest.raises(ValueError, match="0 rows"):
            statistic()


# -- distances --------------------------------------------------------------------------------------------


@every_transform
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_distances_to_centers_are_those_of_a_loop(transform: str, dtype: str) -> None:
    X, centers = skewed_rows(30, 24), skewed_rows(7, 24)[2:] + 1
    sketch = sketch_of(X, 7, transform=transform, dtype=dtype)
    rotated = sketch.sketcher.rotate(centers)
    expected = np.zeros((30, 5))
    for i in range(30):
        for m in range(5):
            for value, p in zip(sketch.values[i], sketch.indices[i], strict=True):
                expected[i, m] += (float(value) - rotated[m, p]) ** 2 * 24 / 7
    np.testing.assert_allclose(sketch.distances(centers), expected, rtol=1e-10)


@many_small_sketches
@every_transform
def test_distances_to_centers_are_unbiased(transform: str) -> None:
    X, centers = skewed_rows(8, 24), skewed_rows(3, 24) + 1
    truth = ((X[:, None] - centers) ** 2).sum(axis=2)
    estimates = [sketch_of(X, 6, transform=transform, random_state=seed).distances(centers) for seed in range(400)]
    assert_unbiased(np.array(estimates), truth)


@many_small_sketches
def test_distances_of_padded_rows_are_unbiased() -> None:
    X, centers = skewed_rows(4, 257), skewed_rows(2, 257) + 1
    truth = ((X[:, None] - centers) ** 2).sum(axis=2)
    estimates = [
        sketch_of(X, 30, transform="hadamard", random_state=seed).distances(centers) for seed in range(300)
    ]
    assert_unbiased(np.array(estimates), truth)


@every_transform
def test_distances_of_everything_are_exact(transform: str) -> None:
    X, centers = skewed_rows(30, 24), skewed_rows(4, 24) + 1
    sketch = sketch_of(X, 24, transform=transform, dtype="float64")
    truth = ((X[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_allclose(sketch.distances(centers), truth, rtol=1e-11)
    between = ((X[:, None] - X) ** 2).sum(axis=2)
    np.testing.assert_allclose(sketch.distances(), between, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [np.asfortranarray, sp.csr_array, pd.DataFrame, lambda X: X.tolist()])
def test_centers_of_every_kind(make: Callable[[Array], Any]) -> None:
    X = normal_rows(20, 12)
    sketch = sketch_of(X)
    np.testing.assert_allclose(sketch.distances(make(X[:3])), sketch.distances(X[:3]), rtol=1e-12)


def test_the_distance_of_a_row_to_itself_is_not_negative() -> None:
    X = np.random.default_rng(0).integers(0, 9, size=(5, 40)).astype(float)
    for sketch_size in range(1, 41):
        sketch = sketch_of(X, sketch_size, transform="none", dtype="float64")
        distances = sketch.distances(X)
        np.testing.assert_allclose(distances.diagonal(), 0, atol=1e-12)
        assert (distances >= 0).all()


def test_distances_of_a_large_sketch_are_those_of_float32() -> None:
    # Beyond a million kept entries times centers the kernel computes in float32.
    X, centers = 100 + normal_rows(20_000, 32), 100 + normal_rows(8, 32, seed=1)
    sketch = sketch_of(X, 16)
    rotated = sketch.sketcher.rotate(centers)
    gaps = sketch.values[:, None, :].astype(float) - taken(
        np.broadcast_to(rotated, (20_000, 8, 32)).reshape(-1, 32), np.repeat(sketch.indices, 8, axis=0)
    ).reshape(20_000, 8, 16)
    np.testing.assert_allclose(sketch.distances(centers), (gaps**2).sum(axis=2) * 2, rtol=1e-4)


@every_transform
@pytest.mark.parametrize("sketch_size", [2, 8])
def test_distances_between_rows_are_those_of_a_loop(transform: str, sketch_size: int) -> None:
    X = skewed_rows(25, 24)
    sketch = sketch_of(X, sketch_size, transform=transform, dtype="float64")
    rows = [
        dict(zip(kept, x, strict=True)) for kept, x in zip(sketch.indices.tolist(), sketch.values, strict=True)
    ]
    expected = np.full((25, 25), np.nan)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            common = a.keys() & b.keys()
            if common:
                expected[i, j] = sum((a[p] - b[p]) ** 2 for p in common) * 24 / len(common)
    assert sketch_size == 8 or np.isnan(expected).any()
    np.testing.assert_allclose(sketch.distances(), expected, rtol=1e-9, atol=1e-9)


def test_distances_between_rows_are_a_metric_square() -> None:
    distances = sketch_of(1e3 + normal_rows(60, 30), 20, dtype="float16").distances()
    np.testing.assert_array_equal(distances, distances.T)
    np.testing.assert_allclose(distances.diagonal(), 0, atol=1e-6)
    assert (distances >= 0).all()


@many_small_sketches
def test_distances_between_rows_are_unbiased() -> None:
    # Most pairs of masks overlap: given that they do, the mean over the overlap is unbiased.
    X = skewed_rows(4, 10)
    truth = ((X[:, None] - X) ** 2).sum(axis=2)
    estimates = [
        sketch_of(X, 6, transform="hadamard", dtype="float64", random_state=seed).distances()
        for seed in range(400)
    ]
    assert_unbiased(np.array(estimates), truth)


def test_zeros_count_in_distances_between_rows() -> None:
    X = np.array([[0.0, 0, 0], [1, 2, 3], [0, 0, 0]])
    sketch = sketch_of(X, 3, transform="none")
    np.testing.assert_allclose(sketch.distances(), [[0, 14, 0], [14, 0, 14], [0, 14, 0]], atol=1e-12)


def test_distances_of_no_rows() -> None:
    sketch = sketch_of(normal_rows(5, 24))[:0]
    assert sketch.distances(np.zeros((3, 24))).shape == (0, 3)
    assert sketch_of(normal_rows(5, 24)).distances(np.zeros((0, 24))).shape == (5, 0)
    assert sketch.distances().shape == (0, 0)
