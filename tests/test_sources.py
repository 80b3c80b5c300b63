"""Every source gives the rows that it was made of, from any row on, in batches of bounded bytes."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from sketchmix import PCA, GaussianMixture, KMeans, sources
from sketchmix.sources import Source, source_of

Array = NDArray[Any]
Maker = Callable[[Path, Array], Source]


# -- one maker for each kind of source --------------------------------------------------------------------


def uneven_batches(X: Array) -> list[Array]:
    """One row, no row, two rows, and the others."""
    return np.split(X, [1, 1, 3])


def of_npy(folder: Path, X: Array) -> Source:
    np.save(folder / "X.npy", X)
    return sources.npy(folder / "X.npy")


def of_raw(folder: Path, X: Array) -> Source:
    (folder / "X.bin").write_bytes(b"four" + X.tobytes())
    return sources.raw(folder / "X.bin", X.shape[1], X.dtype, offset=4)


def lists(X: Array, kind: Any = None) -> Any:
    entries = pa.array(X.ravel())
    if kind is None:
        return pa.FixedSizeListArray.from_arrays(entries, X.shape[1])
    return kind.from_arrays(np.arange(len(X) + 1) * X.shape[1], entries)


def of_parquet(folder: Path, X: Array, kind: Any = None) -> Source:
    table = pa.table({"number": np.arange(len(X)), "embedding": lists(X, kind)})
    pq.write_table(table, folder / "X.parquet", row_group_size=4)
    return sources.parquet(folder / "X.parquet")


def of_parquet_files(folder: Path, X: Array) -> Source:
    """Columns of several files, one of which has no row."""
    for number, part in enumerate(uneven_batches(X)):
        columns = {f"c{j}": part[:, j] for j in range(X.shape[1])}
        pq.write_table(
            pa.table({"text": ["a"] * len(part), **columns}), folder / f"{number}.parquet", row_group_size=2
        )
    return sources.parquet(folder)


def of_zarr(folder: Path, X: Array, **how: Any) -> Source:
    zarr.create_array(folder / "X.zarr", data=X, **how)
    return sources.zarr(folder / "X.zarr")


def of_hdf5(folder: Path, X: Array, **how: Any) -> Source:
    with h5py.File(folder / "X.h5", "w") as file:
        file.create_dataset("group/X", data=X, **how)
        file["labels"] = np.arange(3)
    return sources.hdf5(folder / "X.h5")


def of_csv(folder: Path, X: Array, header: bool = True) -> Source:
    names = pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    names.to_csv(folder / "X.csv", index=False, header=header)
    return sources.csv(folder / "X.csv", header=header)


MAKERS: dict[str, Maker] = {
    "array": lambda _, X: sources.array(X),
    "transposed": lambda _, X: sources.array(np.asfortranarray(X)),
    "pandas": lambda _, X: sources.array(pd.DataFrame(X)),
    "polars": lambda _, X: sources.array(pl.DataFrame(X)),
    "sparse": lambda _, X: source_of(scipy.sparse.coo_array(X)),
    "batches": lambda _, X: sources.batches(uneven_batches(X)),
    "generator": lambda _, X: sources.batches(batch for batch in uneven_batches(X)),
    "frames": lambda _, X: sources.batches([pd.DataFrame(batch) for batch in uneven_batches(X)]),
    "npy": of_npy,
    "npy of columns": lambda folder, X: of_npy(folder, np.asfortranarray(X)),
    "npy of other bytes": lambda folder, X: of_npy(folder, X.astype(X.dtype.newbyteorder(">"))),
    "raw": of_raw,
    "parquet of fixed lists": of_parquet,
    "parquet of lists": lambda folder, X: of_parquet(folder, X, pa.ListArray),
    "parquet of large lists": lambda folder, X: of_parquet(folder, X, pa.LargeListArray),
    "parquet of columns": of_parquet_files,
    "zarr": lambda folder, X: of_zarr(folder, X, chunks=(3, 2)),
    "zarr of shards": lambda folder, X: of_zarr(folder, X, chunks=(2, 2), shards=(4, 4)),
    "hdf5": of_hdf5,
    "hdf5 of chunks": lambda folder, X: of_hdf5(folder, X, chunks=(3, 1), maxshape=(None, None)),
    "csv": of_csv,
    "csv without header": lambda folder, X: of_csv(folder, X, header=False),
}
KINDS = pytest.mark.parametrize("maker", [pytest.param(maker, id=name) for name, maker in MAKERS.items()])
# What keeps the type of the numbers, and gives arrays.
EXACT = [
    name for name in MAKERS if name not in ("pandas", "polars", "sparse", "frames", "csv", "csv without header")
]


def numbers(n: int, p: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(n + p).integers(0, 100, size=(n, p)).astype(dtype)


def dense(batch: Any) -> Array:
    return batch.toarray() if hasattr(batch, "toarray") else np.asarray(batch)


def joined(source: Source, first_row: int = 0, n_features: int = 1) -> Array:
    batches = [dense(batch) for batch in source.batches(first_row)]
    assert all(len(batch) for batch in batches)
    return np.concatenate(batches) if batches else np.empty((0, n_features))


@pytest.fixture(params=[1, 50, 2**24])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", request.param)
    return int(request.param)


# -- rows -------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(("n", "p"), [(23, 5), (7, 1), (1, 3), (1, 1)])
def test_rows_from_any_row_on(maker: Maker, n: int, p: int, tmp_path: Path, batch_bytes: int) -> None:
    X = numbers(n, p)
    for folder, first_row in enumerate(sorted({0, 1, 2, 4, n // 2, n - 1, n} & set(range(n + 1)))):
        (tmp_path / str(folder)).mkdir()
        source = maker(tmp_path / str(folder), X)
        assert source.n_rows in (n, None)
        assert source.n_features in (p, None)
        assert_array_equal(joined(source, first_row, p), X[first_row:])


@KINDS
def test_no_rows(maker: Maker, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    try:
        source = maker(tmp_path, numbers(0, 3))
    except ValueError as error:
        # Without a header, or a list, nobody could tell the features.
        assert "Empty CSV file" in str(error)  # noqa: PT017
        return
    assert source.n_features in (3, None)
    with pytest.raises(ValueError, match="first_row=1, but the source has 0 rows"):
        list(source.batches(first_row=1))
    assert list(maker(tmp_path / "again", numbers(0, 3)).batches()) == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64", "bool"])
@pytest.mark.parametrize("name", EXACT)
def test_numbers_keep_their_type(name: str, dtype: str, tmp_path: Path) -> None:
    X = numbers(9, 4, dtype)
    batches = list(MAKERS[name](tmp_path, X).batches(first_row=2))
    assert {batch.dtype.newbyteorder("=") for batch in batches} == {X.dtype}
    assert_array_equal(np.concatenate(batches), X[2:])


@KINDS
def test_a_row_behind_the_last(maker: Maker, tmp_path: Path) -> None:
    source = maker(tmp_path, numbers(5, 2))
    with pytest.raises(ValueError, match="first_row=6, but the source has 5 rows; start at one of them"):
        list(source.batches(first_row=6))


@pytest.mark.parametrize("first_row", [-1, 1.5, True, None])
def test_no_row_at_all(first_row: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="first_row must be"):
        sources.array(numbers(5, 2)).batches(first_row)


@KINDS
def test_bytes_of_a_batch_are_bounded(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 400)
    X = numbers(200, 5)
    source = maker(tmp_path, X)
    heights = [batch.shape[0] for batch in source.batches()]
    # 400 bytes are 20 rows of float32 or 10 of what a frame or a text holds; what is mapped is not held.
    assert max(heights) <= 20 * getattr(source, "BATCHES_AT_A_TIME", 1)
    assert len(heights) <= 2 * 200 / 10


@pytest.mark.parametrize("name", ["npy", "raw"])
def test_a_window_is_a_small_mapping(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 2**14)
    X = numbers(40_000, 8)
    source = MAKERS[name](tmp_path, X)
    for batch in source.batches(first_row=3):
        assert isinstance(batch, np.memmap)
        assert len(batch.base) <= 2**14 + 2**16  # type: ignore[arg-type]
    assert_array_equal(joined(source, 3), X[3:])


def test_a_large_file_in_a_small_address_space(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    assert resource
    path = tmp_path / "X.f32"
    with path.open("wb") as file:
        file.truncate(2**29)
    code = f"""
