"""One class for each family of covariances."""

from typing import Any

from sketchmix.families.axis_aligned import AxisAligned
from sketchmix.families.diagonal import Diagonal
from sketchmix.families.family import Family, Limits, Mixture, Statistics
from sketchmix.families.full import Full, Tied, Unrestricted
from sketchmix.families.low_rank import LowRank, LowRankMixture
from sketchmix.families.spherical import Spherical

AXIS_ALIGNED: dict[str, AxisAligned] = {family.name: family for family in (Diagonal(), Spherical())}
UNRESTRICTED: dict[str, Unrestricted] = {family.name: family for family in (Full(), Tied())}
FAMILIES: dict[str, Family[Any, Any]] = {**AXIS_ALIGNED, **UNRESTRICTED}
COVARIANCE_TYPES = (*FAMILIES, LowRank.name)


def family_of(covariance_type: str, rank: int) -> Family[Any, Any]:
    """The family of a name; `rank` is that of low-rank covariances."""
    return LowRank(rank) if covariance_type == LowRank.name else FAMILIES[covariance_type]


__all__ = [
    "AXIS_ALIGNED",
    "COVARIANCE_TYPES",
    "FAMILIES",
    "UNRESTRICTED",
    "AxisAligned",
    "Diagonal",
    "Family",
    "Full",
    "Limits",
    "LowRank",
    "LowRankMixture",
    "Mixture",
    "Spherical",
    "Statistics",
    "Tied",
    "Unrestricted",
    "family_of",
]
