"""What can be said after a command: the kinds of values, and the options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import click

Value = TypeVar("Value")
Declared = TypeVar("Declared", bound=Callable[..., Any])


class Kind(click.ParamType, Generic[Value]):  # type: ignore[type-arg, unused-ignore]
    """What a function makes of a text, or a ValueError."""

    def __init__(self, name: str, value_of: Callable[[str], Value], expected: str) -> None:
        self.name = name
        self._value_of, self._expected = value_of, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Read a text."""
        try:
            return self._value_of(value)
        except ValueError:
            self.fail(f"{value!r} is not {self._expected}.", param, ctx)


def size_of(text: str) -> int | float | str:
    """How many entries to keep: a number, a share, or "auto"."""
    if text == "auto":
        return text
    return int(text) if text.isdecimal() else float(text)


def rank_of(text: str) -> int | str:
    """How many factors: a number, or "auto"."""
    return text if text == "auto" else int(text)


def span_of(text: str) -> tuple[int, int]:
    """Rows from the first to the one after the last."""
    first, after = map(int, text.split(":"))
    if not 0 <= first <= after:
        raise ValueError
    return first, after


def numbers_of(text: str) -> list[int]:
    """Numbers, or all from one to another."""
    if ":" not in text:
        return [int(number) for number in text.split(",")]
    first, last = map(int, text.split(":"))
    if first > last:
        raise ValueError
    return list(range(first, last + 1))


SIZE = Kind("N|SHARE|auto", size_of, "a number of entries, a share such as 0.1, or auto")
RANK = Kind("N|auto", rank_of, "a number, or auto")
SPAN = Kind("FIRST:AFTER", span_of, "two row numbers such as 0:1000, the second of which is no longer meant")
NUMBERS = Kind("NUMBERS", numbers_of, "a range such as 2:10, or numbers such as 2,4,8")


def listed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:  # noqa: ARG001
    """Names, of which one value may have several between commas."""
    return [name for value in values for name in value.split(",")]


def in_a_folder(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """A file to be written, which is refused before the work and not after it."""
    if path and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}; make it first.", ctx, param)
    return path


def output(what: str, *, required: bool = True) -> Callable[[Declared], Declared]:
    """The file that a command writes."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(
        "-o", "--output", type=path, callback=in_a_folder, metavar="FILE", required=required, help=what
    )


def together(*options: Callable[[Declared], Declared]) -> Callable[[Declared], Declared]:
    """Several options as one, in their order."""

    def declared(command: Declared) -> Declared:
        for option in reversed(options):
            command = option(command)
        return command

    return declared


RAW_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32", "float64")


class FileOptions(NamedTuple):
    """How a file is to be read."""

    columns: list[str]
    header: bool | None
    dataset: str | None
    n_features: int | None
    raw_dtype: str | None


FILE_OPTIONS = together(
    click.option(
        "--columns",
        multiple=True,
        callback=listed,
        metavar="NAMES",
        help="Of a Parquet or CSV file; a,b or repeated.",
    ),
    click.option(
        "--header/--no-header", default=None, help="Whether a CSV file begins with names.  [default: --header]"
    ),
    click.option("--dataset", metavar="NAME", help="Of an HDF5 or Zarr file that has several."),
    click.option(
        "--n-features", type=click.IntRange(min=1), help="Numbers in a row of a file that has nothing else."
    ),
    click.option("--raw-dtype", type=click.Choice(RAW_DTYPES), help="Their type.  [default: float32]"),
)


def of_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of files, which a command takes as one: `files`."""

    @wraps(command)
    def gathered(*args: Any, **options: Any) -> Any:
        files = FileOptions(**{name: options.pop(name) for name in FileOptions._fields})
        return command(*args, files=files, **options)

    return FILE_OPTIONS(gathered)


COVARIANCES = ("diag", "spherical", "low_rank", "full", "tied")

of_fits = together(
    click.option("--rank", type=RANK, help="Factors of low_rank covariances."),
    click.option("--n-init", type=click.IntRange(min=1), help="Starts."),
    click.option("--max-iter", type=click.IntRange(min=1), help="Most iterations."),
    click.option("--tol", type=click.FloatRange(min=0), help="The gain at which iterations end."),
    click.option("--reg-covar", type=click.FloatRange(min=0), help="Added to every variance."),
)

seed = click.option("--seed", "random_state", type=click.IntRange(0, 2**32 - 1), help="Of all that is drawn.")
allow_incomplete = click.option(
    "--allow-incomplete", is_flag=True, help="Take the rows that are there where sketching was not finished."
)
