"""Sketching into a folder: shards of plain .npy files, and a manifest in JSON.

What the manifest does not name is not there. A shard is written, and has reached the disk, before the manifest
names it, and the manifest is replaced at once: whenever a writer is stopped, what it leaves can be resumed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from sketchmix import validation
from sketchmix.files import sync_folder, write_atomically
from sketchmix.manifest import Dense, File, Manifest, Record
from sketchmix.portable import parameters_to_json
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.stored import MANIFEST, opened, path_of, read_manifest
from sketchmix.stream import Job, Shard, default_rows, shards_of

Array = NDArray[Any]

LOCK = ".lock"


class Writer:
    """Adds shards to a folder that nobody else writes to."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

    def begin(self) -> None:
        """Declare the sketch begun."""
        self._put(self.manifest)

    def add(self, shard: Shard) -> None:
        """Write a shard; one that is not full is the last."""
        record = write_shard(self._folder, len(self.manifest.shards), shard)
        is_full = record.n_rows == self.manifest.rows_per_shard
        self._put(replace(self.manifest, shards=(*self.manifest.shards, record), complete=not is_full))

    def finish(self) -> None:
        """Declare the sketch complete."""
        if not self.manifest.complete:
            self._put(replace(self.manifest, complete=True))

    def _put(self, manifest: Manifest) -> None:
        write_atomically(self._folder / MANIFEST, manifest.to_json())
        self.manifest = manifest


def write(folder: Path, manifest: Manifest, shards: Iterable[Shard]) -> None:
    """Write shards while the next are made, which may reuse the arrays of the last but one."""
    writer = Writer(folder, manifest)
    writer.begin()
    with ThreadPoolExecutor(1) as background:
        writing: Future[None] | None = None
        for shard in shards:
            if writing:
                writing.result()
            writing = background.submit(writer.add, shard)
        if writing:
            writing.result()
    writer.finish()


def reused_arrays(sketcher: Sketcher, n_rows: int) -> Iterator[tuple[Array, Array]]:
    """Arrays for shards of which one is written while the next is filled."""
    return cycle([sketcher.empty(n_rows), sketcher.empty(n_rows)])


def write_shard(folder: Path, number: int, shard: Shard) -> Record:
    """Write a shard's files, and see to it that they reach the disk."""
    arrays = {"values": shard.block.values, "indices": shard.block.indices}
    dense = None
    if shard.held:
        dense = Dense(len(shard.held.rows), shard.held.rows.dtype, int(shard.held.threshold))
        arrays["dense"] = shard.held.rows
        arrays["held"] = np.stack([shard.held.positions.astype(np.uint64), shard.held.keys], axis=1)
    files = {name: write_array(path_of(folder, number, name), array) for name, array in arrays.items()}
    sync_folder(folder)
    return Record(shard.block.n_rows, shard.block.largest, dense, files)


