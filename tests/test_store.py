"""Sketches of streams, and sketches in folders: the same bits as at once, whatever happens on the way."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import sources, stream
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.stored import Part, Stored
from tests.test_pieces import ESTIMATORS, bits_of

Array = NDArray[Any]

N_ROWS = 700


def rows(n_rows: int = N_ROWS, n_features: int = 40) -> Array:
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(3, n_features))
    return (centers[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, n_features))).astype(np.float32)


def new_sketcher(**parameters: Any) -> Sketcher:
    return Sketcher(**{"sketch_size": 9, "random_state": 0, **parameters})


def batches(X: Any, *sizes: int) -> Iterator[Any]:
    """Of the given sizes, again and again."""
    first = i = 0
    while first < X.shape[0]:
        yield X[first : first + sizes[i % len(sizes)]]
        first += sizes[i % len(sizes)]
        i += 1


def assert_same(got: Sketch, expected: Sketch) -> None:
    assert got.kept.index_dtype == expected.kept.index_dtype
    assert got.sketcher.is_same_operator(expected.sketcher)
    for of in (Sketch.values, Sketch.indices):
        a, b = of.__get__(got), of.__get__(expected)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert (got.reservoir is None) == (expected.reservoir is None)
    for a, b in zip(got.reservoir or (), expected.reservoir or (), strict=True):
        np.testing.assert_array_equal(a, b)
    assert got.kept.largest == expected.kept.largest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# -- streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("transform", ["hadamard", "dct", "none"])
@pytest.mark.parametrize("sizes", [(1,), (7, 0, 300), (N_ROWS,)], ids=str)
@pytest.mark.parametrize("rows_per_shard", [13, 64, None])
def test_a_stream_is_sketched_as_the_whole(
    dtype: str, transform: str, sizes: tuple[int, ...], rows_per_shard: int | None, tmp_path: Path
) -> None:
    X = rows(90)
    parameters = {"dtype": dtype, "transform": transform, "n_shared": 2}
    expected = new_sketcher(**parameters).fit_transform(X)
    for out in (None, tmp_path / "sketch"):
        got = new_sketcher(**parameters).sketch(batches(X, *sizes), out=out, rows_per_shard=rows_per_shard)
        assert_same(got, expected)


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, scipy.sparse.csr_array, np.float64, np.int16])
def test_batches_of_any_kind(kind: Any, tmp_path: Path) -> None:
    X = np.round(rows())
    cut = (kind(batch) for batch in batches(X, 33))
    sketcher = new_sketcher()
    assert_same(sketcher.sketch(cut, out=tmp_path, rows_per_shard=100), new_sketcher().fit_transform(kind(X)))
    assert getattr(sketcher, "feature_names_in_", None) is None


def test_names_of_features_come_along(tmp_path: Path) -> None:
    frame = pd.DataFrame(rows(50), columns=[f"f{i}" for i in range(40)])
    new_sketcher().sketch(batches(frame, 20), out=tmp_path)
    sketch = Sketch.open(tmp_path)
    assert sketch.sketcher.feature_names_in_.tolist() == list(frame.columns)
    fitted = sm.KMeans(2, random_state=0).fit(sketch)
    assert fitted.predict(frame).shape == (50,)


def test_the_reservoir_stays_small_and_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchmix.reservoir.WANTED_ROWS", 80)
    X = rows(5000, 8)
    whole = new_sketcher(sketch_size=3).fit_transform(X)
    got = new_sketcher(sketch_size=3).sketch(batches(X, 50), rows_per_shard=500)
    assert_same(got, whole)
    assert got.reservoir is not None
    assert 40 < len(got.reservoir.rows) < 120
    np.testing.assert_allclose(
        got.reservoir.rows, got.sketcher.rotate(X[got.reservoir.positions]), rtol=1e-4, atol=1e-5
    )


def test_no_rows(tmp_path: Path) -> None:
    expected = new_sketcher().fit(rows()).transform(rows()[:0])
    fitted = new_sketcher().fit(rows())
    for empty in (iter(()), [rows()[:0]], np.empty((0, 40))):
        got = fitted.sketch(empty)
        assert got.values.shape == got.indices.shape == expected.values.shape
    stored = fitted.sketch(iter(()), out=tmp_path)
    assert len(stored) == len(Sketch.open(tmp_path)) == 0
    assert_same(sm.concatenate([stored, fitted.transform(rows())]), fitted.transform(rows()))
    with pytest.raises(ValueError, match="the source has no rows to tell how many features there are"):
        new_sketcher().sketch(iter(()))


def test_rows_are_numbered_where_they_stand_in_the_data_set() -> None:
    X = rows()
    whole = new_sketcher().fit_transform(X)
    some = new_sketcher().sketch(X, rows=(100, 250))
    np.testing.assert_array_equal(some.values, whole.values[100:250])
    np.testing.assert_array_equal(some.indices, whole.indices[100:250])
    later = new_sketcher().sketch(X[100:], rows=(50, 60), first_row=100)
    np.testing.assert_array_equal(later.values, whole.values[150:160])
    assert len(new_sketcher().sketch(X, rows=(690, 9999))) == 10
    assert len(new_sketcher().fit(X).sketch(X, rows=(5, 5))) == 0


def test_progress_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    new_sketcher().sketch(batches(rows(), 300), progress=told.append)
    assert told == [300, 600, 700]
    told.clear()
    new_sketcher().sketch(batches(rows(), 300), rows=(0, 350), progress=told.append)
    assert told == [300, 350]
    monkeypatch.setattr(stream, "SECONDS", 0)
    new_sketcher().sketch(batches(rows(), 300), verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" rows")[0] for line in lines] == ["300", "600", "700"]


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_fit_a_source_as_they_fit_rows(make: Any) -> None:
    X = rows()
    source = sources.batches(list(batches(X, 123)))
    sketch = Sketcher(random_state=0).fit_transform(X)
    assert bits_of(make().fit(source), sketch) == bits_of(make().fit(X), sketch)


# -- folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_saved_and_opened(dtype: str, tmp_path: Path) -> None:
    sketch = new_sketcher(dtype=dtype).fit_transform(rows())
    assert_same(sketch.save(tmp_path / "whole"), sketch)
    assert_same(sm.concatenate([sketch[:11], sketch[11:]]).save(tmp_path / "pieces"), sketch)
    thinned = sketch[::3]
    assert_same(thinned.save(tmp_path / "some"), thinned)
    bare = Sketch(sketch.values, sketch.indices.astype(np.uint32), sketch.sketcher)
    assert_same(bare.save(tmp_path / "bare"), bare)
    stored = Sketch.open(tmp_path / "whole")
    assert_same(stored.save(tmp_path / "again"), sketch)
    assert_same(pickle.loads(pickle.dumps(stored)), sketch)


def test_a_folder_is_plain_files_and_a_manifest(tmp_path: Path) -> None:
    sketch = new_sketcher().sketch(rows(), out=tmp_path, rows_per_shard=400)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["version"], manifest["complete"], manifest["rows"]) == (1, True, N_ROWS)
    for i, (shard, part) in enumerate(zip(manifest["shards"], (sketch[:400], sketch[400:]), strict=True)):
        assert shard["rows"] == len(part)
        for name in ("values", "indices"):
            file = tmp_path / f"{i:06d}.{name}.npy"
            np.testing.assert_array_equal(np.load(file), getattr(part, name))
            assert shard["files"][name] == {"bytes": file.stat().st_size, "crc32": crc32(file.read_bytes())}


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("size", [9, 40])
def test_a_fit_to_a_folder_has_the_same_bits(make: Any, size: int, tmp_path: Path) -> None:
    sketch = new_sketcher(sketch_size=size).fit_transform(rows())
    stored = new_sketcher(sketch_size=size).sketch(rows(), out=tmp_path, rows_per_shard=111)
    assert bits_of(make().fit(stored), stored) == bits_of(make().fit(sketch), sketch)


def test_fits_in_less_memory_than_the_sketch_has(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much address space a process has is read from /proc")
    X = rows(20_000, 64)
    n_bytes = new_sketcher(sketch_size=16, dtype="float64").sketch((X for _ in range(60)), out=tmp_path).nbytes
    allowed = 2 * n_bytes // 3
    code = f"""
