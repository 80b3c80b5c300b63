"""PCA: against scikit-learn's on all entries, and against dense Gaussians on some."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline

import sketchmix as sm

Array = NDArray[Any]


def spread_rows(n: int = 3000, p: int = 96, seed: int = 0) -> tuple[Array, Array]:
    """Rows that spread in three directions, and these."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(p, 3)))[0].T
    return (rng.normal(size=(n, 3)) * [9, 6, 4]) @ directions + rng.normal(size=(n, p)) + 5, directions


def in_full(n_components: int, **parameters: Any) -> sm.PCA:
    whole: dict[str, Any] = {"sketch_size": 1.0, "dtype": "float64", "tol": 1e-14, "max_iter": 20_000}
    return sm.PCA(n_components, **{**whole, **parameters})


def same_sign(directions: Array, of: Array) -> Array:
    turned: Array = directions * np.sign((directions * of).sum(axis=1, keepdims=True))
    return turned


@pytest.mark.parametrize("n_components", [1, 3])
def test_with_all_entries_it_is_scikit_learns_pca(n_components: int) -> None:
    X, _ = spread_rows(400, 8)
    ours, theirs = in_full(n_components).fit(X), decomposition.PCA(n_components).fit(X)
    of_n = 399 / 400
    assert_allclose(ours.mean_, theirs.mean_, 1e-7)
    assert_allclose(ours.explained_variance_, theirs.explained_variance_ * of_n, 1e-5)
    assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, 1e-5)
    assert_allclose(ours.noise_variance_, theirs.noise_variance_ * of_n, 1e-5)
    assert_allclose(same_sign(ours.components_, theirs.components_), theirs.components_, atol=1e-4)
    assert_allclose(ours.get_covariance(), theirs.get_covariance() * of_n, atol=1e-3)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    assert_allclose(ours.transform(X) * signs, theirs.transform(X), atol=0.01)
    assert_allclose(
        ours.inverse_transform(ours.transform(X)), theirs.inverse_transform(theirs.transform(X)), atol=0.01
    )


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
def test_directions_are_recovered_from_an_eighth_of_the_entries(transform: str) -> None:
    X, directions = spread_rows()
    pca = sm.PCA(3, sketch_size=12, transform=transform, random_state=0).fit(X)
    assert pca.converged_
    assert_allclose(pca.components_ @ pca.components_.T, np.eye(3), atol=1e-9)
    assert (np.abs((pca.components_ * directions).sum(axis=1)) > 0.97).all()
    assert_allclose(pca.explained_variance_, [82, 37, 17], rtol=0.15)
    assert_allclose(pca.noise_variance_, 1, rtol=0.05)
    assert_allclose(pca.explained_variance_ratio_, pca.explained_variance_ / np.trace(pca.get_covariance()))
    # A coordinate of the mean rests on 375 rows.
    assert np.abs(pca.mean_ - X.mean(axis=0)).max() < 6 * np.sqrt(np.var(X, axis=0).max() / 375)


def test_coordinates_of_a_sketch_are_what_the_kept_entries_tell() -> None:
    X, _ = spread_rows(200, 24)
    pca = sm.PCA(3, sketch_size=7, dtype="float64", random_state=0).fit(X)
    sketch = pca.sketcher_.transform(X)
    axes = pca.sketcher_.rotate(np.eye(24)).T
    covariance, mean = axes @ pca.get_covariance() @ axes.T, axes @ pca.mean_
    expected = []
    for x, kept in zip(sketch.values, sketch.indices, strict=True):
        rest = covariance[:, kept] @ np.linalg.solve(covariance[np.ix_(kept, kept)], x - mean[kept])
        expected.append(pca.components_ @ axes.T @ rest)
    assert_allclose(pca.transform(sketch), expected, 1e-8, 1e-8)
    whole = sm.Sketcher(24, random_state=0, dtype="float64").fit_transform(X)
    of_all = in_full(3, random_state=0).fit(whole)
    assert_allclose(of_all.transform(whole), of_all.transform(X), 1e-7, 1e-7)


