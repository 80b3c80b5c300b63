"""Rows in arrays that are stored in chunks: Zarr and HDF5."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from numpy.typing import NDArray

from sketchmix import validation
from sketchmix.sources.source import Source, height_of_chunks, imported, spans

Array = NDArray[Any]
Opened = Callable[[], AbstractContextManager[Any]]


def zarr(path_or_array: Any, array: str | None = None) -> Source:
    """Rows of a Zarr array.

    Whole chunks are read where a chunk of rows is small enough; where it is not, it is decoded several times.

    Parameters
    ----------
    path_or_array : str, path-like, store or zarr.Array
        The array, or the group that holds it.
    array : str, optional
        Name of the array in a group. Without it there must be one two-dimensional array.

    Returns
    -------
    Source
        The rows of the array.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> from sketchmix import sources
    >>> stored = zarr.create_array({}, data=np.eye(3), chunks=(2, 3))
    >>> [batch.shape for batch in sources.zarr(stored).batches(first_row=2)]
    [(1, 3)]
    """
    package = imported("zarr", "zarr")
    found = path_or_array
    if not isinstance(found, package.Array | package.Group):
        found = package.open(found, mode="r")
    if isinstance(found, package.Group):
        matrices = matrices_of(found.members(max_depth=None))
        found = found[validation.check_member(found.store_path, array, matrices, "sources.zarr(path, array)")]
    return Chunked(str(found.store_path), partial(nullcontext, found))


def hdf5(path: str | os.PathLike[str], dataset: str | None = None) -> Source:
    """Rows of a data set in an HDF5 file.

    Whole chunks are read where a chunk of rows is small enough; where it is not, it is decoded several times.

    Parameters
    ----------
    path : str or path-like
        The file.
    dataset : str, optional
        Name of the data set. Without it there must be one that is two-dimensional.

    Returns
    -------
    Source
        The rows of the data set.

    Examples
    --------
    >>> import tempfile
    >>> import h5py
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with h5py.File(f"{folder}/X.h5", "w") as file:
    ...         file["embeddings"] = np.eye(3)
    ...     print(next(sources.hdf5(f"{folder}/X.h5").batches(first_row=2)))
    [[0. 0. 1.]]
    """
    path = os.fspath(path)
    with imported("h5py", "hdf5").File(path, "r") as file:
        items: list[tuple[str, Any]] = []
        file.visititems(lambda name, item: items.append((name, item)))
        name = validation.check_member(path, dataset, matrices_of(items), "sources.hdf5(path, dataset)")
    return Chunked(path, partial(opened_dataset, path, name))


def matrices_of(items: Any) -> list[str]:
    """The names of what has two dimensions."""
    return sorted(name for name, item in items if getattr(item, "ndim", None) == 2)


@contextmanager
def opened_dataset(path: str, name: str) -> Iterator[Any]:
    """A data set, for as long as its file is open."""
    with imported("h5py", "hdf5").File(path, "r") as file:
        yield file[name]


class Chunked(Source):
    """The rows of an array that can be opened, by whole chunks of rows."""

    n_rows: int
    n_features: int

    def __init__(self, name: str, opened: Opened) -> None:
        self._opened = opened
        with opened() as matrix:
            self.n_rows, self.n_features = validation.check_matrix(name, matrix.shape)
            validation.check_numbers(name, matrix.dtype)

    def read_from(self, first_row: int) -> Iterator[Array]:
        """Whole chunks of rows, but for the first and the last."""
        with self._opened() as matrix:
            chunk = (getattr(matrix, "shards", None) or matrix.chunks or (1,))[0]
            height = height_of_chunks(self.n_features * matrix.dtype.itemsize, chunk)
            for span in spans(first_row, self.n_rows, height):
                yield matrix[span]
