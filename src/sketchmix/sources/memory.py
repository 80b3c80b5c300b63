"""Rows that are in memory, or that come from an iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from sketchmix import validation
from sketchmix.sources.rows import is_frame, some_rows
from sketchmix.sources.source import Source, batch_height, spans


def array(X: ArrayLike) -> Source:
    """Rows in memory or in a memory-map.

    Parameters
    ----------
    X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
        The rows. Batches are slices of it: nothing is copied or converted.

    Returns
    -------
    Source
        The rows of X.

    Examples
    --------
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> [batch.tolist() for batch in sources.array(np.eye(2)).batches(first_row=1)]
    [[[0.0, 1.0]]]
    """
    return InMemory(X)


def batches(iterable: Iterable[Any]) -> Source:
    """Rows that come in batches from an iterator, a generator, a list or any other iterable.

    A generator, or another iterator, can be read once only. Estimators read it in a thread of its own, one batch
    ahead: it must not write into a batch that it gave away.

    Parameters
    ----------
    iterable : iterable
        Its items are arrays, sparse matrices or data frames with the same features, and any numbers of rows.
        Large ones are cut.

    Returns
    -------
    Source
        The rows of all batches.

    Examples
    --------
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> source = sources.batches(np.full((2, 3), number) for number in range(4))
    >>> [batch.tolist() for batch in source.batches(first_row=5)]
    [[[2, 2, 2]], [[3, 3, 3], [3, 3, 3]]]
    """
    return Batches(iterable)


class InMemory(Source):
    """Slices of rows."""

    n_rows: int
    n_features: int
    rows: Any

    def __init__(self, X: Any, name: str = "X") -> None:
        if scipy.sparse.issparse(X):
            X = X.tocsr()  # type: ignore[attr-defined]
        elif not is_frame(X) and not hasattr(X, "dtype"):
            X = np.asarray(X)
        self.rows = X
        self.n_rows, self.n_features = validation.check_matrix(name, X.shape)

    def read_from(self, first_row: int) -> Iterator[Any]:
        """Views of the rows, or copies of no more than a batch."""
        for span in spans(first_row, self.n_rows, batch_height(self._bytes_of_row())):
            yield some_rows(self.rows, span)

    def _bytes_of_row(self) -> float:
        if is_frame(self.rows):
            return 8 * self.n_features
        if scipy.sparse.issparse(self.rows):
            # A number and its column, of 4 bytes each or a little more.
            return float(8 * self.rows.nnz / max(self.n_rows, 1))  # type: ignore[attr-defined]
        return float(self.n_features * self.rows.dtype.itemsize)


class Batches(Source):
    """The rows of one batch after the other."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable
        self._was_read = False

    def read_from(self, first_row: int) -> Iterator[Any]:
        """Batches as they come, from which the rows before `first_row` are dropped."""
        iterator = iter(self.iterable)
        validation.check_unread(self._was_read and iterator is self.iterable)
        self._was_read = True
        return self._read(iterator, first_row)

    def _read(self, iterator: Iterator[Any], first_row: int) -> Iterator[Any]:
        n_features, n_rows = None, 0
        for number, batch in enumerate(iterator):
            part = InMemory(batch, f"batch {number}")
            if not part.n_rows:
                continue
            n_features = validation.check_same_features(number, part.n_features, n_features)
            n_rows += part.n_rows
            if first_row < n_rows:
                yield from part.read_from(max(0, first_row - (n_rows - part.n_rows)))
        validation.check_row_exists(first_row, n_rows)
