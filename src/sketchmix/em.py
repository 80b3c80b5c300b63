"""The loop: blocks -> statistics -> maximise, until the likelihood no longer rises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sketchmix.families import Family, Limits, Mixture, Statistics
from sketchmix.moments import Moments, Parameters, add_up, sums_by_coordinate
from sketchmix.progress import UNSEEN, Watch
from sketchmix.sketch import Sketch

Array = NDArray[Any]

# Several starts are compared after this many iterations, on this many rows, or on more where each component and
# coordinate would have less than its own number.
TRIAL_ITERATIONS = 10
TRIAL_ROWS = 5_000
TRIAL_ROWS_PER_COORDINATE = 50
# A variance may fall to this share of what all rows together have at its coordinate, which float32 still resolves,
# and (where they have none) to this share of what they have on average, which float32 can still standardise.
SMALLEST_SHARE = 1e-10
SMALLEST_SHARE_OF_MEAN = 1e-24
SMALLEST = float(np.finfo(np.float32).tiny)
# A deviation that is this small beside its mean is rounding.
ROUNDING = 1e-14
# A component that holds less than this many rows is reported as empty.
EMPTY = 1e-3
# Of the log-likelihood of a row. What `reg_covar` and the floor of variances take is less; a fall beyond is
# rounding, under a covariance that is nearly singular.
STEEPEST_FALL = 1.0
# Of an extrapolation, in steps of EM: beyond, the steps are parallel to rounding.
LONGEST_JUMP = 1e6


@dataclass(frozen=True)
class Fit:
    """What the loop ends with."""

    parameters: Any  # of the family's type
    lower_bounds: list[float]
    converged: bool
    n_iter: int  # passes over the rows: those that led nowhere, too
    ran_wild: bool = False  # whether it was ended, and went back, as the likelihood fell steeply
    stopped: bool = False  # whether a watcher asked for its end

    @property
    def summary(self) -> str:
        """What to say of the last iteration."""
        return f"log-likelihood of a row {self.lower_bounds[-1]:.6f}"


@dataclass(frozen=True)
class Problem:
    """Rows, their weights and a family: all that stays the same from iteration to iteration."""

    family: Family[Any, Any]
    sketch: Sketch
    sample_weight: Array | None
    n_components: int
    reg_covar: float
    variances: Array  # of each coordinate over all rows, (P,)

    @classmethod
    def of(
        cls,
        family: Family[Any, Any],
        sketch: Sketch,
        sample_weight: Array | None,
        n_components: int,
        reg_covar: float,
    ) -> Problem:
        """The problem, with what all rows together say of its scale."""
        variances = pooled_variances(sketch, sample_weight)
        return cls(family, sketch, sample_weight, n_components, reg_covar, variances)

    @cached_property
    def shared(self) -> Array:
        """The variances of all rows together, in the family's shape."""
        return np.maximum(self.family.shared_variances(self.variances, self.n_components), self.limits.floor)

    @cached_property
    def limits(self) -> Limits:
        """What keeps variances away from zero."""
        shared = self.family.shared_variances(self.variances, self.n_components)
        least = max(self.reg_covar, SMALLEST_SHARE_OF_MEAN * float(self.variances.mean()), SMALLEST)
        floor = np.maximum(SMALLEST_SHARE * shared, least)
        return Limits(self.reg_covar, floor, support_of(self.sample_weight), 1 / self.sketch.scale)

    @property
    def seeding(self) -> Problem:
        """The same problem under the family in which starts are made and compared."""
        return self.under(self.family.seed)

    def under(self, family: Family[Any, Any]) -> Problem:
        """The same problem for another family."""
        return self if family is self.family else replace(self, family=family)

    def thinned(self, n_rows: int) -> Problem:
        """The same problem on evenly spaced rows, about `n_rows` of them."""
        sketch, weight = thinned(self.sketch, self.sample_weight, n_rows)
        return replace(self, sketch=sketch, sample_weight=weight)

    def start(self, means: Array) -> Parameters:
        """Bootstrap from means: each row to the nearest by its kept entries, then the first weights and S.

        Of the problem's `seeding`: other families `begin` where that leads.
        """
        unit = Parameters(np.ones(means.shape[1]), means, np.ones_like(self.shared))
        nearest = add_up(self.sketch.kept, unit, self.sample_weight, hard=True)
        return self.family.seed.bootstrap(nearest, means, self.shared, self.limits)

    def begin(self, seeded: Parameters) -> Any:
        """First parameters of the family, from those of its seed."""
        return self.family.begin(seeded, self.sketch, self.sample_weight, self.limits)

    def statistics(self, parameters: Mixture) -> Statistics:
        """The E-step over all rows."""
        statistics: Statistics = self.family.statistics(self.sketch.kept, parameters, self.sample_weight)
        return statistics

    def maximise(self, statistics: Statistics, parameters: Mixture) -> Any:
        """The M-step."""
        return self.family.maximise(statistics, parameters, self.limits)

    def carried(self, statistics: Statistics, before: Mixture, after: Mixture) -> Statistics:
        """Sums around some parameters, as the same rows' around others."""
        carried: Statistics = self.family.carried(statistics, before, after)
        return carried

    def remembered(self, parameters: Mixture, weight: float) -> Statistics:
        """What rows of this total weight could have added up to, of which the parameters are left."""
        remembered: Statistics = self.family.remembered(parameters, weight, self.limits)
        return remembered