import resource, warnings
from pathlib import Path
import sketchmix as sm
warnings.simplefilter("ignore")  # an iteration is not enough
families = ("diag", "full")
models = [sm.GaussianMixture(2, covariance_type=name, max_iter=1, random_state=0) for name in families]
models += [sm.KMeans(2, max_iter=1, random_state=0), sm.PCA(1, max_iter=1, random_state=0)]
for model in models:
    model.fit(sm.Sketch.open({str(tmp_path)!r})[:1000])  # libraries are loaded, threads have started
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + {allowed}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for model in models:
    sketch = sm.Sketch.open({str(tmp_path)!r})
    print(len(sketch), round(model.fit(sketch).score(sketch), 3))
"""
    assert resource
    one_arena = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # others take address space beforehand
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=one_arena)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [str(60 * len(X))] * 4


@pytest.mark.parametrize("step", [1, 3])
def test_rows_of_a_folder_are_read_when_they_are_asked_for(step: int, tmp_path: Path) -> None:
    stored = new_sketcher().sketch(rows(), out=tmp_path, rows_per_shard=111)
    some = stored[50:600:step][::2]
    assert all(isinstance(piece, Stored | Part) for piece in some.kept.pieces)
    expected = new_sketcher().fit_transform(rows())[50:600:step][::2]
    assert_same(some, sm.concatenate([expected]))


def test_parts_join_without_copies(tmp_path: Path) -> None:
    X = rows()
    folders = [tmp_path / name for name in "abc"]
    for folder, span in zip(folders, [(300, 350), (0, 300), (350, N_ROWS)], strict=True):
        new_sketcher().sketch(X, rows=span, out=folder, rows_per_shard=77)
    joined = Sketch.open(*folders)
    assert_same(joined, new_sketcher().fit_transform(X))
    assert all(isinstance(piece, Stored) for piece in joined.kept.pieces)
    with pytest.raises(ValueError, match=r"'.*b' ends before row 300, and '.*c' begins with row 350: none has"):
        Sketch.open(folders[1], folders[2])
    with pytest.raises(ValueError, match=r"begins with row 0: both have the rows between; sketch parts that"):
        Sketch.open(folders[1], folders[1])
    saved = tmp_path / "saved"
    joined.save(saved)
    with pytest.raises(ValueError, match=r"saved' does not say which rows of a data set it holds"):
        Sketch.open(saved, folders[0])
    other = tmp_path / "other"
    new_sketcher(random_state=1).sketch(X, rows=(0, 300), out=other)
    with pytest.raises(ValueError, match="sketch 1 was made by another sketcher"):
        Sketch.open(other, folders[0])


def test_saving_that_was_stopped_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise StoppedError

    sketch = new_sketcher().fit_transform(rows())
    with monkeypatch.context() as patched:
        patched.setattr("sketchmix.store.write_shard", stop)
        with pytest.raises(StoppedError):
            sketch.save(tmp_path)
    with pytest.raises(
        ValueError, match=r"saving into '.*' was not finished: 0 rows are there. Save it again, or"
    ):
        Sketch.open(tmp_path)
    with pytest.raises(FileExistsError, match="holds a sketch already; remove it, or give another folder"):
        sketch.save(tmp_path)


# -- stopped and resumed ----------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


def stopping(X: Array, after: int) -> Iterator[Array]:
    for i, batch in enumerate(batches(X, 50)):
        if i == after:
            raise StoppedError
        yield batch


@pytest.mark.parametrize("after", [0, 1, 2, 3, 7, 13])
def test_what_was_stopped_ends_with_the_same_bytes(after: int, tmp_path: Path) -> None:
    X = rows()
    new_sketcher().sketch(X, out=tmp_path / "expected", rows_per_shard=110)
    folder = tmp_path / "stopped"
    with pytest.raises(StoppedError):
        new_sketcher().sketch(stopping(X, after), out=folder, rows_per_shard=110)
    if after:
        with pytest.raises(ValueError, match=r"was not finished: \d+ rows are there. Finish it with resume=True"):
            Sketch.open(folder)
        there = Sketch.open(folder, allow_incomplete=True)
        n_whole = after * 50 // 110 * 110
        assert_same(there[:], new_sketcher().fit(X).transform(X[:n_whole]) if n_whole else there)
        with pytest.raises(FileExistsError, match="holds a sketch already; give resume=True to go on"):
            new_sketcher().sketch(X, out=folder)
    (folder / ".of-a-writer.unfinished").write_bytes(b"...")
    resumed = new_sketcher().sketch(batches(X, 33), out=folder, resume=True)
    if after:
        assert contents(folder) == contents(tmp_path / "expected")
    assert_same(resumed, new_sketcher().fit_transform(X))


def test_resuming_what_is_complete_or_was_never_begun(tmp_path: Path) -> None:
    X = rows()
    first = new_sketcher().sketch(X, out=tmp_path, rows_per_shard=350, resume=True)  # two full shards
    before = contents(tmp_path)
    assert_same(new_sketcher().sketch(iter(()), out=tmp_path, resume=True), first)
    assert contents(tmp_path) == before


def test_a_new_sketcher_becomes_that_of_the_folder(tmp_path: Path) -> None:
    X = rows()
    drawn = new_sketcher(random_state=None)
    with pytest.raises(StoppedError):
        drawn.sketch(stopping(X, 5), out=tmp_path, rows_per_shard=110)
    generator = np.random.RandomState(1)
    again = new_sketcher(random_state=generator)
    assert_same(again.sketch(X, out=tmp_path, resume=True), drawn.transform(X))
    assert again.is_same_operator(drawn)
    assert again.random_state is generator


@pytest.mark.parametrize(
    ("sketcher", "job", "message"),
    [
        ({"sketch_size": 8}, {}, "begun with sketch_size=9, and cannot go on with 8"),
        ({"random_state": 1}, {}, "begun with random_state=0, and cannot go on with 1"),
        ({"dtype": "float64"}, {}, "begun with dtype='float32'"),
        ({}, {"first_row": 5}, "begun with first row=0, and cannot go on with 5"),
        ({}, {"rows": (1, 9)}, "begun with first row=0, and cannot go on with 1"),
        ({}, {"rows_per_shard": 7}, "begun with rows_per_shard=110, and cannot go on with 7"),
    ],
)
def test_only_the_same_job_can_go_on(
    sketcher: dict[str, Any], job: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        new_sketcher().sketch(stopping(rows(), 5), out=tmp_path, rows_per_shard=110)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        new_sketcher(**sketcher).sketch(rows(), out=tmp_path, resume=True, **job)
    other = new_sketcher(random_state=np.random.RandomState(1)).fit(rows())
    other.random_state = 0
    with pytest.raises(ValueError, match="begun by another sketcher, which drew other signs or entries"):
        other.sketch(rows(), out=tmp_path, resume=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("of", [np.asarray, lambda X: batches(X, 100)], ids=["counted", "not counted"])
def test_a_sketch_does_not_go_on_to_less_than_it_has(of: Any, tmp_path: Path) -> None:
    X = rows()
    with pytest.raises(StoppedError):
        new_sketcher().sketch(stopping(X, 9), rows=(0, 600), out=tmp_path, rows_per_shard=110)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"has 440 rows, and cannot go on to 300; resume with the rows that"):
        new_sketcher().sketch(of(X), rows=(0, 300), out=tmp_path, resume=True)
    assert contents(tmp_path) == before
    assert_same(new_sketcher().sketch(of(X), out=tmp_path, resume=True), new_sketcher().fit_transform(X))


def test_a_complete_sketch_does_not_grow(tmp_path: Path) -> None:
    X = rows()
    new_sketcher().sketch(X, rows=(100, 300), out=tmp_path)
    for span, message in [
        ((100, 400), "is complete with 200 rows, and cannot go on to 300"),
        ((100, 250), "to 150"),
    ]:
        with pytest.raises(ValueError, match=message):
            new_sketcher().sketch(X, rows=span, out=tmp_path, resume=True)
    assert len(new_sketcher().sketch(X[:300], rows=(100, 9999), out=tmp_path, resume=True)) == 200
    assert len(new_sketcher().sketch(batches(X[:300], 50), rows=(100, 9999), out=tmp_path, resume=True)) == 200


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    def source() -> Iterator[Array]:
        yield rows()
        with pytest.raises(BlockingIOError, match="another process is writing to the sketch in"):
            new_sketcher().sketch(rows(), out=tmp_path, resume=True)
        yield rows()

    assert len(new_sketcher().sketch(source(), out=tmp_path)) == 2 * N_ROWS


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, n_synced = rows(), 0
    new_sketcher().sketch(X, out=tmp_path / "expected", rows_per_shard=110)

    def fsync(_: int) -> None:
        nonlocal n_synced
        n_synced += 1
        if n_synced == 20:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fsync)
        with pytest.raises(OSError, match="No space left on device"):
            new_sketcher().sketch(X, out=tmp_path / "full", rows_per_shard=110)
    new_sketcher().sketch(X, out=tmp_path / "full", resume=True)
    assert contents(tmp_path / "full") == contents(tmp_path / "expected")


@pytest.mark.parametrize("bad", [np.full((3, 40), np.nan), np.zeros((3, 39)), np.zeros(40)], ids=str)
def test_a_bad_batch_loses_nothing(bad: Array, tmp_path: Path) -> None:
    X = rows()
    with pytest.raises(ValueError, match=r"NaN|39 features|has shape"):
        new_sketcher().sketch([X[:300], bad], out=tmp_path, rows_per_shard=110)
    assert len(Sketch.open(tmp_path, allow_incomplete=True)) == 220
    assert_same(new_sketcher().sketch(X, out=tmp_path, resume=True), new_sketcher().fit_transform(X))


# -- what cannot be used ----------------------------------------------------------------------------------


def test_folders_without_a_sketch(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no sketch in '.*nowhere': no manifest.json is there"):
        Sketch.open(tmp_path / "nowhere")
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(FileExistsError, match=r"is not empty .it holds 'letter.txt'"):
        new_sketcher().sketch(rows(), out=tmp_path)
    with pytest.raises(FileExistsError, match=r"is not empty .it holds 'letter.txt'"):
        new_sketcher().fit_transform(rows()).save(tmp_path)
    with pytest.raises(ValueError, match="concatenate needs at least one sketch"):
        Sketch.open()


@pytest.mark.parametrize("given", [{"rows": 5}, {"rows": (1, 2, 3)}, {"rows": (0.5, 2)}, {"rows_per_shard": "1"}])
def test_types_of_arguments(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(given))):
        new_sketcher().sketch(rows(), **given)


@pytest.mark.parametrize("given", [{"rows": (5, 2)}, {"rows": (-1, 2)}, {"rows_per_shard": 0}, {"first_row": -1}])
def test_values_of_arguments(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(given))}.* must be at least"):
        new_sketcher().sketch(rows(), **given)


FILES = ["values", "indices", "dense", "held"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_sketcher().sketch(rows(), out=tmp_path, rows_per_shard=400)
    return tmp_path


def rewritten(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def forged(folder: Path, name: str, array: Array) -> None:
    """Another array in the place of one, and a manifest that knows of it."""
    file, path = folder / f"000001.{name}.npy", folder / "manifest.json"
    np.save(file, array)
    manifest = json.loads(path.read_text())
    manifest["shards"][1]["files"][name] = {"bytes": file.stat().st_size, "crc32": crc32(file.read_bytes())}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", FILES)
def test_a_byte_that_changed(name: str, folder: Path) -> None:
    file = folder / f"000001.{name}.npy"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"000001.{name}.npy' cannot be used: its checksum is not the one"):
        sm.KMeans(2, random_state=0).fit(Sketch.open(folder))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", ["truncated", "longer", "missing", "header"])
def test_a_file_that_is_not_whole(name: str, what: str, folder: Path) -> None:
    file = folder / f"000000.{name}.npy"
    data = file.read_bytes()
    if what == "missing":
        file.unlink()
    else:
        file.write_bytes({"truncated": data[:-1], "longer": data + b"0", "header": b"\x93NUMPZ" + data[6:]}[what])
    with pytest.raises(ValueError, match=rf"000000.{name}.npy' cannot be used: .*(bytes|No such file|magic)"):
        Sketch.open(folder)


def array_of(folder: Path, name: str) -> Array:
    return np.load(folder / f"000001.{name}.npy")


def test_forged_arrays(folder: Path) -> None:
    values, indices, held = (array_of(folder, name) for name in ("values", "indices", "held"))
    dense = array_of(folder, "dense")
    wrong: list[tuple[str, Array, str]] = [
        ("values", np.full_like(values, np.nan), "values contain NaN"),
        ("values", values.astype("f8"), "its array has shape"),
        ("values", values[:-1], "its array has shape"),
        ("values", np.asfortranarray(values), "its array has shape"),
        ("values", np.array([{}] * 9, object), "its array has shape|cannot be used"),
        ("indices", np.full_like(indices, 40), "indices contain 40, but rotated rows have 40 entries"),
        ("indices", indices[:, ::-1].copy(), "indices must increase"),
        ("held", held[::-1].copy(), "positions of dense rows do not increase"),
        ("held", held + np.array([999, 0], np.uint64), "positions of dense rows do not increase"),
        ("held", held.astype(np.int64), "its array has shape"),
        ("dense", np.full_like(dense, np.inf), "NaN or infinity"),
        ("dense", dense[:, 1:], "its array has shape"),
    ]
    for name, array, message in wrong:
        before = contents(folder)
        forged(folder, name, array)
        with pytest.raises(ValueError, match=message):
            sm.KMeans(2, random_state=0).fit(Sketch.open(folder))
        for file, data in before.items():
            (folder / file).write_bytes(data)
    sm.KMeans(2, random_state=0).fit(Sketch.open(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version is 2; this sketchmix reads version 1"),
        ({"format": "zip"}, "format is 'zip'"),
        ({"rows": 5}, "rows is 5, but the shards have 700"),
        ({"shards": []}, "rows is 700, but the shards have 0"),
        ({"shards": [{}]}, "rows is missing"),
        ({"rows_per_shard": 0}, "rows_per_shard is 0"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"dtype": "float64"}, "its array has shape"),
        ({"index_dtype": "uint32"}, "its array has shape"),
        ({"index_dtype": "int16"}, "index_dtype must be one of"),
        ({"sketcher": {}}, "parameters is missing"),
        (
            {"shards": [{"rows": 700, "largest": 10**400, "dense": None, "files": {}}]},
            "cannot be used: int too large",
        ),
        ({"complete": "yes"}, "complete is 'yes'"),
        ({"first_row": -1}, "first_row is -1"),
    ],
)
def test_a_manifest_that_says_something_else(changes: dict[str, Any], message: str, folder: Path) -> None:
    rewritten(folder, **changes)
    with pytest.raises(ValueError, match=message):
        Sketch.open(folder)


def test_files_are_checked_again_by_who_gets_a_pickle(folder: Path) -> None:
    sketch = Sketch.open(folder)
    sm.KMeans(2, random_state=0).fit(sketch)
    pickled = pickle.dumps(sketch)
    file = folder / "000001.values.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ValueError, match="its checksum is not the one"):
        sm.KMeans(2, random_state=0).fit(pickle.loads(pickled))


def test_a_claim_of_many_rows_is_refused_before_memory_is_taken(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["rows"] = 2**60
    rewritten(folder, shards=manifest["shards"], rows=2**60 + 300)
    with pytest.raises(ValueError, match="its array has shape"):
        Sketch.open(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}'], ids=str)
def test_a_manifest_that_is_none(text: bytes, folder: Path) -> None:
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"manifest.json' cannot be used"):
        Sketch.open(folder)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_manifest_is_refused_or_makes_no_difference(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    expected = new_sketcher().sketch(rows(60), out=folder, rows_per_shard=40)
    text = bytearray((folder / "manifest.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (folder / "manifest.json").write_bytes(bytes(text))
    try:
        got = Sketch.open(folder)
        values = got.values
    except (ValueError, FileNotFoundError):
        return
    np.testing.assert_array_equal(values, expected.values)
