"""Low-rank covariances, W W^T + s I: mixtures of probabilistic PCAs.

A row of component k is mean_k + W_k z + noise, with r standard normal coordinates z. The kept block of such a
covariance is of the same kind, and so is the covariance after a rotation: HD maps W to HDW and leaves s alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sketchmix import _core
from sketchmix.families.axis_aligned import AxisAligned
from sketchmix.families.family import Family, Limits
from sketchmix.families.spherical import Spherical
from sketchmix.moments import (
    LOG_2_PI,
    Block,
    Parameters,
    dense_block,
    finite_log,
    in_double,
    log_density,
    n_shards,
)

if TYPE_CHECKING:
    from sketchmix.rotation import Rotation
    from sketchmix.sketch import Sketch

Array = NDArray[Any]

# First factors come from the dense rows of a component, if these span so many times the rank.
DIRECTIONS_PER_FACTOR = 2
ROUNDING = 1e-10
# The least length of a first factor, as a share of the noise's standard deviation: EM leaves one of zero alone.
SHORTEST_FACTOR = 0.1


@dataclass(frozen=True)
class LowRankMixture:
    """A mixture in the rotated frame."""

    weights: Array  # (K,)
    means: Array  # (P, K)
    factors: Array  # (K, P, r): W
    noise: Array  # (K,): s


@dataclass(frozen=True)
class LowRankStatistics:
    """Sums over rows, with d = x - mean and z~ = (z, 1); triangles are packed row by row."""

    log_likelihood: float
    size: Array  # (K,)
    second: Array  # (K, P, (r + 1)(r + 2) / 2): r E[z~ z~^T], over the rows that keep p
    cross: Array  # (K, P, r + 1): r d_p E[z~]
    energy: Array  # (K,): r |d|^2

    @classmethod
    def of_nothing(cls, mixture: LowRankMixture) -> LowRankStatistics:
        """The sums over no rows."""
        k, p, r = mixture.factors.shape
        second, cross = np.zeros((k, p, (r + 1) * (r + 2) // 2)), np.zeros((k, p, r + 1))
        return cls(0.0, np.zeros(k), second, cross, np.zeros(k))

    def __add__(self, other: LowRankStatistics) -> LowRankStatistics:
        return LowRankStatistics(
            self.log_likelihood + other.log_likelihood,
            self.size + other.size,
            self.second + other.second,
            self.cross + other.cross,
            self.energy + other.energy,
        )


@dataclass(frozen=True)
class LowRank(Family[LowRankMixture, LowRankStatistics]):
    """S_k = W_k W_k^T + s_k I, with W_k of r columns."""

    rank: int

    name = "low_rank"
    accelerated = True

    # -- shape --------------------------------------------------------------------------------------------

    @property
    def seed(self) -> AxisAligned:
        return Spherical()

    def begin(
        self,
        seeded: Parameters,
        sketch: Sketch,
        sample_weight: Array | None,
        limits: Limits,
    ) -> LowRankMixture:
        """Factors from the few dense rows: those of a component by itself, or of all where it has too few."""
        rows, weight, labels = dense_rows(seeded, sketch, sample_weight)
        stretched = np.sqrt(weight)[:, None] * (rows - seeded.means.T[labels])
        shared = principal_factors(stretched, weight.sum(), self.rank)
        factors, noise = [], []
        for k, variance in enumerate(seeded.variances):
            own = principal_factors(stretched[labels == k], weight[labels == k].sum(), self.rank)
            of_k = own or shared or random_factors(len(seeded.means), self.rank, variance)
            factors.append(of_k[0])
            noise.append(of_k[1])
        return LowRankMixture(seeded.weights, seeded.means, np.array(factors), np.maximum(noise, limits.floor))

    def shared_variances(self, variances: Array, n_components: int) -> Array:
        return self.seed.shared_variances(variances, n_components)

    def variances(self, mixture: LowRankMixture, rotation: Rotation) -> Array:
        return np.asarray((unrotated(mixture.factors, rotation) ** 2).sum(axis=2) + mixture.noise[:, None])

    def covariance(self, mixture: LowRankMixture, k: int, axes: Array) -> Array:
        factors = axes @ mixture.factors[k]
        return np.asarray(factors @ factors.T + mixture.noise[k] * (axes @ axes.T))

    def deviations(self, mixture: LowRankMixture, y: Array, rng: np.random.RandomState) -> Array:
        z = rng.standard_normal((len(y), self.rank))
        noise = np.sqrt(mixture.noise)[y, None] * rng.standard_normal((len(y), len(mixture.means)))
        return np.asarray(np.einsum("npr,nr->np", mixture.factors[y], z) + noise)

    def canonical(self, mixture: LowRankMixture) -> LowRankMixture:
        """Factors at right angles, the longest first, each with its largest entry positive."""
        return replace(mixture, factors=np.array([principal_axes(w) for w in mixture.factors]))

    def attributes(self, mixture: LowRankMixture, rotation: Rotation) -> dict[str, Array]:
        return {"factors_": unrotated(mixture.factors, rotation), "noise_variances_": mixture.noise.copy()}

    def n_parameters(self, n_components: int, n_features: int) -> int:
        # Rotating the factors among themselves changes nothing.
        of_factors = n_features * self.rank - self.rank * (self.rank - 1) // 2
        return n_components - 1 + n_components * (n_features + of_factors + 1)

    # -- densities and statistics -------------------------------------------------------------------------

    def log_density(self, block: Block, mixture: LowRankMixture) -> Array:
        return self._expect(block, mixture, None)

    def posterior(self, block: Block, mixture: LowRankMixture) -> tuple[Array, Array]:
        """`log_density`, and the expected coordinates of each row in each component, (n, K, r)."""
        latent = np.empty((len(block.values), len(mixture.weights), self.rank))
        return self._expect(block, mixture, latent), latent

    def _expect(self, block: Block, mixture: LowRankMixture, latent: Array | None) -> Array:
        density = np.empty((len(block.values), len(mixture.weights)))
        _core.low_rank_posterior(
            block.values,
            block.indices,
            finite_log(mixture.weights),
            mixture.means,
            mixture.factors,
            mixture.noise,
            in_double(block, mixture.means, mixture.noise),
            density,
            latent,
        )
        density -= 0.5 * block.values.shape[1] * LOG_2_PI
        return density

    def statistics(self, block: Block, mixture: LowRankMixture, sample_weight: Array | None) -> LowRankStatistics:
        n, q = block.values.shape
        sums = LowRankStatistics.of_nothing(mixture)
        log_likelihood = _core.low_rank_statistics(
            block.values,
            block.indices,
            sample_weight,
            finite_log(mixture.weights),
            mixture.means,
            mixture.factors,
            mixture.noise,
            in_double(block, mixture.means, mixture.noise),
            n_shards(n, q, len(mixture.means)),
            sums.size,
            sums.second,
            sums.cross,
            sums.energy,
        )
        return replace(sums, log_likelihood=log_likelihood - 0.5 * q * LOG_2_PI * sums.size.sum())

    # -- maximise -----------------------------------------------------------------------------------------

    def maximise(self, statistics: LowRankStatistics, mixture: LowRankMixture, limits: Limits) -> LowRankMixture:
        """Regress what each coordinate kept on z~; the residuals, and what is uncertain of z, are the noise."""
        k, p, r = mixture.factors.shape
        second, cross = statistics.second, statistics.cross
        solved = np.empty_like(cross)
        _core.solve_each(second.reshape(k * p, -1), cross.reshape(k * p, -1), solved.reshape(k * p, -1))
        count = second[:, :, -1]
        seen = (count > 0)[:, :, None]
        factors = np.where(seen, solved[:, :, :r], mixture.factors)
        shift = np.where(seen[:, :, 0], solved[:, :, r], 0.0)

        kept = count.sum(axis=1)
        residual = statistics.energy - (solved * cross).sum(axis=(1, 2))
        noise = np.where(kept > 0, residual / np.where(kept > 0, kept, 1), mixture.noise - limits.reg_covar)
        noise = np.maximum(noise + limits.reg_covar, limits.floor)
        factors, of_latent = standardise(factors, second.sum(axis=1))
        means = mixture.means + (shift + of_latent).T
        weights = statistics.size / statistics.size.sum()
        return LowRankMixture(weights, np.ascontiguousarray(means), factors, noise)

    def collapsed(self, mixture: LowRankMixture, limits: Limits, shared: Array) -> Array:
        return np.asarray((mixture.noise <= 2 * limits.floor) & (shared > 10 * limits.floor))

    def to_vector(self, mixture: LowRankMixture) -> Array:
        parts = finite_log(mixture.weights), mixture.means, mixture.factors, np.log(mixture.noise)
        return np.concatenate([part.ravel() for part in parts])

    def of_vector(self, vector: Array, like: LowRankMixture) -> LowRankMixture | None:
        k, means, factors = len(like.weights), like.means, like.factors
        cuts = np.cumsum([k, means.size, factors.size])
        logits, of_means, of_factors, log_noise = np.split(vector, cuts)
        if not np.isfinite(vector).all() or np.abs(log_noise - np.log(like.noise)).max() > 1:
            return None
        weights = np.exp(logits - logits.max())
        return LowRankMixture(
            weights / weights.sum(),
            of_means.reshape(means.shape),
            of_factors.reshape(factors.shape),
            np.exp(log_noise),
        )


def unrotated(factors: Array, rotation: Rotation) -> Array:
    """Factors in the user's space, (K, n_features, r)."""
    return np.array([rotation.inverse(np.ascontiguousarray(w.T)).T for w in factors])


