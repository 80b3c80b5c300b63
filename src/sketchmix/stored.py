"""A sketch that lies in a folder, and is read from there when it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sketchmix import reservoir, validation
from sketchmix.manifest import File, Manifest, Record
from sketchmix.moments import Block
from sketchmix.pieces import Piece, Pieces
from sketchmix.portable import refuse
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch

Array = NDArray[Any]

MANIFEST = "manifest.json"


def path_of(folder: Path, number: int, name: str) -> Path:
    """Where an array of a shard lies."""
    return folder / f"{number:06d}.{name}.npy"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store, if it is sound."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"there is no sketch in '{folder}': no {MANIFEST} is there.")
    try:
        return Manifest.of_json(path.read_bytes())
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
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

    def __reduce__(self) -> tuple[Any, ...]:
        # Who reads it elsewhere, perhaps from another folder, has files that nobody has looked at.
        return Stored, (self.folder.absolute(), self.number, self.record, self.manifest)

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
    pieces = [Stored(folder.absolute(), i, record, manifest) for i, record in enumerate(manifest.shards)]
    for piece in pieces:
        piece.map_all()
    held = reservoir.Growing()
    for piece in pieces:
        held.add(piece.n_rows, piece.held())
    size, types = manifest.sketcher.sketch_size_, (manifest.dtype, manifest.index_dtype)
    nothing = Block(np.empty((0, size), types[0]), np.empty((0, size), types[1]), 0.0)
    kept = Pieces(tuple(pieces) or (nothing,), size, *types)
    return Sketch._trusted(kept, manifest.sketcher, held.joined() if pieces else None)


def opened_parts(folders: list[Path], *, allow_incomplete: bool) -> list[Sketch]:
    """The sketches of parts of one data set, in the order of their rows."""
    parts = [(read_manifest(folder), folder) for folder in folders]
    for manifest, folder in parts:
        if not (manifest.complete or allow_incomplete):
            was_saved = manifest.first_row is None
            what, cure = ("saving", "Save it again") if was_saved else ("sketching", "Finish it with resume=True")
            raise ValueError(
                f"{what} into '{folder}' was not finished: {manifest.n_rows} rows are there. {cure}, or take "
                "these with allow_incomplete=True."
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
