"""The loop: blocks -> statistics -> maximise, until the likelihood no longer rises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sketchmix.families import AxisAligned, Limits
from sketchmix.moments import Moments, Parameters, add_up, sums_by_coordinate
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


@dataclass(frozen=True)
class Fit:
    """What the loop ends with."""

    parameters: Parameters
    lower_bounds: list[float]
    converged: bool

    @property
    def n_iter(self) -> int:
        """Iterations run."""
        return len(self.lower_bounds)


@dataclass(frozen=True)
class Problem:
    """Rows, their weights and a family: all that stays the same from iteration to iteration."""

    family: AxisAligned
    sketch: Sketch
    sample_weight: Array | None
    shared: Array  # the variances of all rows together, shaped like a component's
    limits: Limits

    @classmethod
    def of(
        cls,
        family: AxisAligned,
        sketch: Sketch,
        sample_weight: Array | None,
        n_components: int,
        reg_covar: float,
    ) -> Problem:
        """The problem, with what all rows together say about its scale."""
        variances = pooled_variances(sketch, sample_weight)
        shared = family.shared_variances(variances, n_components)
        least = max(reg_covar, SMALLEST_SHARE_OF_MEAN * float(variances.mean()), SMALLEST)
        floor = np.maximum(SMALLEST_SHARE * shared, least)
        return cls(
            family,
            sketch,
            sample_weight,
            np.maximum(shared, floor),
            Limits(reg_covar, floor, support_of(sample_weight)),
        )

    def thinned(self, n_rows: int) -> Problem:
        """The same problem on evenly spaced rows, about `n_rows` of them."""
        sketch, weight = thinned(self.sketch, self.sample_weight, n_rows)
        return replace(self, sketch=sketch, sample_weight=weight)

    def start(self, means: Array) -> Parameters:
        """Bootstrap from means: each row to the nearest by its kept entries, then the first weights and S."""
        unit = Parameters(np.ones(means.shape[1]), means, np.ones_like(self.shared))
        nearest = add_up(self.sketch.block, unit, self.sample_weight, hard=True)
        return self.family.bootstrap(nearest, means, self.shared, self.limits)

    def statistics(self, parameters: Parameters) -> Moments:
        """The E-step over all rows."""
        return self.family.statistics(self.sketch.block, parameters, self.sample_weight)

    def maximise(self, moments: Moments, parameters: Parameters) -> Parameters:
        """The M-step."""
        return self.family.maximise(moments, parameters, self.limits)


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
    count, total = sums_by_coordinate(sketch.block, sketch.sketcher.n_rotated_, sample_weight)
    means = (total / np.where(count > 0, count, 1))[:, None]
    around = Parameters(np.ones(1), means, np.ones_like(means))
    # In float64, as one pass costs little: these are the scale that all else is measured by.
    second = add_up(sketch.block, around, sample_weight, exact=True).second[:, 0]
    supported = count >= support_of(sample_weight)
    if not supported.any():
        return np.full(len(count), second.sum() / count.sum())
    variances = second[supported] / count[supported]
    variances[variances <= (ROUNDING * means[supported, 0]) ** 2] = 0  # constant, but for rounding
    filled = np.full(len(count), variances.mean())
    filled[supported] = variances
    return filled


def fit(
    problem: Problem,
    start: Parameters,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[int, float], None] | None = None,
) -> Fit:
    """EM from `start`, until an iteration raises the log-likelihood of a row by less than `tol`."""
    parameters, lower_bounds, converged = start, list[float](), False
    while len(lower_bounds) < max_iter and not converged:
        moments = problem.statistics(parameters)
        lower_bounds.append(moments.log_likelihood / moments.size.sum())
        parameters = problem.maximise(moments, parameters)
        converged = has_converged(lower_bounds, tol)
        if report:
            report(len(lower_bounds), lower_bounds[-1])
    return Fit(parameters, lower_bounds, converged)


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
    return max(trials, key=lambda trial: trial.lower_bounds[-1]).parameters


def trial_rows(sketch: Sketch, n_components: int) -> int:
    """How many rows tell good starts from bad ones."""
    return max(TRIAL_ROWS, int(TRIAL_ROWS_PER_COORDINATE * n_components * sketch.scale))


def troubles(result: Fit, problem: Problem) -> Iterator[str]:
    """What a user should know of a fit: each with the component it is about, and what to do."""
    if not result.converged:
        yield (
            f"EM did not converge in {result.n_iter} iterations; the last one raised the log-likelihood of a row "
            f"by {gain(result.lower_bounds):.3g}. Increase max_iter or tol."
        )
    parameters, n = result.parameters, problem.sketch.n_samples
    for k in np.flatnonzero(parameters.weights * n < EMPTY):
        yield f"component {k} has lost all its rows (weight {parameters.weights[k]:.3g}); lower n_components."
    floor = problem.limits.floor
    at_floor = (parameters.variances <= 2 * floor) & (problem.shared > 10 * floor)
    for k in np.flatnonzero(np.atleast_2d(at_floor).any(axis=0)):
        yield (
            f"component {k} has collapsed: some of its variances fell to the smallest that is allowed. "
            "Raise reg_covar, keep more entries, or lower n_components."
        )


def gain(lower_bounds: list[float]) -> float:
    """What the last iteration added."""
    return lower_bounds[-1] - lower_bounds[-2] if len(lower_bounds) > 1 else np.inf
