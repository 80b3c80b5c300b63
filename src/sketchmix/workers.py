"""A sketch in the memory of Dask's workers: one more place where rows may lie.

Rows are cut into parts, one for each worker: a part is a sketch of its own, which Dask knows how to make again. A
fit sends what is to be added up, each worker adds up its part, and a tree of additions brings one value back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

try:
    import dask
    import dask.array as da
    from dask.sizeof import sizeof
    from distributed import Client, Future, KilledWorker, default_client, get_worker
except ImportError as error:
    raise ImportError(
        "rows that lie in Dask's workers need dask and distributed; install them with "
        '`pip install "sketchmix[dask]"`.'
    ) from error

from sketchmix import reservoir, validation
from sketchmix.moments import Block, Kept, dense_block
from sketchmix.pieces import Pieces
from sketchmix.reservoir import Reservoir
from sketchmix.sketch import Sketch, Sketcher, concatenate
from sketchmix.sources.rows import some_rows

Array = NDArray[Any]
Sum = TypeVar("Sum")
T = TypeVar("T")


@sizeof.register(Sketch)  # type: ignore[untyped-decorator]
def bytes_of_sketch(sketch: Sketch) -> int:
    """What Dask takes a part for: it moves and spills accordingly."""
    held = sketch.reservoir.rows.nbytes if sketch.reservoir else 0
    return sketch.nbytes + held


# -- rows that nobody has read ----------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Rows of a Dask collection: blocks that are read when Dask is asked for them."""

    blocks: list[Any]  # delayed
    heights: list[int]
    head: Any  # no rows, of the blocks' features


def blocks_of(X: Any) -> Blocks:
    """The blocks of a Dask array, or of what does not say how long its blocks are, which are counted."""
    if isinstance(X, da.Array):
        heights = validation.check_known_chunks(X.chunks[0])
        return Blocks(delayed_blocks(X), heights, np.empty((0, X.shape[1]), X.dtype))
    blocks = delayed_blocks(X)
    validation.check_some_blocks(blocks)
    head = dask.delayed(some_rows)(blocks[0], slice(0, 0))
    heights, head = present_client().compute(
        [[dask.delayed(height_of)(block) for block in blocks], head], sync=True
    )
    return Blocks(blocks, heights, head)


def delayed_blocks(X: Any) -> list[Any]:
    """Blocks of whole rows."""
    if isinstance(X, da.Array):
        validation.check_chunks(X.shape, X.chunks)
        return list(X.to_delayed().ravel())
    return X.to_delayed() if hasattr(X, "to_delayed") else list(X)


def present_client() -> Client:
    """The client that stands for the cluster."""
    try:
        client = default_client()
    except ValueError as error:
        raise ValueError(
            "there is no Dask client to say which workers are to do this; make one first, as in "
            "client = dask.distributed.Client()."
        ) from error
    validation.check_some_workers(len(client.nthreads()), client.scheduler.address)
    return client


# -- rows into workers ------------------------------------------------------------------------------------


def sketched(sketcher: Sketcher, rows: Blocks, first_row: int) -> Sketch:
    """The sketch of blocks, each of which is sketched where it is read, and dropped there."""
    client, sketch = present_client(), dask.delayed(partial(sketch_block, copy(sketcher)), traverse=False)
    starts = first_row + np.cumsum([0, *rows.heights[:-1]])
    lazy = [
        sketch(block, int(start), height)
        for block, start, height in zip(rows.blocks, starts, rows.heights, strict=True)
    ]
    # Reading a block and sketching it become one task, between which it cannot be sent to another worker.
    with dask.config.set({"optimization.fuse.delayed": True}):
        fused = list(dask.optimize(*lazy))
    pieces = client.compute(fused)
    workers = list(client.nthreads())
    which = runs(rows.heights, len(workers))
    parts = [client.submit(joined, pieces[run], **on(worker)) for worker, run in zip(workers, which, strict=False)]
    return spread(parts, [rows.heights[run] for run in which], sketcher)


def into_workers(sketch: Sketch) -> Sketch:
    """A sketch that is here or in files, handed to workers."""
    if isinstance(sketch.kept, Spread):
        return sketch
    client, pieces = present_client(), sketch.kept.pieces
    workers, heights = list(client.nthreads()), [piece.n_rows for piece in pieces]
    if len(pieces) == 1 and isinstance(pieces[0], Block):
        heights = [len(rows) for rows in np.array_split(np.arange(len(sketch)), len(workers))]
    ends, which = [0, *map(int, np.cumsum(heights))], runs(heights, len(workers))
    parts = [
        client.submit(handed_on, sketch[ends[run.start] : ends[run.stop]], **on(worker))
        for worker, run in zip(workers, which, strict=False)
    ]
    return spread(parts, [heights[run] for run in which], sketch.sketcher)