def test_scores_are_those_of_the_gaussian() -> None:
    X, _ = spread_rows(200, 12)
    pca = sm.PCA(2, sketch_size=6, random_state=0).fit(X)
    expected = multivariate_normal(pca.mean_, pca.get_covariance()).logpdf(X)
    assert_allclose(pca.score_samples(X), expected, 1e-8)
    assert_allclose(pca.score(X), expected.mean(), 1e-8)


def test_weight_two_is_the_row_twice_and_zero_its_absence() -> None:
    X, _ = spread_rows(150, 8)
    times = np.random.default_rng(0).integers(0, 3, 150)
    weighted, repeated = in_full(2).fit(X, sample_weight=times), in_full(2).fit(np.repeat(X, times, axis=0))
    assert_allclose(weighted.explained_variance_, repeated.explained_variance_, 1e-6)
    assert_allclose(weighted.mean_, repeated.mean_, 1e-7)


def test_weights_that_sum_to_one_are_as_good_as_none() -> None:
    X, _ = spread_rows(800, 24)
    plain, weighted = (sm.PCA(3, sketch_size=8, random_state=0).fit(X, sample_weight=w) for w in (None, 1 / 800))
    assert_allclose(weighted.explained_variance_, plain.explained_variance_, 1e-3)


def test_a_model_of_a_sketch_is_that_of_its_rows() -> None:
    X, _ = spread_rows(500, 32)
    sketch = sm.Sketcher(8, random_state=3).fit_transform(X)
    ours, of_rows = sm.PCA(2).fit(sketch), sm.PCA(2, sketch_size=8, random_state=3).fit(X)
    assert_array_equal(ours.components_, of_rows.components_)


def test_rows_of_less_directions_than_components() -> None:
    X = np.random.default_rng(0).normal(size=(50, 1)) @ np.ones((1, 8))
    for rows in (X, np.ones((20, 8))):
        pca = sm.PCA(3, sketch_size=1.0).fit(rows)
        assert_allclose(pca.components_ @ pca.components_.T, np.eye(3), atol=1e-8)
        assert_allclose(pca.mean_, rows.mean(axis=0), atol=1e-6)
        assert_allclose(pca.explained_variance_.sum(), rows.var(axis=0).sum(), rtol=1e-2, atol=1e-9)


def test_too_few_iterations_are_reported() -> None:
    with pytest.warns(ConvergenceWarning, match=r"EM did not converge in 2 iterations.*Increase max_iter or tol"):
        sm.PCA(3, sketch_size=8, max_iter=2, tol=0).fit(spread_rows(200, 24)[0])


def test_in_a_pipeline() -> None:
    pytest.importorskip("pandas")
    X, _ = spread_rows(300, 16)
    pipeline = make_pipeline(sm.PCA(2, random_state=0), sm.KMeans(3, random_state=0)).fit(X)
    assert pipeline.predict(X).shape == (300,)
    frame = sm.PCA(2, random_state=0).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == ["pca0", "pca1"]


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_components": 8}, ValueError, "n_components=8 must be less than n_features=8"),
        ({"n_components": 0}, ValueError, "n_components must be at least 1; got 0"),
        ({"n_components": "mle"}, TypeError, "n_components must be an integer; got 'mle'"),
        ({"tol": -1.0}, ValueError, "tol must be finite and at least 0; got -1.0"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1; got 0"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sm.PCA(**parameters).fit(spread_rows(30, 8)[0])


def test_bad_coordinates_and_a_model_that_was_not_fitted() -> None:
    X, _ = spread_rows(50, 8)
    with pytest.raises(ValueError, match="X has 3 columns; expected 2, one for each component"):
        sm.PCA(2).fit(X).inverse_transform(np.zeros((1, 3)))
    for method in ("transform", "inverse_transform", "score", "score_samples"):
        with pytest.raises(NotFittedError, match="This PCA instance is not fitted yet"):
            getattr(sm.PCA(), method)(X)
    with pytest.raises(NotFittedError):
        sm.PCA().get_covariance()


def test_verbose_prints_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    pca = sm.PCA(2, verbose=1, random_state=0).fit(spread_rows(100, 8)[0])
    assert f"iteration 1: log-likelihood of a row {pca.lower_bounds_[0]:.6f}" in capsys.readouterr().out
