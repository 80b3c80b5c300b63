"""The commands, each with its arguments and options. What does the work is imported when it is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sketchmix.cli.manners import Commands, Manner
from sketchmix.cli.options import (
    COVARIANCES,
    NUMBERS,
    SIZE,
    SPAN,
    FileOptions,
    allow_incomplete,
    listed,
    of_files,
    of_fits,
    output,
    seed,
)

Facts = dict[str, Any]

TRANSFORMS = ("auto", "hadamard", "dct", "fourier", "none")
DTYPES = ("float16", "float32", "float64")
CRITERIA = ("bic", "aic", "icl")
MODELS = ("gaussian", "kmeans", "pca")
LABEL_FILES = (".npy", ".csv", ".parquet")

count = click.IntRange(min=1)
sketches = click.argument("sketches", metavar="SKETCH...", nargs=-1, required=True)


@click.group(cls=Commands)
@click.version_option(package_name="sketchmix")
def sketchmix() -> None:
    """Fit Gaussian mixtures, k-means and PCA to rows that are read once.

    Rows are sketched into a folder, which keeps a few entries of each; models are fitted to that.
    """


@sketchmix.command()
@click.argument("source")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--sketch-size", type=SIZE, default="auto", show_default=True, help="Entries kept of each row.")
@click.option("--transform", type=click.Choice(TRANSFORMS), default="auto", show_default=True, help="Mixes rows.")
@click.option(
    "--n-shared", type=click.IntRange(min=0), default=0, show_default=True, help="Entries that all rows keep."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of what is kept.")
@seed
@click.option("--resume", is_flag=True, help="Go on with what is in OUT.")
@click.option("--rows", type=SPAN, help="Only rows FIRST to AFTER - 1, as a part of what is sketched elsewhere.")
@click.option(
    "--first-row",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of SOURCE's first row, where it is a part of a data set.",
)
@click.option("--rows-per-shard", type=count, help="Of a file in OUT.  [default: about 32 MB of them]")
@of_files
@click.pass_obj
def sketch(
    manner: Manner,
    /,
    source: str,
    out: Path,
    resume: bool,
    rows: tuple[int, int] | None,
    first_row: int,
    rows_per_shard: int | None,
    files: FileOptions,
    **parameters: Any,
) -> Facts:
    """Sketch rows into a folder.

    SOURCE is a .npy, .parquet, .csv, .h5 or .zarr file, a folder of Parquet files, or, with --n-features, a file
    of numbers. A run that was stopped goes on with --resume.
    """
    from sketchmix.cli import reading, tasks

    if (rows or first_row) and parameters["random_state"] is None:
        raise click.UsageError("parts join only if all have the same --seed; give one, as in --seed 0.")
    wanted = reading.source_at(source, files)
    which = {"rows": rows, "first_row": first_row, "rows_per_shard": rows_per_shard}
    try:
        return tasks.sketch(wanted, out, parameters, which, resume=resume, quiet=manner.is_quiet)
    except KeyboardInterrupt:
        again = resuming(manner.arguments)
        raise KeyboardInterrupt(f"stopped; what was sketched is kept. Go on with: {again}") from None


def resuming(arguments: Sequence[str]) -> str:
    """The command that goes on where one was stopped."""
    missing = [] if "--resume" in arguments else ["--resume"]
    return shlex.join(["sketchmix", *arguments, *missing])


@sketchmix.command()
@sketches
@click.option("-k", type=count, required=True, help="Components, or clusters.")
@click.option("--model", type=click.Choice(MODELS), default="gaussian", show_default=True, help="What to fit.")
@click.option(
    "--covariance",
    "covariance_type",
    type=click.Choice(COVARIANCES),
    help="Family of covariances.  [default: diag]",
)
@of_fits
@seed
@allow_incomplete
@output("The model, as safetensors.")
@click.pass_context
def fit(
    ctx: click.Context,
    /,
    sketches: tuple[str, ...],
    k: int,
    model: str,
    allow_incomplete: bool,
    output: Path,
    **options: Any,
) -> Facts:
    """Fit a model to a sketch.

    Several sketches are taken as the parts of one data set.
    """
    from sketchmix.cli import reading, tasks

    fresh = tasks.new_model(model, k)
    parameters = given(options)
    for name in parameters.keys() - fresh.get_params().keys():
        raise click.UsageError(f"{flag_of(ctx, name)} is not for --model {model}; leave it out.")
    fresh.set_params(**parameters)
    sketch = reading.sketch_at(sketches, allow_incomplete=allow_incomplete)
    return tasks.fit(fresh, sketch, output, quiet=ctx.obj.is_quiet)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that somebody gave."""
    return {name: value for name, value in options.items() if value is not None}


