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
from functools import partial, reduce
from operator import add
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
    Kept,
    Parameters,
    dense_block,
    finite_log,
    in_double,
    is_whole,
    log_density,
    rows_of_shard,
    weighted_blocks,
    without_powers_of_2_pi,
)

if TYPE_CHECKING:
    from sketchmix.rotation import Rotation
    from sketchmix.sketch import Sketch

Array = NDArray[Any]

# First factors come from the dense rows of a component, if these span so many times the rank.
DIRECTIONS_PER_FACTOR = 2
ROUNDING = 1e-10
# The least length of a first factor, as a share of the rows' standard deviation: EM leaves one of zero alone.
SHORTEST_FACTOR = 0.1
# Of what factors explain of a row's entries to the noise of one. Beyond, float32 is off by more than 1e-3 in a log
# density.
LARGEST_RATIO = 1e3
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
        """Factors from the dense rows: those of a component by itself, or of all where they span too little."""
        rows, weight, labels = dense_rows(seeded, sketch, sample_weight)
        stretched = np.sqrt(weight)[:, None] * (rows - seeded.means.T[labels])
        factors, noise = [], []
        for k, variance in enumerate(seeded.variances):
            own = labels == k
            w, s, n_spanned = principal_factors(stretched[own], weight[own].sum(), self.rank, variance)
            if n_spanned < min(DIRECTIONS_PER_FACTOR * self.rank, len(w) - 1):
                w, s, _ = principal_factors(stretched, weight.sum(), self.rank, variance)
            factors.append(w)
            noise.append(s)
        worth = (1 - limits.share) * limits.support / 2
        prior = worth * np.array([np.diag(1 / (w**2).mean(axis=0)) for w in factors])
        regular = np.maximum(np.array(noise) + limits.reg_covar, limits.floor)
        return LowRankMixture(seeded.weights, seeded.means, np.array(factors), regular, prior)

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
        if is_whole(block, mixture.means):
            return WholeRows(mixture).log_density(block) - powers_of_2_pi(block)
        return self._expect(block, mixture, None)

    def posterior(self, block: Block, mixture: LowRankMixture) -> tuple[Array, Array]:
        """`log_density`, and the expected coordinates of each row in each component, (n, K, r)."""
        if is_whole(block, mixture.means):
            density, latent = WholeRows(mixture).posterior(block)
            return density - powers_of_2_pi(block), latent
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
            needs_double(block, mixture),
            density,
            latent,
        )
        density -= powers_of_2_pi(block)
        return density

    def statistics(self, kept: Kept, mixture: LowRankMixture, sample_weight: Array | None) -> LowRankStatistics:
        if is_whole(kept, mixture.means):
            return kept.summed(partial(whole_statistics, mixture=mixture), sample_weight)
        sum_of = partial(sparse_statistics, mixture=mixture, double_precision=needs_double(kept, mixture))
        return kept.summed(sum_of, sample_weight)

    # -- maximise -----------------------------------------------------------------------------------------

    def log_prior(self, mixture: LowRankMixture) -> float:
        return float(-0.5 * squares_under(mixture.prior, mixture.factors).sum())

    def refined(self, statistics: LowRankStatistics, mixture: LowRankMixture, limits: Limits) -> LowRankMixture:
        without_prior = replace(mixture, prior=np.zeros_like(mixture.prior))
        return replace(self.maximise(statistics, without_prior, limits), prior=mixture.prior)

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

    def carried(
        self, statistics: LowRankStatistics, before: LowRankMixture, after: LowRankMixture
    ) -> LowRankStatistics:
        """As d falls by the shift of a mean: cross by the shift times r E[z~], which is in `second`."""
        r = self.rank
        shift = (after.means - before.means).T
        expected = statistics.second[:, :, -r - 1 :]  # the last row of a triangle: r E[z~]
        cross = statistics.cross - shift[:, :, None] * expected
        moved = (shift * (statistics.cross[:, :, r] + cross[:, :, r])).sum(axis=1)
        return replace(statistics, cross=cross, energy=statistics.energy - moved)

    def remembered(self, mixture: LowRankMixture, weight: float, limits: Limits) -> LowRankStatistics:
        k, p, r = mixture.factors.shape
        size = weight * mixture.weights
        count = np.tile(limits.share * size[:, None], p)
        ridge = mixture.noise[:, None, None] * mixture.prior
        lower = np.eye(r + 1)[np.tril_indices(r + 1)]
        cross = np.zeros((k, p, r + 1))
        # The prior shrinks factors from what the rows alone would give.
        cross[:, :, :r] = count[:, :, None] * mixture.factors + mixture.factors @ ridge
        of_factors = (cross[:, :, :r] * mixture.factors).sum(axis=(1, 2)) + squares_under(ridge, mixture.factors)
        of_noise = count.sum(axis=1) * np.maximum(mixture.noise - limits.reg_covar, 0)
        return LowRankStatistics(0.0, size, count[:, :, None] * lower, cross, of_factors + of_noise)

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
        return replace(
            like,
            weights=softmax(logits),
            means=of_means.reshape(means.shape),
            factors=of_factors.reshape(factors.shape),
            noise=np.exp(log_noise),
        )


