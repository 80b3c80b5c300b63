"""Rows in a file of numbers, which is mapped into memory one window after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from sketchmix import validation
from sketchmix.sources.source import Source, batch_height, spans

Array = NDArray[Any]

# Linux cuts advice about more than a device reads at once, which is some MB at the most.
ADVISED_BYTES = 2**17
# A later version differs in how it writes the names of fields, which a matrix has not.
HEADER_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def npy(path: str | os.PathLike[str]) -> Source:
    """Rows in a `.npy` file, as `numpy.save` writes it.

    The file is mapped a window at a time, so that neither memory nor address space grow with it. One in Fortran
    order is read column by column for every window, which is slower.

    Parameters
    ----------
    path : str or path-like
        The file, which holds a two-dimensional array of numbers.

    Returns
    -------
    Source
        The rows of the array.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/X.npy", np.eye(3))
    ...     source = sources.npy(f"{folder}/X.npy")
    ...     print(source.n_rows, next(source.batches(first_row=2)))
    3 [[0. 0. 1.]]
    """
    path = Path(path)
    shape, is_fortran, dtype, offset = read_header(path)
    validation.check_numbers(str(path), dtype)
    n_rows, n_features = validation.check_matrix(str(path), shape)
    entries = Entries(path, dtype, offset, n_rows, n_features)
    validation.check_not_truncated(path, path.stat().st_size, offset + n_rows * entries.row_bytes)
    return ColumnsOnDisk(entries) if is_fortran else RowsOnDisk(entries)


def raw(path: str | os.PathLike[str], n_features: int, dtype: DTypeLike = "float32", offset: int = 0) -> Source:
    """Rows in a file that has their numbers and nothing else, row after row.

    Parameters
    ----------
    path : str or path-like
        The file.
    n_features : int
        Numbers in a row.
    dtype : dtype, default="float32"
        Type of a number. Types that do not say in which order their bytes are have the lowest first.
    offset : int, default=0
        Bytes before the first row.

    Returns
    -------
    Source
        The rows of the file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sketchmix import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "X.bin")
    ...     _ = path.write_bytes(bytes([1, 2, 3, 4, 5, 6]))
    ...     print(next(sources.raw(path, n_features=3, dtype="uint8").batches()).tolist())
    [[1, 2, 3], [4, 5, 6]]
    """
    path = Path(path)
    n_features = validation.check_integer("n_features", n_features, least=1)
    offset = validation.check_integer("offset", offset, least=0)
    number = np.dtype(dtype)
    validation.check_numbers(str(path), number)
    number = number.newbyteorder("<") if number.isnative else number
    entries = Entries(path, number, offset, 0, n_features)
    n_rows = validation.check_whole_rows(path, path.stat().st_size - offset, entries.row_bytes)
    return RowsOnDisk(entries._replace(n_rows=n_rows))


def read_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns follow each other, type, and where the entries begin; nothing is unpickled."""
    with path.open("rb") as file:
        try:
            shape, is_fortran, dtype = HEADER_READERS[npy_format.read_magic(file)](file)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path} is not a .npy file of numbers: {error}. Write it with numpy.save."
            ) from error
        return shape, is_fortran, dtype, file.tell()


class Entries(NamedTuple):
    """Where the entries of a matrix lie in a file."""

    path: Path
    dtype: np.dtype[Any]
    offset: int
    n_rows: int
    n_features: int

    @property
    def row_bytes(self) -> int:
        """What a row takes."""
        return self.n_features * self.dtype.itemsize


class RowsOnDisk(Source):
    """A matrix in a file, whose rows follow each other."""

    # A window takes no memory of its own, and a longer one less time between two.
    BATCHES_AT_A_TIME = 4

    n_rows: int
    n_features: int

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.n_rows, self.n_features = entries.n_rows, entries.n_features

    def read_from(self, first_row: int) -> Iterator[Array]:
        """Windows of the file; the next is being read ahead while one is in use."""
        height = self.BATCHES_AT_A_TIME * batch_height(self.entries.row_bytes)
        with self.entries.path.open("rb") as file:
            for span in spans(first_row, self.n_rows, height):
                rows = self._window(file, span)
                self._read_ahead(file, span.stop, min(span.stop + height, self.n_rows))
                yield rows

    def _window(self, file: BinaryIO, span: slice) -> Array:
        # Unmapped when the last view of it is gone.
        start = self.entries.offset + span.start * self.entries.row_bytes
        return np.memmap(file, self.entries.dtype, "r", start, (span.stop - span.start, self.n_features))

    def _read_ahead(self, file: BinaryIO, first: int, last: int) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        start, end = (self.entries.offset + row * self.entries.row_bytes for row in (first, last))
        for piece in range(start, end, ADVISED_BYTES):
            os.posix_fadvise(file.fileno(), piece, ADVISED_BYTES, os.POSIX_FADV_WILLNEED)


class ColumnsOnDisk(RowsOnDisk):
    """A matrix in a file, whose columns follow each other."""

    BATCHES_AT_A_TIME = 1

    def _window(self, file: BinaryIO, span: slice) -> Array:
        dtype, height = self.entries.dtype, span.stop - span.start
        columns = np.empty((self.n_features, height), dtype)
        for number, column in enumerate(columns):
            file.seek(self.entries.offset + (number * self.n_rows + span.start) * dtype.itemsize)
            column[:] = np.fromfile(file, dtype, height)
        return columns.T

    def _read_ahead(self, file: BinaryIO, first: int, last: int) -> None:
        """Columns are read whole at once, and not by windows of the file."""
