"""A fit in Dask's workers beside one process with as many threads: time, bytes and tasks of an iteration.

dask-ml's KMeans on the dense rows would stand here, too, but does not run with this scikit-learn.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from harness import side_by_side, table, threads
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import em
from sketchmix.families import family_of
from sketchmix.moments import Parameters

Array = NDArray[Any]

P, Q, K = 1024, 41, 50
WORKERS = 2
MOST_OVERHEAD = 0.25


def rows(n: int, seed: int = 0) -> Array:
    """Rows in clusters."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(1).standard_normal((K, P), dtype=np.float32)
    return centers[rng.integers(K, size=n)] + rng.standard_normal((n, P), dtype=np.float32)


def in_chunks(n: int, n_chunks: int) -> Any:
    """Rows of some blocks that come again and again, made in the workers."""
    height = n // n_chunks
    return da.map_blocks(block, chunks=((height,) * n_chunks, P), dtype=np.float32, meta=np.empty((0, 0), np.float32))


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


def sent(client: Client) -> int:
    """Bytes that workers gave to each other and to the client so far."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


def climb(sketch: sm.Sketch) -> em.Climb:
    """EM on a sketch, of which iterations can be asked one by one."""
    problem = em.Problem(family_of("diag", 1), sketch, None, K, 1e-6, np.ones(P))
    means = sketch.sketcher.rotate(rows(K, seed=2)).astype(float).T
    start = Parameters(np.full(K, 1 / K), np.ascontiguousarray(means), np.ones((P, K)))
    return em.Climb(problem, start, 0.0)


def cost(client: Client, iterate: Callable[[], None]) -> tuple[int, int]:
    """Bytes that workers sent, and tasks, of one iteration."""
    scheduler, counter = client.cluster.scheduler, Counter()
    scheduler.add_plugin(counter)
    before = sent(client)
    iterate()
    moved = sent(client) - before
    scheduler.remove_plugin(counter.name)
    return moved, counter.n_tasks


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


def main() -> None:
    with cluster() as client:
        results = [beside_one_process(client, n) for n in (200_000, 2_000_000)]
        pieces = [with_many_pieces(client, 200_000, n) for n in (WORKERS, 100, 1000)]
    start = climb(sm.Sketcher(Q, random_state=0).fit_transform(rows(100)))
    parameters = len(pickle.dumps(start.fit.parameters if start.fit.lower_bounds else start._parameters))
    statistics = 8 * (K + 3 * P * K)
    expected = (WORKERS - 1) * parameters + WORKERS * statistics
    table(
        f"an iteration of EM, diagonal, P={P}, Q={Q}, K={K}: {WORKERS} workers of one thread, one process of {WORKERS}",
        ["rows", "one process, s", "Dask, s", "overhead", "bytes that workers sent", "tasks"],
        results,
    )
    print(f"expected: {expected:,} bytes, whatever the rows; and {parameters:,} from the client")
    table("the same on 200,000 rows in more chunks", ["chunks", "Dask, s", "tasks"], pieces)
    for row in results:
        assert abs(int(str(row[4])) / expected - 1) < 0.05
    print(f"required: at most {MOST_OVERHEAD} of overhead at 2,000,000 rows")


if __name__ == "__main__":
    main()
