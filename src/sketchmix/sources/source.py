"""What a source of rows is, and what all kinds of it need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeVar, cast

from sketchmix import validation

Item = TypeVar("Item")

# Rows come in batches of about this many bytes: three may be alive at a time.
BATCH_BYTES = 2**24


class Source(ABC):
    """Rows somewhere, which come in batches of bounded bytes.

    A kind of your own derives from this, sets `n_rows` and `n_features`, and defines `read_from`.

    Attributes
    ----------
    n_rows : int or None
        How many rows there are; None where that is not known before the end.
    n_features : int or None
        How many features a row has; None where that is not known before a row is read.

    Examples
    --------
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> class Dice(sources.Source):
    ...     n_rows, n_features = 4, 2
    ...
    ...     def read_from(self, first_row):
    ...         for row in range(first_row, self.n_rows):
    ...             yield np.random.default_rng(row).integers(1, 7, size=(1, 2))
    >>> [batch.shape for batch in Dice().batches(first_row=1)]
    [(1, 2), (1, 2), (1, 2)]
    """

    n_rows: int | None = None
    n_features: int | None = None

    def batches(self, first_row: int = 0) -> Iterator[Any]:
        """Read the rows.

        Parameters
        ----------
        first_row : int, default=0
            Where to begin.

        Returns
        -------
        iterator
            The rows from `first_row` on, in their order, as arrays, data frames or sparse matrices of some rows.
        """
        return self.read_from(validation.check_row_exists(first_row, self.n_rows))

    @abstractmethod
    def read_from(self, first_row: int) -> Iterator[Any]:
        """What `batches` gives, for a row that was checked.

        Parameters
        ----------
        first_row : int
            Where to begin: at most `n_rows`.

        Returns
        -------
        iterator
            Batches.
        """


def batch_height(row_bytes: float) -> int:
    """How many rows make a batch."""
    return max(1, int(BATCH_BYTES // max(row_bytes, 1)))


def height_of_chunks(row_bytes: int, chunk: int) -> int:
    """The same in whole chunks of rows, or in parts of one where it is larger than two batches."""
    fitting = batch_height(row_bytes)
    return fitting if chunk > 2 * fitting else max(chunk, fitting - fitting % chunk)


def spans(first: int, last: int, height: int) -> Iterator[slice]:
    """From `first` to `last`, cut at the multiples of `height`."""
    while first < last:
        stop = min(first - first % height + height, last)
        yield slice(first, stop)
        first = stop


def imported(name: str, extra: str) -> Any:
    """An optional package's module, or a sentence that says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        message = f'{package} is needed to read these rows: pip install "sketchmix[{extra}]".'
        raise ImportError(message) from error


def prefetched(iterator: Iterator[Item]) -> Generator[Item]:
    """The same items, each of which is fetched in a thread while the one before it is in use.

    Parameters
    ----------
    iterator : iterator
        What to read, one item ahead. Its errors come where its items would have come.

    Returns
    -------
    iterator
        The items. Closing it ends the thread, and closes `iterator` if that is a generator.

    Examples
    --------
    >>> from sketchmix import sources
    >>> list(sources.prefetched(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="sketchmix-read-ahead") as thread:
            ahead = thread.submit(next, iterator, end)
            while (item := ahead.result()) is not end:
                ahead = thread.submit(next, iterator, end)
                yield cast("Item", item)
    finally:
        if isinstance(iterator, Generator):
            iterator.close()
