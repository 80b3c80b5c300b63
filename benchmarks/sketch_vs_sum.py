"""Sketching, masks included, takes little more than reading the rows: beside ``X.sum()`` over the same array."""

from __future__ import annotations

import numpy as np
from harness import side_by_side, table, threads

import sketchmix as sm

N = 200_000


def measure(n_features: int, sketch_size: int, at_most: float) -> list[object]:
    X = np.random.default_rng(0).standard_normal((N, n_features), dtype=np.float32)
    sketcher = sm.Sketcher(sketch_size, transform="hadamard", random_state=0).fit(X)
    total, sketching = side_by_side(X.sum, lambda: sketcher.transform(X))
    # The answer: kept entries are those of the rotated rows.
    sketch, rotated = sketcher.transform(X[-1000:], first_row=N - 1000), sketcher.rotate(X[-1000:])
    expected = np.take_along_axis(rotated, sketch.indices.astype(int), axis=1)
    np.testing.assert_allclose(sketch.values, expected, atol=1e-4)
    gigabytes = X.nbytes / 1e9
    return [
        n_features,
        sketch_size,
        gigabytes / total,
        gigabytes / sketching,
        sketching / N * 1e9,
        sketching / total,
        at_most,
    ]


if __name__ == "__main__":
    with threads(1):
        rows = [measure(1024, 41, 2.5), measure(784, 30, 4.0)]
    table(
        f"sketching {N:,} float32 rows with the Hadamard transform, one thread",
        ["P", "Q", "sum GB/s", "sketch GB/s", "sketch ns/row", "sketch / sum", "required at most"],
        rows,
    )
