"""Sentence embeddings of 150 intents: how well clusters find them, from sketches and from all entries.

Needs ``clinc150_minilm.npz`` (X of 22,500 x 384 unit vectors, y of 150 intents).
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import faiss
from harness import data, table, threads
from sklearn import cluster, mixture
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import sketchmix as sm

K = 150
SHARES = (0.05, 0.1, 0.25, 1.0)
RANK = 2


class Faiss:
    """Its k-means, with the settings of a scikit-learn user: all rows, 25 iterations, k-means++ not offered."""

    def fit_predict(self, X: Any) -> Any:
        model = faiss.Kmeans(X.shape[1], K, niter=25, seed=1, max_points_per_centroid=len(X))
        model.train(X)
        return model.index.search(X, 1)[1][:, 0]


def peers() -> dict[str, Any]:
    return {
        "scikit-learn KMeans": cluster.KMeans(K, n_init=1, random_state=0),
        "scikit-learn MiniBatchKMeans": cluster.MiniBatchKMeans(K, n_init=1, random_state=0),
        "scikit-learn GaussianMixture, diag": mixture.GaussianMixture(K, covariance_type="diag", random_state=0),
        "faiss Kmeans": Faiss(),
    }


def ours(share: float) -> dict[str, Any]:
    same: dict[str, Any] = {"sketch_size": share, "random_state": 0}
    return {
        f"k-means, {share:.0%}": sm.KMeans(K, **same),
        f"spherical, {share:.0%}": sm.GaussianMixture(K, covariance_type="spherical", **same),
        f"diagonal, {share:.0%}": sm.GaussianMixture(K, **same),
        f"low rank, r={RANK}, {share:.0%}": sm.GaussianMixture(K, covariance_type="low_rank", rank=RANK, **same),
    }


def measure(name: str, model: Any, X: Any, y: Any) -> list[Any]:
    started = time.perf_counter()
    labels = model.fit_predict(X)
    spent = time.perf_counter() - started
    return [name, normalized_mutual_info_score(y, labels), adjusted_rand_score(y, labels), spent]


def main(n_threads: int) -> None:
    arrays = data("clinc150_minilm.npz")
    X, y = arrays["X"], arrays["y"]
    models = peers()
    for share in SHARES:
        models |= ours(share)
    with threads(n_threads):
        faiss.omp_set_num_threads(n_threads)
        rows = [measure(name, model, X, y) for name, model in models.items()]
    found = {row[0]: row[1] for row in rows}
    assert found["k-means, 100%"] > found["scikit-learn KMeans"] - 0.02, rows
    table(
        f"{len(X):,} embeddings of {K} intents, P={X.shape[1]}, one start, {n_threads} thread(s)",
        ["", "NMI", "ARI", "seconds"],
        rows,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main(2)
