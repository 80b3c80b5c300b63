"""Low-rank covariances, W W^T + s I: mixtures of probabilistic PCAs.

A row of component k is mean_k + W_k z + noise, with r standard normal coordinates z. The kept block of such a
covariance is of the same kind, and so is the covariance after a rotation: HD maps W to HDW and leaves s alone.

A row of W rests on the rows that kept its coordinate, which may be few for r numbers. Mixing makes the entries of
a factor alike in size, and so they are taken for draws from a normal distribution: its variance is the mean square
of the first factor's. EM raises the likelihood times that prior. The more entries are kept, the less the prior is
worth, and where all are kept nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from sklearn.utils.extmath import randomized_svd

from sketchmix import _core
from sketchmix.families.axis_aligned import AxisAligned, mean_of
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

# First factors come from the dense rows of a component, if there are so many times the rank.
ROWS_PER_FACTOR = 2
# The least length of a first factor, as a share of the rows' standard deviation: EM leaves one of zero alone.
SHORTEST_FACTOR = 0.1
# Rows that keep all entries, whose deviations are held, at a time.
WHOLE_ROWS = 1024


@dataclass(frozen=True)
class LowRankMixture:
    """A mixture in the rotated frame."""

    weights: Array  # (K,)
    means: Array  # (P, K)
    factors: Array  # (K, P, r): W
    noise: Array  # (K,): s
    prior: Array  # (K, r, r): the inverse of the covariance that rows of W have beforehand


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
        enough = ROWS_PER_FACTOR * self.rank * limits.unit
        factors, noise = [], []
        for k, variance in enumerate(seeded.variances):
            which = labels == k
            if weight[which].sum() < enough:
                which = np.full(len(labels), weight.sum() >= enough)
            w, s = principal_factors(stretched[which], weight[which].sum(), self.rank, variance)
            factors.append(w)
            noise.append(s)
        worth = limits.unit * (1 - 1 / sketch.scale)
        prior = worth * np.array([np.diag(1 / (w**2).mean(axis=0)) for w in factors])
        at_least = np.maximum(noise, limits.floor)
        return LowRankMixture(seeded.weights, seeded.means, np.array(factors), at_least, prior)

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
        turns = np.array([principal_turn(w) for w in mixture.factors])
        prior = turns.transpose(0, 2, 1) @ mixture.prior @ turns
        return replace(mixture, factors=mixture.factors @ turns, prior=prior)

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
        if block.is_whole(mixture.means):
            WholeRows(mixture).expect(block.values, density, latent)
        else:
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
        if block.is_whole(mixture.means):
            sums = WholeRows(mixture).statistics(
                block.values, np.ones(n) if sample_weight is None else sample_weight
            )
            return replace(sums, log_likelihood=sums.log_likelihood - 0.5 * q * LOG_2_PI * sums.size.sum())
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

    def log_prior(self, mixture: LowRankMixture) -> float:
        return float(-0.5 * squares_under(mixture.prior, mixture.factors).sum())

    def maximise(self, statistics: LowRankStatistics, mixture: LowRankMixture, limits: Limits) -> LowRankMixture:
        """Regress what each coordinate kept on z~; the residuals, and what is uncertain of z, are the noise."""
        r = self.rank
        ridge = mixture.noise[:, None, None] * mixture.prior
        solved = solve_each(with_ridge(statistics.second, ridge), statistics.cross)
        factors, shift = solved[:, :, :r], solved[:, :, r]

        kept = statistics.second[:, :, -1].sum(axis=1)
        explained = (solved * statistics.cross).sum(axis=(1, 2))
        shrunk = squares_under(ridge, factors)
        noise = mean_of(statistics.energy - explained - shrunk, kept, mixture.noise - limits.reg_covar)
        return replace(
            mixture,
            weights=statistics.size / statistics.size.sum(),
            means=np.ascontiguousarray(mixture.means + shift.T),
            factors=np.ascontiguousarray(factors),
            noise=np.maximum(noise + limits.reg_covar, limits.floor),
        )

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
        return replace(
            like,
            weights=weights / weights.sum(),
            means=of_means.reshape(means.shape),
            factors=of_factors.reshape(factors.shape),
            noise=np.exp(log_noise),
        )


class WholeRows:
    """Rows that keep every entry: M = s I + W^T W, and with it Cov z, are the same for all of them.

    They are looked at some at a time, in float64.
    """

    def __init__(self, mixture: LowRankMixture) -> None:
        self.mixture = mixture
        p, r = mixture.factors.shape[1:]
        m = mixture.factors.transpose(0, 2, 1) @ mixture.factors + mixture.noise[:, None, None] * np.eye(r)
        self._inverse = np.linalg.inv(m)
        of_covariances = np.linalg.slogdet(m)[1] + (p - r) * np.log(mixture.noise)
        self._constant = finite_log(mixture.weights) - 0.5 * of_covariances

    def expect(self, rows: Array, density: Array, latent: Array | None) -> None:
        """Fill in log weight plus log density without its power of 2 pi, (n, K), and E[z], (n, K, r)."""
        for some in parts_of(rows):
            for k in range(len(self._constant)):
                d, z = self._project(rows[some], k)
                distance = (
                    (d**2).sum(axis=1) - (d @ self.mixture.factors[k] * z).sum(axis=1)
                ) / self.mixture.noise[k]
                density[some, k] = self._constant[k] - 0.5 * np.maximum(distance, 0)
                if latent is not None:
                    latent[some, k] = z

    def statistics(self, rows: Array, weight: Array) -> LowRankStatistics:
        """The sums over rows; those of E[z~ z~^T] are the same for every coordinate."""
        density = np.empty((len(rows), len(self._constant)))
        self.expect(rows, density, None)
        r = softmax(density, axis=1) * weight[:, None]
        sums = LowRankStatistics.of_nothing(self.mixture)
        for some in parts_of(rows):
            for k in range(len(self._constant)):
                self._add(rows[some], r[some, k], k, sums)
        return replace(sums, log_likelihood=float(weight @ logsumexp(density, axis=1)), size=r.sum(axis=0))

    def _add(self, rows: Array, r: Array, k: int, sums: LowRankStatistics) -> None:
        d, z = self._project(rows, k)
        extended = np.column_stack([z, np.ones(len(z))])
        weighted = r[:, None] * extended
        moment = weighted.T @ extended
        moment[:-1, :-1] += r.sum() * self.mixture.noise[k] * self._inverse[k]
        sums.second[k] += moment[np.tril_indices(len(moment))]
        sums.cross[k] += d.T @ weighted
        sums.energy[k] += r @ (d**2).sum(axis=1)

    def _project(self, rows: Array, k: int) -> tuple[Array, Array]:
        """Deviations from a component's mean, and E[z]."""
        d = rows - self.mixture.means[:, k]
        return d, d @ self.mixture.factors[k] @ self._inverse[k]


