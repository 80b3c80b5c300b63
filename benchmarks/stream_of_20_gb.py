"""5,000,000 rows of 1024 features come one batch after the other, and are never held: sketched, fitted, labelled.

Beside it, MiniBatchKMeans learns from the same stream, which has to come twice before its rows have labels. The
number of rows can be given as an argument.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import in_a_process_of_its_own, matched, peak_megabytes, table
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import MiniBatchKMeans

import sketchmix as sm

Array = NDArray[Any]

P, Q, K = 1024, 41, 50
BATCH = 1024
SPREAD = 1.0  # of the centers, in standard deviations of the noise


def centers() -> Array:
    return SPREAD * np.random.default_rng(0).standard_normal((K, P), dtype=np.float32)


def stream(n_rows: int, labels: list[Array] | None = None) -> Iterator[Array]:
    """Rows of a mixture, the same ones every time."""
    rng, of_components = np.random.Generator(np.random.SFC64(1)), centers()
    for first in range(0, n_rows, BATCH):
        y = rng.integers(K, size=min(BATCH, n_rows - first))
        rows = rng.standard_normal((len(y), P), dtype=np.float32)
        rows += of_components[y]
        if labels is not None:
            labels.append(y.astype(np.uint8))
        yield rows


def truth(n_rows: int) -> Array:
    labels: list[Array] = []
    for _ in stream(n_rows, labels):
        pass
    return np.concatenate(labels)


def error_of(means: Array) -> float:
    """Root mean square of what is left of a mean's coordinate, each mean beside the center that it is."""
    squares = ((means[:, None] - centers()) ** 2).mean(axis=2)
    return float(np.sqrt(squares[linear_sum_assignment(squares)].mean()))


def generator_alone(n_rows: int) -> float:
    started = time.perf_counter()
    for _ in stream(n_rows):
        pass
    return time.perf_counter() - started


def sketched(n_rows: int) -> dict[str, Any]:
    started = time.perf_counter()
    sketch = sm.Sketcher(Q, random_state=0).sketch(stream(n_rows))
    between = time.perf_counter()
    model = sm.GaussianMixture(K, n_init=5, random_state=0).fit(sketch)
    return {
        "seconds": (between - started, time.perf_counter() - between),
        "peak": peak_megabytes(),
        "sketch": sketch.nbytes / 1e6,
        "labels": model.labels_.astype(np.uint8),
        "error": error_of(model.means_),
        "iterations": model.n_iter_,
    }


def mini_batches(n_rows: int) -> dict[str, Any]:
    started = time.perf_counter()
    model = MiniBatchKMeans(K, batch_size=BATCH, random_state=0)
    for batch in stream(n_rows):
        model.partial_fit(batch)
    between = time.perf_counter()
    labels = np.concatenate([model.predict(batch).astype(np.uint8) for batch in stream(n_rows)])
    return {
        "seconds": (between - started, time.perf_counter() - between),
        "peak": peak_megabytes(),
        "labels": labels,
        "error": error_of(model.cluster_centers_),
    }


def main(n_rows: int) -> None:
    alone = generator_alone(n_rows)
    ours = in_a_process_of_its_own(sketched, n_rows)
    theirs = in_a_process_of_its_own(mini_batches, n_rows)
    y = truth(n_rows)
    rows = [
        [name, *found["seconds"], matched(found["labels"], y), found["error"], found["peak"]]
        for name, found in [("GaussianMixture on the sketch", ours), ("MiniBatchKMeans, rows twice", theirs)]
    ]
    table(
        f"a stream of {n_rows:,} x {P} rows, K={K}, Q={Q}; to generate it alone takes {alone:.3g} s",
        ["", "pass (s)", "fit / labels (s)", "accuracy", "error of means", "peak MB"],
        rows,
    )
    beyond, ratio = ours["peak"] - ours["sketch"], ours["seconds"][0] / alone
    print(f"peak beyond the {ours['sketch']:.0f} MB of the sketch: {beyond:.0f} MB (at most 300)")
    print(f"sketching / generator's own time: {ratio:.2f} (at most 1.3); {ours['iterations']} iterations of EM")
    assert beyond <= 300
    assert matched(ours["labels"], y) > 0.85


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