def write_array(path: Path, array: Array) -> File:
    """Write an array as .npy."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    contents = (header.getvalue(), array.data if array.size else b"")
    checksum = 0
    with path.open("wb") as file:
        for part in contents:
            file.write(part)
            checksum = crc32(part, checksum)
        file.flush()
        os.fsync(file.fileno())
    return File(len(contents[0]) + array.nbytes, checksum)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder, so that nobody else writes to it meanwhile."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise BlockingIOError(
            f"another process is writing to the sketch in '{folder}'; wait for it, or give another folder."
        ) from None


def check_empty(folder: Path, cure: str) -> None:
    """A new store is alone in its folder; the cure is for one that holds a sketch."""
    there = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if MANIFEST in there:
        raise FileExistsError(f"'{folder}' holds a sketch already; {cure}.")
    if there:
        raise FileExistsError(
            f"'{folder}' is not empty (it holds {there[0]!r}); give a folder for the sketch alone."
        )


def check_same_job(
    folder: Path, manifest: Manifest, sketcher: Sketcher, job: Job, rows_per_shard: int | None
) -> None:
    """What goes on with a store must be what began it."""
    stored = manifest.sketcher
    now = {**parameters_to_json(sketcher), "first row": job.first_row}
    then = {**parameters_to_json(stored), "first row": manifest.first_row}
    if rows_per_shard:
        now["rows_per_shard"], then["rows_per_shard"] = rows_per_shard, manifest.rows_per_shard
    for name, value in now.items():
        if value != then[name]:
            raise ValueError(
                f"the sketch in '{folder}' was begun with {name}={then[name]!r}, and cannot go on with {value!r}; "
                "resume with what it was begun with, or give another folder."
            )
    if hasattr(sketcher, "signs_") and not sketcher.is_same_operator(stored):
        raise ValueError(
            f"the sketch in '{folder}' was begun by another sketcher, which drew other signs or entries; "
            "resume with that one, or with a new Sketcher of the same parameters."
        )
    check_same_rows(folder, manifest, job)


def check_same_rows(folder: Path, manifest: Manifest, job: Job) -> None:
    """What is there must be some of the rows that are wanted; of a complete sketch, all of them."""
    most = job.n_rows if job.n_known is None else job.n_known
    has_others = most is not None and manifest.n_rows > most
    lacks_some = manifest.complete and job.n_known is not None and manifest.n_rows < job.n_known
    if has_others or lacks_some:
        state = "is complete with" if manifest.complete else "has"
        raise ValueError(
            f"the sketch in '{folder}' {state} {manifest.n_rows} rows, and cannot go on to {most}; resume with "
            "the rows that it was begun with, or give another folder."
        )


def clean(folder: Path) -> None:
    """Remove what a writer that was stopped left unfinished."""
    for path in folder.glob(".*.unfinished"):
        path.unlink()


# -- from rows, and from sketches -------------------------------------------------------------------------


def sketch_into(folder: Path, sketcher: Sketcher, job: Job, rows_per_shard: int | None, *, resume: bool) -> Sketch:
    """Sketch rows into a folder; a new sketcher becomes that of the folder, if this goes on with one."""
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        if resume:
            clean(folder)
        if resume and (folder / MANIFEST).exists():
            manifest = read_manifest(folder)
            check_same_job(folder, manifest, sketcher, job, rows_per_shard)
            take_over(sketcher, manifest.sketcher)
        else:
            check_empty(folder, "give resume=True to go on with it, or another folder")
            manifest = None
        if manifest is None or not manifest.complete:
            batches = job.batches(sketcher, manifest.n_rows if manifest else 0)
            manifest = manifest or begun(sketcher, rows_per_shard, job.first_row)
            first_row, arrays = job.first_row + manifest.n_rows, reused_arrays(sketcher, manifest.rows_per_shard)
            write(folder, manifest, shards_of(sketcher, batches, first_row, arrays))
    return opened(folder, read_manifest(folder))


def take_over(sketcher: Sketcher, stored: Sketcher) -> None:
    """What a stored sketcher drew; the parameters stay as the user gave them."""
    for name in vars(stored).keys() - stored.get_params().keys():
        setattr(sketcher, name, vars(stored)[name])


def begun(sketcher: Sketcher, rows_per_shard: int | None, first_row: int) -> Manifest:
    """The manifest of a store that has no rows yet."""
    values, indices = sketcher.empty(0)
    return Manifest(
        sketcher, values.dtype, indices.dtype, rows_per_shard or default_rows(sketcher), first_row=first_row
    )


def save(folder: Path, sketch: Sketch) -> None:
    """Write a sketch that is there already."""
    validation.check_readable(sketch)
    kept, height = sketch.kept, default_rows(sketch.sketcher)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        check_empty(folder, "remove it, or give another folder")
        write(folder, Manifest(sketch.sketcher, kept.dtype, kept.index_dtype, height, None), cut(sketch, height))


def cut(sketch: Sketch, height: int) -> Iterator[Shard]:
    """The rows of a sketch in shards of that height."""
    first = 0
    for block in sketch.kept.blocks(height, exactly=True):
        if block.n_rows:
            held = sketch.reservoir and sketch.reservoir.within(first, first + block.n_rows)
            yield Shard(block, held)
        first += block.n_rows