def dense_rows(seeded: Parameters, sketch: Sketch, sample_weight: Array | None) -> tuple[Array, Array, Array]:
    """The dense rows beside a sketch that have weight, their weights, and the likeliest component of each."""
    reservoir = sketch.reservoir
    if reservoir is None:
        return np.empty((0, len(seeded.means))), np.empty(0), np.empty(0, int)
    weight = np.ones(len(reservoir.rows)) if sample_weight is None else sample_weight[reservoir.positions]
    rows = np.ascontiguousarray(reservoir.rows[weight > 0], dtype=float)
    return rows, weight[weight > 0], log_density(dense_block(rows), seeded).argmax(axis=1)


def principal_factors(stretched: Array, weight: float, rank: int) -> tuple[Array, float] | None:
    """W (P x r) and s of centred rows times the roots of their weights; None where these span too little."""
    _, p = stretched.shape
    _, lengths, directions = np.linalg.svd(stretched, full_matrices=False)
    n_spanned = np.count_nonzero(lengths > ROUNDING * lengths.max(initial=0))
    if n_spanned < min(DIRECTIONS_PER_FACTOR * rank, p - 1):
        return None
    spectrum = lengths**2 / weight
    noise = float(spectrum[rank:].sum() / (p - rank))
    stretch = np.sqrt(np.maximum(spectrum[:rank] - noise, SHORTEST_FACTOR**2 * noise))
    return directions[:rank].T * stretch, noise


