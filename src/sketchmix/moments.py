"""What a block of sketched rows adds up to under given parameters: sums that can be added to others.

These functions are the only callers of the core's EM kernels for axis-aligned covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sketchmix import _core

Array = NDArray[Any]
Sum = TypeVar("Sum")

LOG_2_PI = 1.8378770664093453
# A shard is summed in the kernel's own precision; each coordinate then meets about this many rows of it.
ROWS_PER_COORDINATE = 256
LARGEST_SHARD = 2**17
# Up to this many kept entries times components, float64 costs nothing that anyone would notice.
SMALL_PROBLEM = 2**20
# Entries beyond these, or energies (squared standardised deviations, summed), would be lost in float32.
SMALLEST_IN_FLOAT32 = 1e-12
LARGEST_IN_FLOAT32 = 1e36


class Kept(Protocol):
    """What rows kept: a `Block`, or blocks that lie in several places, one after the other."""

    @property
    def n_rows(self) -> int:
        """How many rows."""

    @property
    def sketch_size(self) -> int:
        """Entries kept of each."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the kept entries."""

    @property
    def largest(self) -> float:
        """A bound on the magnitudes of the kept entries."""

    def blocks(self, step: int, *, exactly: bool = False) -> Iterator[Block]:
        """The rows as consecutive blocks that begin at multiples of `step` rows; at least one, if of no rows.

        They are as long as is convenient, or `exactly` of `step` rows but for the last.
        """

    def summed(self, sum_of: Callable[[Kept, Array | None], Sum], sample_weight: Array | None) -> Sum:
        """What rows and their weights add up to: `sum_of` them, or of parts of them, added.

        All that a fit learns of all rows comes through here, and so it matters nowhere else where they lie.
        """