def on(worker: str) -> dict[str, Any]:
    """How to ask for a place, which others may take if that worker dies."""
    return {"workers": [worker], "allow_other_workers": True, "pure": False}


def runs(heights: Sequence[int], n: int) -> list[slice]:
    """Consecutive blocks in up to n runs of about as many rows."""
    ends = np.cumsum(heights)
    middles = ends - np.array(heights) / 2
    of_block = np.minimum(middles * n / max(ends[-1], 1), n - 1).astype(int)
    of_block = np.maximum.accumulate(np.where(np.array(heights) > 0, of_block, 0))  # no run is empty
    firsts = np.flatnonzero(np.diff(of_block, prepend=-1))
    return [slice(int(first), int(after)) for first, after in pairwise([*firsts, len(heights)])]


class Facts(NamedTuple):
    """What is said of a part where it is not."""

    largest: float
    largest_index: int
    held: Reservoir | None


def spread(parts: list[Future], heights: list[list[int]], sketcher: Sketcher) -> Sketch:
    """The sketch that has these parts, of so many rows in each of their blocks."""
    facts = answers(parts[0].client, [part.client.submit(facts_of, part, pure=False) for part in parts])
    remote = [
        Remote(part, tuple(rows), fact.largest, fact.largest_index)
        for part, rows, fact in zip(parts, heights, facts, strict=True)
    ]
    values, indices = sketcher.empty(0)
    held = reservoir.joined([(part.n_rows, fact.held) for part, fact in zip(remote, facts, strict=True)])
    kept = Spread(tuple(remote), values.shape[1], values.dtype, indices.dtype)
    return Sketch._trusted(kept, copy(sketcher), held)


# -- rows in workers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """Rows that lie together in a worker: a `Piece` that travels only where it is read."""

    part: Future  # of a Sketch
    heights: tuple[int, ...]  # of the blocks that it was made of
    largest: float
    largest_index: int

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return sum(self.heights)

    @property
    def client(self) -> Client:
        """Who talks to the worker."""
        return self.part.client

    def read(self) -> Block:
        """The rows, brought here."""
        (sketch,) = answers(self.client, [self.part])
        block: Block = sketch.kept.whole()
        return block

    def read_only(self) -> Remote:
        """Itself: nobody here can write to it."""
        return self

    def take(self, rows: slice | Array) -> Remote:
        """Some of the rows, taken where they are."""
        n_rows = len(range(self.n_rows)[rows]) if isinstance(rows, slice) else len(rows)
        part = self.client.submit(taken, self.part, rows, pure=False)
        return replace(self, part=part, heights=(n_rows,))


