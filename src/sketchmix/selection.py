"""`select`: mixtures of many settings, fitted to one sketch and compared by a criterion."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Self

from sklearn.exceptions import ConvergenceWarning

from sketchmix import validation
from sketchmix.base import SKETCHER_PARAMETERS
from sketchmix.families import COVARIANCE_TYPES, LowRank
from sketchmix.mixture import GaussianMixture
from sketchmix.sketch import Sketch

CRITERIA = ("bic", "aic", "icl")


@dataclass(frozen=True)
class Setting:
    """What differs between the fits."""

    n_components: int
    covariance_type: str
    rank: int | str | None  # None where there is none, or where it is left to GaussianMixture

    @property
    def differences(self) -> dict[str, Any]:
        """The parameters of a GaussianMixture that this setting says."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.differences.items())


@dataclass(frozen=True)
class Outcome:
    """What came of a fit: a line of the table."""

    n_components: int
    covariance_type: str
    rank: int | str | None
    value: float  # of the criterion
    log_likelihood: float  # of a row's kept entries
    n_parameters: int
    converged: bool

    @classmethod
    def of(cls, setting: Setting, model: GaussianMixture, sketch: Sketch, criterion: str) -> Self:
        """The outcome of a model that was fitted."""
        value = getattr(model, criterion)(sketch)
        return cls(**vars(setting), **results_of(model, sketch), value=value)

    @property
    def setting(self) -> Setting:
        """What was fitted."""
        return Setting(self.n_components, self.covariance_type, self.rank)


def results_of(model: GaussianMixture, sketch: Sketch) -> dict[str, Any]:
    """What the table says of a model, whatever the criterion."""
    return {
        "log_likelihood": model.score(sketch),
        "n_parameters": model._n_parameters(),
        "converged": model.converged_,
    }


@dataclass(frozen=True, repr=False)
class Selection:
    """What `select` found: the best model, and a table of all. Printed, it is the table.

    Parameters
    ----------
    best : GaussianMixture
        The fitted model with the lowest criterion; of several, the first.
    table : tuple of Outcome
        One for each fit, in their order, with the fields `n_components`, `covariance_type`, `rank` (None where
        there is none, or where it was left to `GaussianMixture`), `value` (of the criterion), `log_likelihood`
        (the mean over the rows, of their kept entries), `n_parameters` and `converged`.
    criterion : {"bic", "aic", "icl"}
        By what they were compared.

    See Also
    --------
    select : Makes selections.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> rng = np.random.default_rng(0)
    >>> X = 4 * rng.normal(size=(3, 64))[rng.integers(3, size=1000)] + rng.normal(size=(1000, 64))
    >>> sketch = sm.Sketcher(sketch_size=16, random_state=0).fit_transform(X)
    >>> selection = sm.select(sketch, n_components=(2, 3), random_state=0)
    >>> [(outcome.n_components, outcome.n_parameters) for outcome in selection.table]
    [(2, 257), (3, 386)]
    >>> selection.best.means_.shape
    (3, 64)
    """

    best: GaussianMixture
    table: tuple[Outcome, ...]
    criterion: str

    def __repr__(self) -> str:
        best = lowest(self.table)
        marked = [["*" if outcome is best else "", *cells_of(outcome)] for outcome in self.table]
        head = ["", "n_components", "covariance_type", "rank", self.criterion]
        lines = aligned([[*head, "log_likelihood", "n_parameters", "converged"], *marked])
        return "\n".join([f"Selection by {self.criterion}, lowest for {best.setting}", *lines])


def lowest(table: Iterable[Outcome]) -> Outcome:
    """The best outcome; of several, the first."""
    return min(table, key=lambda outcome: outcome.value)


def cells_of(outcome: Outcome) -> list[str]:
    """A line of the printed table."""
    return [
        *(str(value) for value in (outcome.n_components, outcome.covariance_type, outcome.rank or "-")),
        f"{outcome.value:.1f}",
        f"{outcome.log_likelihood:.4f}",
        str(outcome.n_parameters),
        "yes" if outcome.converged else "no",
    ]