import resource
from pathlib import Path
from sketchmix import sources
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 3 * 2**27  # three windows, and what a thread of malloc reserves
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
source = sources.raw({str(path)!r}, 1024)
print(sum(len(batch) + int(batch[-1, -1]) for batch in sources.prefetched(source.batches())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{2**17}\n"


def test_a_large_row_group_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 2**16)
    X = np.random.default_rng(0).normal(size=(30_000, 128)).astype(np.float32)  # 15 MB
    pq.write_table(pa.table({"x": lists(X)}), tmp_path / "X.parquet", row_group_size=len(X))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in sources.parquet(tmp_path / "X.parquet").batches()]
    assert len(held) == -(-len(X) // 128)
    assert max(held) < 6 * 2**20


def test_row_groups_before_the_row_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "X.parquet"
    X = numbers(4000, 8)
    pq.write_table(pa.table({"x": lists(X)}), path, row_group_size=1000, compression="none", use_dictionary=False)
    source = sources.parquet(path)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    damaged = bytearray(path.read_bytes())
    start = chunk.data_page_offset
    damaged[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(damaged)
    assert_array_equal(joined(source, 2500), X[2500:])
    with pytest.raises(OSError, match=r"page header|thrift"):
        joined(source, 1500)


def test_floats_of_lists_are_not_copied(tmp_path: Path) -> None:
    batch = next(of_parquet(tmp_path, numbers(6, 4)).batches())
    assert not batch.flags.owndata
    assert not batch.flags.writeable


def test_whole_chunks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = numbers(20, 2)  # rows of 8 bytes
    source = of_hdf5(tmp_path, X, chunks=(3, 2))

    def heights(batch_bytes: int, first_row: int = 0) -> list[int]:
        monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", batch_bytes)
        return [len(batch) for batch in source.batches(first_row)]

    assert heights(8 * 8) == [6, 6, 6, 2]
    assert heights(8 * 8, first_row=4) == [2, 6, 6, 2]
    assert heights(8 * 2, first_row=4) == [2, 3, 3, 3, 3, 2]  # a chunk is up to two batches
    assert heights(8 * 1, first_row=17) == [1, 1, 1]


# -- batches ----------------------------------------------------------------------------------------------


def test_an_iterator_is_read_once() -> None:
    source = sources.batches(iter([numbers(3, 2)]))
    assert len(joined(source)) == 3
    with pytest.raises(ValueError, match="was read already, and can be read once only; make a new source"):
        source.batches()


def test_a_list_is_read_again() -> None:
    source = sources.batches([numbers(3, 2)])
    assert_array_equal(joined(source), joined(source))


def test_a_batch_with_other_features_is_named() -> None:
    source = sources.batches([numbers(3, 2), numbers(0, 5), numbers(1, 4)])
    with pytest.raises(ValueError, match="batch 2 has 4 features, but those before it have 2"):
        joined(source)


def test_a_batch_of_another_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"batch 1 has shape \(3,\); expected \(n_samples, n_features\)"):
        joined(sources.batches([numbers(3, 2), np.zeros(3)]))


# -- Parquet ----------------------------------------------------------------------------------------------


def parquet_file(folder: Path, name: str = "X.parquet", **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / name, row_group_size=2)
    return folder / name


def test_columns_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, a=[1, 2, 3], text=["x", "y", "z"], b=[0.5, 1.5, 2.5], c=[True, False, True])
    assert_array_equal(joined(sources.parquet(path)), [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]])
    assert_array_equal(joined(sources.parquet(path, ["b", "a"])), [[0.5, 1], [1.5, 2], [2.5, 3]])
    assert_array_equal(joined(sources.parquet(path, "b")), [[0.5], [1.5], [2.5]])


