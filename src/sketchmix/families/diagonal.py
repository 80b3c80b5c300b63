"""Diagonal covariances: one variance for each component and rotated coordinate."""

from __future__ import annotations

import numpy as np

from sketchmix.families.axis_aligned import Array, AxisAligned, mean_of
from sketchmix.moments import Moments, Parameters

# A coordinate that all rows of a component kept, but for rounding, is as in a dense fit.
SEEN_BY_ALL = 1 - 1e-6


class Diagonal(AxisAligned):
    """S_k = diag(s_k)."""

    name = "diag"

    def shared_variances(self, variances: Array, n_components: int) -> Array:
        return np.tile(variances[:, None], n_components)

    def rotated_variances(self, parameters: Parameters) -> Array:
        return np.ascontiguousarray(parameters.variances.T)

    def diagonals(self, mixture: Parameters) -> Array:
        return self.rotated_variances(mixture)

    def n_parameters(self, n_components: int, n_features: int) -> int:
        return n_components - 1 + 2 * n_components * n_features

    def spread(self, moments: Moments, shift: Array, previous: Array, support: float) -> Array:
        # sum r (d - shift)^2 / sum r, with shift either the mean of d or zero.
        variances = mean_of(np.maximum(moments.around(shift).second, 0), moments.count, previous)
        says_nothing = (moments.count < support) & (moments.count < SEEN_BY_ALL * moments.size)
        return np.where(says_nothing, previous, variances)
