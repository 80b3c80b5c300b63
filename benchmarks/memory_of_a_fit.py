"""A fit on a sketch needs little memory beyond the sketch; a kept entry takes 6 bytes, or 4 in float16."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from harness import in_a_process_of_its_own, peak_megabytes, table

import sketchmix as sm

P, Q = 1024, 41


def make_sketch(folder: Path, n: int, dtype: str) -> None:
    """Write a sketch of n rows around 10 centers, made some rows at a time."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(10, P)).astype(np.float32)
    sketcher = sm.Sketcher(Q, dtype=dtype, random_state=0).fit(centers)
    parts = []
    for first in range(0, n, 20_000):
        rows = centers[rng.integers(10, size=20_000)] + rng.standard_normal((20_000, P), dtype=np.float32)
        parts.append(sketcher.transform(rows, first_row=first))
    (folder / "sketch").write_bytes(pickle.dumps(sm.concatenate(parts), protocol=5))


def measure(folder: Path, K: int) -> list[object]:
    """Read the sketch, and see how far the peak rises while a model is fitted to it."""
    with (folder / "sketch").open("rb") as file:
        sketch = pickle.load(file)
    sm.GaussianMixture(K, random_state=0, max_iter=2).fit(sketch[:2000])  # libraries are loaded, threads started
    before = peak_megabytes()
    model = sm.GaussianMixture(K, random_state=0, max_iter=10).fit(sketch)
    beyond = peak_megabytes() - before
    assert np.isfinite(model.means_).all()
    n, size = len(sketch), sketch.nbytes / 1e6
    return [n, K, sketch.values.dtype, sketch.nbytes / (n * Q), size, beyond, size / 4 + 64]


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore:::sklearn.exceptions"  # fits of a few iterations, in other processes
    rows = []
    with TemporaryDirectory() as name:
        for n, dtype, K in [(1_000_000, "float32", 10), (1_000_000, "float16", 10), (1_000_000, "float32", 100)]:
            in_a_process_of_its_own(make_sketch, Path(name), n, dtype)
            rows.append(in_a_process_of_its_own(measure, Path(name), K))
    table(
        f"memory of a fit on a sketch, P={P}, Q={Q}",
        ["N", "K", "dtype", "bytes/kept entry", "sketch MB", "beyond it MB", "required at most"],
        rows,
    )
