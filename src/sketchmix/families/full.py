"""Covariances of any form: one for each component, or one that all share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, eigh, solve_triangular
from scipy.sparse import csr_array
from scipy.special import logsumexp, softmax

from sketchmix import _core
from sketchmix.families.axis_aligned import AxisAligned, mean_of
from sketchmix.families.diagonal import Diagonal
from sketchmix.families.family import Family, Limits
from sketchmix.moments import (
    LOG_2_PI,
    Block,
    Kept,
    Parameters,
    finite_log,
    is_whole,
    log_density,
    weighted_blocks,
    without_powers_of_2_pi,
)

if TYPE_CHECKING:
    from sketchmix.rotation import Rotation
    from sketchmix.sketch import Sketch

Array = NDArray[Any]

# Of the mean variance, what a start has in every direction, where the noise of its pairs leaves some with none: EM
# then comes down from there in fewer iterations than it would come up.
LEAST_AT_START = 0.1
# Rows have this share in a component before a start looks at them.
LEAST_SHARE_AT_START = 1e-4
# Of the largest variance: below, a direction's would be lost among the rounding of the others.
RESOLUTION = 1e-10
# A shard's work outweighs the addition of its sums; more shards than this serve no machine.
MOST_SHARDS = 64
# Rows whose pairs of kept entries are added up at a time.
ROWS_OF_PAIRS = 2**15
# Rows that keep all entries, whose deviations are held, at a time.
DENSE_ROWS_AT_A_TIME = 16384


@dataclass(frozen=True)
class FullMixture:
    """A mixture in the rotated frame."""

    weights: Array  # (K,)
    means: Array  # (P, K)
    covariances: Array  # (K, P, P), or (1, P, P) for one that all components share

    @property
    def log_weights(self) -> Array:
        """Logarithms of the weights, finite for a component that lost all its rows."""
        return finite_log(self.weights)

    def covariance(self, k: int) -> Array:
        """That of a component."""
        matrix: Array = self.covariances[k % len(self.covariances)]
        return matrix


@dataclass(frozen=True)
class FullStatistics:
    """Sums over rows of r, r u and r (u u^T - A): A is the inverse of a row's kept block of S, u = A (x - mean).

    The log-likelihood's derivative by a mean is `gradient`, and by a covariance half the `curvature`.
    """

    log_likelihood: float
    size: Array  # (K,)
    gradient: Array  # (P, K)
    curvature: Array  # shaped like the covariances

    def __add__(self, other: FullStatistics) -> FullStatistics:
        return FullStatistics(
            self.log_likelihood + other.log_likelihood,
            self.size + other.size,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )


class Unrestricted(Family[FullMixture, FullStatistics]):
    """A family of covariances that may be any positive definite matrices.

    What rows did not keep makes EM slow here: it starts from what pairs of entries that were kept together say,
    and is accelerated.
    """

    accelerated = True

    # -- shape --------------------------------------------------------------------------------------------

    @abstractmethod
    def sharing(self, n_components: int) -> list[list[int]]:
        """For each covariance, the components that have it."""

    @property
    def seed(self) -> AxisAligned:
        return Diagonal()

    def shared_variances(self, variances: Array, n_components: int) -> Array:
        return np.full(len(self.sharing(n_components)), variances.mean())

    def variances(self, mixture: FullMixture, rotation: Rotation) -> Array:
        axes = rotation.forward(np.eye(rotation.n_features))
        of_covariances = ((axes @ mixture.covariances) * axes).sum(axis=2)
        return np.broadcast_to(of_covariances, (len(mixture.weights), len(axes))).copy()

    def covariance(self, mixture: FullMixture, k: int, axes: Array) -> Array:
        matrix: Array = axes @ mixture.covariance(k) @ axes.T
        return matrix

    def deviations(self, mixture: FullMixture, y: Array, rng: np.random.RandomState) -> Array:
        deviations = rng.standard_normal((len(y), len(mixture.means)))
        for k in np.unique(y):
            deviations[y == k] @= root(mixture.covariance(k)).T
        return deviations

    def n_parameters(self, n_components: int, n_features: int) -> int:
        of_a_covariance = n_features * (n_features + 1) // 2
        of_covariances = len(self.sharing(n_components)) * of_a_covariance
        return n_components - 1 + n_components * n_features + of_covariances

    # -- densities and statistics -------------------------------------------------------------------------

    def log_density(self, block: Block, mixture: FullMixture) -> Array:
        if is_whole(block, mixture.means):
            parts = block.blocks(DENSE_ROWS_AT_A_TIME, exactly=True)
            return np.concatenate([dense_log_density(part, mixture) for part in parts])
        out = np.empty((block.n_rows, len(mixture.weights)))
        _core.full_log_density(
            block.values, block.indices, mixture.log_weights, mixture.means, mixture.covariances, out
        )
        out -= 0.5 * block.sketch_size * LOG_2_PI
        return out

    def statistics(self, kept: Kept, mixture: FullMixture, sample_weight: Array | None) -> FullStatistics:
        if is_whole(kept, mixture.means):
            return kept.summed(partial(self._dense_statistics, mixture=mixture), sample_weight)
        return sparse_statistics(kept, mixture, sample_weight)

    def _dense_statistics(
        self, kept: Kept, sample_weight: Array | None, *, mixture: FullMixture
    ) -> FullStatistics:
        """The sums over rows that keep every entry, a block at a time."""
        parts = weighted_blocks(kept, sample_weight, DENSE_ROWS_AT_A_TIME, exactly=True)
        return reduce(add, (self._of_dense_block(block, mixture, weight) for block, weight in parts))

    def _of_dense_block(self, block: Block, mixture: FullMixture, sample_weight: Array | None) -> FullStatistics:
        """The sums over rows that keep every entry, whose kept blocks are all S itself."""
        rows, joint = block.values, dense_log_density(block, mixture)
        weight = np.ones(len(rows)) if sample_weight is None else sample_weight
        r = softmax(joint, axis=1) * weight[:, None]
        gradient, curvature = np.empty_like(mixture.means), np.empty_like(mixture.covariances)
        for c, shared in enumerate(self.sharing(len(mixture.weights))):
            factor = root(mixture.covariances[c]), True
            curvature[c] = -r[:, shared].sum() * cho_solve(factor, np.eye(len(mixture.means)))
            for k in shared:
                u = cho_solve(factor, (rows - mixture.means[:, k]).T)  # (P, n)
                gradient[:, k] = u @ r[:, k]
                curvature[c] += (u * r[:, k]) @ u.T
        return FullStatistics(float(weight @ logsumexp(joint, axis=1)), r.sum(axis=0), gradient, curvature)

    # -- maximise -----------------------------------------------------------------------------------------

    def begin(
        self, seeded: Parameters, sketch: Sketch, sample_weight: Array | None, limits: Limits
    ) -> FullMixture:
        """Covariances of entries that were kept together, around the seeded means.

        Entries that too few rows kept together begin uncorrelated, with the seeded variances.
        """
        sharing = self.sharing(len(seeded.weights))
        products, count = sketch.kept.summed(partial(sum_pairs, seeded=seeded, sharing=sharing), sample_weight)
        covariances = []
        for c, (floor, shared) in enumerate(zip(limits.floor, sharing, strict=True)):
            weights = np.exp(seeded.log_weights[shared])
            otherwise = np.diag(np.average(seeded.variances[:, shared], axis=1, weights=weights))
            S = np.where(count[c] >= limits.support, mean_of(products[c], count[c], 0.0), otherwise)
            S += limits.reg_covar * np.eye(len(S))
            covariances.append(repaired(S, floor, max(floor, LEAST_AT_START * np.trace(S) / len(S))))
        return FullMixture(seeded.weights, seeded.means, np.array(covariances))

    def maximise(self, statistics: FullStatistics, mixture: FullMixture, limits: Limits) -> FullMixture:
        """One step of EM with entries missing at random.

        With S = L L^T, n and C the sizes and curvatures of the components that share S, and h = L^T g / n_k the
        standardised step of a mean: S becomes L (I + (L^T C L - sum n_k h h^T) / n) L^T.
        """
        means, covariances = mixture.means.copy(), mixture.covariances.copy()
        each = zip(mixture.covariances, statistics.curvature, self.sharing(len(means.T)), strict=True)
        for c, (S, curvature, shared) in enumerate(each):
            size = statistics.size[shared]
            if not size.sum() > 0:
                continue
            L = root(S)
            h = mean_of(L.T @ statistics.gradient[:, shared], size, 0.0)
            means[:, shared] += L @ h
            inner = np.eye(len(S)) + (L.T @ curvature @ L - (h * size) @ h.T) / size.sum()
            # What rows did not keep is taken from S, with what was added to it before.
            moved = L @ inner @ L.T + limits.share * limits.reg_covar * np.eye(len(S))
            covariances[c] = repaired(moved, 0.0, limits.floor[c])
        return FullMixture(statistics.size / statistics.size.sum(), means, covariances)

    def carried(self, statistics: FullStatistics, before: FullMixture, after: FullMixture) -> FullStatistics:
        """By way of the rows as they are expected in full: all entries, with those that were not kept.

        Around the mean before, these have the first moment S g and the second n S + S C S. From the same around
        the mean after come the derivatives there, S^-1 (first moment) and S^-1 (second moment - n S) S^-1.
        """
        gradient, curvature = np.empty_like(statistics.gradient), np.empty_like(statistics.curvature)
        for c, shared in enumerate(self.sharing(len(before.weights))):
            S, factor = before.covariances[c], (root(after.covariances[c]), True)
            size, shift = statistics.size[shared], (after.means - before.means)[:, shared]
            first = S @ statistics.gradient[:, shared]
            moved = first @ shift.T
            around = S @ statistics.curvature[c] @ S - moved - moved.T + (size * shift) @ shift.T
            beyond = around - size.sum() * (after.covariances[c] - S)
            gradient[:, shared] = cho_solve(factor, first - size * shift)
            curvature[c] = cho_solve(factor, cho_solve(factor, beyond).T)
        return replace(statistics, gradient=gradient, curvature=curvature)

    def remembered(self, mixture: FullMixture, weight: float, limits: Limits) -> FullStatistics:
        size, curvature = weight * mixture.weights, np.empty_like(mixture.covariances)
        for c, shared in enumerate(self.sharing(len(size))):
            inverse = cho_solve((root(mixture.covariances[c]), True), np.eye(len(mixture.means)))
            # What is added to S at every step is not the rows'.
            curvature[c] = -size[shared].sum() * limits.share * limits.reg_covar * (inverse @ inverse)
        return FullStatistics(0.0, size, np.zeros_like(mixture.means), curvature)

    def collapsed(self, mixture: FullMixture, limits: Limits, shared: Array) -> Array:  # noqa: ARG002
        """Where a direction of least variance is one in which the whole mixture varies."""
        spread = (mixture.means - (mixture.means @ mixture.weights)[:, None]) * np.sqrt(mixture.weights)
        together = spread @ spread.T
        for k, weight in enumerate(mixture.weights):
            together += weight * mixture.covariance(k)
        found = np.zeros(len(mixture.weights), bool)
        for S, floor, which in zip(mixture.covariances, limits.floor, self.sharing(len(found)), strict=True):
            variances, directions = eigh(S)
            least = resolved(floor, variances)
            thin = directions[:, variances <= 2 * least]
            found[which] = (np.einsum("pi,pq,qi->i", thin, together, thin) > 10 * least).any()
        return found

    def to_vector(self, mixture: FullMixture) -> Array:
        """Log weights, means, and Cholesky factors with the logarithms of their diagonals."""
        factors = [root(S) for S in mixture.covariances]
        diagonals = [np.log(np.diagonal(L)) for L in factors]
        below = [L[np.tril_indices_from(L, -1)] for L in factors]
        return np.concatenate([mixture.log_weights, mixture.means.ravel(), *diagonals, *below])

    def of_vector(self, vector: Array, like: FullMixture) -> FullMixture | None:
        (k,), (p, _), n_covariances = like.weights.shape, like.means.shape, len(like.covariances)
        ends = np.cumsum([k, p * k, n_covariances * p])
        log_weights, means, diagonals, below = np.split(vector, ends)
        factors = np.zeros_like(like.covariances)
        with np.errstate(over="ignore", invalid="ignore"):
            factors[:, range(p), range(p)] = np.exp(diagonals.reshape(n_covariances, p))
            rows, columns = np.tril_indices(p, -1)
            factors[:, rows, columns] = below.reshape(n_covariances, -1)
            covariances = factors @ factors.transpose(0, 2, 1)
        finite = np.isfinite(vector).all() and np.isfinite(covariances).all()
        if not finite or any(root_if_positive(S) is None for S in covariances):
            return None
        return FullMixture(softmax(log_weights), means.reshape(p, k), covariances)


class Full(Unrestricted):
    """Each component has a covariance S_k of its own."""

    name = "full"

    def sharing(self, n_components: int) -> list[list[int]]:
        return [[k] for k in range(n_components)]

    def attributes(self, mixture: FullMixture, rotation: Rotation) -> dict[str, Array]:
        return {"covariances_": in_users_space(mixture.covariances, rotation)}


class Tied(Unrestricted):
    """All components have the same covariance S."""

    name = "tied"

    def sharing(self, n_components: int) -> list[list[int]]:
        return [list(range(n_components))]

    def attributes(self, mixture: FullMixture, rotation: Rotation) -> dict[str, Array]:
        return {"covariances_": in_users_space(mixture.covariances, rotation)[0]}


def in_users_space(covariances: Array, rotation: Rotation) -> Array:
    """Covariances of the features."""
    axes = rotation.forward(np.eye(rotation.n_features))
    return axes @ covariances @ axes.T


# -- matrices ---------------------------------------------------------------------------------------------


def root(S: Array) -> Array:
    """The lower triangular L with S = L L^T."""
    L: Array = cholesky(S, lower=True)
    return L


def root_if_positive(S: Array) -> Array | None:
    """`root`, or None where S is not positive definite."""
    try:
        return root(S)
    except np.linalg.LinAlgError:
        return None


def repaired(S: Array, least: float, floor: float) -> Array:
    """S, made symmetric; where it has variances up to `least`, with all of them raised to `floor`."""
    # Every step of EM makes what rounding left asymmetric half as large again.
    symmetric: Array = (S + S.T) / 2
    if root_if_positive(symmetric - least * np.eye(len(S))) is not None:
        return symmetric
    variances, directions = eigh(symmetric)
    clipped: Array = (directions * np.maximum(variances, resolved(floor, variances))) @ directions.T
    return (clipped + clipped.T) / 2


def resolved(floor: float, variances: Array) -> float:
    """The floor, or what it takes for a matrix with these variances, in increasing order, to have a root."""
    return max(floor, RESOLUTION * float(variances[-1]))


# -- rows that keep every entry ---------------------------------------------------------------------------


def dense_log_density(block: Block, mixture: FullMixture) -> Array:
    """Log weight plus log density, (n, K)."""
    roots = [root(S) for S in mixture.covariances]
    out = np.empty((block.n_rows, len(mixture.weights)))
    for k, mean in enumerate(mixture.means.T):
        L = roots[k % len(roots)]
        standardised = solve_triangular(L, (block.values - mean).T, lower=True)
        out[:, k] = -0.5 * (standardised**2).sum(axis=0) - np.log(np.diagonal(L)).sum()
    return out + (mixture.log_weights - 0.5 * block.sketch_size * LOG_2_PI)


# -- rows that keep some entries --------------------------------------------------------------------------


def sparse_statistics(kept: Kept, mixture: FullMixture, sample_weight: Array | None) -> FullStatistics:
    """The sums over rows that keep some entries each."""
    sum_of = partial(sum_in_shards, mixture=mixture, height=rows_of_shard(kept, len(mixture.means)))
    return kept.summed(sum_of, sample_weight)


def sum_in_shards(kept: Kept, sample_weight: Array | None, *, mixture: FullMixture, height: int) -> FullStatistics:
    """`sparse_statistics`, where it is settled of how many rows a shard is."""
    zeros, log_likelihood = np.zeros_like, np.zeros(1)
    sums = FullStatistics(0.0, zeros(mixture.weights), zeros(mixture.means), zeros(mixture.covariances))
    for block, weight in weighted_blocks(kept, sample_weight, height):
        _core.full_statistics(
            block.values,
            block.indices,
            weight,
            mixture.log_weights,
            mixture.means,
            mixture.covariances,
            height,
            log_likelihood,
            sums.size,
            sums.gradient,
            sums.curvature,
        )
    lower = np.tril(sums.curvature)
    curvature = lower + np.tril(lower, -1).transpose(0, 2, 1)
    total = without_powers_of_2_pi(log_likelihood, sums.size, kept)
    return replace(sums, log_likelihood=total, curvature=curvature)


def rows_of_shard(kept: Kept, n_rotated: int) -> int:
    """Of how many rows a shard is: by the problem alone, so that no thread count and no block changes a bit."""
    worth_its_sums = -(-2 * n_rotated**2 // kept.sketch_size**2)
    return max(worth_its_sums, -(-kept.n_rows // MOST_SHARDS))


def sum_pairs(kept: Kept, sample_weight: Array | None, *, seeded: Parameters, sharing: list[list[int]]) -> Array:
    """For each covariance, sums over the rows that kept both of two entries, (2, n_covariances, P, P).

    Of r times their deviations from the means of the components that share it, and of r.
    """
    n_rotated = len(seeded.means)
    products, count = sums = np.zeros((2, len(sharing), n_rotated, n_rotated))
    for block, weight in weighted_blocks(kept, sample_weight, ROWS_OF_PAIRS, exactly=True):
        r = softmax(log_density(block, seeded), axis=1)
        r[r < LEAST_SHARE_AT_START] = 0
        if weight is not None:
            r *= weight[:, None]
        for c, shared in enumerate(sharing):
            for k in shared:
                some = r[:, k] > 0
                part, scale = block.take(some), np.sqrt(r[some, k, None])
                deviations = part.values - seeded.means[part.indices, k]
                products[c] += gram(scale * deviations, part.indices, n_rotated)
                count[c] += gram(np.broadcast_to(scale, deviations.shape), part.indices, n_rotated)
    return sums


def gram(entries: Array, indices: Array, n_columns: int) -> Array:
    """A^T A for the matrix A that has the given entries in each row."""
    n, q = entries.shape
    if q == n_columns:
        product: Array = entries.T @ entries
        return product
    places = np.arange(0, n * q + 1, q)
    A = csr_array((entries.ravel(), indices.ravel().astype(np.int64), places), shape=(n, n_columns))
    return np.asarray((A.T @ A).toarray())
