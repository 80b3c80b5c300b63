"""What a path leads to: a source of rows, or a sketch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sketchmix import Sketch, sources
from sketchmix.cli.options import FileOptions
from sketchmix.sources import Source
from sketchmix.sources.anything import BY_SUFFIX
from sketchmix.stored import MANIFEST

# What the functions that make sources call the options that they take.
TAKES = {
    sources.parquet: {"columns": "columns"},
    sources.csv: {"columns": "columns", "header": "header"},
    sources.hdf5: {"dataset": "dataset"},
    sources.zarr: {"dataset": "array"},
    sources.raw: {"n_features": "n_features", "raw_dtype": "dtype"},
}


def sketch_at(folders: Sequence[str], *, allow_incomplete: bool) -> Sketch:
    """The sketch in folders."""
    return Sketch.open(*folders, allow_incomplete=allow_incomplete)


def rows_at(path: str, files: FileOptions, *, allow_incomplete: bool) -> Source | Sketch:
    """A sketch, where a folder holds one; else a source."""
    if (Path(path) / MANIFEST).is_file():
        return sketch_at([path], allow_incomplete=allow_incomplete)
    return source_at(path, files)


def source_at(path: str, files: FileOptions) -> Source:
    """The rows of a file or folder, read as options say."""
    given = {name: value for name, value in files._asdict().items() if value not in (None, [])}
    reader = reader_of(Path(path), is_raw=files.n_features is not None)
    taken = TAKES.get(reader, {})
    for name in given.keys() - taken.keys():
        raise click.UsageError(f"--{name.replace('_', '-')} says nothing of how {path} is read; leave it out.")
    source: Source = reader(path, **{taken[name]: value for name, value in given.items()})
    return source


def reader_of(path: Path, *, is_raw: bool) -> Any:
    """What makes a source of a path."""
    if is_raw:
        return sources.raw
    if path.is_dir() and path.suffix not in BY_SUFFIX:
        return sources.parquet
    return BY_SUFFIX.get(path.suffix.lower(), sources.source_of)