def parts_of(rows: Array) -> list[slice]:
    """The rows, as many at a time as their deviations may take memory for."""
    return [slice(first, first + WHOLE_ROWS) for first in range(0, len(rows), WHOLE_ROWS)]


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


def principal_factors(stretched: Array, weight: float, rank: int, variance: float) -> tuple[Array, float]:
    """W (P x r) and s of centred rows times the roots of their weights, in all of which there is `variance`.

    Factors that the rows do not have are short and go anywhere; without any rows, all do.
    """
    n, p = stretched.shape
    directions = np.random.default_rng(0).standard_normal((rank, p)) / np.sqrt(p)
    if n == 0:
        return directions.T * np.sqrt(variance), variance
    shortest = SHORTEST_FACTOR**2 * variance
    squares = np.full(rank, shortest)
    found = min(rank, n)
    _, lengths, directions[:found] = randomized_svd(stretched, found, n_iter=2, random_state=0)
    spectrum = lengths**2 / weight
    noise = max(0.0, float(((stretched**2).sum() / weight - spectrum.sum()) / (p - rank)))
    squares[:found] = np.maximum(spectrum - noise, shortest)
    return directions.T * np.sqrt(squares), noise


def principal_turn(factors: Array) -> Array:
    """The rotation V of the factors among themselves after which the columns of W V are orthogonal."""
    directions, _, turn = np.linalg.svd(factors, full_matrices=False)
    largest = np.abs(directions).argmax(axis=0)
    return np.asarray(turn.T * np.sign(directions[largest, np.arange(len(turn))]))


def squares_under(forms: Array, factors: Array) -> Array:
    """For each component, the sum over its rows w of W of w^T A w."""
    return np.asarray(((factors @ forms) * factors).sum(axis=(1, 2)))


def with_ridge(second: Array, ridge: Array) -> Array:
    """Packed triangles of E[z~ z~^T] with `ridge` (K, r, r) added to what is E[z z^T] there."""
    rows, columns = np.tril_indices(ridge.shape[1])
    added = second.copy()
    added[:, :, : len(rows)] += ridge[:, None, rows, columns]
    return added


def solve_each(matrices: Array, right_sides: Array) -> Array:
    """The solution for each component and coordinate; zeros where there is nothing to solve."""
    k, p, n = right_sides.shape
    solutions = np.empty((k * p, n))
    _core.solve_each(matrices.reshape(k * p, -1), right_sides.reshape(k * p, n), solutions)
    return solutions.reshape(k, p, n)
