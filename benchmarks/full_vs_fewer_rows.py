"""Full covariances from Q of P entries of each row, beside scikit-learn's from P/Q times fewer whole rows."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from harness import seconds, table, threads
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn import mixture
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm

Array = NDArray[Any]

N, P, K = 50_000, 100, 3
# Of our error to that of whole rows that have as many entries in all.
MOST = {30: 1.5, 10: None}


class Truth(NamedTuple):
    means: Array  # (K, P)
    covariances: Array  # (K, P, P)
    rows: Array


def truth() -> Truth:
    """Clusters that hardly overlap, each with its own directions and a spectrum that falls to a hundredth."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(K, P))
    variances = 0.01 ** (np.arange(P) / (P - 1))
    frames = np.linalg.qr(rng.normal(size=(K, P, P)))[0]
    y = rng.integers(K, size=N)
    deviations = np.sqrt(variances) * rng.normal(size=(N, P))
    for k in range(K):
        deviations[y == k] = deviations[y == k] @ frames[k].T
    covariances = (frames * variances) @ frames.transpose(0, 2, 1)
    return Truth(means, covariances, means[y] + deviations)


def errors(means: Array, covariances: Array, known: Truth) -> tuple[float, float]:
    """Relative Frobenius errors of the means and of the covariances, under the best matching of components."""
    gaps = np.linalg.norm(known.means[:, None] - means, axis=2)
    order = linear_sum_assignment(gaps)[1]
    return (
        float(np.linalg.norm(means[order] - known.means) / np.linalg.norm(known.means)),
        float(np.linalg.norm(covariances[order] - known.covariances) / np.linalg.norm(known.covariances)),
    )


def theirs(X: Array) -> tuple[float, mixture.GaussianMixture]:
    model = mixture.GaussianMixture(K, n_init=3, random_state=0)
    return seconds(lambda: model.fit(X)), model


def ours(X: Array, sketch_size: int) -> tuple[float, sm.GaussianMixture]:
    model = sm.GaussianMixture(
        K, covariance_type="full", sketch_size=sketch_size, n_init=3, tol=1e-4, max_iter=500, random_state=0
    )
    return seconds(lambda: model.fit(X)), model


def measure(known: Truth, n_threads: int) -> None:
    with threads(n_threads):
        time, model = theirs(known.rows)
        rows: list[list[object]] = [
            [
                "all rows, scikit-learn",
                time,
                model.n_iter_,
                *errors(model.means_, model.covariances_, known),
                "",
                "",
            ]
        ]
        for Q, most in MOST.items():
            few_time, few = theirs(known.rows[: N * Q // P])
            few_errors = errors(few.means_, few.covariances_, known)
            time, model = ours(known.rows, Q)
            our_errors = errors(model.means_, model.covariances_, known)
            ratios = [a / b for a, b in zip(our_errors, few_errors, strict=True)]
            rows.append([f"{Q}% of the rows, scikit-learn", few_time, few.n_iter_, *few_errors, "", ""])
            rows.append([f"{Q}% of the entries, sketchmix", time, model.n_iter_, *our_errors, *ratios])
            assert model.converged_
            assert most is None or max(ratios) <= most, ratios
    table(
        f"full covariances, {N:,} rows, P={P}, K={K}, threads: {n_threads}; required ratios at 30%: at most 1.5",
        ["", "seconds", "iterations", "means' error", "covariances' error", "means: ratio", "covariances: ratio"],
        rows,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    data = truth()
    for n_threads in (1, 2):
        measure(data, n_threads)
