"""One iteration of EM or of Lloyd on a sketch, beside one of scikit-learn's on all entries."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from harness import seconds, table, threads
from numpy.typing import NDArray
from sklearn import cluster, mixture
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm
from sketchmix import em
from sketchmix.families import FAMILIES
from sketchmix.kmeans import assign
from sketchmix.moments import Parameters

N, P, Q = 50_000, 784, 30
REQUIRED = {3: (30, 80), 10: (25, 40), 100: (15, 30)}


def rows(K: int) -> NDArray[np.float32]:
    """Overlapping clusters: more than a few components share every row."""
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=0.3, size=(K, P))
    return (centers[rng.integers(K, size=N)] + rng.normal(size=(N, P))).astype(np.float32)


def per_iteration(run: Any, few: int, many: int) -> float:
    """Seconds of one iteration, as the difference of two runs that differ in nothing else."""
    run(few)
    differences = [seconds(lambda: run(many)) - seconds(lambda: run(few)) for _ in range(5)]
    return float(np.median(differences)) / (many - few)


def measure(K: int, n_threads: int) -> list[list[object]]:
    X = rows(K)
    sketch = sm.Sketcher(Q, random_state=0).fit_transform(X)
    means, weights = X[:K].astype(float), np.full(K, 1 / K)

    def theirs(max_iter: int) -> None:
        model = mixture.GaussianMixture(
            K,
            covariance_type="diag",
            tol=0.0,
            max_iter=max_iter,
            weights_init=weights,
            means_init=means,
            precisions_init=np.ones((K, P)),
            init_params="random_from_data",
        )
        model.fit(X)

    noise = np.random.default_rng(1).standard_normal((N, P), dtype=np.float32)  # on which Lloyd does not end early

    def their_k_means(max_iter: int) -> None:
        model = cluster.KMeans(K, init=noise[:K], n_init=1, tol=0.0, max_iter=max_iter, algorithm="lloyd")
        assert model.fit(noise).n_iter_ == max_iter

    rotated = np.ascontiguousarray(sketch.sketcher.rotate(means).T)

    def ours(family: str) -> Any:
        problem = em.Problem.of(FAMILIES[family], sketch, None, K, 1e-6)
        start = Parameters(weights, rotated, np.ones_like(problem.shared))
        return lambda max_iter: em.fit(problem, start, tol=-np.inf, max_iter=max_iter)

    def our_k_means(max_iter: int) -> None:
        for _ in range(max_iter):
            assign(sketch, rotated, None)

    with threads(n_threads):
        dense = per_iteration(theirs, 2, 5)
        dense_k_means = per_iteration(their_k_means, 2, 5)
        diagonal, spherical = (per_iteration(ours(family), 3, 13) for family in ("diag", "spherical"))
        k_means = per_iteration(our_k_means, 3, 13)
    check_answer(X, K)
    least, aim = REQUIRED[K]
    ns = 1e9 / N
    return [
        [n_threads, K, "diag", dense * ns, diagonal * ns, dense / diagonal, f"{least} (aim {aim})"],
        [n_threads, K, "spherical", "", spherical * ns, diagonal / spherical, "1 x diag"],
        [n_threads, K, "k-means", dense_k_means * ns, k_means * ns, dense_k_means / k_means, "1 x diag at K=100"],
    ]


def check_answer(X: NDArray[np.float32], K: int) -> None:
    """With all entries kept, the same iterations end where scikit-learn's do."""
    few = X[:2000].astype(float)
    ours = sm.GaussianMixture(
        K, sketch_size=P, dtype="float64", means_init=few[:K], weights_init=np.full(K, 1 / K), tol=0.0, max_iter=1
    )
    start = em.Problem.of(
        FAMILIES["diag"], sm.Sketcher(P, dtype="float64").fit_transform(few), None, K, 1e-6
    ).start(np.ascontiguousarray(few[:K].T))
    theirs = mixture.GaussianMixture(
        K,
        covariance_type="diag",
        tol=0.0,
        max_iter=1,
        weights_init=np.full(K, 1 / K),
        means_init=few[:K],
        precisions_init=1 / start.variances.T,
        init_params="random_from_data",
    )
    np.testing.assert_allclose(ours.fit(few).means_, theirs.fit(few).means_, atol=1e-6)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    for n_threads in (1, 2):
        table(
            f"one iteration over {N:,} rows, P={P}, Q={Q} (P/Q = {P / Q:.0f}), float32",
            ["threads", "K", "family", "scikit-learn ns/row", "sketchmix ns/row", "ratio", "required at least"],
            [row for K in REQUIRED for row in measure(K, n_threads)],
        )
