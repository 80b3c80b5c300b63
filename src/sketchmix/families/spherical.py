"""Spherical covariances: one variance for each component."""

from __future__ import annotations

import numpy as np

from sketchmix.families.axis_aligned import Array, AxisAligned, mean_of
from sketchmix.moments import Moments, Parameters


class Spherical(AxisAligned):
    """S_k = s_k I."""

    name = "spherical"

    def shared_variances(self, variances: Array, n_components: int) -> Array:
        return np.full(n_components, variances.mean())

    def rotated_variances(self, parameters: Parameters) -> Array:
        return parameters.variances.copy()

    def diagonals(self, mixture: Parameters) -> Array:
        return np.tile(mixture.variances[:, None], len(mixture.means))

    def n_parameters(self, n_components: int, n_features: int) -> int:
        return n_components - 1 + n_components * (n_features + 1)

    def spread(self, moments: Moments, shift: Array, previous: Array, support: float) -> Array:  # noqa: ARG002
        return mean_of(np.maximum(moments.around(shift).second, 0), moments.count.sum(axis=0), previous)
