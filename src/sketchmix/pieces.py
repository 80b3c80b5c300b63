"""Rows of a sketch that lie in several places, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sketchmix.moments import Block, Kept

Array = NDArray[Any]
Sum = TypeVar("Sum")


class Piece(Protocol):
    """Rows that lie together: in memory, where it is a `Block`, or in files."""

    @property
    def n_rows(self) -> int:
        """How many rows."""

    @property
    def largest(self) -> float:
        """A bound on the magnitudes of the kept entries."""

    def read(self) -> Block:
        """The rows, mapped into memory for as long as the block lives."""

    def read_only(self) -> Piece:
        """The same, whose arrays cannot be written to by accident."""

    def take(self, rows: slice | Array) -> Piece:
        """Some of the rows."""


@dataclass(frozen=True)
class Pieces:
    """What the rows of a sketch kept: at least one piece, all of one type."""

    pieces: tuple[Piece, ...]
    sketch_size: int
    dtype: np.dtype[Any]
    index_dtype: np.dtype[Any]

    @classmethod
    def of(cls, *blocks: Block) -> Pieces:
        """Blocks in memory."""
        return cls(blocks, blocks[0].sketch_size, blocks[0].dtype, blocks[0].indices.dtype)

    def read_only(self) -> Pieces:
        """The same, whose arrays in memory cannot be written to by accident."""
        return replace(self, pieces=tuple(piece.read_only() for piece in self.pieces))

    @cached_property
    def ends(self) -> list[int]:
        """How many rows there are up to the end of each piece."""
        return [int(end) for end in np.cumsum([piece.n_rows for piece in self.pieces])]

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return self.ends[-1]

    @property
    def largest(self) -> float:
        """A bound on the magnitudes of the kept entries."""
        return max(piece.largest for piece in self.pieces)

    @property
    def largest_index(self) -> int:
        """The last entry that any row kept."""
        return max(int(piece.read().indices.max(initial=0)) for piece in self.pieces)

    def blocks(self, step: int, *, exactly: bool = False) -> Iterator[Block]:
        """See `Kept`: pieces as they are where they begin at a multiple of `step`; the rest is copied together."""
        waiting, n_waiting = list[Block](), 0  # less than `step` rows, which pieces ended with
        for i, piece in enumerate(self.pieces):
            block, start = piece.read(), 0
            if waiting:
                start = min(step - n_waiting, block.n_rows)
                waiting.append(copied(block, 0, start))
                n_waiting += start
                if n_waiting < step:
                    continue
                yield joined(waiting)
                waiting, n_waiting = [], 0
            is_last = i + 1 == len(self.pieces)
            stop = block.n_rows if is_last else start + (block.n_rows - start) // step * step
            if stop > start:
                yield from block.take(slice(start, stop)).blocks(step, exactly=exactly)
            if stop < block.n_rows:
                waiting, n_waiting = [copied(block, stop, block.n_rows)], block.n_rows - stop
        if waiting or not self.n_rows:
            yield joined(waiting or [block])

    def summed(self, sum_of: Callable[[Kept, Array | None], Sum], sample_weight: Array | None) -> Sum:
        """See `Kept`: the rows are here."""
        return sum_of(self, sample_weight)

    def mapped(self, function: Callable[[Block], Array], step: int) -> Array:
        """What a function gives for each row, of which it is handed no more than `step` at a time."""
        parts = map(function, self.blocks(step, exactly=True))
        part = next(parts)
        whole, end = np.empty((self.n_rows, *part.shape[1:]), part.dtype), len(part)
        whole[:end] = part
        for part in parts:
            whole[end : end + len(part)] = part
            end += len(part)
        return whole

    def take(self, rows: slice | Array) -> Pieces:
        """Some of the rows: of pieces in files, read when they are asked for."""
        which = range(self.n_rows)[rows] if isinstance(rows, slice) else np.arange(self.n_rows)[rows]
        if not is_increasing(which):
            return self._gathered(np.asarray(which))
        starts = [0, *self.ends]
        taken = [
            piece.take(rows_between(which, start, end))
            for piece, start, end in zip(self.pieces, starts, self.ends, strict=False)
        ]
        some = tuple(piece for piece in taken if piece.n_rows)
        return replace(self, pieces=some or (taken[0],))

    def _gathered(self, which: Array) -> Pieces:
        """Rows in any order, some perhaps more than once."""
        distinct, places = np.unique(which, return_inverse=True)
        return Pieces.of(self.take(distinct).whole().take(places))

    def whole(self) -> Block:
        """All rows together; a copy if there are several pieces."""
        return joined([piece.read() for piece in self.pieces]).read_only()


def copied(block: Block, first: int, after: int) -> Block:
    """Some rows, in memory of their own: no file stays mapped for them."""
    return block.take(np.arange(first, after))


def joined(blocks: list[Block]) -> Block:
    """Blocks, one after the other, as one."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        np.concatenate([block.values for block in blocks]),
        np.concatenate([block.indices for block in blocks]),
        max(block.largest for block in blocks),
    )


def is_increasing(which: range | Array) -> bool:
    """Whether positions grow."""
    return which.step > 0 if isinstance(which, range) else bool((np.diff(which) > 0).all())


def rows_between(which: range | Array, start: int, end: int) -> slice | Array:
    """Those of the increasing positions that are in [start, end), counted from `start`."""
    if not isinstance(which, range):
        first, after = np.searchsorted(which, [start, end])
        return which[first:after] - start
    first, after = (min(max(0, -((which.start - bound) // which.step)), len(which)) for bound in (start, end))
    if first == after:
        return slice(0, 0)
    return slice(which[first] - start, which[after - 1] - start + 1, which.step)