def test_files_of_folders_and_patterns_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for number, name in enumerate(["b.parquet", "a.pq", "deeper/c.parquet"]):
        parquet_file(tmp_path, name, x=[number])
    (tmp_path / "notes.txt").touch()
    for hidden in ("_temporary/d.parquet", ".e.parquet"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        parquet_file(tmp_path, hidden, x=[-1])
    b, a, c = (tmp_path / name for name in ("b.parquet", "a.pq", "deeper/c.parquet"))
    assert joined(sources.parquet(tmp_path)).ravel().tolist() == [1, 0, 2]
    assert joined(sources.parquet(str(tmp_path / "*.p*"))).ravel().tolist() == [1, 0]
    assert joined(sources.parquet(tmp_path / "**" / "*.parquet")).ravel().tolist() == [0, 2]
    assert joined(sources.parquet([b, str(a), c])).ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "wanted", "message"),
    [
        ({"x": [1, 2, None]}, None, "column 'x' is null in row 2"),
        ({"x": [[1.0], None, [2.0]]}, None, "column 'x' is null in row 1"),
        ({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, None]]}, None, "column 'x' is null in row 2"),
        ({"x": [None, [1.0]]}, None, "column 'x' is null in row 0"),
        ({"x": [[1.0], [2.0], [3.0, 4.0]]}, None, "column 'x' has a list of length 2 in row 2; expected 1"),
        ({"x": [[1.0]], "y": [[1.0]]}, None, r"has 2 columns of lists of numbers \('x', 'y'\)"),
        ({"x": pa.array([[], []], pa.list_(pa.float32()))}, None, r"has shape \(2, 0\); expected at least one"),
        ({"x": ["a"]}, None, r"has 0 columns of lists of numbers \(\) and 0 of numbers; name those to read"),
        ({"x": ["a"]}, "x", "column 'x' of .*parquet is string; expected numbers, or lists of numbers"),
        ({"x": [["a"]]}, "x", "column 'x' of .*parquet is list"),
        ({"x": [1]}, "y", "columns must be one of 'x'; got 'y'"),
        ({"x": [1]}, [], "columns is empty"),
        ({"x": [[1.0]], "y": [1]}, ["x", "y"], "column 'x' of .*parquet holds lists; read it alone"),
    ],
)
def test_columns_that_are_no_rows(columns: Any, wanted: Any, message: str, tmp_path: Path) -> None:
    path = parquet_file(tmp_path, **columns)
    with pytest.raises(ValueError, match=message):
        joined(sources.parquet(path, wanted))


