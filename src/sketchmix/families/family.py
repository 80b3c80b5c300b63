"""What every family of covariances says about itself: shape, densities, statistics, maximise, side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sketchmix.families.axis_aligned import AxisAligned
    from sketchmix.moments import Block, Kept, Parameters
    from sketchmix.rotation import Rotation
    from sketchmix.sketch import Sketch

Array = NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """What keeps variances away from zero."""

    reg_covar: float  # added to every variance
    floor: Array  # the smallest variances allowed, shaped like `Family.shared_variances`
    support: float  # what two rows weigh: fewer say nothing about a spread
    share: float = 1.0  # of its entries, what a row keeps


class Mixture(Protocol):
    """A mixture in the rotated frame; coordinate-major, as the kernels read it."""

    @property
    def weights(self) -> Array:
        """(K,)."""

    @property
    def means(self) -> Array:
        """(P, K)."""


class Statistics(Protocol):
    """What rows add up to under a mixture: a value that can be added to another."""

    @property
    def log_likelihood(self) -> float:
        """Of the rows, summed."""

    @property
    def size(self) -> Array:
        """(K,): the weight of the rows of each component."""

    def __add__(self, other: Self) -> Self: ...


M = TypeVar("M", bound=Mixture)
S = TypeVar("S", bound=Statistics)


class Family(ABC, Generic[M, S]):
    """A family of covariances, with mixtures of type M and statistics of type S."""

    name: ClassVar[str]
    # Whether EM takes extrapolated steps: where missing entries make it slow.
    accelerated: ClassVar[bool] = False

    # -- shape --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def seed(self) -> AxisAligned:
        """The family in which starts are made and compared."""

    @abstractmethod
    def begin(self, seeded: Parameters, sketch: Sketch, sample_weight: Array | None, limits: Limits) -> M:
        """First parameters, from a mixture of the `seed` family."""

    @abstractmethod
    def shared_variances(self, variances: Array, n_components: int) -> Array:
        """Variances (P,) of all rows together, in the shape that the floor of variances has."""

    @abstractmethod
    def variances(self, mixture: M, rotation: Rotation) -> Array:
        """The variances of the features, in the user's space, (K, n_features)."""

    @abstractmethod
    def covariance(self, mixture: M, k: int, axes: Array) -> Array:
        """A component's covariance between the given rotated axes, (n_axes, P)."""

    @abstractmethod
    def deviations(self, mixture: M, y: Array, rng: np.random.RandomState) -> Array:
        """Draw for each component in `y` a deviation from its mean, in the rotated frame."""

    def canonical(self, mixture: M) -> M:
        """The same mixture in a form that does not depend on how the fit came to it."""
        return mixture

    @abstractmethod
    def attributes(self, mixture: M, rotation: Rotation) -> dict[str, Array]:
        """Fitted attributes of an estimator that only this family has."""

    @abstractmethod
    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Free parameters of a mixture: what BIC and AIC count."""

    # -- densities and statistics -------------------------------------------------------------------------

    @abstractmethod
    def log_density(self, block: Block, mixture: M) -> Array:
        """Log weight plus log density of each row under each component, (n, K)."""

    @abstractmethod
    def statistics(self, kept: Kept, mixture: M, sample_weight: Array | None) -> S:
        """The sums over rows."""

    # -- maximise -----------------------------------------------------------------------------------------

    def log_prior(self, mixture: M) -> float:  # noqa: ARG002
        """What is added to the log-likelihood of all rows: EM raises the sum."""
        return 0.0

    @abstractmethod
    def maximise(self, statistics: S, mixture: M, limits: Limits) -> M:
        """The M-step: likelier parameters, the likeliest where that is one step."""

    def refined(self, statistics: S, mixture: M, limits: Limits) -> M:
        """The M-step on rows of which all entries were seen."""
        return self.maximise(statistics, mixture, limits)

    # -- streams ------------------------------------------------------------------------------------------

    @abstractmethod
    def carried(self, statistics: S, before: M, after: M) -> S:
        """Sums around one mixture, as the same rows' around another."""

    @abstractmethod
    def remembered(self, mixture: M, weight: float, limits: Limits) -> S:
        """Sums of which the mixture is the maximiser, as rows of this total weight could have had."""

    @abstractmethod
    def collapsed(self, mixture: M, limits: Limits, shared: Array) -> Array:
        """Which components have variances at their floor, though the rows together do not, (K,)."""

    def to_vector(self, mixture: M) -> Array:
        """The parameters as one vector whose straight lines stay inside the family, more or less."""
        raise NotImplementedError

    def of_vector(self, vector: Array, like: M) -> M | None:
        """The mixture of a vector, or None where it is outside of the family."""
        raise NotImplementedError
