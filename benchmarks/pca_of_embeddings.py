"""The top 20 components of sentence embeddings from a tenth of their entries, in one pass.

Needs ``clinc150_minilm.npz`` (X of 22,500 x 384 unit vectors).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from harness import data, side_by_side, table, threads
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm

N_COMPONENTS = 20
SHARES = (0.05, 0.1, 0.25)


def main(n_threads: int) -> None:
    X = data("clinc150_minilm.npz")["X"]
    covariance = np.cov(X.T.astype(float))
    best = np.linalg.eigvalsh(covariance)[-N_COMPONENTS:].sum()
    models: dict[str, Any] = {
        "scikit-learn PCA": decomposition.PCA(N_COMPONENTS, random_state=0),
        "scikit-learn IncrementalPCA": decomposition.IncrementalPCA(N_COMPONENTS, batch_size=1000),
        **{
            f"sketchmix, {share:.0%} kept": sm.PCA(N_COMPONENTS, sketch_size=share, random_state=0)
            for share in SHARES
        },
        "subsampling 10% of the rows": Subsampled(),
    }
    with threads(n_threads):
        times = side_by_side(*(lambda model=model: model.fit(X) for model in models.values()), repeats=3)
    rows = []
    for (name, model), spent in zip(models.items(), times, strict=True):
        captured = np.trace(model.components_ @ covariance @ model.components_.T)
        rows.append([name, captured / best, captured / np.trace(covariance), spent])
    assert rows[3][1] > 0.9, rows[3]
    table(
        f"PCA of {len(X):,} embeddings, P={X.shape[1]}, {N_COMPONENTS} components, {n_threads} thread(s)",
        ["", "captured, of the best", "of all variance", "seconds"],
        rows,
    )


class Subsampled:
    """As many entries, but of whole rows."""

    components_: Any

    def fit(self, X: Any) -> None:
        rows = np.random.default_rng(0).choice(len(X), len(X) // 10, replace=False)
        self.components_ = decomposition.PCA(N_COMPONENTS, random_state=0).fit(X[rows]).components_


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main(1)
    main(2)
