"""What diagonal and spherical covariances share: the kept block of one is a diagonal matrix."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sketchmix.families.family import Family, Limits
from sketchmix.moments import Block, Kept, Moments, Parameters, add_up, log_density

if TYPE_CHECKING:
    from sketchmix.rotation import Rotation
    from sketchmix.sketch import Sketch

Array = NDArray[Any]


class AxisAligned(Family[Parameters, Moments]):
    """A family of covariances under which the kept entries of a row are independent.

    A coordinate that no row of a component kept says nothing about that component there: its mean and variance
    stay what they were, which is one of the maximisers. Where less than two of its rows kept a coordinate, and
    others did not, its variance there stays what it was. At the start these are the seed's mean and the variance
    of all rows together.
    """

    # -- shape --------------------------------------------------------------------------------------------

    @property
    def seed(self) -> Self:
        return self

    def begin(
        self,
        seeded: Parameters,
        sketch: Sketch,  # noqa: ARG002
        sample_weight: Array | None,  # noqa: ARG002
        limits: Limits,  # noqa: ARG002
    ) -> Parameters:
        return seeded

    @abstractmethod
    def rotated_variances(self, parameters: Parameters) -> Array:
        """Variances in the rotated frame, components first."""

    @abstractmethod
    def diagonals(self, mixture: Parameters) -> Array:
        """The diagonal of each component's covariance in the rotated frame, (K, P)."""

    def variances(self, mixture: Parameters, rotation: Rotation) -> Array:
        return rotation.variances(self.diagonals(mixture))

    def covariance(self, mixture: Parameters, k: int, axes: Array) -> Array:
        matrix: Array = (axes * self.diagonals(mixture)[k]) @ axes.T
        return matrix

    def deviations(self, mixture: Parameters, y: Array, rng: np.random.RandomState) -> Array:
        spread = np.sqrt(self.diagonals(mixture))[y]
        deviations: Array = spread * rng.standard_normal(spread.shape)
        return deviations

    def attributes(self, mixture: Parameters, rotation: Rotation) -> dict[str, Array]:  # noqa: ARG002
        return {"rotated_variances_": self.rotated_variances(mixture)}

    # -- densities and statistics -------------------------------------------------------------------------

    def log_density(self, block: Block, mixture: Parameters) -> Array:
        return log_density(block, mixture)

    def statistics(self, kept: Kept, mixture: Parameters, sample_weight: Array | None) -> Moments:
        return add_up(kept, mixture, sample_weight)

    # -- maximise -----------------------------------------------------------------------------------------

    @abstractmethod
    def spread(self, moments: Moments, shift: Array, previous: Array, support: float) -> Array:
        """Variances around means moved by `shift`; `previous` where the rows do not say."""

    def bootstrap(self, nearest: Moments, means: Array, shared: Array, limits: Limits) -> Parameters:
        """First weights and covariances, from the rows nearest to each of the initial means."""
        variances = self.spread(nearest, np.zeros_like(means), shared, limits.support)
        return Parameters(nearest.size / nearest.size.sum(), means, np.maximum(variances, limits.floor))

    def maximise(self, statistics: Moments, mixture: Parameters, limits: Limits) -> Parameters:
        shift = mean_of(statistics.first, statistics.count, 0.0)
        previous = mixture.variances - limits.reg_covar
        variances = self.spread(statistics, shift, previous, limits.support) + limits.reg_covar
        weights = statistics.size / statistics.size.sum()
        return Parameters(weights, mixture.means + shift, np.maximum(variances, limits.floor))

    def carried(self, statistics: Moments, before: Parameters, after: Parameters) -> Moments:
        return statistics.around(after.means - before.means)

    def remembered(self, mixture: Parameters, weight: float, limits: Limits) -> Moments:
        size = weight * mixture.weights
        count = np.tile(limits.share * size, (len(mixture.means), 1))
        of_coordinates = count * np.maximum(self.diagonals(mixture).T - limits.reg_covar, 0)
        second = of_coordinates if mixture.variances.ndim == 2 else of_coordinates.sum(axis=0)
        return Moments(0.0, size, count, np.zeros_like(count), second)

    def collapsed(self, mixture: Parameters, limits: Limits, shared: Array) -> Array:
        at_floor = (mixture.variances <= 2 * limits.floor) & (shared > 10 * limits.floor)
        return np.asarray(np.atleast_2d(at_floor).any(axis=0))


def mean_of(total: Array, count: Array, otherwise: Array | float) -> Array:
    """``total / count``, and `otherwise` where nothing was counted."""
    counted = count > 0
    return np.where(counted, total / np.where(counted, count, 1), otherwise)