def test_a_row_is_named_by_its_number_in_all_files(tmp_path: Path) -> None:
    files = [
        parquet_file(tmp_path, "a.parquet", x=[1, 2, 3]),
        parquet_file(tmp_path, "b.parquet", x=[4, 5, 6, None]),
    ]
    with pytest.raises(ValueError, match="column 'x' is null in row 6"):
        joined(sources.parquet(files), first_row=4)


def test_every_file_must_have_the_columns(tmp_path: Path) -> None:
    files = [parquet_file(tmp_path, "a.parquet", x=[1]), parquet_file(tmp_path, "b.parquet", y=[1])]
    with pytest.raises(ValueError, match=r"column 'x' of .*b\.parquet is missing"):
        sources.parquet(files)


def test_no_files(tmp_path: Path) -> None:
    several: list[Any] = [tmp_path, str(tmp_path / "*.parquet"), []]
    for paths in several:
        with pytest.raises(ValueError, match="no Parquet files are at"):
            sources.parquet(paths)


# -- CSV --------------------------------------------------------------------------------------------------


def test_numbers_may_get_fractions_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.arrow.LONGEST_LINE", 100)
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 100)
    path = tmp_path / "X.csv"
    path.write_text("a,b\n" + 100 * "1,2\n" + "1.5,1e-3\n")
    assert joined(sources.csv(path))[-2:].tolist() == [[1, 2], [1.5, 1e-3]]


