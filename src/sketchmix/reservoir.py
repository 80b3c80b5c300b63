"""A few dense rotated rows, drawn uniformly: what a sketch holds in full, for seeding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# About this many rows, fewer where they would take more bytes, but some in any case.
WANTED_ROWS = 2048
WANTED_BYTES = 2**22
LEAST_ROWS = 64
# Rows whose keys are computed at a time.
KEYED_ROWS = 2**16
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class Reservoir(NamedTuple):
    """Dense rotated rows: all those of the sketch whose key is up to a threshold."""

    rows: Array  # (n, n_rotated)
    positions: Array  # (n,), increasing: which rows of the sketch they are
    keys: Array  # (n,): uniform in [0, 2^64), a function of the seed and the row number
    threshold: np.uint64

    def take(self, which: slice | Array) -> Reservoir:
        """Some of the rows, in the given order."""
        return self._replace(rows=self.rows[which], positions=self.positions[which], keys=self.keys[which])

    def up_to(self, threshold: np.uint64) -> Reservoir:
        """The rows whose key is up to `threshold`, and to the one that there is."""
        threshold = min(threshold, self.threshold)
        return self.take(np.flatnonzero(self.keys <= threshold))._replace(threshold=threshold)

    def within(self, first: int, after: int) -> Reservoir:
        """The rows that are among some consecutive rows of the sketch, numbered from the first of these."""
        some = self.take(slice(*np.searchsorted(self.positions, [first, after])))
        return some._replace(positions=some.positions - first)


class Growing:
    """The reservoir of parts that come one after the other; what none of them can hold any more is forgotten."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Reservoir | None]] = []
        self._n_held, self._n_allowed = 0, 0

    def add(self, n_rows: int, part: Reservoir | None) -> None:
        """The next rows, and the dense ones among them."""
        self._parts.append((n_rows, part))
        self._n_held += len(part.rows) if part else 0
        if self._n_held > self._n_allowed:
            so_far = self.joined()
            self._parts = [(sum(n for n, _ in self._parts), so_far)]
            self._n_held = len(so_far.rows) if so_far else 0
            self._n_allowed = 2 * self._n_held

    def joined(self) -> Reservoir | None:
        """The reservoir of all rows so far."""
        return joined(self._parts)


def joined(parts: Sequence[tuple[int, Reservoir | None]]) -> Reservoir | None:
    """The reservoir of all rows, from each part's number of rows and reservoir; None where a part has none.

    It has those of the parts' rows whose keys are below the thresholds of all parts.
    """
    held: list[Reservoir] = []
    n_rows = 0
    for n_rows_of_part, reservoir in parts:
        if not n_rows_of_part:
            continue
        if reservoir is None:
            return None
        held.append(reservoir._replace(positions=reservoir.positions + n_rows))
        n_rows += n_rows_of_part
    if not held:
        return parts[0][1]
    together = Reservoir(
        np.concatenate([part.rows for part in held]),
        np.concatenate([part.positions for part in held]),
        np.concatenate([part.keys for part in held]),
        min(part.threshold for part in held),
    )
    return together.up_to(largest_key(together.rows.shape[1], together.rows.dtype, n_rows))


def row_keys(seed: int, rows: Array) -> Array:
    """A uniform 64-bit key for each row number: SplitMix64's finaliser of a counter, as for the masks."""
    z = (rows.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA ^ np.uint64(seed)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    keys: Array = z ^ z >> np.uint64(31)
    return keys


def largest_key(n_rotated: int, dtype: np.dtype[Any], n_rows: int) -> np.uint64:
    """The key up to which rows are held, of so many: all of them, where there are no more than wanted."""
    fitting = WANTED_BYTES // (n_rotated * dtype.itemsize)
    n_wanted = min(WANTED_ROWS, max(LEAST_ROWS, fitting))
    return np.uint64(min((n_wanted << 64) // max(n_rows, 1), 1 << 64) - 1)


def rows_with_keys_up_to(threshold: np.uint64, seed: int, first_row: int, n_rows: int) -> Array:
    """Which of the rows have a key up to `threshold`."""
    held = [np.empty(0, np.int64)]
    for start in range(0, n_rows, KEYED_ROWS):
        block = np.arange(start, min(start + KEYED_ROWS, n_rows))
        held.append(block[row_keys(seed, first_row + block) <= threshold])
    return np.concatenate(held)
