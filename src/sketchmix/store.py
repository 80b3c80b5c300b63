"""A sketch in a folder: shards of plain .npy files that are mapped into memory, and a manifest in JSON.

What the manifest does not name is not there. A shard is written, and has reached the disk, before the manifest
names it, and the manifest is replaced at once: whenever a writer is stopped, what it leaves can be resumed.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from sketchmix import reservoir, validation
from sketchmix.files import sync_folder, write_atomically
from sketchmix.moments import Block
from sketchmix.pieces import Piece, Pieces
from sketchmix.portable import member, refuse, sketcher_of_json, sketcher_to_json, whole_number
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.stream import Shard

Array = NDArray[Any]

FORMAT = "sketchmix sketch"
VERSION = 1
MANIFEST, LOCK = "manifest.json", ".lock"
MOST_ROWS = 2**62


class File(NamedTuple):
    """What the manifest says of one."""

    n_bytes: int
    crc32: int

    @classmethod
    def of_json(cls, state: object, name: str) -> File:
        """Of a member of a shard's record."""
        described = member(state, name, dict)
        return cls(whole_number(described, "bytes", 0, MOST_ROWS), whole_number(described, "crc32", 0, 2**32 - 1))

    def to_json(self) -> dict[str, int]:
        """For the manifest."""
        return {"bytes": self.n_bytes, "crc32": self.crc32}


class Dense(NamedTuple):
    """What the manifest says of the dense rows of a shard."""

    n_rows: int
    dtype: np.dtype[Any]
    threshold: int  # of their keys

    @classmethod
    def of_json(cls, state: object, most: int) -> Dense:
        """Of a member of a shard's record."""
        dtype = np.dtype(validation.check_choice("dtype", member(state, "dtype"), ("float32", "float64")))
        return cls(whole_number(state, "rows", 0, most), dtype, whole_number(state, "threshold", 0, 2**64 - 1))

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {"rows": self.n_rows, "dtype": self.dtype.name, "threshold": self.threshold}


@dataclass(frozen=True)
class Record:
    """What the manifest says of a shard."""

    n_rows: int
    largest: float
    dense: Dense | None  # None where a sketch has no dense rows
    files: dict[str, File]

    @classmethod
    def of_json(cls, state: object) -> Record:
        """Of a shard in a manifest."""
        n_rows, dense = whole_number(state, "rows", 0, MOST_ROWS), None
        if member(state, "dense", dict | None) is not None:
            dense = Dense.of_json(member(state, "dense"), n_rows)
        largest = float(member(state, "largest", int | float))
        if not 0 <= largest < np.inf:
            refuse(f"largest is {largest}")
        files = member(state, "files", dict)
        return cls(n_rows, largest, dense, {name: File.of_json(files, name) for name in names_of(dense)})

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        files = {name: file.to_json() for name, file in self.files.items()}
        dense = self.dense.to_json() if self.dense else None
        return {"rows": self.n_rows, "largest": self.largest, "dense": dense, "files": files}


def names_of(dense: Dense | None) -> tuple[str, ...]:
    """The arrays of a shard."""
    return ("values", "indices", "dense", "held") if dense else ("values", "indices")


