"""One class for each family of covariances."""

from typing import Any

from sketchmix.families.axis_aligned import AxisAligned
from sketchmix.families.diagonal import Diagonal
from sketchmix.families.family import Family, Limits, Mixture, Statistics
from sketchmix.families.full import Full, Tied, Unrestricted
from sketchmix.families.spherical import Spherical

AXIS_ALIGNED: dict[str, AxisAligned] = {family.name: family for family in (Diagonal(), Spherical())}
UNRESTRICTED: dict[str, Unrestricted] = {family.name: family for family in (Full(), Tied())}
FAMILIES: dict[str, Family[Any, Any]] = {**AXIS_ALIGNED, **UNRESTRICTED}

__all__ = [
    "AXIS_ALIGNED",
    "FAMILIES",
    "UNRESTRICTED",
    "AxisAligned",
    "Diagonal",
    "Family",
    "Full",
    "Limits",
    "Mixture",
    "Spherical",
    "Statistics",
    "Tied",
    "Unrestricted",
]
