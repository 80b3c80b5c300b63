"""The source that something is, by its kind or by a file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sketchmix import validation
from sketchmix.sources.arrow import csv, parquet
from sketchmix.sources.chunked import hdf5, zarr
from sketchmix.sources.mapped import npy
from sketchmix.sources.memory import array, batches
from sketchmix.sources.rows import is_frame
from sketchmix.sources.source import Source

BY_SUFFIX: dict[str, Callable[[Any], Source]] = {
    ".npy": npy,
    ".parquet": parquet,
    ".pq": parquet,
    ".zarr": zarr,
    ".h5": hdf5,
    ".hdf5": hdf5,
    ".csv": csv,
}


def source_of(rows: Any) -> Source:
    """The source that `rows` are.

    Parameters
    ----------
    rows : Source, str, path-like, array-like, data frame, sparse matrix or iterable of batches
        A path is told by its suffix; a list or tuple of two-dimensional arrays is one of batches.

    Returns
    -------
    Source
        `rows`, if that is a Source already.

    Examples
    --------
    >>> import numpy as np
    >>> from sketchmix import sources
    >>> sources.source_of(np.zeros((5, 3))).n_rows
    5
    >>> sources.source_of([np.zeros((5, 3)), np.zeros((2, 3))]).n_rows is None
    True
    """
    if isinstance(rows, Source):
        return rows
    if isinstance(rows, str | os.PathLike):
        return BY_SUFFIX[validation.check_suffix(Path(rows), tuple(BY_SUFFIX))](rows)
    if is_array_like(rows):
        return array(rows)
    return batches(validation.check_iterable_of_batches(rows))


def is_array_like(rows: Any) -> bool:
    """Whether something is rows, and not batches of them."""
    if isinstance(rows, list | tuple):
        return not (rows and len(getattr(rows[0], "shape", ())) == 2)
    return is_frame(rows) or hasattr(rows, "shape") or hasattr(rows, "__array__")