class Block(NamedTuple):
    """Sketched rows that lie together: their kept entries and where these are, sorted in each row."""

    values: Array  # (n, Q)
    indices: Array  # (n, Q); a row stride of 0 where all rows keep the same
    largest: float  # a bound on the magnitudes of the values

    def __reduce__(self) -> tuple[Any, ...]:
        return aligned_block, tuple(self)

    @classmethod
    def of(cls, values: Array, indices: Array) -> Block:
        """The block of these arrays."""
        return cls(values, indices, largest_magnitude(values))

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.values)

    @property
    def sketch_size(self) -> int:
        """Entries kept of each."""
        return int(self.values.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the kept entries."""
        return self.values.dtype

    def take(self, rows: slice | Array) -> Block:
        """Some of the rows."""
        return self._replace(values=self.values[rows], indices=self.indices[rows])

    def read(self) -> Block:
        """Itself: the rows are in memory."""
        return self

    def read_only(self) -> Block:
        """The same, whose arrays cannot be written to by accident."""
        values, indices = self.values.view(), self.indices.view()
        values.flags.writeable = indices.flags.writeable = False
        return self._replace(values=values, indices=indices)

    def blocks(self, step: int, *, exactly: bool = False) -> Iterator[Block]:
        """The rows at once, or `exactly` so many at a time."""
        height = step if exactly else max(1, self.n_rows)
        for first in range(0, max(1, self.n_rows), height):
            yield self.take(slice(first, first + height))

    def summed(self, sum_of: Callable[[Kept, Array | None], Sum], sample_weight: Array | None) -> Sum:
        """See `Kept`: the rows are here."""
        return sum_of(self, sample_weight)


def aligned_block(values: Array, indices: Array, largest: float) -> Block:
    """A block that came from another process: in a message, arrays may begin at any byte."""
    return Block(np.require(values, requirements="A"), np.require(indices, requirements="A"), largest)


def is_whole(kept: Kept, means: Array) -> bool:
    """Whether rows keep every entry that `means` (P x K) have."""
    return kept.sketch_size == len(means)


def weighted_blocks(
    kept: Kept, sample_weight: Array | None, step: int, *, exactly: bool = False
) -> Iterator[tuple[Block, Array | None]]:
    """`Kept.blocks`, each with the weights of its rows."""
    first = 0
    for block in kept.blocks(step, exactly=exactly):
        after = first + block.n_rows
        yield block, None if sample_weight is None else sample_weight[first:after]
        first = after


def dense_block(rotated: Array) -> Block:
    """Rotated rows as a sketch that keeps every entry."""
    every = np.arange(rotated.shape[1], dtype=np.uint32)
    return Block.of(rotated, np.broadcast_to(every, rotated.shape))


def largest_magnitude(values: Array) -> float:
    """The largest absolute value, 0 for no values."""
    return float(max(values.max(initial=0), -values.min(initial=0)))


def finite_log(weights: Array) -> Array:
    """Logarithms, that of the smallest positive number for zero."""
    logarithms: Array = np.log(np.maximum(weights, np.finfo(float).tiny))
    return logarithms


@dataclass(frozen=True)
class Parameters:
    """A mixture in the rotated frame; coordinate-major, as the kernels read it."""

    weights: Array  # (K,)
    means: Array  # (P, K)
    variances: Array  # (P, K) for a diagonal covariance, (K,) for a spherical one

    @property
    def log_weights(self) -> Array:
        """Logarithms of the weights, finite for a component that lost all its rows."""
        return finite_log(self.weights)


@dataclass(frozen=True)
class Moments:
    """Sums over rows of r, and of r, r d and r d^2 for each coordinate that a row kept; d = x - mean."""

    log_likelihood: float
    size: Array  # (K,)
    count: Array  # (P, K)
    first: Array  # (P, K)
    second: Array  # shaped like the variances

    @classmethod
    def of_nothing(cls, parameters: Parameters) -> Moments:
        """The sums over no rows."""
        zeros = np.zeros_like
        means, variances = parameters.means, parameters.variances
        return cls(0.0, zeros(parameters.weights), zeros(means), zeros(means), zeros(variances))

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.log_likelihood + other.log_likelihood,
            self.size + other.size,
            self.count + other.count,
            self.first + other.first,
            self.second + other.second,
        )

    def around(self, shift: Array) -> Moments:
        """The same sums around means moved by `shift`."""
        moved = shift * (2 * self.first - shift * self.count)
        of_variances = moved if self.second.ndim == 2 else moved.sum(axis=0)
        return replace(self, first=self.first - shift * self.count, second=self.second - of_variances)


def add_up(
    kept: Kept,
    parameters: Parameters,
    sample_weight: Array | None,
    *,
    hard: bool = False,
    exact: bool = False,
) -> Moments:
    """The E-step and its sums in one pass.

    With `hard`, each row belongs to its densest component alone; with `exact`, the arithmetic is in float64.
    """
    double_precision = exact or in_double(kept, parameters.means, parameters.variances)
    sum_of = partial(moments_of, parameters=parameters, hard=hard, double_precision=double_precision)
    return kept.summed(sum_of, sample_weight)


def moments_of(
    kept: Kept, sample_weight: Array | None, *, parameters: Parameters, hard: bool, double_precision: bool
) -> Moments:
    """`add_up`, where the precision is settled."""
    sums, log_likelihood = Moments.of_nothing(parameters), np.zeros(1)
    height = rows_of_shard(kept.sketch_size, len(parameters.means))
    for block, weight in weighted_blocks(kept, sample_weight, height):
        _core.statistics(
            block.values,
            block.indices,
            weight,
            parameters.log_weights,
            parameters.means,
            parameters.variances,
            hard,
            double_precision,
            height,
            log_likelihood,
            sums.size,
            sums.count,
            sums.first,
            sums.second,
        )
    return replace(sums, log_likelihood=without_powers_of_2_pi(log_likelihood, sums.size, kept))


def without_powers_of_2_pi(log_likelihood: Array, size: Array, kept: Kept) -> float:
    """The log-likelihood of rows, from what the core adds up of it."""
    return float(log_likelihood[0] - 0.5 * kept.sketch_size * LOG_2_PI * size.sum())


def log_density(block: Block, parameters: Parameters) -> Array:
    """Log weight plus log density of each row's kept entries under each component, (n, K)."""
    density: Array = scaled_log_density(block, parameters) - 0.5 * block.values.shape[1] * LOG_2_PI
    return density


def squared_distances(block: Block, centers: Array) -> Array:
    """Sum over each row's kept entries of the squared deviation from each column of `centers`, (n, M)."""
    # Minus twice the logarithm of unit Gaussians of weight one; adding zero turns -0.0 into 0.0.
    return -2 * scaled_log_density(block, unit_spheres(centers)) + 0.0


def scaled_log_density(block: Block, parameters: Parameters) -> Array:
    """`log_density` without the powers of 2 pi."""
    out = np.empty((len(block.values), len(parameters.weights)))
    _core.log_density(
        block.values,
        block.indices,
        parameters.log_weights,
        parameters.means,
        parameters.variances,
        in_double(block, parameters.means, parameters.variances),
        out,
    )
    return out


def unit_spheres(centers: Array) -> Parameters:
    """Unit Gaussians of weight one: the densest is the nearest."""
    k = centers.shape[1]
    return Parameters(np.ones(k), centers, np.ones(k))


def sums_by_coordinate(kept: Kept, n_rotated: int, sample_weight: Array | None = None) -> tuple[Array, Array]:
    """The weight of the rows that kept each coordinate, and the sum of what they kept there."""
    moments = add_up(kept, unit_spheres(np.zeros((n_rotated, 1))), sample_weight, exact=True)
    return moments.count[:, 0], moments.first[:, 0]


def in_double(kept: Kept, means: Array, variances: Array) -> bool:
    """Whether the kernels compute in float64: for such values, where it is free, and where float32 has no room."""
    if kept.dtype == np.float64 or kept.n_rows * kept.sketch_size * means.shape[1] <= SMALL_PROBLEM:
        return True
    largest = max(kept.largest, largest_magnitude(means))
    energy = kept.sketch_size * largest**2 / min(1.0, float(variances.min()))
    return not (largest >= SMALLEST_IN_FLOAT32 and energy <= LARGEST_IN_FLOAT32)


def rows_of_shard(sketch_size: int, n_rotated: int) -> int:
    """Of how many rows a shard is: by the problem alone, so that no thread count and no block changes a bit."""
    return min(LARGEST_SHARD, -(-n_rotated * ROWS_PER_COORDINATE // sketch_size))
