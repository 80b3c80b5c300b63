"""What a block of sketched rows adds up to under given parameters: sums that can be added to others.

These functions are the only callers of the core's EM kernels.
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


class Block(NamedTuple):
    """Sketched rows: their kept entries and where these lie, sorted in each row."""

    values: Array  # (n, Q)
    indices: Array  # (n, Q); a row stride of 0 where all rows keep the same


def dense_block(rotated: Array) -> Block:
    """Rotated rows as a sketch that keeps every entry."""
    every = np.arange(rotated.shape[1], dtype=np.uint32)
    return Block(rotated, np.broadcast_to(every, rotated.shape))


@dataclass(frozen=True)
class Parameters:
    """A mixture in the rotated frame; coordinate-major, as the kernels read it."""

    weights: Array  # (K,)
    means: Array  # (P, K)
    variances: Array  # (P, K) for a diagonal covariance, (K,) for a spherical one

    @property
    def log_weights(self) -> Array:
        """Logarithms of the weights, finite for a component that lost all its rows."""
        return np.log(np.maximum(self.weights, np.finfo(float).tiny))


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


def add_up(block: Block, parameters: Parameters, sample_weight: Array | None, *, hard: bool = False) -> Moments:
    """The E-step and its sums in one pass; with `hard`, each row belongs to its densest component alone."""
    n, q = block.values.shape
    p, k = parameters.means.shape
    sums = Moments.of_nothing(parameters)
    log_likelihood = _core.statistics(
        block.values,
        block.indices,
        sample_weight,
        parameters.log_weights,
        parameters.means,
        parameters.variances,
        hard,
        in_double(block, k),
        n_shards(n, q, p),
        sums.size,
        sums.count,
        sums.first,
        sums.second,
    )
    return replace(sums, log_likelihood=log_likelihood)


def log_density(block: Block, parameters: Parameters) -> Array:
    """Log weight plus log density of each row's kept entries under each component, (n, K)."""
    k = len(parameters.weights)
    out = np.empty((len(block.values), k))
    _core.log_density(
        block.values,
        block.indices,
        parameters.log_weights,
        parameters.means,
        parameters.variances,
        in_double(block, k),
        out,
    )
    return out


def squared_distances(block: Block, centers: Array) -> Array:
    """Sum over each row's kept entries of the squared deviation from each column of `centers`, (n, M)."""
    # A unit Gaussian's log density, its constant paid for by the weight, is minus half of that.
    m = centers.shape[1]
    out = np.empty((len(block.values), m))
    constant = np.full(m, 0.5 * block.values.shape[1] * LOG_2_PI)
    _core.log_density(block.values, block.indices, constant, centers, np.ones(m), in_double(block, m), out)
    return -2 * out


def sums_by_coordinate(block: Block, n_rotated: int) -> tuple[Array, Array]:
    """How many rows kept each coordinate, and the sum of what they kept there."""
    one = Parameters(np.ones(1), np.zeros((n_rotated, 1)), np.ones(1))
    moments = add_up(block, one, None)
    return moments.count[:, 0], moments.first[:, 0]


def in_double(block: Block, n_components: int) -> bool:
    """Whether the kernels compute in float64: for such values, and where it is free."""
    return block.values.dtype == np.float64 or block.values.size * n_components <= SMALL_PROBLEM


def n_shards(n_rows: int, sketch_size: int, n_rotated: int) -> int:
    """Into how many shards rows are cut: by the problem alone, so that no thread count changes a bit."""
    by_work = n_rows * sketch_size // (n_rotated * ROWS_PER_COORDINATE)
    return max(1, by_work, -(-n_rows // LARGEST_SHARD))