@dataclass(frozen=True)
class Spread(Pieces):
    """What rows kept, in workers: added up there, and read here only where nothing else will do."""

    pieces: tuple[Remote, ...]

    @property
    def largest_index(self) -> int:
        """The last entry that any row kept."""
        return max(piece.largest_index for piece in self.pieces)

    def summed(self, sum_of: Callable[[Kept, Array | None], Sum], sample_weight: Array | None) -> Sum:
        """See `Kept`: each worker adds up what it has, and a tree of additions brings one sum back."""
        client, weights = self.pieces[0].client, self._weights.of(sample_weight)
        order = client.submit(handed_on, sum_of, pure=False)
        sums = [
            client.submit(sum_of_part, order, piece.part, weight, pure=False)
            for piece, weight in zip(self.pieces, weights, strict=True)
        ]
        while len(sums) > 1:
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
            sums = [client.submit(add, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
        (total,) = answers(client, sums)
        return aligned(total)  # type: ignore[no-any-return]

    def mapped(self, function: Callable[[Block], Array], step: int) -> Array:
        """What a function gives for each row: a Dask array with the chunks that the rows had."""
        shape, (values, indices) = (0, self.sketch_size), (self.dtype, self.index_dtype)
        like = function(Block.of(np.empty(shape, values), np.empty(shape, indices)))
        order = dask.delayed(function, traverse=False)
        results, heights = [], []
        for piece in self.pieces:
            ends = np.cumsum([0, *piece.heights])
            for first, after in pairwise(map(int, ends)):
                results.append(dask.delayed(map_part)(order, piece.part, slice(first, after), step))
                heights.append(after - first)
        return stacked(results, heights, like)

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self.pieces)


@dataclass
class Weights:
    """The weights of rows beside them: sent once for all iterations that ask for the same."""

    pieces: tuple[Remote, ...]
    _weight: Array | None = None
    _placed: list[Future | None] = field(default_factory=list)

    def of(self, weight: Array | None) -> Sequence[Future | None]:
        """What lies in each worker."""
        if weight is None:
            return [None] * len(self.pieces)
        if weight is not self._weight:
            ends = np.cumsum([piece.n_rows for piece in self.pieces])
            parts = zip(self.pieces, np.split(weight, ends[:-1]), strict=True)
            self._placed = [piece.client.submit(beside, piece.part, part, pure=False) for piece, part in parts]
            self._weight = weight
        return self._placed


def mapped(function: Callable[[Block], Array], X: Any, sketcher: Sketcher, step: int) -> Array:
    """What a function gives for each raw row of a Dask collection: a Dask array with the same chunks."""
    blocks = delayed_blocks(X)
    heights = X.chunks[0] if isinstance(X, da.Array) else [np.nan] * len(blocks)
    order, operator = dask.delayed(function, traverse=False), dask.delayed(copy(sketcher), traverse=False)
    results = [dask.delayed(map_rows)(order, operator, block, step) for block in blocks]
    return stacked(results, heights, function(dense_block(np.empty((0, sketcher.n_rotated_)))))


def stacked(results: list[Any], heights: Sequence[float], like: Array) -> Array:
    """Delayed results as one Dask array."""
    arrays = [
        da.from_delayed(result, (height, *like.shape[1:]), meta=like)
        for result, height in zip(results, heights, strict=True)
    ]
    whole: Array = da.concatenate(arrays, allow_unknown_chunksizes=True)
    return whole


def answers(client: Client, futures: list[Future]) -> list[Any]:
    """What workers found, or a sentence that says what to do where they were lost for good."""
    try:
        results: list[Any] = client.gather(futures)
    except (KilledWorker, CancelledError) as error:
        raise RuntimeError(
            "Dask lost rows of the sketch, or the workers that held them, and could not make them again "
            f"({error}). Take rows from what workers can read again, such as files, give workers more memory, and "
            "sketch and fit again."
        ) from error
    return results


# -- what workers do --------------------------------------------------------------------------------------


def height_of(rows: Any) -> int:
    """Of how many rows a block is."""
    return int(rows.shape[0])


def sketch_block(sketcher: Sketcher, rows: Any, first_row: int, height: int) -> Sketch:
    """A block, sketched by one thread: a worker has as many blocks as threads in hand."""
    validation.check_height(height_of(rows), height)
    with native_threads(1):
        return sketcher.transform(rows, first_row=first_row)


def joined(sketches: list[Sketch]) -> Sketch:
    """Consecutive blocks as one part, and as one block: many small ones would cost in every iteration."""
    part = concatenate(sketches)
    return Sketch._trusted(Pieces.of(part.kept.whole()), part.sketcher, part.reservoir)


def facts_of(part: Sketch) -> Facts:
    """What a client must know of a part."""
    kept = part.kept
    return Facts(kept.largest, kept.largest_index, part.reservoir)


def handed_on(value: Any) -> Any:
    """What a client sends: it lies in one worker, from which others fetch it."""
    return value


def beside(part: Sketch, weight: Array) -> Array:  # noqa: ARG001 - Dask brings it to where the part is
    """The weights of a part's rows."""
    return aligned(weight)


def taken(part: Sketch, rows: slice | Array) -> Sketch:
    """Some rows of a part."""
    return part[rows]


def sum_of_part(sum_of: Callable[[Kept, Array | None], Sum], part: Sketch, weight: Array | None) -> Sum:
    """What a part adds up to, on all threads of its worker."""
    with native_threads(get_worker().state.nthreads):
        return part.kept.summed(aligned(sum_of), weight)


def map_part(function: Callable[[Block], Array], part: Sketch, rows: slice, step: int) -> Array:
    """What a function gives for some rows of a part."""
    with native_threads(1):
        return part.kept.take(rows).mapped(aligned(function), step)


def map_rows(function: Callable[[Block], Array], sketcher: Sketcher, rows: Any, step: int) -> Array:
    """What a function gives for raw rows."""
    with native_threads(1):
        blocks: Iterator[Block] = dense_block(sketcher.rotate(rows)).blocks(step, exactly=True)
        return np.concatenate([aligned(function)(block) for block in blocks])


def aligned(value: T) -> T:
    """The same in memory of its own: arrays that came in a message may begin at any byte, which kernels forbid."""
    return deepcopy(value)


def native_threads(n: int) -> AbstractContextManager[Any]:
    """Let the core use so many threads: Dask's own setting is one, and OpenMP's all that the machine has."""
    limits: AbstractContextManager[Any] = threadpool_limits(n, user_api="openmp")
    return limits