@dataclass(frozen=True)
class Manifest:
    """All that a store says of itself."""

    sketcher: Sketcher
    index_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    rows_per_shard: int
    first_row: int | None  # its number in the whole data set; None where that is not known
    shards: tuple[Record, ...] = ()
    complete: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of all shards."""
        return sum(record.n_rows for record in self.shards)

    def to_json(self) -> bytes:
        """The file's contents, a line for each shard."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "complete": self.complete,
            "rows": self.n_rows,
            "first_row": self.first_row,
            "rows_per_shard": self.rows_per_shard,
            "dtype": self.dtype.name,
            "index_dtype": self.index_dtype.name,
            "sketcher": sketcher_to_json(self.sketcher),
        }
        shards = ",\n".join(json.dumps(record.to_json()) for record in self.shards)
        return f'{json.dumps(head, indent=1)[:-2]},\n "shards": [\n{shards}\n ]\n}}\n'.encode()

    @classmethod
    def of_json(cls, text: bytes) -> Manifest:
        """What `to_json` wrote; a ValueError where it cannot have."""
        state = json.loads(text)
        if member(state, "format", str) != FORMAT:
            refuse(f"format is {state['format']!r}, not {FORMAT!r}")
        if member(state, "version", int) != VERSION:
            refuse(f"version is {state['version']}; this sketchmix reads version {VERSION}")
        first_row = None
        if member(state, "first_row", int | None) is not None:
            first_row = whole_number(state, "first_row", 0, validation.LARGEST_ROW)
        index_dtype = validation.check_choice("index_dtype", member(state, "index_dtype"), ("uint16", "uint32"))
        manifest = cls(
            sketcher_of_json(member(state, "sketcher")),
            np.dtype(index_dtype),
            validation.check_dtype(member(state, "dtype", str)),
            whole_number(state, "rows_per_shard", 1, MOST_ROWS),
            first_row,
            tuple(Record.of_json(shard) for shard in member(state, "shards", list)),
            member(state, "complete", bool),
        )
        if member(state, "rows", int) != manifest.n_rows:
            refuse(f"rows is {state['rows']}, but the shards have {manifest.n_rows}")
        return manifest


# -- writing ----------------------------------------------------------------------------------------------


class Writer:
    """Adds shards to a folder that nobody else writes to."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

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


def begin(folder: Path, manifest: Manifest) -> None:
    """Make a folder for a new store, or take an empty one."""
    there = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if MANIFEST in there:
        raise FileExistsError(
            f"'{folder}' holds a sketch already; give resume=True to go on with it, or another folder."
        )
    if there:
        raise FileExistsError(f"'{folder}' is not empty (it holds {there[0]!r}); give a folder for the sketch alone.")
    write_atomically(folder / MANIFEST, manifest.to_json())


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
        return self._mapped()

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

    def _mapped(self) -> Block:
        shape = self.n_rows, self.manifest.sketcher.sketch_size_
        values = self.array("values", shape, self.manifest.dtype)
        return Block(values, self.array("indices", shape, self.manifest.index_dtype), self.largest)

    def _check(self) -> None:
        """That the files are what was written, and what a kernel may read."""
        for name in ("values", "indices"):
            self._check_bytes(name)
        block = self._mapped()
        try:
            validation.check_sketch_arrays(block.values, block.indices, self.manifest.sketcher)
        except ValueError as error:
            damaged(self._path("values"), str(error))
        self.is_sound = True

    def _check_bytes(self, name: str) -> None:
        path = self._path(name)
        if crc32(np.memmap(path, np.uint8, "r")) != self.record.files[name].crc32:
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


def opened(folder: Path, *, allow_incomplete: bool = False) -> Sketch:
    """The sketch of a store: read when it is asked for, but for the dense rows."""
    manifest = read_manifest(folder)
    if not (manifest.complete or allow_incomplete):
        raise ValueError(
            f"sketching into '{folder}' was not finished: {manifest.n_rows} rows are there. Finish it with "
            "resume=True, or take these with allow_incomplete=True."
        )
    pieces = [Stored(folder, i, record, manifest) for i, record in enumerate(manifest.shards)]
    for piece in pieces:
        piece._mapped()
    held = reservoir.joined([(piece.n_rows, piece.held()) for piece in pieces]) if pieces else None
    size, types = manifest.sketcher.sketch_size_, (manifest.dtype, manifest.index_dtype)
    nothing = Block(np.empty((0, size), types[0]), np.empty((0, size), types[1]), 0.0)
    return Sketch._trusted(Pieces(tuple(pieces) or (nothing,), size, *types), manifest.sketcher, held)
