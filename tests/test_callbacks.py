"""scikit-learn's callbacks watch a fit, may end it, and change nothing else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sketchmix as sm
from sketchmix import PCA, GaussianMixture, KMeans
from sketchmix.families import COVARIANCE_TYPES

Array = NDArray[Any]


def mixture(covariance_type: str) -> GaussianMixture:
    return GaussianMixture(3, covariance_type=covariance_type, rank=2, sketch_size=6, random_state=0)


MODELS: dict[str, Callable[[], Any]] = {
    **{name: partial(mixture, name) for name in COVARIANCE_TYPES},
    "kmeans": partial(KMeans, 3, sketch_size=6, random_state=0),
    "pca": partial(PCA, 2, sketch_size=6, random_state=0),
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)


def clusters(n: int = 400, p: int = 16) -> tuple[Array, Array]:
    """Rows of three clusters that overlap, and which is whose."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=n)
    return 0.7 * rng.normal(size=(3, p))[y] + rng.normal(size=(n, p)), y


class Recorder:
    """Writes down what it is told, and asks for the end after so many iterations."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.heard: list[str] = []
        self.models: list[Any] = []
        self.contexts: list[Any] = []
        self.shown: list[Any] = []

    def setup(self, estimator: Any, context: Any) -> None:
        self.heard.append("setup")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.heard.append(f"begin {context.task_name}")

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, metadata: Any, fitted_estimator: Any
    ) -> bool:
        self.heard.append(f"end {context.task_name}")
        self.models.append(fitted_estimator)
        self.contexts.append(context)
        self.shown.append((X, y))
        return self.last is not None and len(self.models) >= self.last

    def teardown(self, estimator: Any, context: Any) -> None:
        self.heard.append("teardown")


class Propagated(Recorder):
    """One that is handed on to the steps of a pipeline."""

    max_propagation_depth = None


def results_of(model: Any) -> dict[str, Any]:
    """Everything that a fit has set."""
    not_of_fit = ("_skl_callbacks", "_family", "_limits", "_parameters", "_mixture", "sketcher_")
    return {name: value for name, value in vars(model).items() if name not in not_of_fit}


# -- what callbacks are told ------------------------------------------------------------------------------


@EVERY_MODEL
def test_every_iteration_begins_and_ends_within_the_fit(name: str) -> None:
    recorder = Recorder()
    model = MODELS[name]().set_callbacks(recorder).fit(clusters()[0])
    iterations = ["begin iteration", "end iteration"] * model.n_iter_
    assert recorder.heard == ["setup", "begin fit", *iterations, "end fit", "teardown"]
    assert [context.task_id for context in recorder.contexts[:-1]] == list(range(model.n_iter_))
    assert recorder.contexts[-1].max_subtasks == model.max_iter


@EVERY_MODEL
def test_results_are_the_same_bit_by_bit(name: str) -> None:
    X, _ = clusters()
    alone, watched = MODELS[name]().fit(X), MODELS[name]().set_callbacks(Recorder()).fit(X)
    expected, found = results_of(alone), results_of(watched)
    assert expected.keys() == found.keys()
    for attribute, value in expected.items():
        assert_array_equal(found[attribute], value, err_msg=attribute)


def test_callbacks_see_the_sketch_and_what_was_given_as_y() -> None:
    X, y = clusters()
    sketch = sm.Sketcher(sketch_size=6, random_state=0).fit_transform(X)
    recorder = Recorder()
    KMeans(3, random_state=0).set_callbacks(recorder).fit(sketch, y)
    assert all(shown[0] is sketch and shown[1] is y for shown in recorder.shown)


def test_an_error_in_a_fit_still_takes_callbacks_down() -> None:
    recorder = Recorder()
    model = mixture("diag").set_callbacks(recorder)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((9, 16), np.nan))
    assert recorder.heard == ["setup", "begin fit", "teardown"]


def test_refused_parameters_are_none_of_their_business() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match="max_iter must be at least 1"):
        KMeans(max_iter=0).set_callbacks(recorder).fit(clusters()[0])
    assert recorder.heard == []


def test_a_pipeline_hands_its_callbacks_on() -> None:
    recorder = Propagated()
    pipeline = make_pipeline(StandardScaler(), mixture("diag")).set_callbacks(recorder)
    pipeline.fit(clusters()[0])
    assert recorder.heard.count("end iteration") == pipeline[-1].n_iter_


def test_a_clone_has_the_same_callbacks() -> None:
    recorder = Recorder()
    clone(mixture("diag").set_callbacks(recorder)).fit(clusters()[0])
    assert recorder.heard[-1] == "teardown"


# -- the end, when a callback asks for it -----------------------------------------------------------------


@EVERY_MODEL
def test_a_fit_ends_when_a_callback_asks(name: str) -> None:
    X, _ = clusters()
    whole, short = MODELS[name]().fit(X), MODELS[name]().set_callbacks(Recorder(last=3)).fit(X)
    assert short.n_iter_ == 3 < whole.n_iter_
    if name != "kmeans":
        assert not short.converged_
        assert short.lower_bounds_ == whole.lower_bounds_[: len(short.lower_bounds_)]


@EVERY_MODEL
def test_a_model_on_the_way_is_what_the_end_there_gives(name: str) -> None:
    X, _ = clusters()
    recorder = Recorder()
    MODELS[name]().set_callbacks(recorder).fit(X)
    for n_iter in (1, 2, 3, 4):
        ended, shown = MODELS[name]().set_callbacks(Recorder(last=n_iter)).fit(X), recorder.models[n_iter - 1]
        assert shown.n_iter_ == n_iter
        for method in ("transform", "predict_proba", "score_samples"):
            if hasattr(ended, method):
                assert_array_equal(getattr(shown, method)(X), getattr(ended, method)(X))


def test_who_asks_in_the_last_iteration_changes_nothing() -> None:
    X, _ = clusters()
    whole = mixture("diag").fit(X)
    asked = mixture("diag").set_callbacks(Recorder(last=whole.n_iter_)).fit(X)
    assert asked.converged_
    assert asked.lower_bounds_ == whole.lower_bounds_


# -- scikit-learn's own -----------------------------------------------------------------------------------


def test_a_score_of_every_iteration() -> None:
    X, y = clusters()
    monitor = ScoringMonitor(scoring="adjusted_rand_score")
    model = mixture("diag").set_callbacks(monitor)
    sketch = sm.Sketcher(sketch_size=6, random_state=0).fit_transform(X)
    model.fit(sketch, y)
    scores = {line["task_name"]: line["adjusted_rand_score"] for line in monitor.get_logs().data}
    assert len(monitor.get_logs().data) == model.n_iter_ + 1
    assert scores["fit"] == pytest.approx(adjusted_rand_score(y, model.labels_), abs=1e-12)


@EVERY_MODEL
def test_a_progress_bar_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = MODELS[name]().set_callbacks(ProgressBar()).fit(clusters()[0])
    shown = capsys.readouterr().out
    assert f"{type(model).__name__} - fit" in shown
    assert "100%" in shown
