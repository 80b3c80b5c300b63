"""Batches of rows -> shards of a sketch, each of so many rows whatever the batches are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sketchmix import reservoir
from sketchmix.moments import Block, rows_of_shard
from sketchmix.pieces import Pieces
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.sources import Rows

Array = NDArray[Any]

# Of a shard, about.
SHARD_BYTES = 2**25


class Shard(NamedTuple):
    """Consecutive rows of a sketch, and the dense ones among them."""

    block: Block
    held: Reservoir | None


class Progress(Protocol):
    """What is told how many rows were sketched so far."""

    def __call__(self, n_rows: int, /) -> None: ...


class Filling:
    """A shard to be, in arrays that are filled batch by batch."""

    def __init__(self, sketcher: Sketcher, first_row: int, values: Array, indices: Array) -> None:
        self._sketcher = sketcher
        self._first_row = first_row
        self._values, self._indices = values, indices
        self._parts: list[tuple[int, Reservoir]] = []
        self._largest = 0.0
        self.n_rows = 0

    @property
    def room(self) -> int:
        """For how many more rows there is room."""
        return len(self._values) - self.n_rows

    def add(self, rows: Rows) -> None:
        """Sketch rows, for which there is room."""
        part = slice(self.n_rows, self.n_rows + rows.n_samples)
        first_row = self._first_row + self.n_rows
        largest, held = self._sketcher.sketch_into(rows, first_row, self._values[part], self._indices[part])
        self._parts.append((rows.n_samples, held))
        self._largest = max(self._largest, largest)
        self.n_rows += rows.n_samples

    def shard(self) -> Shard:
        """What was filled."""
        block = Block(self._values[: self.n_rows], self._indices[: self.n_rows], self._largest)
        return Shard(block, reservoir.joined(self._parts))


def shards_of(
    sketcher: Sketcher, batches: Iterable[Rows], first_row: int, buffers: Iterator[tuple[Array, Array]]
) -> Iterator[Shard]:
    """Sketch batches of rows that are numbered from `first_row`; at least one shard, if of no rows."""
    filling = Filling(sketcher, first_row, *next(buffers))
    is_first = True
    for rows in batches:
        start = 0
        while start < rows.n_samples:
            part = rows.part(slice(start, start + filling.room))
            filling.add(part)
            start += part.n_samples
            if not filling.room:
                yield filling.shard()
                first_row, is_first = first_row + filling.n_rows, False
                filling = Filling(sketcher, first_row, *next(buffers))
    if filling.n_rows or is_first:
        yield filling.shard()


def batches_of(
    sketcher: Sketcher, batches: Iterable[Any], n_rows: int | None, progress: Progress | None
) -> Iterator[Rows]:
    """Validated batches, up to `n_rows` rows in all; the first tells a new sketcher how wide rows are."""
    done = 0
    for batch in batches:
        reset = not hasattr(sketcher, "signs_")
        rows = Rows(sketcher, batch, reset=reset, least=0)
        if reset:
            sketcher.fit_rows(rows)
        yield rows if n_rows is None else rows.part(slice(n_rows - done))
        done += rows.n_samples
        if progress:
            progress(done if n_rows is None else min(done, n_rows))
        if n_rows is not None and done >= n_rows:
            return


def default_rows(sketcher: Sketcher) -> int:
    """How many rows make a shard, in whole shards of the kernels where these are small enough."""
    row_bytes = sum(array.itemsize * array.shape[1] for array in sketcher.empty(0))
    height = rows_of_shard(sketcher.sketch_size_, sketcher.n_rotated_)
    return max(1, SHARD_BYTES // (row_bytes * height) * height or SHARD_BYTES // row_bytes)


def in_memory(shards: Iterable[Shard], sketcher: Sketcher) -> Sketch:
    """The sketch of all shards."""
    made = list(shards)
    held = reservoir.joined([(shard.block.n_rows, shard.held) for shard in made])
    return Sketch._trusted(Pieces.of(*[shard.block for shard in made]), copy(sketcher), held)


def new_arrays(sketcher: Sketcher, n_rows: int) -> Iterator[tuple[Array, Array]]:
    """Arrays for shards that stay in memory."""
    while True:
        yield sketcher.empty(n_rows)