def powers_of_2_pi(block: Block) -> float:
    """What the core and `WholeRows` leave out of a row's log density."""
    return 0.5 * block.sketch_size * LOG_2_PI


def whole_statistics(kept: Kept, sample_weight: Array | None, *, mixture: LowRankMixture) -> LowRankStatistics:
    """The sums over rows that keep every entry."""
    return WholeRows(mixture).statistics(kept, sample_weight)


def sparse_statistics(
    kept: Kept, sample_weight: Array | None, *, mixture: LowRankMixture, double_precision: bool
) -> LowRankStatistics:
    """The sums over rows that keep some entries each."""
    sums, log_likelihood = LowRankStatistics.of_nothing(mixture), np.zeros(1)
    height = rows_of_shard(kept.sketch_size, len(mixture.means))
    for block, weight in weighted_blocks(kept, sample_weight, height):
        _core.low_rank_statistics(
            block.values,
            block.indices,
            weight,
            finite_log(mixture.weights),
            mixture.means,
            mixture.factors,
            mixture.noise,
            double_precision,
            height,
            log_likelihood,
            sums.size,
            sums.second,
            sums.cross,
            sums.energy,
        )
    return replace(sums, log_likelihood=without_powers_of_2_pi(log_likelihood, sums.size, kept))


def needs_double(kept: Kept, mixture: LowRankMixture) -> bool:
    """Whether float32 has no room: for values, or for what factors leave of a distance."""
    energy = kept.sketch_size * (mixture.factors**2).sum(axis=2).mean(axis=1)
    return in_double(kept, mixture.means, mixture.noise) or bool((energy > LARGEST_RATIO * mixture.noise).any())


