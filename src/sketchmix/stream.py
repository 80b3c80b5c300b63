"""Batches of rows -> shards of a sketch, each of so many rows whatever the batches are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sketchmix import reservoir, validation
from sketchmix.moments import Block, rows_of_shard
from sketchmix.pieces import Pieces
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.sources import Rows, Source, prefetched

Array = NDArray[Any]

# Of a shard, about.
SHARD_BYTES = 2**25
# Between two lines of a `printer`.
SECONDS = 2.0


class Shard(NamedTuple):
    """Consecutive rows of a sketch, and the dense ones among them."""

    block: Block
    held: Reservoir | None


class Filling:
    """A shard to be, in arrays that are filled batch by batch."""

    def __init__(self, sketcher: Sketcher, first_row: int, values: Array, indices: Array) -> None:
        self._sketcher = sketcher
        self._first_row = first_row
        self._values, self._indices = values, indices
        self._held = reservoir.Growing()
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
        self._held.add(rows.n_samples, held)
        self._largest = max(self._largest, largest)
        self.n_rows += rows.n_samples

    def shard(self) -> Shard:
        """What was filled."""
        block = Block(self._values[: self.n_rows], self._indices[: self.n_rows], self._largest)
        return Shard(block, self._held.joined())


def shards_of(
    sketcher: Sketcher, batches: Iterable[Rows], first_row: int, buffers: Iterator[tuple[Array, Array]]
) -> Iterator[Shard]:
    """Sketch batches of rows that are numbered from `first_row`."""
    filling = Filling(sketcher, first_row, *next(buffers))
    for rows in batches:
        start = 0
        while start < rows.n_samples:
            part = rows.part(slice(start, start + filling.room))
            filling.add(part)
            start += part.n_samples
            if not filling.room:
                yield filling.shard()
                first_row += filling.n_rows
                filling = Filling(sketcher, first_row, *next(buffers))
    if filling.n_rows:
        yield filling.shard()


@dataclass(frozen=True)
class Job:
    """Which rows of a source are to be sketched, and how they are numbered."""

    source: Source
    first: int  # of the source's rows
    n_rows: int | None  # None for all that follow
    first_row: int  # the number of the first of them in the whole data set
    progress: Callable[[int], None] | None

    @property
    def n_known(self) -> int | None:
        """How many rows there will be; None where that is not known before the end."""
        if self.source.n_rows is None:
            return None
        n_left = max(0, self.source.n_rows - self.first)
        return n_left if self.n_rows is None else min(n_left, self.n_rows)

    def batches(self, sketcher: Sketcher, n_done: int = 0) -> Iterator[Rows]:
        """The rows beyond the first `n_done`, read ahead; a new sketcher learns from them how wide rows are."""
        batches = self._read(sketcher, n_done)
        first = next(batches, None)
        validation.check_some_batch(first, sketcher)
        return batches if first is None else chain([first], batches)

    def _read(self, sketcher: Sketcher, n_done: int) -> Iterator[Rows]:
        if n_done == self.n_rows:
            return
        with closing(prefetched(self.source.batches(self.first + n_done))) as batches:
            for batch in batches:
                is_new = not hasattr(sketcher, "signs_")
                rows = Rows(sketcher, batch, reset=is_new, least=0)
                if is_new:
                    sketcher.fit_rows(rows)
                wanted = rows if self.n_rows is None else rows.part(slice(self.n_rows - n_done))
                yield wanted
                n_done += wanted.n_samples
                if self.progress:
                    self.progress(n_done)
                if n_done == self.n_rows:
                    return


def default_rows(sketcher: Sketcher) -> int:
    """How many rows make a shard, in whole shards of the kernels where these are small enough."""
    row_bytes: int = sum(array.itemsize * array.shape[1] for array in sketcher.empty(0))
    height = rows_of_shard(sketcher.sketch_size_, sketcher.n_rotated_)
    whole = SHARD_BYTES // (row_bytes * height) * height
    return whole or max(1, SHARD_BYTES // row_bytes)


def sketch_in_memory(sketcher: Sketcher, job: Job, rows_per_shard: int | None) -> Sketch:
    """Sketch rows into shards that stay in memory."""
    batches = job.batches(sketcher)
    arrays = new_arrays(sketcher, rows_per_shard or default_rows(sketcher))
    blocks, held = list[Block](), reservoir.Growing()
    for shard in shards_of(sketcher, batches, job.first_row, arrays):
        blocks.append(shard.block)
        held.add(shard.block.n_rows, shard.held)
    if not blocks:
        return sketcher.transform(np.empty((0, sketcher.n_features_in_)), first_row=job.first_row)
    return Sketch._trusted(Pieces.of(*blocks), copy(sketcher), held.joined())


def new_arrays(sketcher: Sketcher, n_rows: int) -> Iterator[tuple[Array, Array]]:
    """Arrays for shards that stay in memory."""
    while True:
        yield sketcher.empty(n_rows)


def printer(n_rows: int | None) -> Callable[[int], None]:
    """What prints now and then how many rows were sketched, of so many."""
    began = last = monotonic()

    def tell(n_done: int) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= SECONDS or n_done == n_rows:
            of_all = "" if n_rows is None else f" of {n_rows:,}"
            print(f"{n_done:,}{of_all} rows sketched, {n_done / (now - began):,.0f} a second")
            last = now

    return tell