def test_columns_of_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "X.csv"
    path.write_text("a,text,b\n1,x,2\n3,y,4\n")
    assert joined(sources.csv(path, ["b", "a"])).tolist() == [[2, 1], [4, 3]]
    path.write_text("1,x,2\n3,y,4\n")
    assert joined(sources.csv(path, "f2", header=False)).tolist() == [[2], [4]]
    with pytest.raises(ValueError, match="columns must be one of '1', 'x', '2'; got 'a'"):
        sources.csv(path, "a")


def test_a_first_line_that_is_a_row(tmp_path: Path) -> None:
    path, X = tmp_path / "X.csv", numbers(5, 3)
    np.savetxt(path, X, delimiter=",")
    with pytest.raises(
        ValueError, match=r"X\.csv has numbers such as '.*' in place of names; give header=False if"
    ):
        sources.csv(path)
    assert_allclose(joined(sources.csv(path, header=False)), X)
    path.write_text("0,7,0\n1,2,3\n")
    with pytest.raises(ValueError, match=r"X\.csv has several times '0' in place of names; give header=False"):
        sources.csv(path)
    assert joined(sources.csv(path, header=False)).tolist() == [[0, 7, 0], [1, 2, 3]]
    path.write_text("0,1,2\n1.5,2,3\n")  # as pandas counts columns
    assert joined(sources.csv(path)).tolist() == [[1.5, 2, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"X\.csv has something else than rows of numbers: .*Row #3: .*'x'"),
        ("a,b\n1,2\n3\n", r"X\.csv has something else than rows of numbers: .*Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,\n", "column 'b' is null in row 1"),
        ("", r"X\.csv has something else than rows of numbers: Empty CSV file"),
    ],
)
def test_text_that_is_no_rows(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        joined(sources.csv(tmp_path / "X.csv"))


# -- .npy and raw files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros(3), ValueError, r"X\.npy has shape \(3,\); expected \(n_samples, n_features\)"),
        (np.zeros((3, 0)), ValueError, r"X\.npy has shape \(3, 0\); expected at least one feature"),
        (np.zeros((2, 2), complex), TypeError, r"X\.npy holds entries of type complex128; expected real numbers"),
        (np.array([[{}]], object), TypeError, r"X\.npy holds entries of type object"),
        (np.zeros((2, 2), [("é", float)]), TypeError, r"X\.npy holds entries of type"),
        (np.zeros((2, 2), [("名", float)]), ValueError, r"X\.npy is not a \.npy file of numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_an_npy_file_of_something_else(array: Array, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        of_npy(tmp_path, array)


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    of_npy(tmp_path, numbers(4, 2))
    path = tmp_path / "X.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="has 159 bytes, but its header tells of 160; copy or write it again"):
        sources.npy(path)
    path.write_bytes(b"\x93NUMPY\x01")
    with pytest.raises(ValueError, match=r"is not a \.npy file of numbers: .*Write it with numpy\.save"):
        sources.npy(path)


def test_bytes_that_are_no_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "X.f32"
    path.write_bytes(bytes(50))
    assert sources.raw(path, 3, offset=2).n_rows == 4
    with pytest.raises(
        ValueError, match=r"has 50 bytes from the offset on, .* no whole number of rows of 12 bytes"
    ):
        sources.raw(path, 3)
    with pytest.raises(ValueError, match="has -1 bytes from the offset on"):
        sources.raw(path, 3, offset=51)
    with pytest.raises(ValueError, match="n_features must be at least 1; got 0"):
        sources.raw(path, 0)
    with pytest.raises(TypeError, match="holds entries of type <U0; expected real numbers"):
        sources.raw(path, 3, dtype=str)


def test_bytes_have_the_lowest_first(tmp_path: Path) -> None:
    path = tmp_path / "X.bin"
    path.write_bytes(bytes([1, 0, 2, 0]))
    assert joined(sources.raw(path, 2, "uint16")).tolist() == [[1, 2]]
    assert joined(sources.raw(path, 2, ">u2")).tolist() == [[256, 512]]


# -- arrays in groups -------------------------------------------------------------------------------------


def test_data_sets_of_a_file_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "X.h5"
    with h5py.File(path, "w") as file:
        file["b/y"], file["a"], file["n"] = numbers(3, 2), numbers(4, 2), np.arange(3)
    with pytest.raises(
        ValueError, match=r"the two-dimensional data sets 'a', 'b/y'; expected one\. Name one .*hdf5\("
    ):
        sources.hdf5(path)
    with pytest.raises(ValueError, match="the two-dimensional data sets 'a', 'b/y'; expected 'n'"):
        sources.hdf5(path, "n")
    assert_array_equal(joined(sources.hdf5(path, "/b/y")), numbers(3, 2))


def test_arrays_of_a_group_are_listed(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "X.zarr")
    group.create_array("deep/a", data=numbers(4, 2))
    assert_array_equal(joined(sources.zarr(str(tmp_path / "X.zarr"))), numbers(4, 2))
    group.create_array("b", data=numbers(3, 2))
    with pytest.raises(ValueError, match=r"the two-dimensional data sets 'b', 'deep/a'; expected one\. .*zarr\("):
        sources.zarr(tmp_path / "X.zarr")
    assert_array_equal(joined(sources.zarr(group, "b")), numbers(3, 2))


@pytest.mark.parametrize("maker", [of_zarr, of_hdf5])
def test_an_array_of_something_else(maker: Maker, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="holds entries of type complex64; expected real numbers"):
        maker(tmp_path, numbers(3, 2, "complex64"))


# -- which source something is ----------------------------------------------------------------------------


@KINDS
def test_a_source_is_its_own_source(maker: Maker, tmp_path: Path) -> None:
    source = maker(tmp_path, numbers(3, 2))
    assert source_of(source) is source


@pytest.mark.parametrize(
    "make",
    [
        lambda X: X,
        lambda X: X.tolist(),
        tuple,
        pd.DataFrame,
        pl.DataFrame,
        scipy.sparse.csc_array,
        lambda X: [X[:2], X[2:]],
        lambda X: (X[:2], pd.DataFrame(X[2:])),
        lambda X: iter([scipy.sparse.csr_array(X)]),
        lambda X: zarr.create_array({}, data=X),
    ],
)
def test_the_source_of_things(make: Callable[[Array], Any]) -> None:
    X = numbers(7, 3)
    assert_array_equal(joined(source_of(make(X))), X)


@pytest.mark.parametrize("name", ["npy", "parquet of lists", "parquet of columns", "zarr", "hdf5", "csv"])
def test_the_source_of_a_path(name: str, tmp_path: Path) -> None:
    X = numbers(7, 3)
    MAKERS[name](tmp_path, X)
    paths = sorted(tmp_path.iterdir())
    path: Path | str = paths[0] if len(paths) == 1 else str(tmp_path / "*.parquet")
    assert_array_equal(joined(source_of(path)), X)
    assert_array_equal(joined(source_of(str(path))), X)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (3, TypeError, "rows are taken from a Source, an array, .* or an iterable of batches; got 3 of type int"),
        ({"a": [1]}, TypeError, "got {'a': .* of type dict"),
        (b"X.npy", TypeError, "of type bytes"),
        ("X.bin", ValueError, r"X.bin does not say how long its rows are; give sources.raw\(path, n_features\)"),
        (
            "X.txt",
            ValueError,
            r"X.txt ends in '.txt'; expected one of .npy, .parquet, .pq, .zarr, .h5, .hdf5, .csv",
        ),
        ("no.NPY", FileNotFoundError, "no.NPY"),
        ([1, 2], ValueError, r"X has shape \(2,\); expected \(n_samples, n_features\)"),
        (np.zeros((2, 2, 2)), ValueError, r"X has shape \(2, 2, 2\)"),
        (np.zeros((2, 0)), ValueError, r"X has shape \(2, 0\); expected at least one feature"),
    ],
)
def test_what_has_no_source(rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        source_of(rows)


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("pyarrow.parquet", "parquet", lambda: sources.parquet("X.parquet")),
        ("pyarrow", "csv", lambda: sources.csv("X.csv")),
        ("zarr", "zarr", lambda: sources.zarr("X.zarr")),
        ("h5py", "hdf5", lambda: sources.hdf5("X.h5")),
    ],
)
def test_a_missing_package_is_named(
    module: str, extra: str, call: Callable[[], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'is needed .*: pip install "sketchmix\[{extra}\]"'):
        call()


# -- reading ahead ----------------------------------------------------------------------------------------


def threads_that_read_ahead() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "read-ahead" in thread.name]


