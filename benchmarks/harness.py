"""How every benchmark measures: side by side in one process, alternately, warm, median of several."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from sketchmix import _core

Action = Callable[[], Any]
DATA = Path(os.environ.get("SKETCHMIX_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))


def data(name: str) -> dict[str, NDArray[Any]]:
    """One of the real data sets; without it, the benchmark ends with a word on how to get it."""
    if not (DATA / name).exists():
        print(f"left out: {name} is not in {DATA}; set SKETCHMIX_DATA to the folder that holds it")
        raise SystemExit(0)
    with np.load(DATA / name) as arrays:
        return dict(arrays)


def seconds(action: Action) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def side_by_side(*actions: Action, repeats: int = 9) -> list[float]:
    """The median time of each action: called once to warm up, then in turn."""
    for action in actions:
        action()
    times = [[seconds(action) for action in actions] for _ in range(repeats)]
    return [float(t) for t in np.median(times, axis=0)]


def matched(labels: NDArray[Any], truth: NDArray[Any]) -> float:
    """The share of rows that are labelled right, under the best matching of labels to classes."""
    classes, y = np.unique(truth, return_inverse=True)
    counts = np.zeros((len(classes), labels.max() + 1), int)
    np.add.at(counts, (y, labels), 1)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(truth))


def over_seeds(
    name: str, make: Callable[[int], Any], X: NDArray[Any], y: NDArray[Any], seeds: Iterable[int]
) -> list[Any]:
    """A line: name; mean, deviation and least of the accuracies; median seconds from rows to labels."""
    make(0).fit_predict(X[:3000])  # warm
    accuracies, times = [], []
    for seed in seeds:
        model = make(seed)
        started = time.perf_counter()
        labels = model.fit_predict(X)
        times.append(time.perf_counter() - started)
        accuracies.append(matched(labels, y))
    return [name, np.mean(accuracies), np.std(accuracies), np.min(accuracies), float(np.median(times))]


def peak_megabytes() -> float:
    """The most memory that this process had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def in_a_process_of_its_own(function: Callable[..., Any], *args: object) -> Any:
    """A process's peak never falls, so that each measurement needs a new one."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Limit BLAS and OpenMP, and so both sides, to n threads."""
    with threadpool_limits(limits=n):
        yield


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, and what it was measured on."""
    cells = [list(map(str, header)), *([format_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}   [{_core.level}]")
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def format_cell(cell: object) -> str:
    """Numbers in three digits, everything else as it is."""
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
