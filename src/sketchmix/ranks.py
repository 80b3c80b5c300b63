"""``rank="auto"``: how many factors rows that were left out speak for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from sketchmix import em
from sketchmix.families import Family, LowRank, Mixture
from sketchmix.moments import Kept, Parameters, weighted_blocks

# Ranks to try, each about 1.4 times the one before; the first that is no better than the last ends the search.
RANKS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 91, 128)
# Every so many rows one is left out of the fits, and asked afterwards.
LEFT_OUT = 5
MAX_ITER = 50
# Rows whose densities are held at a time.
ROWS_AT_A_TIME = 16384
TOL = 1e-3


def best_rank(problem: em.Problem, seeded: Parameters) -> int:
    """The rank at which the rows left out of a fit are most likely; 1 where there are too few to leave any out."""
    weight = np.ones(len(problem.sketch)) if problem.sample_weight is None else problem.sample_weight
    useful = np.flatnonzero(weight)
    if len(useful) < LEFT_OUT:
        return 1
    held_out, rest = part(problem, useful[::LEFT_OUT]), part(problem, np.delete(useful, np.s_[::LEFT_OUT]))
    best, highest = 1, -np.inf
    for rank in (rank for rank in RANKS if rank < problem.sketch.n_features):
        trial = rest.under(LowRank(rank))
        fitted = em.fit(trial, trial.begin(seeded), tol=TOL, max_iter=MAX_ITER).parameters
        score = score_of(held_out.under(LowRank(rank)), fitted)
        if not score > highest + TOL:
            break
        best, highest = rank, score
    return best


def part(problem: em.Problem, rows: em.Array) -> em.Problem:
    """The same problem on some of its rows."""
    weight = None if problem.sample_weight is None else problem.sample_weight[rows]
    return replace(problem, sketch=problem.sketch[rows], sample_weight=weight)


def score_of(problem: em.Problem, parameters: Mixture) -> float:
    """The mean log-likelihood of the rows."""
    sum_of = partial(sum_scores, family=problem.family, parameters=parameters)
    total, weight = problem.sketch.kept.summed(sum_of, problem.sample_weight)
    return float(total / weight)


def sum_scores(
    kept: Kept, sample_weight: em.Array | None, *, family: Family[Any, Any], parameters: Mixture
) -> em.Array:
    """The log-likelihoods of rows, and their weights, added up."""
    sums = np.zeros(2)
    for block, weight in weighted_blocks(kept, sample_weight, ROWS_AT_A_TIME, exactly=True):
        scores = logsumexp(family.log_density(block, parameters), axis=1)
        sums += (scores.sum(), len(scores)) if weight is None else (weight @ scores, weight.sum())
    return sums
