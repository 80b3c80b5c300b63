"""A sketch of 4 GB in a folder is fitted by a process that may have 2 GB in all: the same bits, about as fast."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from harness import in_a_process_of_its_own, peak_megabytes, table
from numpy.typing import NDArray

import sketchmix as sm

Array = NDArray[Any]

P, Q, K = 1024, 41, 10
N_BATCHES, BATCH = 4000, 4096


def batches() -> Iterator[Array]:
    """The same few rows again and again: every time, others of their entries are kept."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((K, P), dtype=np.float32)
    several = [
        centers[rng.integers(K, size=BATCH)] + rng.standard_normal((BATCH, P), dtype=np.float32) for _ in range(8)
    ]
    for i in range(N_BATCHES):
        yield several[i % 8]


def write(folder: Path) -> int:
    return sm.Sketcher(Q, random_state=0).sketch(batches(), out=folder).nbytes


def fitted(sketch: sm.Sketch) -> tuple[float, Array]:
    """Seconds, and the means: the first fit warms the file cache, and checks the files."""
    for _ in range(2):
        started = time.perf_counter()
        model = sm.GaussianMixture(K, random_state=0, max_iter=10, tol=0).fit(sketch)
        seconds = time.perf_counter() - started
    return seconds, model.means_


def in_memory() -> tuple[float, Array, float]:
    return *fitted(sm.Sketcher(Q, random_state=0).sketch(batches())), peak_megabytes()


def from_folder(folder: Path, limit: int) -> tuple[float, Array, float]:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return *fitted(sm.Sketch.open(folder)), peak_megabytes()


def main() -> None:
    with TemporaryDirectory() as name:
        n_bytes = in_a_process_of_its_own(write, Path(name))
        of_folder, means, peak_of_folder = in_a_process_of_its_own(from_folder, Path(name), n_bytes // 2)
    of_memory, expected, peak_of_memory = in_a_process_of_its_own(in_memory)
    assert means.tobytes() == expected.tobytes()
    table(
        f"10 iterations on {N_BATCHES * BATCH:,} rows, a sketch of {n_bytes / 1e6:.0f} MB, K={K}",
        ["", "seconds", "peak MB", "address space MB"],
        [
            ["in memory", of_memory, peak_of_memory, "any"],
            ["in a folder", of_folder, peak_of_folder, n_bytes / 2e6],
        ],
    )
    print(f"in a folder / in memory: {of_folder / of_memory:.2f} (at most 1.5); the same bits")


if __name__ == "__main__":
    main()
