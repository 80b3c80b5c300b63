"""What is refused, and in which words: the value that was given, what is expected, and the cure."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

import sketchmix as sm
from sketchmix import _core

Array = NDArray[Any]

TRANSFORMS = ["hadamard", "dct", "fourier", "none"]
every_transform = pytest.mark.parametrize("transform", TRANSFORMS)
# 7 and 257 have no fast kernel for some transforms, 257 is padded by another.
WIDTHS = [7, 24, 257]


def rows(n: int = 30, width: int = 24) -> Array:
    return np.random.default_rng(0).normal(size=(n, width))


def small_mixture(**parameters: Any) -> sm.GaussianMixture:
    """One that fits 30 rows without a warning."""
    return sm.GaussianMixture(2, tol=1.0, reg_covar=0.1, random_state=1, **parameters)


@pytest.fixture
def sketcher() -> sm.Sketcher:
    return sm.Sketcher(6, random_state=0).fit(rows())


@pytest.fixture
def sketch(sketcher: sm.Sketcher) -> sm.Sketch:
    return sketcher.transform(rows())


@pytest.fixture
def mixture(sketch: sm.Sketch) -> sm.GaussianMixture:
    return small_mixture().fit(sketch)


@pytest.fixture
def k_means(sketch: sm.Sketch) -> sm.KMeans:
    return sm.KMeans(2, tol=1.0, random_state=0).fit(sketch)


def estimators() -> list[Any]:
    """New estimators that take raw rows."""
    return [
        sm.Sketcher(2, random_state=0),
        sm.GaussianMixture(2, sketch_size=2, random_state=0),
        sm.KMeans(2, sketch_size=2, random_state=0),
    ]


every_estimator = pytest.mark.parametrize("estimator", estimators(), ids=lambda e: type(e).__name__)


def refuse(estimator: Any, X: Any) -> None:
    """Fit, and for a sketcher transform too, whose `fit` looks at nothing but the width."""
    if isinstance(estimator, sm.Sketcher):
        estimator.fit_transform(X)
    else:
        estimator.fit(X)


# -- NaN and infinity -------------------------------------------------------------------------------------


@every_transform
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_one_entry_that_is_not_finite_is_refused(
    transform: str, width: int, dtype: str, bad: float, word: str
) -> None:
    sketcher = sm.Sketcher(1, transform=transform, random_state=0).fit(np.zeros((1, width)))
    X = rows(40, width).astype(dtype)
    # Wherever it is: most of these entries are not kept, in any frame.
    for i, p in [(0, 0), (39, width - 1), (17, width // 2), (20, 1), (3, 4)]:
        spoiled = X.copy()
        spoiled[i, p] = bad
        with pytest.raises(ValueError, match=f"Input X contains {word}"):
            sketcher.transform(spoiled)


@every_transform
@pytest.mark.parametrize("make", [sp.csr_array, pd.DataFrame, pl.DataFrame, np.asfortranarray])
def test_nan_is_refused_in_every_kind_of_rows(transform: str, make: Callable[[Array], Any]) -> None:
    X = rows()
    X[3, 4] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        sm.Sketcher(1, transform=transform, random_state=0).fit_transform(make(X))


@pytest.mark.parametrize("missing", [pd.DataFrame({"a": pd.array([1, None, 3], "Int16"), "b": [1, 2, 3]})])
def test_missing_values_of_frames_are_refused(missing: Any) -> None:
    for frame in (missing, pl.DataFrame({"a": [1, None, 3], "b": [1, 2, 3]})):
        with pytest.raises(ValueError, match="NaN"):
            sm.Sketcher(1, transform="none").fit_transform(frame)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_estimators_refuse_what_is_not_finite(
    mixture: sm.GaussianMixture, k_means: sm.KMeans, sketch: sm.Sketch, bad: float
) -> None:
    X = rows()
    X[3, 4] = bad
    calls: list[Callable[[Array], Any]] = [
        sm.GaussianMixture(2, random_state=0).fit,
        sm.KMeans(2, random_state=0).fit,
        mixture.predict,
        mixture.predict_proba,
        mixture.score_samples,
        mixture.refine,
        k_means.predict,
        k_means.transform,
        k_means.score,
        k_means.refine,
        sketch.distances,
        sketch.sketcher.rotate,
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
            call(X)
    with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
        sketch.sketcher.unrotate(X)


@every_transform
def test_float16_overflow_is_refused(transform: str) -> None:
    X = np.full((3, 24), 1e5)
    sketcher = sm.Sketcher(24, transform=transform, dtype="float16", random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"too large for a sketch of dtype 'float16' .*65504.*dtype='float64'"):
        sketcher.transform(X)


def test_float32_overflow_is_refused() -> None:
    X = np.full((3, 24), 1e39)
    with pytest.raises(ValueError, match=r"too large for a sketch of dtype 'float32' .*dtype='float64'"):
        sm.Sketcher(4, transform="none", random_state=0).fit_transform(X)


@pytest.mark.parametrize("value", [65504.0, 65519.0, 65519.99, 65519.9999, 65519.999999999, 65520.0])
def test_a_sketch_never_holds_infinity(value: float) -> None:
    # Halfway between the largest float16 and the next that there would be; in two roundings 65519.9999 gets there.
    sketcher = sm.Sketcher(24, transform="none", dtype="float16", random_state=0).fit(rows())
    try:
        sketch = sketcher.transform(np.full((3, 24), value))
    except ValueError as error:
        assert value > 65519
        assert "float16" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(sketch.values).all()


@every_transform
def test_float64_sketches_of_large_float32_rows(transform: str) -> None:
    # What the message on overflow recommends must work: a rotated entry may be sqrt(24) times as large.
    X = np.full((20, 24), 3e38, np.float32)
    sketch = sm.Sketcher(12, transform=transform, dtype="float64", random_state=0).fit_transform(X)
    assert np.isfinite(sketch.values).all()
    assert sketch.reservoir is not None
    assert np.isfinite(sketch.reservoir.rows).all()


# -- rows of the wrong kind -------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.zeros((0, 5)), "0 sample"),
        (pd.DataFrame(np.zeros((0, 5))), "0 sample"),
        (pl.DataFrame(np.zeros((0, 5))), "0 sample"),
        (sp.csr_array((0, 5)), "0 sample"),
        (np.zeros((5, 0)), "0 feature"),
        (pl.DataFrame(), "0 sample"),
        ([], "Expected 2D array"),
        ([1.0, 2.0, 3.0], "Expected 2D array"),
        (np.zeros(5), "Expected 2D array"),
        (np.float64(3.0), "Expected 2D array"),
        (None, "Expected 2D array"),
        (pd.Series([1.0, 2.0]), "2"),
        (np.zeros((2, 3, 4)), "dim 3"),
        (rows() + 1j, "Complex data not supported"),
        (sp.csr_array(rows() + 1j), "Complex data not supported"),
        (pd.DataFrame(rows() + 1j), "Complex data not supported"),
        ([["a", "b"], ["c", "d"]], "strings"),
        (np.array([["1", "2"], ["3", "4"]]), "strings"),
        (pd.DataFrame({"a": ["x", "y", "z"], "b": [1, 2, 3]}), "could not convert string to float: 'x'"),
        (pl.DataFrame({"a": ["x", "y", "z"], "b": [1, 2, 3]}), "could not convert string to float: 'x'"),
        (np.array([[1, "x"], [2, "y"]], object), "could not convert string to float: 'x'"),
        ([[1.0, 2.0], [3.0]], "inhomogeneous"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_rows_of_the_wrong_kind_are_refused(estimator: Any, X: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        refuse(estimator, X)


@pytest.mark.parametrize(
    "make", [lambda X: X, sp.csr_array, pd.DataFrame, pl.DataFrame, lambda X: X.tolist(), np.asfortranarray]
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_rows_of_another_width_are_refused(
    sketcher: sm.Sketcher,
    sketch: sm.Sketch,
    mixture: sm.GaussianMixture,
    k_means: sm.KMeans,
    make: Callable[[Array], Any],
) -> None:
    narrow = make(rows(30, 23))
    calls: list[Callable[[Any], Any]] = [
        sketcher.transform,
        sketcher.rotate,
        sketch.distances,
        mixture.predict,
        mixture.score_samples,
        mixture.refine,
        k_means.predict,
        k_means.transform,
        k_means.refine,
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"X has 23 features, but .* is expecting 24 features"):
            call(narrow)


def test_rotated_rows_of_another_width_are_refused(sketcher: sm.Sketcher) -> None:
    with pytest.raises(ValueError, match="Y has 23 entries a row; rotated rows have 24"):
        sketcher.unrotate(rows(2, 23))
    with pytest.raises(ValueError, match="Expected 2D array"):
        sketcher.unrotate(np.zeros(24))
    padded = sm.Sketcher(6, transform="hadamard", random_state=0).fit(rows(2, 257))
    with pytest.raises(ValueError, match="Y has 257 entries a row; rotated rows have 258"):
        padded.unrotate(rows(2, 257))


@pytest.mark.parametrize("first_row", [-1, -(2**40)])
def test_row_numbers_below_zero_are_refused(sketcher: sm.Sketcher, first_row: int) -> None:
    with pytest.raises(ValueError, match=f"first_row must be at least 0; got {first_row}"):
        sketcher.transform(rows(), first_row=first_row)


@pytest.mark.parametrize("first_row", [1.0, "0", None, True])
def test_row_numbers_that_are_no_whole_numbers_are_refused(sketcher: sm.Sketcher, first_row: Any) -> None:
    with pytest.raises(TypeError, match="first_row must be an integer; got"):
        sketcher.transform(rows(), first_row=first_row)


@pytest.mark.parametrize("first_row", [2**63, 2**64])
def test_row_numbers_beyond_64_bits_are_refused_by_name(sketcher: sm.Sketcher, first_row: int) -> None:
    with pytest.raises(ValueError, match="first_row"):
        sketcher.transform(rows(), first_row=first_row)


# -- parameters -------------------------------------------------------------------------------------------


SKETCHING: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sketch_size": 25}, ValueError, r"sketch_size=25 is more than the 24 features .* at most 24"),
    ({"sketch_size": 0}, ValueError, r"sketch_size must be at least 1; got 0"),
    ({"sketch_size": -3}, ValueError, r"sketch_size must be at least 1; got -3"),
    ({"sketch_size": 0.0}, ValueError, r"share of the features, in \(0, 1\]; got 0\.0.* int"),
    ({"sketch_size": 1.5}, ValueError, r"share of the features, in \(0, 1\]; got 1\.5.* int"),
    ({"sketch_size": 6.0}, ValueError, r"share of the features, in \(0, 1\]; got 6\.0.* int"),
    ({"sketch_size": -0.1}, ValueError, r"share of the features, in \(0, 1\]; got -0\.1"),
    ({"sketch_size": np.nan}, ValueError, r"share of the features, in \(0, 1\]; got nan"),
    ({"sketch_size": np.inf}, ValueError, r"share of the features, in \(0, 1\]; got inf"),
    ({"sketch_size": "all"}, ValueError, r"sketch_size .*'auto'.* got 'all'"),
    ({"sketch_size": None}, TypeError, r"sketch_size .* got None"),
    ({"sketch_size": True}, TypeError, r"sketch_size .* got True"),
    ({"sketch_size": [6]}, TypeError, r"sketch_size .* got \[6\]"),
    ({"transform": "dft"}, ValueError, r"transform must be one of .*'hadamard'.*'none'.* got 'dft'"),
    ({"transform": None}, ValueError, r"transform must be one of .*'none'.* got None"),
    ({"transform": "Hadamard"}, ValueError, r"transform must be one of .* got 'Hadamard'"),
    ({"n_shared": -1}, ValueError, r"n_shared must be at least 0; got -1"),
    ({"n_shared": 7}, ValueError, r"n_shared=7 is more than the sketch_size=6 .* at most 6"),
    ({"n_shared": 0.5}, TypeError, r"n_shared must be an integer; got 0\.5"),
    ({"n_shared": None}, TypeError, r"n_shared must be an integer; got None"),
    ({"dtype": "float128"}, ValueError, r"dtype must be one of 'float16', 'float32', 'float64'; got 'float128'"),
    ({"dtype": "int8"}, ValueError, r"dtype must be one of .* got 'int8'"),
    ({"dtype": "double precision"}, ValueError, r"dtype must be one of .* got 'double precision'"),
    ({"dtype": np.complex64}, ValueError, r"dtype must be one of .* got .*complex64"),
    ({"dtype": object}, ValueError, r"dtype must be one of .* got .*object"),
    ({"dtype": 32}, ValueError, r"dtype must be one of .* got 32"),
    ({"random_state": "seed"}, ValueError, r"'seed' cannot be used to seed"),
]


@pytest.mark.parametrize(("parameters", "error", "words"), SKETCHING)
@pytest.mark.parametrize("kind", [sm.Sketcher, sm.GaussianMixture, sm.KMeans])
def test_sketching_parameters(
    kind: type[Any], parameters: dict[str, Any], error: type[Exception], words: str
) -> None:
    estimator = kind(**({"sketch_size": 6} | parameters))
    with pytest.raises(error, match=words):
        estimator.fit(rows())


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_a_foreign_byte_order_is_refused_or_taken_as_ours(dtype: str) -> None:
    try:
        sketch = sm.Sketcher(6, dtype=dtype, random_state=0).fit_transform(rows())
    except ValueError as error:
        assert "dtype must be one of" in str(error)  # noqa: PT017
    else:
        assert sketch.values.dtype == np.dtype(dtype).newbyteorder("=")


BOTH: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_iter": 0}, ValueError, r"max_iter must be at least 1; got 0"),
    ({"max_iter": 1.5}, TypeError, r"max_iter must be an integer; got 1\.5"),
    ({"tol": -1e-3}, ValueError, r"tol must be finite and at least 0; got -0\.001"),
    ({"tol": np.nan}, ValueError, r"tol must be finite and at least 0; got nan"),
    ({"tol": np.inf}, ValueError, r"tol must be finite and at least 0; got inf"),
    ({"tol": "small"}, TypeError, r"tol must be a number; got 'small'"),
    ({"tol": None}, TypeError, r"tol must be a number; got None"),
    ({"n_init": 0}, ValueError, r"n_init must be at least 1; got 0"),
    ({"n_init": 2.0}, TypeError, r"n_init must be an integer; got 2\.0"),
    ({"verbose": -1}, ValueError, r"verbose must be at least 0; got -1"),
    ({"verbose": "loud"}, TypeError, r"verbose must be an integer; got 'loud'"),
    ({"verbose": None}, TypeError, r"verbose must be an integer; got None"),
]


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        *BOTH,
        ({"n_init": "auto"}, TypeError, r"n_init must be an integer; got 'auto'"),
        ({"n_components": 0}, ValueError, r"n_components must be at least 1; got 0"),
        ({"n_components": 2.0}, TypeError, r"n_components must be an integer; got 2\.0"),
        ({"n_components": "2"}, TypeError, r"n_components must be an integer; got '2'"),
        ({"n_components": 31}, ValueError, r"n_components=31 is more than .* n_samples=30; lower n_components"),
        (
            {"covariance_type": "banded"},
            ValueError,
            r"covariance_type must be one of 'diag', 'spherical'.* got 'banded'",
        ),
        ({"covariance_type": None}, ValueError, r"covariance_type must be one of .* got None"),
        ({"reg_covar": -1}, ValueError, r"reg_covar must be finite and at least 0; got -1"),
        ({"reg_covar": "none"}, TypeError, r"reg_covar must be a number; got 'none'"),
        ({"init_params": "kmeans"}, ValueError, r"init_params must be one of 'k-means\+\+'.* got 'kmeans'"),
        ({"weights_init": [0.5]}, ValueError, r"weights_init has shape \(1,\); expected \(2,\)"),
        ({"weights_init": [[0.5, 0.5]]}, ValueError, r"weights_init has shape \(1, 2\); expected \(2,\)"),
        ({"weights_init": [0.5, 0.6]}, ValueError, r"sum to 1; its sum is 1\.1.* Divide"),
        ({"weights_init": [1.5, -0.5]}, ValueError, r"weights_init must be non-negative"),
        ({"weights_init": [np.nan, 1.0]}, ValueError, r"weights_init must be non-negative and sum to 1"),
        ({"means_init": rows(3)}, ValueError, r"means_init has shape \(3, 24\); expected \(2, 24\)"),
        ({"means_init": rows(2, 6)}, ValueError, r"means_init has shape \(2, 6\); expected \(2, 24\)"),
        ({"means_init": np.zeros(24)}, ValueError, r"means_init has shape \(24,\); expected \(2, 24\)"),
        ({"means_init": np.full((2, 24), np.nan)}, ValueError, r"means_init contains NaN"),
        ({"means_init": np.full((2, 24), np.inf)}, ValueError, r"means_init contains infinity"),
        ({"means_init": "k-means++"}, ValueError, r"could not convert string"),
    ],
)
def test_parameters_of_mixtures(
    sketch: sm.Sketch, parameters: dict[str, Any], error: type[Exception], words: str
) -> None:
    for X in (sketch, rows()):
        with pytest.raises(error, match=words):
            sm.GaussianMixture(**({"n_components": 2} | parameters)).fit(X)


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        *BOTH,
        ({"n_init": "many"}, ValueError, r"n_init must be .*'auto'.* got 'many'"),
        ({"n_clusters": 0}, ValueError, r"n_clusters must be at least 1; got 0"),
        ({"n_clusters": None}, TypeError, r"n_clusters must be an integer; got None"),
        ({"n_clusters": 31}, ValueError, r"n_clusters=31 is more than .* n_samples=30; lower n_clusters"),
        ({"init": "kmeans++"}, ValueError, r"init must be one of 'k-means\+\+', 'random'.* got 'kmeans\+\+'"),
        ({"init": rows(3)}, ValueError, r"init has shape \(3, 24\); expected \(2, 24\)"),
        ({"init": rows(2, 6)}, ValueError, r"init has shape \(2, 6\); expected \(2, 24\)"),
        ({"init": np.full((2, 24), np.nan)}, ValueError, r"init contains NaN"),
    ],
)
def test_parameters_of_k_means(
    sketch: sm.Sketch, parameters: dict[str, Any], error: type[Exception], words: str
) -> None:
    for X in (sketch, rows()):
        with pytest.raises(error, match=words):
            sm.KMeans(**({"n_clusters": 2} | parameters)).fit(X)


def test_complex_parameters_are_refused(sketch: sm.Sketch) -> None:
    with pytest.raises((TypeError, ValueError), match=r"means_init|[Cc]omplex"):
        sm.GaussianMixture(2, means_init=rows(2) + 1j).fit(sketch)
    with pytest.raises((TypeError, ValueError), match=r"init|[Cc]omplex"):
        sm.KMeans(2, init=rows(2) + 1j).fit(sketch)
    with pytest.raises((TypeError, ValueError), match=r"weights_init|[Cc]omplex"):
        sm.GaussianMixture(2, weights_init=np.array([0.5, 0.5 + 0j])).fit(sketch)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.ones(29), r"sample_weight has shape \(29,\); expected .*\(30,\)"),
        (np.ones((30, 1)), r"sample_weight has shape \(30, 1\); expected .*\(30,\)"),
        (np.ones((1, 30)), r"sample_weight has shape \(1, 30\); expected .*\(30,\)"),
        ([], r"sample_weight has shape \(0,\); expected .*\(30,\)"),
        (np.where(np.arange(30) == 4, -1e-9, 1), r"sample_weight must be finite and not negative.*weight 0"),
        (np.where(np.arange(30) == 4, np.nan, 1), r"sample_weight must be finite"),
        (np.where(np.arange(30) == 4, np.inf, 1), r"sample_weight must be finite"),
        (np.zeros(30), r"sample_weight is zero for every row; at least one"),
        (0, r"sample_weight is zero for every row"),
        (-1.0, r"sample_weight must be finite and not negative"),
        (["heavy"] * 30, r"could not convert string to float: 'heavy'"),
    ],
    ids=str,
)
def test_sample_weight(sketch: sm.Sketch, k_means: sm.KMeans, weight: Any, words: str) -> None:
    for X in (sketch, rows()):
        for estimator in (sm.GaussianMixture(2, random_state=0), sm.KMeans(2, random_state=0)):
            with pytest.raises(ValueError, match=words):
                estimator.fit(X, sample_weight=weight)
        with pytest.raises(ValueError, match=words):
            k_means.score(X, sample_weight=weight)


# -- before and after fitting -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda X: sm.Sketcher().transform(X),
        lambda X: sm.Sketcher().rotate(X),
        lambda X: sm.Sketcher().unrotate(X),
        lambda X: sm.GaussianMixture().predict(X),
        lambda X: sm.GaussianMixture().predict_proba(X),
        lambda X: sm.GaussianMixture().score_samples(X),
        lambda X: sm.GaussianMixture().score(X),
        lambda X: sm.GaussianMixture().bic(X),
        lambda X: sm.GaussianMixture().aic(X),
        lambda X: sm.GaussianMixture().icl(X),
        lambda X: sm.GaussianMixture().refine(X),
        lambda X: sm.GaussianMixture().sample(3),
        lambda X: sm.GaussianMixture().covariance(0),
        lambda X: sm.KMeans().predict(X),
        lambda X: sm.KMeans().transform(X),
        lambda X: sm.KMeans().score(X),
        lambda X: sm.KMeans().refine(X),
        lambda X: sm.Sketch(np.zeros((1, 6)), np.zeros((1, 6), np.uint16), sm.Sketcher()),
    ],
)
def test_nothing_works_before_fitting(call: Callable[[Array], Any]) -> None:
    with pytest.raises(NotFittedError, match=r"is not fitted yet. Call 'fit'"):
        call(rows())


def test_a_failed_fit_is_no_fit() -> None:
    mixture = sm.GaussianMixture(2, sketch_size=6)
    with pytest.raises(ValueError, match="sample_weight"):
        mixture.fit(rows(), sample_weight=np.zeros(30))
    with pytest.raises(NotFittedError):
        mixture.predict(rows())


def test_warm_start_goes_on_from_a_fit_of_the_same_kind_only(sketch: sm.Sketch) -> None:
    mixture = small_mixture(warm_start=True).fit(sketch)
    mixture.set_params(n_components=3)
    with pytest.raises(ValueError, match=r"n_components=2, .* now it is n_components=3, .* warm_start=False"):
        mixture.fit(sketch)
    mixture.set_params(n_components=2, covariance_type="spherical")
    with pytest.raises(ValueError, match=r"'diag'.* now .*'spherical'; set warm_start=False"):
        mixture.fit(sketch)


def test_warm_start_goes_on_in_the_same_frame_only(sketch: sm.Sketch) -> None:
    mixture = small_mixture(warm_start=True).fit(sketch)
    other = sm.Sketcher(6, random_state=1).fit_transform(rows())
    with pytest.raises(ValueError, match=r"rotation differs .* `sketcher_`"):
        mixture.fit(other)


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), ("3", TypeError)])
def test_numbers_of_samples(mixture: sm.GaussianMixture, n: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="n_samples must be"):
        mixture.sample(n)


@pytest.mark.parametrize(("k", "error"), [(2, ValueError), (-1, ValueError), (0.0, TypeError)])
def test_numbers_of_components(mixture: sm.GaussianMixture, k: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="k"):
        mixture.covariance(k)


@pytest.mark.parametrize(
    "other",
    [
        lambda: sm.Sketcher(6, random_state=1).fit_transform(rows()),  # other signs
        lambda: sm.Sketcher(6, transform="dct", random_state=0).fit_transform(rows()),
        lambda: sm.Sketcher(6, transform="none", random_state=0).fit_transform(rows()),
        lambda: sm.Sketcher(6, random_state=0).fit_transform(rows(30, 32)),
    ],
    ids=["signs", "transform", "unmixed", "width"],
)
def test_a_model_reads_sketches_of_its_own_frame_only(
    mixture: sm.GaussianMixture, k_means: sm.KMeans, other: Callable[[], sm.Sketch]
) -> None:
    calls: list[Callable[[sm.Sketch], Any]] = [
        mixture.predict,
        mixture.predict_proba,
        mixture.score_samples,
        mixture.bic,
        k_means.predict,
        k_means.transform,
        k_means.score,
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"made by Sketcher.* rotation differs .* `sketcher_`"):
            call(other())


def test_a_sketch_without_rows_cannot_be_fitted(sketch: sm.Sketch) -> None:
    for estimator in (sm.GaussianMixture(), sm.KMeans()):
        with pytest.raises(ValueError, match="sketch has 0 rows"):
            estimator.fit(sketch[:0])


def test_a_sketch_without_rows_has_no_labels(
    sketch: sm.Sketch, mixture: sm.GaussianMixture, k_means: sm.KMeans
) -> None:
    # As for raw rows: an empty result, or an error that says what is missing.
    for call in (
        mixture.predict,
        mixture.predict_proba,
        mixture.score_samples,
        k_means.predict,
        k_means.transform,
    ):
        try:
            assert len(call(sketch[:0])) == 0
        except ValueError as error:
            assert "0 rows" in str(error)  # noqa: PT017


# -- sketches ---------------------------------------------------------------------------------------------


def good_arrays() -> tuple[Array, Array]:
    """Two rows that keep 6 of 24 entries."""
    indices = np.array([[0, 3, 5, 9, 20, 23], [1, 2, 3, 4, 5, 6]], np.uint16)
    return np.ones((2, 6), np.float32), indices


def test_a_sketch_of_good_arrays(sketcher: sm.Sketcher) -> None:
    values, indices = good_arrays()
    sketch = sm.Sketch(values, indices, sketcher)
    wide = sm.Sketch(values.astype(np.float64), indices.astype(np.uint32), sketcher)
    np.testing.assert_array_equal(wide.mean(), sketch.mean())
    assert len(sm.Sketch(values[:0], indices[:0], sketcher)) == 0
    assert len(sm.concatenate([sketch, sm.Sketch(values, indices.astype(np.uint32), sketcher)])) == 4


def with_index(i: int, j: int, index: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def change(values: Array, indices: Array) -> tuple[Array, Array]:
        indices[i, j] = index
        return values, indices

    return change


def with_value(value: float) -> Callable[[Array, Array], tuple[Array, Array]]:
    def change(values: Array, indices: Array) -> tuple[Array, Array]:
        values[1, 2] = value
        return values, indices

    return change


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (with_index(1, 5, 24), ValueError, r"indices contain 24, but rotated rows have 24 entries \(0 to 23\)"),
        (with_index(0, 5, 65535), ValueError, r"indices contain 65535, but rotated rows have 24"),
        (with_index(0, 1, 6), ValueError, r"indices must increase along each row.* sort"),
        (with_index(1, 1, 1), ValueError, r"indices must increase along each row"),
        (with_value(np.nan), ValueError, r"values contain NaN or infinity"),
        (with_value(np.inf), ValueError, r"values contain NaN or infinity"),
        (with_value(-np.inf), ValueError, r"values contain NaN or infinity"),
        (lambda v, i: (v[:1], i), ValueError, r"values have shape \(1, 6\) and indices \(2, 6\); expected"),
        (lambda v, i: (v[:, :5], i[:, :5]), ValueError, r"\(2, 5\).* expected \(n_samples, 6\)"),
        (lambda v, i: (v[0], i[0]), ValueError, r"\(6,\).* expected \(n_samples, 6\)"),
        (lambda v, i: (v[None], i[None]), ValueError, r"\(1, 2, 6\).* expected \(n_samples, 6\)"),
        (lambda v, i: (v, i[:, :5]), ValueError, r"\(2, 6\) and indices \(2, 5\)"),
        (lambda v, i: (v, i.astype(np.int64)), TypeError, r"indices have dtype int64; expected uint16 or uint32"),
        (lambda v, i: (v, i.astype(np.uint8)), TypeError, r"indices have dtype uint8; expected uint16"),
        (lambda v, i: (v, i.astype(float)), TypeError, r"indices have dtype float64; expected uint16"),
        (lambda v, i: (v, i.tolist()), TypeError, r"indices have dtype int64; expected uint16"),
        (lambda v, i: (v.astype(int), i), TypeError, r"values have dtype int64; expected .*float32"),
        (lambda v, i: (v.astype(complex), i), TypeError, r"values have dtype complex128; expected"),
        (lambda v, i: (v.astype(np.longdouble), i), TypeError, r"values have dtype .*; expected"),
        (lambda v, i: (v.astype(str), i), TypeError, r"values have dtype .*; expected"),
        (lambda v, i: (None, None), TypeError, r"values have dtype object; expected"),
    ],
)
def test_a_sketch_of_bad_arrays(
    sketcher: sm.Sketcher,
    change: Callable[[Array, Array], tuple[Array, Array]],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        sm.Sketch(*change(*good_arrays()), sketcher)


def test_the_arrays_of_a_sketch_are_read_only(sketch: sm.Sketch) -> None:
    values, indices = good_arrays()
    for of in (
        sketch,
        sketch[3:9],
        sketch[[1, 2]],
        sm.concatenate([sketch, sketch]),
        sm.Sketch(values, indices, sketch.sketcher),
    ):
        for array in (of.values, of.indices):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 1
        for name in ("values", "indices", "sketcher", "reservoir", "kept"):
            with pytest.raises(AttributeError):
                setattr(of, name, None)
    assert values.flags.writeable  # those that were handed over stay as they were


TAMPERED_CALLS = [
    "mixture.fit(sketch)",
    "mixture.predict(sketch)",
    "mixture.score_samples(sketch)",
    "k_means.fit(sketch)",
    "k_means.predict(sketch)",
    "k_means.transform(sketch)",
    "sketch.distances(X)",
    "sketch.distances()",
    "sketch.mean()",
    "sketch.mean(return_std=True)",
    "sketch.variance()",
    "sketch.covariance()",
    "sketch.to_csr()",
    "sketch[:4].mean()",
    "mixture.fit(sm.concatenate([sketch, sketch]))",
]
# An index that reaches a kernel is a write to the memory of something else: so, in a process of its own.
TAMPER = """
import sys
import numpy as np
import sketchmix as sm
X = np.random.default_rng(0).normal(size=(500, 64))
sketch = sm.Sketcher(6, random_state=0).fit_transform(X)
mixture = sm.GaussianMixture(2, tol=1.0, reg_covar=0.1, random_state=0).fit(sketch)
k_means = sm.KMeans(2, tol=1.0, random_state=0).fit(sketch)
indices = sketch.indices
indices.flags.writeable = True
indices[3, 5] = 65535
for call in sys.argv[1:]:
    try:
        eval(call)
        print("accepted", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What became of each call; after a crash the next ones get another process."""
    done: dict[str, str] = {}
    while len(done) < len(TAMPERED_CALLS):
        left = TAMPERED_CALLS[len(done) :]
        run = subprocess.run(
            [sys.executable, "-c", TAMPER, *left],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = run.stdout.splitlines()
        done |= dict(zip(left, lines, strict=False))
        if len(lines) < len(left):
            done[left[len(lines)]] = f"the process died with {run.returncode} {run.stderr}"
    return done


@pytest.mark.parametrize("call", TAMPERED_CALLS)
def test_indices_that_were_tampered_with_are_refused(outcomes: dict[str, str], call: str) -> None:
    assert outcomes[call].startswith("ValueError indices contain 65535, but rotated rows have 64 entries")


# -- parts and joins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows_of_it", "error"),
    [
        (5, TypeError),
        (-1, TypeError),
        ("all", TypeError),
        (None, TypeError),
        (1.5, TypeError),
        (np.zeros((2, 2), int), TypeError),
        ([0.5], IndexError),
        ([30], IndexError),
        ([-31], IndexError),
        (np.ones(29, bool), IndexError),
        ((slice(0, 2), slice(0, 2)), (IndexError, TypeError)),
        (slice(None, None, 0), ValueError),
    ],
    ids=str,
)
def test_rows_of_a_sketch_that_it_does_not_have(sketch: sm.Sketch, rows_of_it: Any, error: Any) -> None:
    with pytest.raises(error):
        sketch[rows_of_it]


def test_a_sketch_says_how_it_is_indexed(sketch: sm.Sketch) -> None:
    with pytest.raises(TypeError, match=r"slice, a mask or .* array .* sketch\[a:b\]"):
        sketch[3]  # type: ignore[call-overload,unused-ignore]


def test_joining_nothing() -> None:
    with pytest.raises(ValueError, match="at least one sketch; got none"):
        sm.concatenate([])


@pytest.mark.parametrize(
    "parameters",
    [
        {"random_state": 1},
        {"sketch_size": 5},
        {"transform": "dct"},
        {"n_shared": 1},
    ],
    ids=str,
)
def test_joining_sketches_of_other_sketchers(sketch: sm.Sketch, parameters: dict[str, Any]) -> None:
    other = sm.Sketcher(**({"sketch_size": 6, "random_state": 0} | parameters)).fit_transform(rows())
    with pytest.raises(
        ValueError, match=r"sketch 2 was made by another sketcher than sketch 0; .* one fitted Sketcher"
    ):
        sm.concatenate([sketch, sketch, other])


def test_joining_sketches_of_other_widths(sketch: sm.Sketch) -> None:
    other = sm.Sketcher(6, random_state=0).fit_transform(rows(30, 32))
    with pytest.raises(ValueError, match="sketch 1 was made by another sketcher"):
        sm.concatenate([sketch, other])


def test_joining_sketches_of_other_types(sketch: sm.Sketch) -> None:
    other = sm.Sketcher(6, dtype="float16", random_state=0).fit_transform(rows())
    with pytest.raises(ValueError, match="sketch 1 has dtype float16, sketch 0 float32; use one dtype"):
        sm.concatenate([sketch, other])


def test_joining_what_is_no_sketch(sketch: sm.Sketch) -> None:
    no_sketches: list[Any] = [[rows()], [sketch, rows()], [sketch, None]]
    for given in no_sketches:
        with pytest.raises(TypeError, match=r"[Ss]ketch"):
            sm.concatenate(given)


def test_a_sketch_is_not_rows(sketcher: sm.Sketcher, sketch: sm.Sketch) -> None:
    """What was sketched cannot be sketched again; the message says so, and does not speak of slices."""
    given: Any = sketch
    calls: list[Callable[[Any], Any]] = [sketcher.fit, sketcher.transform, sketcher.rotate, sketch.distances]
    for call in calls:
        with pytest.raises(TypeError, match="rows") as caught:
            call(given)
        assert "slice" not in str(caught.value)


# -- the core, to which no user comes but through checks ---------------------------------------------------


def empty_rotation(**sizes: int) -> _core.Rotation:
    nothing = np.zeros(0, np.uint32)
    tables = {"signs": np.zeros(0), "order": None, "mix": None, "segment": nothing, "coefficient": nothing}
    chosen: dict[str, Any] = {"lead": 0, "run": 0, "stride": 0, "terms": 0, **tables, **sizes}
    return _core.Rotation(coefficients=np.zeros(0), **chosen)


def test_the_core_refuses_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="entries that are copied must be those of the row"):
        empty_rotation(n_features=2, n_rotated=1000)
    with pytest.raises(ValueError, match="rows must have entries"):
        empty_rotation(n_features=0, n_rotated=0)
    with pytest.raises(ValueError, match="there must be an unknown"):
        _core.solve_each(np.zeros((3, 0)), np.zeros((3, 0)), np.zeros((3, 0)))
    with pytest.raises(ValueError, match="matrices must be n_systems packed triangles"):
        _core.solve_each(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)))
    values, indices = np.zeros((4, 2), np.float32), np.zeros((4, 2), np.uint16)
    with pytest.raises(ValueError, match="noise must have one entry a component"):
        _core.low_rank_posterior(
            values,
            indices,
            np.zeros(2),
            np.zeros((3, 2)),
            np.zeros((2, 3, 1)),
            np.zeros(1),
            True,
            np.zeros((4, 2)),
            None,
        )
