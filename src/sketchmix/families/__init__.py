"""One class for each family of covariances."""

from sketchmix.families.axis_aligned import AxisAligned, Limits
from sketchmix.families.diagonal import Diagonal
from sketchmix.families.spherical import Spherical

FAMILIES: dict[str, AxisAligned] = {family.name: family for family in (Diagonal(), Spherical())}

__all__ = ["FAMILIES", "AxisAligned", "Diagonal", "Limits", "Spherical"]