def aligned(lines: list[list[str]]) -> list[str]:
    """Lines of cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.rjust, line, widths)) for line in lines]


def select(
    sketch: Sketch,
    n_components: int | Iterable[int] = range(1, 6),
    covariance_type: str | Iterable[str] = ("diag",),
    *,
    criterion: str = "bic",
    rank: int | str | Iterable[int] | None = None,
    progress: Callable[[int], None] | None = None,
    **parameters: Any,
) -> Selection:
    """Fit a mixture for every setting of a grid to one sketch, and find the best by a criterion.

    Parameters
    ----------
    sketch : Sketch
        Sketched rows.
    n_components : int or iterable of int, default=range(1, 6)
        Numbers of Gaussians to try.
    covariance_type : str or iterable of str, default=("diag",)
        Families of covariances to try; see :class:`GaussianMixture`.
    criterion : {"bic", "aic", "icl"}, default="bic"
        The method of `GaussianMixture` that is to be lowest, on the sketch itself.
    rank : int, "auto" or iterable of int, optional
        Ranks to try with ``covariance_type="low_rank"``; the others have none. "auto" is GaussianMixture's.
    progress : callable, optional
        Called after every fit with the number of mixtures that are fitted.
    **parameters : dict
        Parameters of every `GaussianMixture`, such as `random_state`, `n_init` or `tol`.

    Returns
    -------
    Selection
        The best model, and a table of all.

    Warns
    -----
    ConvergenceWarning
        Once, with the settings whose fits did not converge or lost components, and what each had to say.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> rng = np.random.default_rng(0)
    >>> X = 4 * rng.normal(size=(3, 64))[rng.integers(3, size=1000)] + rng.normal(size=(1000, 64))
    >>> sketch = sm.Sketcher(sketch_size=16, random_state=0).fit_transform(X)
    >>> sm.select(sketch, range(2, 5), ("diag", "spherical"), random_state=0).best
    GaussianMixture(covariance_type='spherical', n_components=3, random_state=0)
    """
    validation.check_sketch(sketch)
    validation.check_readable(sketch, least=1)
    validation.check_choice("criterion", criterion, CRITERIA)
    grid = settings(n_components, covariance_type, rank)
    check_fits(grid, sketch, parameters)
    table, troubles = list[Outcome](), dict[Setting, list[str]]()
    for setting in grid:
        model = GaussianMixture(**setting.differences, **parameters)
        troubles[setting] = fit_quietly(model, sketch)
        table.append(Outcome.of(setting, model, sketch, criterion))
        if lowest(table) is table[-1]:
            best = model
        if progress:
            progress(len(table))
    if any(troubles.values()):
        warnings.warn(report(troubles), ConvergenceWarning, stacklevel=2)
    return Selection(best, tuple(table), criterion)


def settings(
    n_components: int | Iterable[int], covariance_type: str | Iterable[str], rank: int | str | Iterable[int] | None
) -> list[Setting]:
    """The grid: every number of components with every family, and the low-rank one with every rank."""
    numbers = validation.check_integers("n_components", n_components)
    families = validation.check_choices("covariance_type", covariance_type, COVARIANCE_TYPES)
    ranks: list[int | str | None] = [None]
    if rank is not None:
        ranks = ["auto"] if rank == "auto" else [*validation.check_integers("rank", rank)]
        validation.check_rank_is_used(families, LowRank.name)
    return [
        Setting(number, family, rank_of_it)
        for family, number in product(families, numbers)
        for rank_of_it in (ranks if family == LowRank.name else [None])
    ]


def check_fits(grid: list[Setting], sketch: Sketch, parameters: dict[str, Any]) -> None:
    """Refuse what a fit would refuse, before the first."""
    numbers = [setting.n_components for setting in grid]
    validation.check_enough_rows("n_components", max(numbers), len(sketch))
    settled = set(SKETCHER_PARAMETERS) - {"random_state"}
    shared = set(GaussianMixture().get_params()) - settled - {field.name for field in fields(Setting)}
    validation.check_parameters_of_fits(parameters, shared, settled)
    validation.check_initial_values(parameters, set(numbers))
    for setting in grid:
        if setting.rank is not None:
            validation.check_rank(setting.rank, sketch.n_features)
        GaussianMixture(**setting.differences, **parameters)._check_parameters()


def fit_quietly(model: GaussianMixture, sketch: Sketch) -> list[str]:
    """Fit, and return what the fit would have warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(sketch)
    ours = [warning for warning in caught if issubclass(warning.category, ConvergenceWarning)]
    for other in caught:
        if other not in ours:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return [str(warning.message) for warning in ours]


def report(troubles: dict[Setting, list[str]]) -> str:
    """One warning for all fits: what is wrong with which."""
    troubled = {setting: messages for setting, messages in troubles.items() if messages}
    lines = [f"{len(troubled)} of {len(troubles)} fits ended with a warning:"]
    for setting, (message, *more) in troubled.items():
        lines.append(f"  {setting}: {message}" + (f" (And {len(more)} more.)" if more else ""))
    return "\n".join(lines)
