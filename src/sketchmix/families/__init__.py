"""One class for each family of covariances."""

from typing import Any

from sketchmix.families.axis_aligned import AxisAligned
from sketchmix.families.diagonal import Diagonal
from sketchmix.families.family import Family, Limits, Mixture, Statistics
from sketchmix.families.spherical import Spherical

AXIS_ALIGNED: dict[str, AxisAligned] = {family.name: family for family in (Diagonal(), Spherical())}
FAMILIES: dict[str, Family[Any, Any]] = {**AXIS_ALIGNED}

__all__ = [
    "AXIS_ALIGNED",
    "FAMILIES",
    "AxisAligned",
    "Diagonal",
    "Family",
    "Limits",
    "Mixture",
    "Spherical",
    "Statistics",
]
