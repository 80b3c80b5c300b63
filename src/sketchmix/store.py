"""A sketch in a folder: shards of plain .npy files that are mapped into memory, and a manifest in JSON.

What the manifest does not name is not there. A shard is written, and has reached the disk, before the manifest
names it, and the manifest is replaced at once: whenever a writer is stopped, what it leaves can be resumed.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from sketchmix import reservoir, validation
from sketchmix.files import sync_folder, write_atomically
from sketchmix.manifest import Dense, File, Manifest, Record
from sketchmix.moments import Block
from sketchmix.pieces import Piece, Pieces
from sketchmix.portable import parameters_to_json, refuse
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.stream import Job, Shard, default_rows, shards_of

Array = NDArray[Any]

MANIFEST, LOCK = "manifest.json", ".lock"

# -- writing ----------------------------------------------------------------------------------------------


class Writer:
    """Adds shards to a folder that nobody else writes to."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

    def begin(self) -> None:
        """Declare the sketch begun."""
        self._put(self.manifest)

    def add(self, shard: Shard) -> None:
        """Write a shard; one that is not full is the last."""
        record = write_shard(self._folder, len(self.manifest.shards), shard)
        is_full = record.n_rows == self.manifest.rows_per_shard
        self._put(replace(self.manifest, shards=(*self.manifest.shards, record), complete=not is_full))

    def finish(self) -> None:
        """Declare the sketch complete."""
        if not self.manifest.complete:
            self._put(replace(self.manifest, complete=True))

    def _put(self, manifest: Manifest) -> None:
        write_atomically(self._folder / MANIFEST, manifest.to_json())
        self.manifest = manifest


def write(folder: Path, manifest: Manifest, shards: Iterable[Shard]) -> None:
    """Write shards while the next are made, which may reuse the arrays of the last but one."""
    writer = Writer(folder, manifest)
    writer.begin()
    with ThreadPoolExecutor(1) as background:
        writing: Future[None] | None = None
        for shard in shards:
            if writing:
                writing.result()
            writing = background.submit(writer.add, shard)
        if writing:
            writing.result()
    writer.finish()


def reused_arrays(sketcher: Sketcher, n_rows: int) -> Iterator[tuple[Array, Array]]:
    """Arrays for shards of which one is written while the next is filled."""
    return cycle([sketcher.empty(n_rows), sketcher.empty(n_rows)])


def write_shard(folder: Path, number: int, shard: Shard) -> Record:
    """Write a shard's files, and see to it that they reach the disk."""
    arrays = {"values": shard.block.values, "indices": shard.block.indices}
    dense = None
    if shard.held:
        dense = Dense(len(shard.held.rows), shard.held.rows.dtype, int(shard.held.threshold))
        arrays["dense"] = shard.held.rows
        arrays["held"] = np.stack([shard.held.positions.astype(np.uint64), shard.held.keys], axis=1)
    files = {name: write_array(path_of(folder, number, name), array) for name, array in arrays.items()}
    sync_folder(folder)
    return Record(shard.block.n_rows, shard.block.largest, dense, files)


