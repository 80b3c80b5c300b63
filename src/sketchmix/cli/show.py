"""How facts and progress look to a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# Where no terminal says how wide it is, nothing is cut.
WIDE = 100_000
UNNAMED = {"table", "advice"}
WORDS_OF: dict[str, Callable[[Any], str]] = {
    "bytes": decimal,
    "seed": str,
    "share": "{:.2%}".format,
    "best": lambda is_best: "*" if is_best else "",
}

# -- facts ------------------------------------------------------------------------------------------------


def show(facts: dict[str, Any]) -> None:
    """Facts by their names; a table, if there is one; and advice."""
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    named = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if name not in UNNAMED:
            named.add_row(Text(name.replace("_", " "), style="bold"), Text(words(name, value)))
    if named.rows:
        console.print(named)
    if "table" in facts:
        console.print(table_of(facts["table"]))
    if "advice" in facts:
        console.print(Text(facts["advice"], style="yellow"))


def table_of(lines: list[dict[str, Any]]) -> Table:
    """Lines of a table, which all have the same columns."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in lines[0]:
        # On a narrow terminal a number goes on in the next line: cut, it would be another.
        table.add_column(Text(name.replace("_", "\n")), justify="right", overflow="fold")
    for line in lines:
        style = "bold green" if line.get("best") else ""
        table.add_row(*(Text(words(name, value)) for name, value in line.items()), style=style)
    return table


def words(name: str, value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if name in WORDS_OF:
        return WORDS_OF[name](value)
    if isinstance(value, list):
        return ", ".join(words("", item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# -- progress ---------------------------------------------------------------------------------------------


class Done(ProgressColumn):
    """How much is done, of how much."""

    def render(self, task: Task) -> Text:
        """For a line of progress."""
        total = "" if task.total is None else f" of {task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{total} {task.fields['unit']}")


class Speed(ProgressColumn):
    """How much is done in a second."""

    def render(self, task: Task) -> Text:
        """For a line of progress."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} {task.fields['unit']}/s")


@contextmanager
def rows_bar(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many rows are done, and how long the others will take; yields what is to be told of them."""
    columns = (Speed(), TimeRemainingColumn())
    with bar(what, total, "rows", columns, quiet=quiet) as tell:
        yield tell


@contextmanager
def fits_bar(what: str, total: int | None, unit: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many of at most so many are done, and since when; yields what is to be told of them."""
    with bar(what, total, unit, (TimeElapsedColumn(),), quiet=quiet) as tell:
        yield tell


@contextmanager
def bar(
    what: str, total: int | None, unit: str, columns: tuple[ProgressColumn, ...], *, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """A line of progress, on a terminal and for as long as the work takes."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        Done(),
        *columns,
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with progress:
        line = progress.add_task(what, total=total, unit=unit)
        yield lambda n_done: progress.update(line, completed=n_done)
