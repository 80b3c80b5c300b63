"""What diagonal and spherical covariances share: the kept block of one is a diagonal matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sketchmix.moments import Block, Moments, Parameters, add_up, log_density

Array = NDArray[Any]


class AxisAligned(ABC):
    """A family of covariances under which the kept entries of a row are independent.

    A coordinate that no row of a component kept says nothing about that component there: its mean and variance
    stay what they were, which is one of the maximisers, and at the start they are the seed's mean and the
    variance of all rows together.
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
    def spread(self, moments: Moments, shift: Array, previous: Array) -> Array:
        """Variances around means moved by `shift`; `previous` where no row says anything."""

    def bootstrap(self, nearest: Moments, means: Array, shared: Array, floor: Array) -> Parameters:
        """First weights and covariances, from the rows nearest to each of the initial means."""
        variances = self.spread(nearest, np.zeros_like(means), shared)
        return Parameters(nearest.size / nearest.size.sum(), means, np.maximum(variances, floor))

    def maximise(self, moments: Moments, parameters: Parameters, reg_covar: float, floor: Array) -> Parameters:
        """The M-step: the parameters that make the statistics most likely."""
        shift = mean_of(moments.first, moments.count, 0.0)
        variances = self.spread(moments, shift, parameters.variances - reg_covar) + reg_covar
        weights = moments.size / moments.size.sum()
        return Parameters(weights, parameters.means + shift, np.maximum(variances, floor))


def mean_of(total: Array, count: Array, otherwise: Array | float) -> Array:
    """``total / count``, and `otherwise` where nothing was counted."""
    counted = count > 0
    return np.where(counted, total / np.where(counted, count, 1), otherwise)
