"""`select`: the best of many mixtures on one sketch, the table, and what is refused before any fit."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm
from sketchmix.selection import Outcome, Setting, fit_quietly, lowest, settings

Array = NDArray[Any]


@pytest.fixture
def sketch(blobs: tuple[Array, Array]) -> sm.Sketch:
    return sm.Sketcher(sketch_size=16, random_state=0).fit_transform(blobs[0])


def outcome(value: float = 1.0, rank: int | None = None, covariance_type: str = "diag") -> Outcome:
    return Outcome(2, covariance_type, rank, value, -1.5, 7, converged=True)


# -- what is found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["bic", "aic", "icl"])
@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
def test_the_number_of_clusters_is_found(sketch: sm.Sketch, criterion: str, covariance_type: str) -> None:
    selection = sm.select(
        sketch, range(1, 7), covariance_type, criterion=criterion, n_init=5, random_state=0, max_iter=300
    )
    assert (selection.best.n_components, selection.criterion) == (4, criterion)


@pytest.mark.parametrize("criterion", ["bic", "aic", "icl"])
def test_the_table_is_that_of_single_fits(sketch: sm.Sketch, criterion: str) -> None:
    shared: dict[str, Any] = {"n_init": 2, "tol": 1e-2, "random_state": 3}
    selection = sm.select(sketch, (2, 4), ("spherical", "diag"), criterion=criterion, **shared)
    expected, models = [], []
    for family, k in [("spherical", 2), ("spherical", 4), ("diag", 2), ("diag", 4)]:
        gm = sm.GaussianMixture(k, covariance_type=family, **shared).fit(sketch)
        n_parameters = (k - 1) + k * 64 + (k * 64 if family == "diag" else k)
        value, score = getattr(gm, criterion)(sketch), gm.score(sketch)
        expected.append(Outcome(k, family, None, value, score, n_parameters, gm.converged_))
        models.append(gm)
    assert selection.table == tuple(expected)
    best = models[int(np.argmin([line.value for line in expected]))]
    assert selection.best.get_params() == best.get_params()
    assert_array_equal(selection.best.means_, best.means_)
    assert_array_equal(selection.best.labels_, best.labels_)


def test_the_sketch_is_not_changed(sketch: sm.Sketch) -> None:
    values, indices, sketcher = sketch.values.copy(), sketch.indices.copy(), dict(vars(sketch.sketcher))
    sm.select(sketch, (1, 2), random_state=0)
    assert_array_equal(sketch.values, values)
    assert_array_equal(sketch.indices, indices)
    assert vars(sketch.sketcher) == sketcher


def test_single_values_and_repeated_ones(sketch: sm.Sketch) -> None:
    assert len(sm.select(sketch, 2, "diag", random_state=0).table) == 1
    several = sm.select(sketch, np.array([3, 2, 3]), (name for name in ("diag", "diag")), random_state=0)
    assert [line.n_components for line in several.table] == [3, 2]


def test_of_equal_outcomes_the_first_is_best() -> None:
    table = [outcome(2.0), outcome(1.0), outcome(1.0)]
    assert lowest(table) is table[1]


def test_the_best_goes_on_as_any_model(sketch: sm.Sketch, blobs: tuple[Array, Array]) -> None:
    best = sm.select(sketch, (3, 4), random_state=0, n_init=3).best
    assert best.predict(blobs[0]).shape == (2000,)
    assert best.refine(blobs[0]).means_.shape == (best.n_components, 64)


# -- the grid ---------------------------------------------------------------------------------------------


def test_ranks_are_those_of_the_low_rank_family_alone() -> None:
    assert settings((1, 2), ("diag", "low_rank"), (5, 10)) == [
        Setting(1, "diag", None),
        Setting(2, "diag", None),
        Setting(1, "low_rank", 5),
        Setting(1, "low_rank", 10),
        Setting(2, "low_rank", 5),
        Setting(2, "low_rank", 10),
    ]
    assert settings(1, "low_rank", 3) == [Setting(1, "low_rank", 3)]
    assert settings(1, "low_rank", None) == [Setting(1, "low_rank", None)]


def test_the_rank_that_the_rows_have_is_selected() -> None:
    rng = np.random.default_rng(0)
    X = 2 * rng.normal(size=(3000, 2)) @ rng.normal(size=(2, 24)) + rng.normal(size=(3000, 24))
    sketch = sm.Sketcher(12, random_state=0).fit_transform(X)
    selection = sm.select(sketch, 1, ("spherical", "low_rank"), rank=(1, 2, 4), random_state=0, tol=1e-5)
    assert selection.best.factors_.shape == (1, 24, 2)
    assert [outcome.rank for outcome in selection.table] == [None, 1, 2, 4]
    chosen = sm.select(sketch, 1, "low_rank", rank="auto", random_state=0, tol=1e-5)
    assert chosen.table[0].rank == "auto"
    assert chosen.best.factors_.shape == (1, 24, 2)
    with pytest.raises(ValueError, match="rank=24 must be less than n_features=24"):
        sm.select(sketch, 1, "low_rank", rank=(1, 24))


def test_a_setting_says_what_it_sets() -> None:
    assert Setting(3, "diag", None).differences == {"n_components": 3, "covariance_type": "diag"}
    assert str(Setting(3, "low_rank", 5)) == "n_components=3, covariance_type='low_rank', rank=5"


# -- how it reads -----------------------------------------------------------------------------------------


def test_it_prints_as_a_table() -> None:
    lines = (outcome(123.456, 5, "low_rank"), dataclasses.replace(outcome(1e4), n_components=10, converged=False))
    assert str(sm.Selection(sm.GaussianMixture(), lines, "icl")) == "\n".join(
        [
            "Selection by icl, lowest for n_components=2, covariance_type='low_rank', rank=5",
            "   n_components  covariance_type  rank      icl  log_likelihood  n_parameters  converged",
            "*             2         low_rank     5    123.5         -1.5000             7        yes",
            "             10             diag     -  10000.0         -1.5000             7         no",
        ]
    )


def test_a_selection_is_a_value(sketch: sm.Sketch) -> None:
    selection = sm.select(sketch, 2, random_state=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.criterion = "aic"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.table[0].value = 0.0  # type: ignore[misc]


# -- warnings ---------------------------------------------------------------------------------------------


def test_there_is_one_warning_for_all_fits(sketch: sm.Sketch) -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        selection = sm.select(sketch, (1, 2, 5), ("diag", "spherical"), max_iter=2, tol=1e-6, random_state=0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    first, *others = str(caught[0].message).splitlines()
    troubled = [line for line in selection.table if not line.converged]
    assert len(troubled) >= 4
    assert first == f"{len(troubled)} of 6 fits ended with a warning:"
    for said, line in zip(others, troubled, strict=True):
        assert said.startswith(f"  {line.setting}: EM did not converge in 2 iterations")


def test_more_warnings_of_one_fit_are_counted() -> None:
    sketch = sm.Sketcher(4, random_state=0).fit_transform(np.ones((50, 8)))
    with pytest.warns(ConvergenceWarning, match=r"1 of 1 fits .*\n  n_components=4.* \(And \d more\.\)"):
        sm.select(sketch, 4, max_iter=1, random_state=0)


def test_a_silenced_warning_stays_silent(sketch: sm.Sketch) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", ConvergenceWarning)
        sm.select(sketch, 2, max_iter=1, random_state=0)
    assert not caught


class Complaining(sm.GaussianMixture):
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        warnings.warn("of something else", RuntimeWarning, stacklevel=2)
        return super().fit(*args, **kwargs)


def test_other_warnings_pass(sketch: sm.Sketch) -> None:
    with pytest.warns(RuntimeWarning, match="of something else"):
        assert fit_quietly(Complaining(random_state=0), sketch) == []
    with pytest.raises(RuntimeWarning, match="of something else"):
        fit_quietly(Complaining(random_state=0), sketch)


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"criterion": "silhouette"},
            ValueError,
            "criterion must be one of 'bic', 'aic', 'icl'; got 'silhouette'",
        ),
        ({"n_components": ()}, ValueError, "n_components is empty; give at least one value"),
        ({"n_components": 2.5}, TypeError, "n_components must be an integer, or several; got 2.5 of type float"),
        ({"n_components": "23"}, TypeError, "n_components must be an integer, or several; got '23'"),
        ({"n_components": (2, 0)}, ValueError, "n_components must be at least 1; got 0"),
        ({"n_components": True}, TypeError, "n_components must be an integer; got True"),
        ({"n_components": [[2]]}, TypeError, r"n_components must be an integer; got \[2\]"),
        ({"n_components": (1, 2001)}, ValueError, "n_components=2001 is more than the number of rows"),
        ({"covariance_type": ()}, ValueError, "covariance_type is empty"),
        ({"covariance_type": ("diag", "banded")}, ValueError, "covariance_type must be one of .*; got 'banded'"),
        ({"covariance_type": 3}, TypeError, "covariance_type must be a string, or several; got 3 of type int"),
        ({"rank": (5, 10)}, ValueError, "rank is used with covariance_type='low_rank' only; got 'diag'. Add"),
        ({"rank": ()}, ValueError, "rank is empty"),
        ({"rank": "all"}, TypeError, "rank must be an integer, or several; got 'all'"),
        ({"sketch_size": 8}, ValueError, "sketch_size was settled when the rows were sketched; .* Sketcher"),
        (
            {"n_clusters": 8},
            TypeError,
            "'n_clusters' is no parameter that select .* those are init_params, learning_decay, max_iter",
        ),
        ({"means_init": np.ones((2, 64))}, ValueError, "means_init is for one number of components, but .* has 5"),
        (
            {"weights_init": [0.5, 0.5]},
            ValueError,
            "weights_init is for one .*; give one, or leave weights_init out",
        ),
        ({"tol": -1.0}, ValueError, "tol must be finite and at least 0; got -1"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1; got 0"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_before_any_fit(
    sketch: sm.Sketch, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: Any, words: str
) -> None:
    monkeypatch.setattr(sm.GaussianMixture, "fit", lambda *_: pytest.fail("a fit was made"))
    with pytest.raises(error, match=words):
        sm.select(sketch, **arguments)


@pytest.mark.parametrize("rows", [np.ones((5, 3)), [[1.0, 2.0]], None, "sketch"], ids=str)
def test_rows_are_to_be_sketched_first(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"to one sketch; got \w+. Sketch the rows first, as in sm.Sketcher"):
        sm.select(rows)


def test_a_sketch_of_no_rows_is_refused(sketch: sm.Sketch) -> None:
    with pytest.raises(ValueError, match="0 rows"):
        sm.select(sketch[:0])


def test_initial_means_for_one_number_of_components(sketch: sm.Sketch, blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    means = np.array([X[y == c].mean(axis=0) for c in range(4)])
    selection = sm.select(sketch, 4, ("diag", "spherical"), means_init=means)
    assert np.linalg.norm(selection.best.means_ - means, axis=1).max() < 2
