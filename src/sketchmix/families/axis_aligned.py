"""What diagonal and spherical covariances share: the kept block of one is a diagonal matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sketchmix.moments import Block, Moments, Parameters, add_up, log_density

Array = NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """What keeps variances away from zero."""

    reg_covar: float  # added to every variance
    floor: Array  # the smallest variances allowed, shaped like a component's
    support: float  # two rows: fewer say nothing about a spread


class AxisAligned(ABC):
    """A family of covariances under which the kept entries of a row are independent.

    A coordinate that no row of a component kept says nothing about that component there: its mean and variance
    stay what they were, which is one of the maximisers. Where less than two of its rows kept a coordinate, and
    others did not, its variance there stays what it was. At the start these are the seed's mean and the variance
    of all rows together.
    """

    name: ClassVar[str]

    # -- shape --------------------------------------------------------------------------------------------

    @abstractmethod
    def shared_variances(self, variances: Array, n_components: int) -> Array:
        """Variances (P,) of all rows as those of every component."""

    @abstractmethod
    def rotated_variances(self, parameters: Parameters) -> Array:
        """Variances in the rotated frame, components first."""

    @abstractmethod
    def diagonals(self, parameters: Parameters) -> Array:
        """The diagonal of each component's covariance in the rotated frame, (K, P)."""

    @abstractmethod
    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Free parameters of a mixture: what BIC and AIC count."""

    # -- densities and statistics -------------------------------------------------------------------------

    def log_density(self, block: Block, parameters: Parameters) -> Array:
        """Log weight plus log density of each row under each component, (n, K)."""
        return log_density(block, parameters)

    def statistics(self, block: Block, parameters: Parameters, sample_weight: Array | None) -> Moments:
        """The sums that a block contributes."""
        return add_up(block, parameters, sample_weight)

    # -- maximise -----------------------------------------------------------------------------------------

    @abstractmethod
    def spread(self, moments: Moments, shift: Array, previous: Array, support: float) -> Array:
        """Variances around means moved by `shift`; `previous` where the rows do not say."""

    def bootstrap(self, nearest: Moments, means: Array, shared: Array, limits: Limits) -> Parameters:
        """First weights and covariances, from the rows nearest to each of the initial means."""
        variances = self.spread(nearest, np.zeros_like(means), shared, limits.support)
        return Parameters(nearest.size / nearest.size.sum(), means, np.maximum(variances, limits.floor))

    def maximise(self, moments: Moments, parameters: Parameters, limits: Limits) -> Parameters:
        """The M-step: the parameters that make the statistics most likely."""
        shift = mean_of(moments.first, moments.count, 0.0)
        previous = parameters.variances - limits.reg_covar
        variances = self.spread(moments, shift, previous, limits.support) + limits.reg_covar
        weights = moments.size / moments.size.sum()
        return Parameters(weights, parameters.means + shift, np.maximum(variances, limits.floor))


def mean_of(total: Array, count: Array, otherwise: Array | float) -> Array:
    """``total / count``, and `otherwise` where nothing was counted."""
    counted = count > 0
    return np.where(counted, total / np.where(counted, count, 1), otherwise)
