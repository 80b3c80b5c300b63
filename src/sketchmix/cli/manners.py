"""How all commands speak: facts on stdout, all else on stderr, errors in a line, and exit codes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

# What a person can act on. Anything else is a mistake of ours, and shows where it happened.
ACTIONABLE = (ValueError, TypeError, OSError, ImportError, MemoryError)
WRONG, MISUSED, INTERRUPTED = 1, 2, 130

# Messages of the library speak of its arguments; here, these are options.
OPTIONS_OF_ARGUMENTS = {
    "resume=True": "--resume",
    "allow_incomplete=True": "--allow-incomplete",
    "as with rows=(first, after)": "as with --rows",
    "as in columns='embedding'": "with --columns",
    "give header=False": "give --no-header",
    "sources.zarr(path, array)": "--dataset NAME",
    "sources.hdf5(path, dataset)": "--dataset NAME",
    "give sources.raw(path, n_features)": "give --n-features",
    "For others, call the function of sketchmix.sources that reads them, such as sources.parquet(folder)": (
        "Of a file that has numbers and nothing else, give --n-features"
    ),
    "make the sketch with the model's `sketcher_`": "sketch with the seed and the options of the model's sketch",
}


@dataclass(frozen=True)
class Manner:
    """What was asked, and so how to answer."""

    arguments: Sequence[str]

    @property
    def as_json(self) -> bool:
        """Whether a machine is to read the answer."""
        return "--json" in self.arguments

    @property
    def is_quiet(self) -> bool:
        """Whether to show no progress."""
        return "--quiet" in self.arguments

    def answer(self, facts: dict[str, Any], cautions: list[str]) -> None:
        """Say what a command found."""
        from sketchmix.cli.show import show  # noqa: PLC0415 - rich is not needed for JSON

        if self.as_json:
            click.echo(json.dumps({**facts, "warnings": cautions}))
            return
        show(facts)
        for caution in cautions:
            click.echo(f"{click.style('warning:', fg='yellow')} {caution}", err=True)

    def fail(self, message: str, code: int) -> NoReturn:
        """Say what went wrong, and end."""
        if self.as_json:
            click.echo(json.dumps({"error": message}))
        else:
            click.echo(f"{click.style('error:', fg='red')} {message}", err=True)
        raise click.exceptions.Exit(code)


class Command(click.Command):
    """A command that machines can read, too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        json_help = "Answer with one JSON object on stdout, which has an error if there is one."
        self.params += [
            click.Option(["--json"], is_flag=True, expose_value=False, help=json_help),
            click.Option(["--quiet"], is_flag=True, expose_value=False, help="Show no progress."),
        ]


class Commands(click.Group):
    """Commands that return facts, which are shown; whatever else happens is said in a line."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note what was asked."""
        ctx.obj = Manner(tuple(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run a command, and say what came of it."""
        manner: Manner = ctx.obj
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                facts = super().invoke(ctx)
        except click.UsageError as error:
            if not manner.as_json:
                raise
            manner.fail(error.format_message(), MISUSED)
        except KeyboardInterrupt as interrupt:
            manner.fail(str(interrupt) or "stopped.", INTERRUPTED)
        except ACTIONABLE as error:
            manner.fail(sentence(error), WRONG)
        manner.answer(facts, cautions_of(caught))


def sentence(error: BaseException) -> str:
    """What an error says, in a line and in the words of the command line."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    for argument, option in OPTIONS_OF_ARGUMENTS.items():
        message = message.replace(argument, option)
    return in_a_line(message) or type(error).__name__


def cautions_of(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """What was warned of, each in a line, each once."""
    return list(dict.fromkeys(in_a_line(str(warning.message)) for warning in caught))


def in_a_line(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())
