"""Anything a user has, as batches of rows.

Rows that do not fit in memory are described by a `Source`, which one of the functions here makes. Estimators take
it where they take rows, and read it batch by batch.
"""

from sketchmix.sources.anything import source_of
from sketchmix.sources.arrow import csv, parquet
from sketchmix.sources.chunked import hdf5, zarr
from sketchmix.sources.mapped import npy, raw
from sketchmix.sources.memory import array, batches
from sketchmix.sources.rows import Rows as Rows
from sketchmix.sources.source import Source, prefetched

__all__ = ["Source", "array", "batches", "csv", "hdf5", "npy", "parquet", "prefetched", "raw", "source_of", "zarr"]
