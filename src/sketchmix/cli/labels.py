"""What a model says of rows, written batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sketchmix import PCA, Sketch
from sketchmix.cli.facts import Model
from sketchmix.files import opened_atomically
from sketchmix.sources import Source, prefetched
from sketchmix.validation import check_rows_were_read

Array = NDArray[Any]
Columns = dict[str, Array]  # by name, of a number or several for each row
Answers = dict[str, Callable[[Any], Array]]  # of some rows, by the column's name

METHODS = {"label": "predict", "coordinate": "transform", "proba": "predict_proba", "score": "score_samples"}
# Of a sketch, at a time.
ROWS_AT_A_TIME = 2**16


def answers(model: Model, *, proba: bool, scores: bool, alone: bool) -> Answers:
    """What to ask a model; `alone`, if only one answer can be kept."""
    names = ["coordinate" if isinstance(model, PCA) else "label"]
    names += ["proba"] * proba + ["score"] * scores
    asked = names[-1:] if alone else names
    for name in asked:
        if not hasattr(model, METHODS[name]):
            option = "--proba" if name == "proba" else "--scores"
            raise ValueError(f"{type(model).__name__} has no {METHODS[name]}; leave {option} out.")
    return {name: getattr(model, METHODS[name]) for name in asked}


def write(path: Path, questions: Answers, rows: Source | Sketch, tell: Callable[[int], None]) -> int:
    """Write the answers for all rows; how many there are."""
    n_done = 0

    def answered() -> Iterator[Columns]:
        nonlocal n_done
        for part in parts_of(rows):
            columns = {name: answer(part) for name, answer in questions.items()}
            n_done += len(next(iter(columns.values())))
            tell(n_done)
            yield columns
        check_rows_were_read(n_done)

    with opened_atomically(path) as file:
        WRITERS[path.suffix](file, answered())
    return n_done


def parts_of(rows: Source | Sketch) -> Iterator[Any]:
    """Rows, some at a time."""
    if isinstance(rows, Sketch):
        yield from (rows[first : first + ROWS_AT_A_TIME] for first in range(0, len(rows), ROWS_AT_A_TIME))
        return
    with closing(prefetched(rows.batches())) as batches:
        yield from batches


def write_npy(file: BinaryIO, parts: Iterator[Columns]) -> None:
    """One array, whose number of rows is known at the end: NumPy's headers leave room for it."""
    n_rows = 0
    for part in parts:
        (array,) = part.values()
        if not n_rows:
            put_header(file, array, 0)
        file.write(np.ascontiguousarray(array).data)
        n_rows += len(array)
    file.seek(0)
    put_header(file, array, n_rows)


def put_header(file: BinaryIO, array: Array, n_rows: int) -> None:
    """What comes first in a .npy file of so many rows like those of an array."""
    described = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
    np.lib.format.write_array_header_1_0(file, described | {"shape": (n_rows, *array.shape[1:])})


def write_csv(file: BinaryIO, parts: Iterator[Columns]) -> None:
    """A line of names, then a line for each row, whose numbers can be read back as they were."""
    for number, part in enumerate(parts):
        columns = flat(part)
        if not number:
            file.write(f"{','.join(columns)}\n".encode())
        formats = ["%d" if column.dtype.kind == "i" else "%.17g" for column in columns.values()]
        np.savetxt(file, np.column_stack(list(columns.values())), formats, delimiter=",")


def write_parquet(file: BinaryIO, parts: Iterator[Columns]) -> None:
    """A row group for each part."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError('pyarrow is needed to write Parquet: pip install "sketchmix[parquet]".') from error
    tables = map(arrow.table, map(flat, parts))
    first = next(tables)
    with parquet.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def flat(columns: Columns) -> Columns:
    """Columns of one number for each row, of those that have several."""
    named: Columns = {}
    for name, column in columns.items():
        if column.ndim == 1:
            named[name] = column
        else:
            named |= {f"{name}_{number}": np.ascontiguousarray(part) for number, part in enumerate(column.T)}
    return named


WRITERS = {".npy": write_npy, ".csv": write_csv, ".parquet": write_parquet}