def write_array(path: Path, array: Array) -> File:
    """Write an array as .npy."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    contents = (header.getvalue(), array.data if array.size else b"")
    checksum = 0
    with path.open("wb") as file:
        for part in contents:
            file.write(part)
            checksum = crc32(part, checksum)
        file.flush()
        os.fsync(file.fileno())
    return File(len(contents[0]) + array.nbytes, checksum)


def path_of(folder: Path, number: int, name: str) -> Path:
    """Where an array of a shard lies."""
    return folder / f"{number:06d}.{name}.npy"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder, so that nobody else writes to it meanwhile."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise BlockingIOError(
            f"another process is writing to the sketch in '{folder}'; wait for it, or give another folder."
        ) from None


def check_empty(folder: Path) -> None:
    """A new store is alone in its folder."""
    there = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if MANIFEST in there:
        raise FileExistsError(
            f"'{folder}' holds a sketch already; give resume=True to go on with it, or another folder."
        )
    if there:
        raise FileExistsError(
            f"'{folder}' is not empty (it holds {there[0]!r}); give a folder for the sketch alone."
        )


def check_same_job(
    folder: Path, manifest: Manifest, sketcher: Sketcher, job: Job, rows_per_shard: int | None
) -> None:
    """What goes on with a store must be what began it."""
    stored = manifest.sketcher
    now = {**parameters_to_json(sketcher), "first row": job.first_row}
    then = {**parameters_to_json(stored), "first row": manifest.first_row}
    if rows_per_shard:
        now["rows_per_shard"], then["rows_per_shard"] = rows_per_shard, manifest.rows_per_shard
    for name, value in now.items():
        if value != then[name]:
            raise ValueError(
                f"the sketch in '{folder}' was begun with {name}={then[name]!r}, and cannot go on with {value!r}; "
                "resume with what it was begun with, or give another folder."
            )
    if hasattr(sketcher, "signs_") and not sketcher.is_same_operator(stored):
        raise ValueError(
            f"the sketch in '{folder}' was begun by another sketcher, which drew other signs or entries; "
            "resume with that one, or with a new Sketcher of the same parameters."
        )


def clean(folder: Path) -> None:
    """Remove what a writer that was stopped left unfinished."""
    for path in folder.glob(".*.unfinished"):
        path.unlink()


# -- reading ----------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store, if it is sound."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"there is no sketch in '{folder}': no {MANIFEST} is there.")
    try:
        return Manifest.of_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        damaged(path, str(error))


def damaged(path: Path, what: str) -> NoReturn:
    """Refuse a file."""
    raise ValueError(
        f"'{path}' cannot be used: {what}. It is damaged, was changed, or is of another version; sketch the rows "
        "again, or restore it from a copy."
    )


@dataclass
class Stored:
    """A shard in files: a `Piece` that is mapped when it is read, and checked when it is read first."""

    folder: Path
    number: int
    record: Record
    manifest: Manifest = field(repr=False)
    is_sound: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # Another process may stand in another folder.
        return vars(self) | {"folder": self.folder.absolute()}

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return self.record.n_rows

    @property
    def largest(self) -> float:
        """A bound on the magnitudes of the kept entries."""
        return self.record.largest

    def read(self) -> Block:
        """The rows, mapped into memory for as long as the block lives."""
        if not self.is_sound:
            self._check()
        return self.map_all()

    def read_only(self) -> Stored:
        """Itself: it is mapped for reading."""
        return self

    def take(self, rows: slice | Array) -> Piece:
        """Some of the rows, read when they are asked for."""
        is_all = isinstance(rows, slice) and rows == slice(0, self.n_rows, 1)
        return self if is_all else Part(self, np.arange(self.n_rows)[rows])

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Map one of the arrays, which must be of that shape and type."""
        return mapped(self._path(name), self.record.files[name], shape, dtype)

    def held(self) -> Reservoir | None:
        """The dense rows, in memory."""
        dense = self.record.dense
        if dense is None:
            return None
        held = self.array("held", (dense.n_rows, 2), np.dtype(np.uint64))
        rows = self.array("dense", (dense.n_rows, self.manifest.sketcher.n_rotated_), dense.dtype)
        for name in ("held", "dense"):
            self._check_bytes(name)
        positions = held[:, 0].astype(np.int64)
        if (np.diff(positions, prepend=-1, append=self.n_rows) <= 0).any():
            damaged(self._path("held"), "positions of dense rows do not increase within the shard")
        if not np.isfinite(rows).all():
            damaged(self._path("dense"), "it holds NaN or infinity")
        return Reservoir(np.array(rows), positions, np.array(held[:, 1]), np.uint64(dense.threshold))

    def _path(self, name: str) -> Path:
        return path_of(self.folder, self.number, name)

    def map_all(self) -> Block:
        """The rows, whose contents nobody has looked at."""
        shape = self.n_rows, self.manifest.sketcher.sketch_size_
        values = self.array("values", shape, self.manifest.dtype)
        return Block(values, self.array("indices", shape, self.manifest.index_dtype), self.largest)

    def _check(self) -> None:
        """That the files are what was written, and what a kernel may read."""
        for name in ("values", "indices"):
            self._check_bytes(name)
        block = self.map_all()
        try:
            validation.check_sketch_arrays(block.values, block.indices, self.manifest.sketcher)
        except ValueError as error:
            damaged(self._path("values"), str(error))
        self.is_sound = True

    def _check_bytes(self, name: str) -> None:
        path = self._path(name)
        if crc32(np.memmap(path, np.uint8, "r").data) != self.record.files[name].crc32:
            damaged(path, "its checksum is not the one that the manifest has")


@dataclass(frozen=True)
class Part:
    """Some of the rows of a piece in files, gathered whenever they are read."""

    piece: Stored
    rows: Array  # increasing positions

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def largest(self) -> float:
        """A bound on the magnitudes of the kept entries."""
        return self.piece.largest

    def read(self) -> Block:
        """The rows, in memory."""
        return self.piece.read().take(self.rows)

    def read_only(self) -> Part:
        """Itself: what is read is of the reader."""
        return self

    def take(self, rows: slice | Array) -> Part:
        """Some of the rows, read when they are asked for."""
        return replace(self, rows=self.rows[rows])