def test_one_item_is_fetched_ahead() -> None:
    fetched: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            fetched.append(number)
            if number == 1:
                second.set()
            yield number

    ahead = sources.prefetched(items())
    assert fetched == []
    assert next(ahead) == 0
    assert second.wait(timeout=60)
    assert list(ahead) == [1, 2, 3]
    assert fetched == [0, 1, 2, 3]
    assert threads_that_read_ahead() == []


def test_errors_come_at_their_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        yield 1
        raise ZeroDivisionError

    ahead = sources.prefetched(items())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert threads_that_read_ahead() == []


def test_who_stops_reading_stops_the_source() -> None:
    closed: list[bool] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    ahead = sources.prefetched(items())
    next(ahead)
    assert len(threads_that_read_ahead()) == 1
    ahead.close()
    assert closed == [True]
    assert threads_that_read_ahead() == []


# -- estimators -------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_a_model_reads_sources(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 1000)
    X = numbers(120, 6)
    km = KMeans(3, random_state=0).fit(X)
    assert_array_equal(km.predict(maker(tmp_path, X)), km.predict(X))


def test_all_that_a_model_says_of_rows_it_says_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 1000)
    X = numbers(120, 6)
    source = sources.array(X)
    gm = GaussianMixture(2, covariance_type="low_rank", rank=1, max_iter=3, tol=1e9, random_state=0).fit(X)
    km, pca = KMeans(3, random_state=0).fit(X), PCA(2, random_state=0).fit(X)
    methods: list[Callable[[Any], Any]] = [
        gm.predict,
        gm.predict_proba,
        gm.score_samples,
        gm.score,
        gm.bic,
        gm.aic,
        gm.icl,
    ]
    methods += [gm.latent, gm.reconstruct, km.predict, km.transform, km.score]
    methods += [pca.transform, pca.score_samples, pca.score]
    for method in methods:
        assert_allclose(method(source), method(X), rtol=1e-5, atol=1e-5, err_msg=str(method))


