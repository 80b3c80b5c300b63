"""A fit in Dask's workers: beside one process with as many threads, and beside dask-ml's k-means on dense rows."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask_ml.cluster import KMeans as DenseKMeans
from distributed import Client, wait
from distributed.diagnostics.plugin import SchedulerPlugin
from harness import matched, peak_megabytes, side_by_side, table, threads
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import em
from sketchmix.families import family_of
from sketchmix.moments import Parameters

Array = NDArray[Any]

P, Q, K = 1024, 41, 50
WORKERS = 2
MOST_OVERHEAD = 0.25


def clusters(n: int, seed: int = 0) -> Array:
    """Which cluster each of `rows` is in."""
    return np.random.default_rng(seed).integers(K, size=n)


def rows(n: int, seed: int = 0) -> Array:
    """Rows in clusters."""
    centers = np.random.default_rng(1).standard_normal((K, P), dtype=np.float32)
    noise = np.random.default_rng(seed + 100).standard_normal((n, P), dtype=np.float32)
    return centers[clusters(n, seed)] + noise


def in_chunks(n: int, n_chunks: int) -> Any:
    """Rows of some blocks that come again and again, made in the workers."""
    height = n // n_chunks
    return da.map_blocks(
        block, chunks=((height,) * n_chunks, P), dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )


def block(block_info: Any = None) -> Array:
    """The rows of a chunk."""
    height = block_info[None]["chunk-shape"][0]
    return np.resize(rows(2000), (height, P))


@contextmanager
def cluster() -> Iterator[Client]:
    """Workers of one thread each on this machine."""
    with Client(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as client:
        yield client


class Counter(SchedulerPlugin):  # type: ignore[misc]
    """Counts the tasks that are computed."""

    name = "counter"

    def __init__(self) -> None:
        self.n_tasks = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.n_tasks += (start, finish) == ("processing", "memory")


def through_loopback() -> int:
    """Bytes that processes of this machine have sent to each other so far."""
    (line,) = (line for line in Path("/proc/self/net/dev").read_text().splitlines() if "lo:" in line)
    return int(line.split()[1])


def start_of(sketcher: sm.Sketcher) -> Parameters:
    """Where EM starts."""
    means = sketcher.rotate(rows(K, seed=2)).astype(float).T
    return Parameters(np.full(K, 1 / K), np.ascontiguousarray(means), np.ones((P, K)))


def climb(sketch: sm.Sketch) -> em.Climb:
    """EM on a sketch, of which iterations can be asked one by one."""
    problem = em.Problem(family_of("diag", 1), sketch, None, K, 1e-6, np.ones(P))
    return em.Climb(problem, start_of(sketch.sketcher), 0.0)


def cost(client: Client, iterate: Callable[[], None]) -> tuple[int, int]:
    """Bytes that moved in one iteration, the least of some, as others may send meanwhile; and tasks."""
    scheduler, counter, moved = client.cluster.scheduler, Counter(), []
    scheduler.add_plugin(counter)
    for _ in range(9):
        before = through_loopback()
        iterate()
        moved.append(through_loopback() - before)
    scheduler.remove_plugin(counter.name)
    return min(moved), counter.n_tasks // len(moved)


def beside_one_process(client: Client, n: int) -> list[object]:
    """Seconds of an iteration here and there, and what the one there costs."""
    chunks = in_chunks(n, n // 20_000)
    sketcher = sm.Sketcher(Q, random_state=0).fit(rows(10))
    there = sketcher.transform(chunks)
    here = sketcher.sketch(block({None: {"chunk-shape": (20_000, P)}}) for _ in range(n // 20_000))
    assert there[:100].values.tobytes() == here[:100].values.tobytes()
    climbs = climb(here), climb(there)
    with threads(WORKERS):
        local, spread = side_by_side(*(partial(em.Climb.iterate, each) for each in climbs))
    assert np.allclose(climbs[0].fit.lower_bounds, climbs[1].fit.lower_bounds, rtol=1e-6)
    moved, n_tasks = cost(client, climbs[1].iterate)
    return [f"{n:,}", local, spread, spread / local - 1, moved, n_tasks]


def with_many_pieces(client: Client, n: int, n_chunks: int) -> list[object]:
    """Seconds of an iteration on rows that came in many chunks."""
    there = climb(sm.Sketcher(Q, random_state=0).fit(rows(10)).transform(in_chunks(n, n_chunks)))
    (seconds,) = side_by_side(there.iterate)
    _, n_tasks = cost(client, there.iterate)
    assert n_tasks <= n_chunks + WORKERS
    return [n_chunks, seconds, n_tasks]


def peak_of_workers(client: Client) -> float:
    """The most memory that any of them had, in MB."""
    return float(max(client.run(peak_megabytes).values()))


def k_means(name: str) -> list[object]:
    """Seconds from rows in workers to labels, the accuracy of these, and what memory it took."""
    with cluster() as client:
        X = in_chunks(200_000, 100).persist()
        wait(X)
        before, started = peak_of_workers(client), time.perf_counter()
        labels = model_of(name).fit(X).labels_.compute()
        seconds = time.perf_counter() - started
        return [
            name,
            seconds,
            matched(labels, np.resize(clusters(2000), 200_000)),
            peak_of_workers(client),
            before,
        ]


def model_of(name: str) -> Any:
    """K-means from the same centers."""
    start = rows(2000)[:K]
    if name == "sketchmix":
        return sm.KMeans(K, init=start, max_iter=10, tol=0.0, sketch_size=Q, random_state=0)
    return DenseKMeans(K, init=start.astype(float), max_iter=10, tol=0.0)


def main() -> None:
    warnings.filterwarnings("ignore", "Sending large graph")  # this script, for each chunk
    with cluster() as client:
        results = [beside_one_process(client, n) for n in (200_000, 2_000_000)]
        pieces = [with_many_pieces(client, 200_000, n) for n in (WORKERS, 100, 1000)]
    parameters = len(pickle.dumps(start_of(sm.Sketcher(Q, random_state=0).fit(rows(10)))))
    statistics = 8 * (K + 3 * P * K)
    expected = (WORKERS + 1) * (parameters + statistics)  # by way of the scheduler: one more than workers
    table(
        f"an iteration of EM, diagonal, P={P}, Q={Q}, K={K}, on {WORKERS} threads",
        ["rows", "one process, s", "Dask, s", "overhead", "bytes", "tasks"],
        results,
    )
    print(f"expected: {expected:,} bytes, whatever the rows")
    table("the same on 200,000 rows in more chunks", ["chunks", "Dask, s", "tasks"], pieces)
    print(f"required: at most {MOST_OVERHEAD} of overhead at 2,000,000 rows")
    for row in results:
        assert abs(int(str(row[4])) / expected - 1) < 0.1
    table(
        f"k-means of 200,000 x {P} rows that lie in {WORKERS} workers, K={K}, 10 iterations from the same centers",
        ["", "seconds", "accuracy", "peak MB of a worker", "before the fit"],
        [k_means(name) for name in ("sketchmix", "dask-ml")],
    )


if __name__ == "__main__":
    main()