def mapped(path: Path, file: File, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A .npy file of a known shape and type, mapped into memory."""
    little_endian = dtype.newbyteorder("<")
    try:
        n_bytes = path.stat().st_size
        if n_bytes != file.n_bytes:
            refuse(f"it has {n_bytes} bytes instead of {file.n_bytes}")
        with path.open("rb") as opened:
            if np.lib.format.read_magic(opened) != (1, 0):
                refuse("it is no .npy file of version 1.0")
            described = np.lib.format.read_array_header_1_0(opened)
            offset = opened.tell()
    except (OSError, ValueError) as error:
        damaged(path, str(error))
    if described != (shape, False, little_endian) or n_bytes - offset != math.prod(shape) * dtype.itemsize:
        damaged(path, f"its array has shape {described[0]} and type {described[2]}, not {shape} and {dtype}")
    if not shape[0]:
        return np.empty(shape, dtype)
    array = np.asarray(np.memmap(path, little_endian, "r", offset, shape))
    return array if array.dtype.isnative else array.astype(dtype)


def opened(folder: Path, manifest: Manifest) -> Sketch:
    """The sketch of a store: read when it is asked for, but for the dense rows."""
    pieces = [Stored(folder, i, record, manifest) for i, record in enumerate(manifest.shards)]
    for piece in pieces:
        piece.map_all()
    held = reservoir.Growing()
    for piece in pieces:
        held.add(piece.n_rows, piece.held())
    size, types = manifest.sketcher.sketch_size_, (manifest.dtype, manifest.index_dtype)
    nothing = Block(np.empty((0, size), types[0]), np.empty((0, size), types[1]), 0.0)
    return Sketch._trusted(
        Pieces(tuple(pieces) or (nothing,), size, *types), manifest.sketcher, held.joined() if pieces else None
    )


def opened_parts(folders: list[Path], *, allow_incomplete: bool) -> list[Sketch]:
    """The sketches of parts of one data set, in the order of their rows."""
    parts = [(read_manifest(folder), folder) for folder in folders]
    for manifest, folder in parts:
        if not (manifest.complete or allow_incomplete):
            raise ValueError(
                f"sketching into '{folder}' was not finished: {manifest.n_rows} rows are there. Finish it with "
                "resume=True, or take these with allow_incomplete=True."
            )
    if len(parts) > 1:
        parts.sort(key=lambda part: part[0].first_row or 0)
        check_parts_follow(parts)
    return [opened(folder, manifest) for manifest, folder in parts]


def check_parts_follow(parts: list[tuple[Manifest, Path]]) -> None:
    """Every part begins where the one before it ends."""
    for (before, folder_before), (after, folder) in pairwise(parts):
        if before.first_row is None or after.first_row is None:
            unknown = folder if after.first_row is None else folder_before
            raise ValueError(
                f"'{unknown}' does not say which rows of a data set it holds; open the parts one by one, and join "
                "them with sm.concatenate."
            )
        end = before.first_row + before.n_rows
        if after.first_row != end:
            what = "both have" if after.first_row < end else "none has"
            raise ValueError(
                f"'{folder_before}' ends before row {end}, and '{folder}' begins with row {after.first_row}: "
                f"{what} the rows between; sketch parts that follow each other, as with rows=(first, after)."
            )


# -- from rows, and from sketches -------------------------------------------------------------------------


def sketch_into(folder: Path, sketcher: Sketcher, job: Job, rows_per_shard: int | None, *, resume: bool) -> Sketch:
    """Sketch rows into a folder; a new sketcher becomes that of the folder, if this goes on with one."""
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        if resume:
            clean(folder)
        if resume and (folder / MANIFEST).exists():
            manifest = read_manifest(folder)
            check_same_job(folder, manifest, sketcher, job, rows_per_shard)
            sketcher.__dict__.update(manifest.sketcher.__dict__)
        else:
            check_empty(folder)
            manifest = None
        if manifest is None or not manifest.complete:
            batches = job.batches(sketcher, manifest.n_rows if manifest else 0)
            manifest = manifest or begun(sketcher, rows_per_shard, job.first_row)
            first_row, arrays = job.first_row + manifest.n_rows, reused_arrays(sketcher, manifest.rows_per_shard)
            write(folder, manifest, shards_of(sketcher, batches, first_row, arrays))
    return opened(folder, read_manifest(folder))


def begun(sketcher: Sketcher, rows_per_shard: int | None, first_row: int) -> Manifest:
    """The manifest of a store that has no rows yet."""
    values, indices = sketcher.empty(0)
    return Manifest(
        sketcher, values.dtype, indices.dtype, rows_per_shard or default_rows(sketcher), first_row=first_row
    )


def save(folder: Path, sketch: Sketch) -> None:
    """Write a sketch that is there already."""
    validation.check_readable(sketch)
    kept, height = sketch.kept, default_rows(sketch.sketcher)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        check_empty(folder)
        write(folder, Manifest(sketch.sketcher, kept.dtype, kept.index_dtype, height, None), cut(sketch, height))


def cut(sketch: Sketch, height: int) -> Iterator[Shard]:
    """The rows of a sketch in shards of that height."""
    first = 0
    for block in sketch.kept.blocks(height, exactly=True):
        if block.n_rows:
            held = sketch.reservoir and sketch.reservoir.within(first, first + block.n_rows)
            yield Shard(block, held)
        first += block.n_rows