class WholeRows:
    """Rows that keep every entry: M = s I + W^T W, and with it Cov z, are the same for all of them.

    All is computed around one origin for all components, so that products of matrices do the work.
    """

    def __init__(self, mixture: LowRankMixture) -> None:
        k, p, r = mixture.factors.shape
        self._mixture = mixture
        self._origin = mixture.means @ mixture.weights
        self._means = mixture.means - self._origin[:, None]
        self._stacked = mixture.factors.transpose(1, 0, 2).reshape(p, k * r)
        m = mixture.factors.transpose(0, 2, 1) @ mixture.factors + mixture.noise[:, None, None] * np.eye(r)
        self._inverse = np.linalg.inv(m)
        of_covariances = np.linalg.slogdet(m)[1] + (p - r) * np.log(mixture.noise)
        self._constant = finite_log(mixture.weights) - 0.5 * of_covariances

    def log_density(self, block: Block) -> Array:
        """Log weight plus log density without its power of 2 pi, (n, K)."""
        return np.concatenate([self._expect(part.values)[1] for part in block.blocks(WHOLE_ROWS, exactly=True)])

    def posterior(self, block: Block) -> tuple[Array, Array]:
        """`log_density`, and E[z], (n, K, r)."""
        parts = [self._expect(part.values)[1:] for part in block.blocks(WHOLE_ROWS, exactly=True)]
        density, latent = zip(*parts, strict=True)
        return np.concatenate(density), np.concatenate(latent)

    def statistics(self, kept: Kept, sample_weight: Array | None) -> LowRankStatistics:
        """The sums over rows."""
        parts = weighted_blocks(kept, sample_weight, WHOLE_ROWS, exactly=True)
        return reduce(add, (self._add_up(block, weight) for block, weight in parts))

    def _expect(self, rows: Array) -> tuple[Array, Array, Array]:
        """Squared distances to the means, and what `posterior` says."""
        x, mixture = rows - self._origin, self._mixture
        k, _, r = mixture.factors.shape
        squares = (x**2).sum(axis=1)[:, None] - 2 * x @ self._means + (self._means**2).sum(axis=0)
        b = (x @ self._stacked).reshape(-1, k, r) - np.einsum("pk,kpr->kr", self._means, mixture.factors)
        z = np.einsum("nkr,krs->nks", b, self._inverse)
        distance = np.maximum(squares - (b * z).sum(axis=2), 0) / mixture.noise
        return squares, self._constant - 0.5 * distance, z

    def _add_up(self, block: Block, sample_weight: Array | None) -> LowRankStatistics:
        rows = block.values
        weight = np.ones(len(rows)) if sample_weight is None else sample_weight
        squares, density, z = self._expect(rows)
        r = softmax(density, axis=1) * weight[:, None]
        n, k = r.shape
        extended = np.concatenate([z, np.ones((n, k, 1))], axis=2)
        weighted = r[:, :, None] * extended
        moment = weighted.transpose(1, 2, 0) @ extended.transpose(1, 0, 2)
        spread = self._mixture.noise[:, None, None] * self._inverse
        moment[:, :-1, :-1] += r.sum(axis=0)[:, None, None] * spread
        cross = ((rows - self._origin).T @ weighted.reshape(n, -1)).reshape(len(self._origin), k, -1)
        cross -= self._means[:, :, None] * weighted.sum(axis=0)
        lower = moment[:, *np.tril_indices(moment.shape[1])]
        # The sums of E[z~ z~^T] are the same for every coordinate.
        second = np.repeat(lower[:, None], len(self._origin), axis=1)
        log_likelihood = float(weight @ (logsumexp(density, axis=1) - powers_of_2_pi(block)))
        return LowRankStatistics(
            log_likelihood, r.sum(axis=0), second, cross.transpose(1, 0, 2).copy(), (r * squares).sum(axis=0)
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


def principal_factors(stretched: Array, weight: float, rank: int, variance: float) -> tuple[Array, float, int]:
    """W (P x r) and s of centred rows times the roots of their weights, in all of which there is `variance`.

    And how many directions the rows span, of those that were asked for. Factors that the rows do not have are
    short and go anywhere; without any rows, all do.
    """
    n, p = stretched.shape
    directions = np.random.default_rng(0).standard_normal((rank, p)) / np.sqrt(p)
    if n == 0:
        return directions.T * np.sqrt(variance), variance, 0
    n_asked = min(DIRECTIONS_PER_FACTOR * rank, n, p)
    _, lengths, found = randomized_svd(stretched, n_asked, n_iter=2, random_state=0)
    spectrum, of_rows = lengths[:rank] ** 2 / weight, min(rank, n_asked)
    directions[:of_rows] = found[:of_rows]
    noise = max(0.0, float(((stretched**2).sum() / weight - spectrum.sum()) / (p - rank)))
    squares = np.full(rank, SHORTEST_FACTOR**2 * variance)
    squares[:of_rows] = np.maximum(spectrum - noise, squares[:of_rows])
    return directions.T * np.sqrt(squares), noise, int((lengths > ROUNDING * lengths[0]).sum())


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
