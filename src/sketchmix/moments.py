"""What a block of sketched rows adds up to under given parameters: sums that can be added to others.

These functions are the only callers of the core's EM kernels for axis-aligned covariances.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sketchmix import _core

Array = NDArray[Any]

LOG_2_PI = 1.8378770664093453
# A shard is summed in the kernel's own precision; each coordinate then meets about this many rows of it.
ROWS_PER_COORDINATE = 256
LARGEST_SHARD = 2**17
# Up to this many kept entries times components, float64 costs nothing that anyone would notice.
SMALL_PROBLEM = 2**20
# Entries beyond these, or energies (squared standardised deviations, summed), would be lost in float32.
SMALLEST_IN_FLOAT32 = 1e-12
LARGEST_IN_FLOAT32 = 1e36


class Block(NamedTuple):
    """Sketched rows: their kept entries and where these lie, sorted in each row."""

    values: Array  # (n, Q)
    indices: Array  # (n, Q); a row stride of 0 where all rows keep the same
    largest: float  # a bound on the magnitudes of the values

    @classmethod
    def of(cls, values: Array, indices: Array) -> Block:
        """The block of these arrays."""
        return cls(values, indices, largest_magnitude(values))

    def is_whole(self, means: Array) -> bool:
        """Whether rows keep every entry that `means` (P x K) have."""
        return bool(self.values.shape[1] == len(means))

    def cut(self, n_rows: int) -> list[Block]:
        """The rows, some at a time."""
        cuts = slices(len(self.values), n_rows)
        return [self._replace(values=self.values[some], indices=self.indices[some]) for some in cuts]


def slices(n_rows: int, at_a_time: int) -> list[slice]:
    """Rows, some at a time; at least one part, if of no rows."""
    return [slice(first, first + at_a_time) for first in range(0, max(1, n_rows), at_a_time)]


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
    block: Block,
    parameters: Parameters,
    sample_weight: Array | None,
    *,
    hard: bool = False,
    exact: bool = False,
) -> Moments:
    """The E-step and its sums in one pass.

    With `hard`, each row belongs to its densest component alone; with `exact`, the arithmetic is in float64.
    """
    n, q = block.values.shape
    p = len(parameters.means)
    sums = Moments.of_nothing(parameters)
    log_likelihood = _core.statistics(
        block.values,
        block.indices,
        sample_weight,
        parameters.log_weights,
        parameters.means,
        parameters.variances,
        hard,
        exact or in_double(block, parameters.means, parameters.variances),
        n_shards(n, q, p),
        sums.size,
        sums.count,
        sums.first,
        sums.second,
    )
    return replace(sums, log_likelihood=log_likelihood - 0.5 * q * LOG_2_PI * sums.size.sum())


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


def sums_by_coordinate(block: Block, n_rotated: int, sample_weight: Array | None = None) -> tuple[Array, Array]:
    """The weight of the rows that kept each coordinate, and the sum of what they kept there."""
    moments = add_up(block, unit_spheres(np.zeros((n_rotated, 1))), sample_weight, exact=True)
    return moments.count[:, 0], moments.first[:, 0]


def in_double(block: Block, means: Array, variances: Array) -> bool:
    """Whether the kernels compute in float64: for such values, where it is free, and where float32 has no room."""
    if block.values.dtype == np.float64 or block.values.size * means.shape[1] <= SMALL_PROBLEM:
        return True
    largest = max(block.largest, largest_magnitude(means))
    energy = block.values.shape[1] * largest**2 / min(1.0, float(variances.min()))
    return not (largest >= SMALLEST_IN_FLOAT32 and energy <= LARGEST_IN_FLOAT32)


def n_shards(n_rows: int, sketch_size: int, n_rotated: int) -> int:
    """Into how many shards rows are cut: by the problem alone, so that no thread count changes a bit."""
    by_work = n_rows * sketch_size // (n_rotated * ROWS_PER_COORDINATE)
    return max(1, by_work, -(-n_rows // LARGEST_SHARD))