def random_factors(p: int, rank: int, variance: float) -> tuple[Array, float]:
    """W (P x r) and s where there are no rows to tell."""
    directions = np.random.default_rng(0).standard_normal((p, rank)) / np.sqrt(p)
    return np.sqrt(variance) * directions, variance


def principal_axes(factors: Array) -> Array:
    """The W of orthogonal columns with the same W W^T."""
    directions, lengths, _ = np.linalg.svd(factors, full_matrices=False)
    largest = np.abs(directions).argmax(axis=0)
    return np.asarray(directions * lengths * np.sign(directions[largest, np.arange(len(lengths))]))


def standardise(factors: Array, second: Array) -> tuple[Array, Array]:
    """Factors for coordinates z that have mean 0 and covariance I over the rows, and what their mean adds to x.

    EM with more parameters (Liu, Rubin and Wu, 1998): the model does not change where E[z] and E[z z^T] are other
    than 0 and I, but it gets there in fewer steps if W takes over what they say.
    """
    k, _, r = factors.shape
    rows, columns = np.tril_indices(r + 1)
    full = np.zeros((k, r + 1, r + 1))
    full[:, rows, columns] = full[:, columns, rows] = second / np.where(second[:, -1:] > 0, second[:, -1:], 1)
    mean = full[:, r, :r]
    spread = full[:, :r, :r] - mean[:, :, None] * mean[:, None, :]
    spread[second[:, -1] <= 0] = np.eye(r)
    shift = np.einsum("kpr,kr->kp", factors, mean)
    return factors @ np.linalg.cholesky(spread), shift
