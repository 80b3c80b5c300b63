"""What the commands do, with progress; each returns what there is to say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import sketchmix as sm
from sketchmix.cli import facts
from sketchmix.cli.facts import Facts, Model
from sketchmix.cli.labels import answers, write
from sketchmix.cli.show import fits_bar, rows_bar
from sketchmix.persistence import safetensors
from sketchmix.sources import Source
from sketchmix.stored import MANIFEST, read_manifest

MODELS: dict[str, Callable[[int], Model]] = {"gaussian": sm.GaussianMixture, "kmeans": sm.KMeans, "pca": sm.PCA}


def new_model(name: str, k: int) -> Model:
    """A model of some kind, with so many components or clusters."""
    return MODELS[name](k)


def sketch(
    source: Source, out: Path, parameters: dict[str, Any], which: dict[str, Any], *, resume: bool, quiet: bool
) -> Facts:
    """Sketch rows into a folder."""
    n_before = rows_there(out) if resume else 0
    began = perf_counter()
    with rows_bar("sketching", rows_wanted(source.n_rows, which["rows"]), quiet=quiet) as tell:
        sm.Sketcher(**parameters).sketch(source, out=out, resume=resume, progress=tell, **which)
        seconds = perf_counter() - began
    made = facts.of_sketch(out)
    return made | pace(made["rows"] - n_before, seconds)


def rows_there(folder: Path) -> int:
    """How many rows were sketched before."""
    return read_manifest(folder).n_rows if (folder / MANIFEST).exists() else 0


def rows_wanted(n_rows: int | None, span: tuple[int, int] | None) -> int | None:
    """How many rows are to be sketched, as far as that is known."""
    if span is None:
        return n_rows
    first, after = span
    return max(0, (after if n_rows is None else min(after, n_rows)) - first)


def pace(n_rows: int, seconds: float) -> Facts:
    """How fast rows went by."""
    return {"seconds": seconds, "rows_per_second": round(n_rows / seconds)}


def fit(model: Any, sketch: sm.Sketch, output: Path, *, quiet: bool) -> Facts:
    """Fit a model, and save it."""
    safetensors()  # missed before the fit, and not after it
    began = perf_counter()
    with fits_bar("fitting", model.max_iter, "iterations at most", quiet=quiet) as tell:
        model.set_callbacks(Iterations(tell)).fit(sketch)
    seconds = perf_counter() - began
    model.save(output)
    return {"model": str(output), "rows": len(sketch), **facts.of_model(model), "seconds": seconds}


class Iterations:
    """A callback of scikit-learn's that counts."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._n_done = 0

    def setup(self, estimator: object, context: object) -> None:
        """A fit is to begin."""

    def on_fit_task_begin(self, estimator: object, context: object) -> None:
        """An iteration begins, or the fit does."""

    def on_fit_task_end(self, estimator: object, context: Any) -> None:  # noqa: ARG002
        """An iteration has ended, or the fit has."""
        if context.task_name == "iteration":
            self._n_done += 1
            self._tell(self._n_done)

    def teardown(self, estimator: object, context: object) -> None:
        """The fit has ended."""


def predict(
    path: Path, rows: Source | sm.Sketch, output: Path, *, proba: bool, scores: bool, quiet: bool
) -> Facts:
    """Write what a model says of rows."""
    questions = answers(sm.load(path), proba=proba, scores=scores, alone=output.suffix == ".npy")
    n_rows = len(rows) if isinstance(rows, sm.Sketch) else rows.n_rows
    began = perf_counter()
    with rows_bar("predicting", n_rows, quiet=quiet) as tell:
        n_done = write(output, questions, rows, tell)
    return {
        "output": str(output),
        "columns": list(questions),
        "rows": n_done,
        **pace(n_done, perf_counter() - began),
    }


def select(sketch: sm.Sketch, grid: dict[str, Any], output: Path | None, *, quiet: bool) -> Facts:
    """Compare mixtures, and save the best if it is wanted."""
    if output:
        safetensors()
    with fits_bar("fitting", None, "mixtures", quiet=quiet) as tell:
        selection = sm.select(sketch, progress=tell, **grid)
    if output:
        selection.best.save(output)
    best = min(selection.table, key=lambda outcome: outcome.value)
    table = [{"best": outcome is best, **asdict(outcome)} for outcome in selection.table]
    return {"criterion": selection.criterion, "model": output and str(output), "rows": len(sketch), "table": table}