def test_a_second_pass_over_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.sources.source.BATCH_BYTES", 1000)
    X = numbers(120, 6)
    kinds: list[tuple[Any, str]] = [(KMeans, "cluster_centers_"), (GaussianMixture, "means_")]
    for kind, attribute in kinds:
        of_rows, of_source = (kind(3, sketch_size=4, random_state=0).fit(X) for _ in range(2))
        of_rows.refine(X)
        of_source.refine(sources.array(X))
        assert_allclose(getattr(of_source, attribute), getattr(of_rows, attribute), rtol=1e-5)
        assert_array_equal(of_source.labels_, of_rows.labels_)


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    parquet_file(tmp_path, "a.parquet", x=[1])
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"b\.parquet is no Parquet file, or a damaged one"):
        sources.parquet(tmp_path)


@pytest.mark.parametrize("rows", ["X.npy", Path("X.npy"), iter([numbers(20, 4)])], ids=["str", "path", "iterator"])
def test_what_is_no_rows_but_leads_to_some(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"not a path or an iterator; got .*\. Give sketchmix\.sources\.source_of"):
        KMeans(3, random_state=0).fit(rows)


def test_sources_that_a_model_cannot_read() -> None:
    km = KMeans(3, random_state=0).fit(numbers(20, 4))
    with pytest.raises(ValueError, match="X has 3 features, but KMeans is expecting 4 features"):
        km.predict(sources.array(numbers(20, 3)))
    with pytest.raises(ValueError, match="the source has no rows; at least 1 is needed"):
        km.predict(sources.batches([]))
    broken = numbers(20, 4)
    broken[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        km.predict(sources.array(broken))
    assert threads_that_read_ahead() == []
