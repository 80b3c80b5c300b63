"""Any batch of rows -> blocks of floating rows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from sketchmix import validation

Array = NDArray[Any]

# Rows that must be converted are converted this many bytes at a time.
BLOCK_BYTES = 2**21
# Types whose every value is a float32.
EXACT_IN_FLOAT32 = tuple(map(np.dtype, ("float16", "float32", "int8", "uint8", "int16", "uint16", "bool")))


class Rows:
    """The rows of an array, memory-map, sparse matrix or data frame, read without converting the whole.

    Parameters
    ----------
    estimator : estimator
        Whose `n_features_in_` and `feature_names_in_` are set, or compared.
    X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
        The rows.
    reset : bool
        Whether this X defines the estimator's features.
    least : int
        The fewest rows that make sense.
    """

    def __init__(self, estimator: Any, X: ArrayLike, *, reset: bool, least: int = 1) -> None:
        validation.check_rows(X)
        self._rows: Any = X
        self._is_frame = is_frame(X)
        if self._is_frame:
            validate_data(estimator, X, reset=reset, skip_check_array=True)
            self.dtype = self._part_of_frame(slice(0, 1), "numeric", least).dtype
        else:
            self._rows = validate_data(
                estimator,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype="numeric",
                ensure_all_finite=False,
                ensure_min_samples=least,
            )
            self.dtype = self._rows.dtype
        self.n_samples, self.n_features = self._rows.shape

    @property
    def float_dtype(self) -> np.dtype[Any]:
        """The smallest floating type, of at least float32, that holds every value."""
        return np.dtype("float32" if self.dtype in EXACT_IN_FLOAT32 else "float64")

    def blocks(self, dtype: np.dtype[Any]) -> Iterator[tuple[int, Array]]:
        """Yield (number of the first row, rows as `dtype`): all at once where they need no conversion."""
        rows = self._rows
        as_they_are = isinstance(rows, np.ndarray) and rows.dtype == dtype and has_contiguous_rows(rows)
        height = self.n_samples if as_they_are else block_height(self.n_features, dtype)
        for first in range(0, self.n_samples, max(height, 1)):
            yield first, self.take(slice(first, min(first + height, self.n_samples)), dtype)

    def take(self, which: slice | Array, dtype: np.dtype[Any]) -> Array:
        """Some rows as an array of `dtype` with contiguous rows."""
        part = self._part_of_frame(which, dtype) if self._is_frame else self._rows[which]
        if scipy.sparse.issparse(part):
            part = part.toarray()  # type: ignore[attr-defined]
        part = np.asarray(part, dtype=dtype)
        return part if has_contiguous_rows(part) else np.ascontiguousarray(part)

    def part(self, which: slice) -> Rows:
        """Some of the rows, without looking at them again."""
        some = copy(self)
        some._rows = some_rows(self._rows, which)
        some.n_samples = some._rows.shape[0]
        return some

    def _part_of_frame(self, which: slice | Array, dtype: Any, least: int = 0) -> Any:
        return check_array(
            some_rows(self._rows, which), dtype=dtype, ensure_all_finite=False, ensure_min_samples=least
        )


def is_frame(X: object) -> bool:
    """Whether rows are those of a data frame, whose columns may have names and types of their own."""
    return hasattr(X, "columns") and not isinstance(X, np.ndarray)


def is_of_dask(X: object) -> bool:
    """Whether rows are a Dask collection, or a list of delayed blocks."""
    first = X[0] if isinstance(X, list | tuple) and X else X
    return hasattr(first, "__dask_graph__")


def some_rows(X: Any, which: slice | Array) -> Any:
    """Some rows of an array, a CSR matrix or a data frame."""
    return X.iloc[which] if hasattr(X, "iloc") else X[which]


def has_contiguous_rows(rows: Array) -> bool:
    """Whether the entries of a row follow each other, aligned; rows may lie any whole distance apart."""
    return (
        rows.flags.aligned
        and (rows.shape[1] <= 1 or rows.strides[1] == rows.itemsize)
        and rows.strides[0] % rows.itemsize == 0
    )


def block_height(n_features: int, dtype: np.dtype[Any]) -> int:
    """How many rows are converted at a time."""
    return max(1, BLOCK_BYTES // (n_features * dtype.itemsize))