def support_of(sample_weight: Array | None) -> float:
    """What two rows weigh: less says nothing about a spread."""
    return 2.0 if sample_weight is None else 2 * float(sample_weight[sample_weight > 0].mean())


def thinned(sketch: Sketch, sample_weight: Array | None, n_rows: int) -> tuple[Sketch, Array | None]:
    """About `n_rows` evenly spaced rows, and their weights."""
    step = max(1, sketch.n_samples // n_rows)
    if sample_weight is None:
        return sketch[::step], None
    weight = sample_weight[::step]
    return (sketch[::step], weight) if weight.any() else (sketch, sample_weight)


def pooled_variances(sketch: Sketch, sample_weight: Array | None) -> Array:
    """The variance of each rotated coordinate over the rows that kept it; their mean where there are too few."""
    centre = centre_of(sketch, sample_weight)
    # In float64, as one pass costs little: these are the scale that all else is measured by.
    moments = add_up(sketch.kept, centre, sample_weight, exact=True)
    return variances_of(moments, centre.means, support_of(sample_weight))


def centre_of(sketch: Sketch, sample_weight: Array | None) -> Parameters:
    """All rows together as one component of unit variances, around the mean at each coordinate."""
    count, total = sums_by_coordinate(sketch.kept, sketch.sketcher.n_rotated_, sample_weight)
    means = (total / np.where(count > 0, count, 1))[:, None]
    return Parameters(np.ones(1), means, np.ones_like(means))


def variances_of(moments: Moments, means: Array, support: float) -> Array:
    """The variance of each coordinate, from sums around the means (P x 1) of all rows together."""
    count, second = moments.count[:, 0], moments.second[:, 0]
    supported = count >= support
    if not supported.any():
        return np.full(len(count), second.sum() / count.sum())
    variances = second[supported] / count[supported]
    variances[variances <= (ROUNDING * means[supported, 0]) ** 2] = 0  # constant, but for rounding
    filled = np.full(len(count), variances.mean())
    filled[supported] = variances
    return filled


def fit(problem: Problem, start: Mixture, *, tol: float, max_iter: int, watch: Watch = UNSEEN) -> Fit:
    """EM from `start`, until an iteration raises the log-likelihood of a row by less than `tol`.

    An accelerated family takes a step of SQUAREM (Varadhan and Roland, 2008) after every two of EM, and goes back
    to where EM led if that lowered the likelihood.
    """
    climb = Climb(problem, start, tol)
    for _ in range(max_iter):
        watch.begin()
        climb.iterate()
        stopped = watch.end(climb.fit)
        if stopped or climb.is_over:
            break
    return replace(climb.fit, stopped=stopped)


class Climb:
    """EM from a start, an iteration at a time."""

    def __init__(self, problem: Problem, start: Mixture, tol: float) -> None:
        self._problem, self._tol = problem, tol
        self._path = Path(problem.family)
        self._before = self._parameters = start
        self._lower_bounds: list[float] = []
        self._n_iter, self._converged, self._ran_wild = 0, False, False

    @property
    def is_over(self) -> bool:
        """Whether another iteration would lead nowhere."""
        return self._converged or self._ran_wild

    @property
    def fit(self) -> Fit:
        """What the iterations so far led to."""
        reached = self._before if self._ran_wild else self._path.reached(self._parameters)
        return Fit(reached, list(self._lower_bounds), self._converged, self._n_iter, self._ran_wild)

    def iterate(self) -> None:
        """One pass over the rows, and on to better parameters; or back, where the last were worse."""
        self._n_iter += 1
        problem, bounds, jumped = self._problem, self._lower_bounds, self._path.jumped
        statistics = problem.statistics(self._parameters)
        log_posterior = statistics.log_likelihood + problem.family.log_prior(self._parameters)
        bound = float(log_posterior / statistics.size.sum())
        if jumped and not bound >= bounds[-1]:
            self._parameters = self._path.back()
            return
        if bounds and problem.family.accelerated and not bound > bounds[-1] - STEEPEST_FALL:
            self._ran_wild = True
            return
        bounds.append(bound)
        after = problem.maximise(statistics, self._parameters)
        self._before, self._parameters = self._parameters, self._path.onward(self._parameters, after)
        # A jump may have gained little where a step of EM would have gained more.
        self._converged = not jumped and has_converged(bounds, self._tol)


class Path:
    """Where EM went since the last extrapolation, and where to go on."""

    def __init__(self, family: Family[Any, Any]) -> None:
        self._family = family
        self._steps: list[Any] = []
        self._sure: Any = None  # where EM led, while an extrapolation has not been tried

    @property
    def jumped(self) -> bool:
        """Whether the present parameters are an extrapolation."""
        return self._sure is not None

    def back(self) -> Any:
        """Where EM led, as the extrapolation was no good."""
        sure, self._sure = self._sure, None
        return sure

    def onward(self, now: Any, after: Any) -> Any:
        """What to try after an iteration of EM led from `now` to `after`."""
        self._sure = None
        if not self._family.accelerated:
            return after
        self._steps.append(now)
        if len(self._steps) < 2:
            return after
        zeroth, first = self._steps
        beyond = self._beyond(zeroth, first, after)
        self._steps = []
        if beyond is None:
            return after
        self._sure = after
        return beyond

    def reached(self, parameters: Any) -> Any:
        """The last parameters whose likelihood is sure not to have fallen."""
        return self._sure if self.jumped else parameters

    def _beyond(self, zeroth: Any, first: Any, second: Any) -> Any:
        """Extrapolate two steps of EM, as far as their change says that they would lead."""
        x, y, z = map(self._family.to_vector, (zeroth, first, second))
        step, bend = y - x, (z - y) - (y - x)
        length = np.linalg.norm(step) / max(np.linalg.norm(bend), np.finfo(float).tiny)
        if not 1 < length < LONGEST_JUMP:
            return None
        return self._family.of_vector(x + 2 * length * step + length**2 * bend, second)


def has_converged(lower_bounds: list[float], tol: float) -> bool:
    """Whether the last iteration gained less than `tol`; a fall beyond rounding is not convergence."""
    if len(lower_bounds) < 2:
        return False
    rounding = 1e-5 * max(1.0, abs(lower_bounds[-1]))
    return bool(-rounding <= gain(lower_bounds) < tol)


def best_start(problem: Problem, starts: list[Parameters]) -> Parameters:
    """Of several starts, what the one with the highest likelihood after a few iterations became."""
    if len(starts) == 1:
        return starts[0]
    small = problem.thinned(trial_rows(problem.sketch, len(starts[0].weights)))
    trials = [fit(small, start, tol=0.0, max_iter=TRIAL_ITERATIONS) for start in starts]
    best: Parameters = max(trials, key=lambda trial: trial.lower_bounds[-1]).parameters
    return best


def rows_of_coordinate(sketch: Sketch, sample_weight: Array | None, n_components: int) -> float:
    """How many rows, on average, speak of a component's mean at a coordinate."""
    n_rows = sketch.n_samples if sample_weight is None else np.count_nonzero(sample_weight)
    return n_rows / (n_components * sketch.scale)


def trial_rows(sketch: Sketch, n_components: int) -> int:
    """How many rows tell good starts from bad ones."""
    return max(TRIAL_ROWS, int(TRIAL_ROWS_PER_COORDINATE * n_components * sketch.scale))


def troubles(result: Fit, problem: Problem) -> Iterator[str]:
    """What a user should know of a fit: each with the component it is about, and what to do."""
    if not (result.converged or result.stopped):
        yield not_converged(result)
    parameters, n = result.parameters, problem.sketch.n_samples
    for k in np.flatnonzero(parameters.weights * n < EMPTY):
        yield f"component {k} has lost all its rows (weight {parameters.weights[k]:.3g}); lower n_components."
    for k in np.flatnonzero(problem.family.collapsed(parameters, problem.limits, problem.shared)):
        yield (
            f"component {k} has collapsed: some of its variances fell to the smallest that is allowed. "
            "Raise reg_covar, keep more entries, or lower n_components."
        )


def not_converged(result: Fit) -> str:
    """What to say of a fit that ended without having converged."""
    if result.ran_wild:
        return (
            f"EM was stopped after {result.n_iter} iterations, and went back by one, as rounding took over: a "
            "covariance is nearly singular. Raise reg_covar, or take a simpler covariance_type."
        )
    raised = ""
    if len(result.lower_bounds) > 1:
        raised = f"; the last one raised the log-likelihood of a row by {gain(result.lower_bounds):.3g}"
    return f"EM did not converge in {result.n_iter} iterations{raised}. Increase max_iter or tol."


def gain(lower_bounds: list[float]) -> float:
    """What the last iteration added."""
    return lower_bounds[-1] - lower_bounds[-2] if len(lower_bounds) > 1 else np.inf