def flag_of(ctx: click.Context, name: str) -> str:
    """How an option is written."""
    return next(param.opts[0] for param in ctx.command.params if param.name == name)


@sketchmix.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("rows", metavar="SOURCE|SKETCH")
@click.option("--proba", is_flag=True, help="The probability of each component, too.")
@click.option("--scores", is_flag=True, help="The log-likelihood of each row, too.")
@of_files
@allow_incomplete
@output("A .npy, .csv or .parquet file. A .npy file holds labels, or else what was asked for.")
@click.pass_obj
def predict(
    manner: Manner,
    /,
    model: Path,
    rows: str,
    proba: bool,
    scores: bool,
    allow_incomplete: bool,
    output: Path,
    files: FileOptions,
) -> Facts:
    """Label rows, batch by batch.

    A PCA gives their coordinates along its components.
    """
    if output.suffix not in LABEL_FILES:
        raise click.UsageError(f"{output} ends in {output.suffix!r}; expected one of {', '.join(LABEL_FILES)}.")
    if output.suffix == ".npy" and proba and scores:
        raise click.UsageError("a .npy file holds one array; for --proba and --scores, write .csv or .parquet.")
    from sketchmix.cli import reading, tasks

    read = reading.rows_at(rows, files, allow_incomplete=allow_incomplete)
    return tasks.predict(model, read, output, proba=proba, scores=scores, quiet=manner.is_quiet)


@sketchmix.command()
@click.argument("path", metavar="SKETCH|MODEL", type=click.Path(path_type=Path))
@click.option("-k", type=count, help="Say on how many rows each mean rests, with so many components.")
def info(path: Path, k: int | None) -> Facts:
    """Say what a sketch or a model is."""
    from sketchmix.cli import facts

    if path.is_dir():
        return facts.of_sketch(path, k)
    if k is not None:
        raise click.UsageError("-k is for sketches; leave it out.")
    return facts.of_model_at(path)


@sketchmix.command()
@sketches
@click.option("-k", type=NUMBERS, required=True, help="Components to try: 2:10, both included, or 2,4,8.")
@click.option(
    "--covariance",
    "covariance_type",
    multiple=True,
    default=["diag"],
    callback=listed,
    metavar="FAMILIES",
    help=f"Of {', '.join(COVARIANCES)}; a,b or repeated.  [default: diag]",
)
@click.option("--criterion", type=click.Choice(CRITERIA), default="bic", show_default=True, help="To be lowest.")
@of_fits
@seed
@allow_incomplete
@output("The best model, as safetensors.", required=False)
@click.pass_obj
def select(
    manner: Manner,
    /,
    sketches: tuple[str, ...],
    k: list[int],
    covariance_type: list[str],
    criterion: str,
    allow_incomplete: bool,
    output: Path | None,
    **options: Any,
) -> Facts:
    """Find the best of many mixtures.

    All settings are fitted to the same sketch, and compared by a criterion.
    """
    from sketchmix.cli import reading, tasks

    sketch = reading.sketch_at(sketches, allow_incomplete=allow_incomplete)
    grid = {"n_components": k, "covariance_type": covariance_type, "criterion": criterion}
    return tasks.select(sketch, grid | given(options), output, quiet=manner.is_quiet)


@sketchmix.command()
@output("A picture of the means that were found.", required=False)
def demo(output: Path | None) -> Facts:
    """Cluster images of digits, for show."""
    from sketchmix import demo as digits

    X, truth = digits.images()
    return {"table": [vars(outcome) for outcome in digits.compare(X, truth, output)]}
