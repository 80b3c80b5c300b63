"""Time a row does not depend on how many rows there are, and how it depends on the number of features."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import seconds, table, threads
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import em
from sketchmix.families import FAMILIES

Q, K = 30, 10
BATCH = 20_000


def batches(n: int, P: int) -> Iterator[NDArray[np.float32]]:
    """n rows around K centers; the same noise again and again, as generating it would take longest."""
    rng = np.random.default_rng(0)
    batch = min(n, BATCH, 2**27 // P)
    centers = rng.standard_normal((K, P), dtype=np.float32)
    rows = centers[rng.integers(K, size=batch)] + rng.standard_normal((batch, P), dtype=np.float32)
    for first in range(0, n, batch):
        yield rows[: min(batch, n - first)]


def measure(n: int, P: int) -> list[Any]:
    sketcher = sm.Sketcher(Q, random_state=0).fit(next(batches(n, P)))
    parts, first, spent = [], 0, 0.0
    for batch in batches(n, P):
        started = time.perf_counter()
        parts.append(sketcher.transform(batch, first_row=first))
        spent += time.perf_counter() - started
        first += len(batch)
    sketch = sm.concatenate(parts)
    problem = em.Problem.of(FAMILIES["diag"], sketch, None, K, 1e-6)
    means = np.random.default_rng(1).normal(size=(sketch.sketcher.n_rotated_, K))
    start = problem.start(means)
    problem.statistics(start)
    iteration = float(np.median([seconds(lambda: problem.statistics(start)) for _ in range(3)]))
    assert np.isclose(problem.statistics(start).size.sum(), n)
    return [n, P, sketch.sketcher.transform_, spent / n * 1e9, iteration / n * 1e9]


if __name__ == "__main__":
    with threads(1):
        rows = [measure(n, 784) for n in (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)]
    flat = [row[4] for row in rows]
    table(
        f"time a row against N: K={K}, Q={Q}, one thread; "
        f"an iteration of EM varies by {max(flat) / min(flat) - 1:.0%} (required: 15%)",
        ["N", "P", "transform", "sketch ns/row", "EM ns/row and iteration"],
        rows,
    )
    with threads(1):
        rows = [measure(20_000, P) for P in (1_000, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_000, 65_536)]
    table(
        f"time a row against P: N=20,000, K={K}, Q={Q}, one thread",
        ["N", "P", "transform", "sketch ns/row", "EM ns/row and iteration"],
        rows,
    )
