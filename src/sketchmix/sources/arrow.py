"""Rows in tables that Arrow reads: Parquet and CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sketchmix import validation
from sketchmix.sources.memory import Batches
from sketchmix.sources.source import Source, batch_height, imported

Array = NDArray[Any]

PARQUET_SUFFIXES = (".parquet", ".pq")
# A column is read this many bytes at a time, and not with all that a row group has of it.
BUFFER_BYTES = 2**16
LONGEST_LINE = 2**20
# A number takes at least two bytes of text, and eight afterwards.
BYTES_OF_ONE_OF_TEXT = 4


def parquet(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], columns: str | Sequence[str] | None = None
) -> Source:
    """Rows of Parquet files: numeric columns, or one column of lists of the same length.

    Parameters
    ----------
    paths : str, path-like, or several
        A file; a folder, of which all `.parquet` and `.pq` files are taken, those of its folders too, but not what
        begins with "_" or "."; a pattern such as ``"part-*.parquet"``; or files. Those of folders and patterns are
        sorted by their paths, others stay in their order.
    columns : str or sequence of str, optional
        A column of lists, or of numbers; or columns of numbers, in that order. Without it, the only column of
        lists; where there is none, all columns of numbers.

    Returns
    -------
    Source
        The rows of all files.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> import pyarrow.parquet
    >>> from sketchmix import sources
    >>> table = pa.table({"text": ["a", "b"], "embedding": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyarrow.parquet.write_table(table, f"{folder}/X.parquet")
    ...     source = sources.parquet(folder, columns="embedding")
    ...     print(source.n_rows, source.n_features, next(source.batches(first_row=1)))
    2 3 [[0.4 0.5 0.6]]
    """
    return ParquetRows(parquet_files(paths), columns)


def csv(path: str | os.PathLike[str], columns: str | Sequence[str] | None = None, header: bool = True) -> Source:
    r"""Rows of a CSV file, as float64.

    Parameters
    ----------
    path : str or path-like
        The file.
    columns : str or sequence of str, optional
        Columns of numbers, in that order. Without it, all columns.
    header : bool, default=True
        Whether the first line has the names of the columns, which may be whole numbers, but not measurements.
        Without names, they are "f0", "f1", ...

    Returns
    -------
    Source
        The rows of the file. How many there are is not known before all are read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sketchmix import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "X.csv")
    ...     _ = path.write_text("name,x,y\na,1,2\nb,3,4.5\n")
    ...     print(next(sources.csv(path, columns=["x", "y"]).batches()).tolist())
    [[1.0, 2.0], [3.0, 4.5]]
    """
    return CsvRows(Path(path), columns, header)


def parquet_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that are meant, in the order of their rows."""
    if not isinstance(paths, str | os.PathLike):
        files = [Path(path) for path in paths]
    elif (path := Path(paths)).is_dir():
        files = sorted(file for file in path.rglob("*") if is_meant(file.relative_to(path)))
    elif not path.exists() and set("*?[") & set(str(path)):
        files = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    else:
        files = [path]
    validation.check_some_files(paths, files)
    return files


def is_meant(path: Path) -> bool:
    """Whether a path in a folder is one of data: writers hide what they have not finished behind a "_" or "."."""
    return path.suffix in PARQUET_SUFFIXES and not any(part.startswith(("_", ".")) for part in path.parts)


class ParquetRows(Source):
    """The rows of Parquet files, one after the other."""

    n_rows: int

    def __init__(self, files: list[Path], columns: str | Sequence[str] | None) -> None:
        self.files = files
        self.counts: list[int] = []
        self.columns: list[str] = []
        for path in files:
            with opened_parquet(path) as file:
                self.columns = self.columns or chosen_columns(path, file.schema_arrow, columns)
                validation.check_columns(path, self.columns, kinds_of_columns(file.schema_arrow))
                self.counts.append(file.metadata.num_rows)
                self.n_features = self.n_features or width_of(file, self.columns)
        self.n_rows = sum(self.counts)

    def read_from(self, first_row: int) -> Iterator[Array]:
        """Batches of each file; files before the row are not opened again."""
        start, number = part_with_row(first_row, self.counts)
        for path, count in zip(self.files[start:], self.counts[start:], strict=True):
            yield from self._read_file(path, number, max(0, first_row - number))
            number += count

    def _read_file(self, path: Path, number: int, first_row: int) -> Iterator[Array]:
        """Rows of a file, the first of which is `number` in the source; row groups before the row are skipped."""
        with opened_parquet(path) as file:
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            start, before = part_with_row(first_row, groups)
            batches = file.iter_batches(self._height(file), range(start, len(groups)), self.columns)
            yield from Batches(self._arrays(batches, number + before)).read_from(first_row - before)

    def _height(self, file: Any) -> int:
        kind = file.schema_arrow.field(self.columns[0]).type
        itemsize = kind.value_type.bit_width / 8 if kind_of(kind) == "lists" else 8
        return batch_height((self.n_features or 1) * itemsize)

    def _arrays(self, batches: Iterator[Any], row: int) -> Iterator[Array]:
        for batch in batches:
            yield matrix_of(batch, self.columns, self.n_features or 0, row)
            row += batch.num_rows


def opened_parquet(path: Path) -> Any:
    """A Parquet file, of which no more than some pages are held."""
    package = imported("pyarrow.parquet", "parquet")
    try:
        return package.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except imported("pyarrow", "parquet").ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file, or a damaged one: {error}") from error


def part_with_row(row: int, counts: list[int]) -> tuple[int, int]:
    """Which of some parts has a row, and how many rows are in those before it."""
    starts = [0, *accumulate(counts)]
    part = int(np.searchsorted(starts[1:], row, side="right"))
    return part, starts[part]


def kind_of(kind: Any) -> str:
    """What a column of some type can be to us."""
    types = imported("pyarrow", "parquet").types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "numbers"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "lists" if is_list and kind_of(kind.value_type) == "numbers" else str(kind)


def kinds_of_columns(schema: Any) -> dict[str, str]:
    """What every column holds: "numbers", "lists" of them, or the name of a type that is neither."""
    return {field.name: kind_of(field.type) for field in schema}


def chosen_columns(path: Path, schema: Any, columns: str | Sequence[str] | None) -> list[str]:
    """The columns that a user asked for, or those that the rows most likely are."""
    kinds = kinds_of_columns(schema)
    if columns is not None:
        return validation.check_choices("columns", columns, kinds)
    lists, numbers = ([name for name, kind in kinds.items() if kind == wanted] for wanted in ("lists", "numbers"))
    return validation.check_choice_of_columns(path, lists, numbers)


def width_of(file: Any, columns: list[str]) -> int | None:
    """The features of a row; None where no list tells."""
    kind = file.schema_arrow.field(columns[0]).type
    if kind_of(kind) == "numbers":
        return len(columns)
    if hasattr(kind, "list_size"):
        return int(kind.list_size)
    first = next(file.iter_batches(1, columns=columns), None)
    length: int | None = first.column(columns[0]).value_lengths()[0].as_py() if first else None
    return length


def matrix_of(batch: Any, columns: list[str], width: int, row: int) -> Array:
    """Some rows, the first of which is number `row`, as an array: lists of floats without a copy."""
    parts = [batch.column(name) for name in columns]
    for name, part in zip(columns, parts, strict=True):
        if part.null_count:
            validation.check_no_nulls(name, nulls_of(part), row)
    if kind_of(parts[0].type) == "numbers":
        return np.stack([part.to_numpy(zero_copy_only=False) for part in parts], axis=1)
    return matrix_of_lists(columns[0], parts[0], width, row)


def matrix_of_lists(name: str, lists: Any, width: int, row: int) -> Array:
    """Lists of the same length as an array."""
    validation.check_lengths(name, lists.value_lengths().to_numpy(), width, row)
    entries, shape = lists.flatten(), (len(lists), width)
    if entries.null_count:
        validation.check_no_nulls(name, nulls_of(entries).reshape(shape).max(axis=1), row)
    matrix: Array = entries.to_numpy(zero_copy_only=False).reshape(shape)
    return matrix


def nulls_of(column: Any) -> Array:
    """Where a column has no value."""
    where: Array = column.is_null().to_numpy(zero_copy_only=False)
    return where


class CsvRows(Source):
    """The rows of a text file."""

    n_features: int

    def __init__(self, path: Path, columns: str | Sequence[str] | None, header: bool) -> None:
        self.path, self.header = path, header
        with self._opened([]) as reader:
            names = reader.schema.names
        validation.check_names(path, names)
        self.columns = names if columns is None else validation.check_choices("columns", columns, names)
        self.n_features = len(self.columns)

    def read_from(self, first_row: int) -> Iterator[Array]:
        """Batches of parsed text; the rows before the first are parsed, too."""
        return Batches(self._arrays()).read_from(first_row)

    def _arrays(self) -> Iterator[Array]:
        row = 0
        with self._opened(self.columns) as reader:
            for batch in reader:
                yield matrix_of(batch, self.columns, self.n_features, row)
                row += batch.num_rows

    @contextmanager
    def _opened(self, columns: list[str]) -> Iterator[Any]:
        """A reader of some columns (of all, where none is named) as float64.

        Left alone, Arrow would tell a column's type by its first rows, and refuse later ones with fractions.
        """
        arrow, arrow_csv = imported("pyarrow", "csv"), imported("pyarrow.csv", "csv")
        types = dict.fromkeys(columns, arrow.float64())
        read = arrow_csv.ReadOptions(
            use_threads=False,  # so that errors name their row
            block_size=max(LONGEST_LINE, batch_height(BYTES_OF_ONE_OF_TEXT)),
            autogenerate_column_names=not self.header,
        )
        convert = arrow_csv.ConvertOptions(column_types=types, include_columns=columns)
        try:
            with arrow_csv.open_csv(self.path, read, convert_options=convert) as reader:
                yield reader
        except arrow.ArrowInvalid as error:
            raise ValueError(f"{self.path} has something else than rows of numbers: {error}") from error
