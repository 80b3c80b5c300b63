"""The loop: blocks -> statistics -> maximise, until the likelihood no longer rises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sketchmix.families import AxisAligned
from sketchmix.moments import Moments, Parameters, add_up
from sketchmix.sketch import Sketch

Array = NDArray[Any]

# Several starts are compared after this many iterations, on at most this many rows.
TRIAL_ITERATIONS = 10
TRIAL_ROWS = 20_000
# A variance may fall to this share of what all rows together have at its coordinate, which float32 still resolves,
# and (where they have none) to this share of what they have on average, which float32 can still standardise.
SMALLEST_SHARE = 1e-10
SMALLEST_SHARE_OF_MEAN = 1e-24
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
    reg_covar: float
    shared: Array  # the variances of all rows together, shaped like a component's
    floor: Array  # and the smallest that are allowed

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
        least = max(reg_covar, SMALLEST_SHARE_OF_MEAN * float(variances.mean()), float(np.finfo(np.float32).tiny))
        floor = np.maximum(SMALLEST_SHARE * shared, least)
        return cls(family, sketch, sample_weight, reg_covar, np.maximum(shared, floor), floor)

    def thinned(self, n_rows: int) -> Problem:
        """The same problem on evenly spaced rows, about `n_rows` of them."""
        step = max(1, self.sketch.n_samples // n_rows)
        weight = None if self.sample_weight is None else self.sample_weight[::step]
        if weight is not None and not weight.any():
            return self
        return replace(self, sketch=self.sketch[::step], sample_weight=weight)

    def start(self, means: Array) -> Parameters:
        """Bootstrap from means: each row to the nearest by its kept entries, then the first weights and S."""
        k = means.shape[1]
        unit = Parameters(np.full(k, 1 / k), means, np.ones_like(self.shared))
        nearest = add_up(self.sketch.block, unit, self.sample_weight, hard=True)
        return self.family.bootstrap(nearest, means, self.shared, self.floor)

    def statistics(self, parameters: Parameters) -> Moments:
        """The E-step over all rows."""
        return self.family.statistics(self.sketch.block, parameters, self.sample_weight)

    def maximise(self, moments: Moments, parameters: Parameters) -> Parameters:
        """The M-step."""
        return self.family.maximise(moments, parameters, self.reg_covar, self.floor)


def pooled_variances(sketch: Sketch, sample_weight: Array | None) -> Array:
    """The variance of each rotated coordinate over the rows that kept it."""
    p = sketch.sketcher.n_rotated_
    one = Parameters(np.ones(1), np.zeros((p, 1)), np.ones((p, 1)))
    # Twice: sums around a rough mean lose nothing to an offset that is large beside the spread.
    rough = add_up(sketch.block, one, sample_weight)
    count = np.maximum(rough.count, np.finfo(float).tiny)
    centred = replace(one, means=rough.first / count)
    moments = add_up(sketch.block, centred, sample_weight)
    variances: Array = (moments.second / count - (moments.first / count) ** 2)[:, 0]
    return np.maximum(variances, 0)


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
    return -rounding <= gain(lower_bounds) < tol


def best_start(problem: Problem, starts: list[Parameters]) -> Parameters:
    """Of several starts, what the one with the highest likelihood after a few iterations became."""
    if len(starts) == 1:
        return starts[0]
    small = problem.thinned(TRIAL_ROWS)
    trials = [fit(small, start, tol=0.0, max_iter=TRIAL_ITERATIONS) for start in starts]
    return max(trials, key=lambda trial: trial.lower_bounds[-1]).parameters


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
    at_floor = (parameters.variances <= 2 * problem.floor) & (problem.shared > 1e3 * problem.floor)
    for k in np.flatnonzero(np.atleast_2d(at_floor).any(axis=0)):
        yield (
            f"component {k} has collapsed: some of its variances fell to the smallest that is allowed. "
            "Raise reg_covar, keep more entries, or lower n_components."
        )


def gain(lower_bounds: list[float]) -> float:
    """What the last iteration added."""
    return lower_bounds[-1] - lower_bounds[-2] if len(lower_bounds) > 1 else np.inf
