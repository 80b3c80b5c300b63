"""What a store of a sketch says of itself, in JSON: what makes the sketcher, and the files with checksums."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sketchmix import validation
from sketchmix.portable import member, refuse, sketcher_of_json, sketcher_to_json, whole_number
from sketchmix.sketch import Sketcher

FORMAT = "sketchmix sketch"
VERSION = 1
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
    dtype: np.dtype[Any]
    index_dtype: np.dtype[Any]
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
            validation.check_dtype(member(state, "dtype", str)),
            np.dtype(index_dtype),
            whole_number(state, "rows_per_shard", 1, MOST_ROWS),
            first_row,
            tuple(Record.of_json(shard) for shard in member(state, "shards", list)),
            member(state, "complete", bool),
        )
        if member(state, "rows", int) != manifest.n_rows:
            refuse(f"rows is {state['rows']}, but the shards have {manifest.n_rows}")
        return manifest
