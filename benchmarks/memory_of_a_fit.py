"""A fit on a sketch needs little memory beyond the sketch; a kept entry takes 6 bytes, or 4 in float16."""

from __future__ import annotations

import multiprocessing
import resource
import sys

import numpy as np
from harness import table

import sketchmix as sm

P, Q = 1024, 41


def peak_megabytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def made_sketch(n: int, dtype: str) -> sm.Sketch:
    """A sketch of n rows around 10 centers, made some rows at a time so that nothing else is ever large."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(10, P)).astype(np.float32)
    sketcher = sm.Sketcher(Q, dtype=dtype, random_state=0).fit(centers)
    values, indices = np.empty((n, Q), dtype), np.empty((n, Q), np.uint16)
    for first in range(0, n, 20_000):
        rows = centers[rng.integers(10, size=20_000)] + rng.standard_normal((20_000, P), dtype=np.float32)
        part = sketcher.transform(rows, first_row=first)
        values[first : first + 20_000], indices[first : first + 20_000] = part.values, part.indices
    return sm.Sketch(values, indices, sketcher)


def measure(n: int, dtype: str, K: int) -> list[object]:
    sketch = made_sketch(n, dtype)
    before = peak_megabytes()
    model = sm.GaussianMixture(K, random_state=0, max_iter=5, tol=np.finfo(float).max).fit(sketch)
    assert np.isfinite(model.means_).all()
    beyond, size = peak_megabytes() - before, sketch.nbytes / 1e6
    return [n, K, dtype, sketch.nbytes / (n * Q), size, beyond, size / 4 + 64]


if __name__ == "__main__":
    rows = []
    for n, dtype, K in [(1_000_000, "float32", 10), (1_000_000, "float16", 10), (1_000_000, "float32", 100)]:
        # A process for each, as a peak never falls.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (n, dtype, K)))
    table(
        f"memory of a fit on a sketch, P={P}, Q={Q}",
        ["N", "K", "dtype", "bytes/kept entry", "sketch MB", "beyond it MB", "required at most"],
        rows,
    )
