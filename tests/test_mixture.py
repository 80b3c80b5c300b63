"""GaussianMixture: what a fit means, against scikit-learn, dense matrices and known truths."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn import mixture
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from sketchmix import GaussianMixture, Sketch, Sketcher, moments
from tests import reference

Array = NDArray[Any]

FAMILY = pytest.mark.parametrize("family", ["diag", "spherical"])
MAY_NOT_CONVERGE = pytest.mark.filterwarnings("ignore:EM did not converge")
TRANSFORMS = ["hadamard", "dct", "fourier", "none"]


def clusters(n: int = 300, p: int = 6, k: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Overlapping clusters, each with its own spread in each feature."""
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    centers, spread = 2 * rng.normal(size=(k, p)), rng.uniform(0.5, 1.5, (k, p))
    return centers[y] + spread[y] * rng.normal(size=(n, p)), y


def in_full(family: str, k: int = 3, **parameters: Any) -> GaussianMixture:
    """A mixture of all entries as they are: what scikit-learn fits."""
    whole: dict[str, Any] = {"transform": "none", "sketch_size": 1.0, "dtype": "float64", "random_state": 0}
    return GaussianMixture(k, covariance_type=family, **{**whole, **parameters})


def dense_frame(sketcher: Sketcher) -> Array:
    """H D as a matrix, (n_rotated, n_features)."""
    mixing = reference.mixing_matrix(sketcher.transform_, sketcher.n_rotated_)
    frame: Array = mixing[:, : sketcher.n_features_in_] * sketcher.signs_
    return frame


def rotated_diagonals(gm: GaussianMixture) -> Array:
    """The variances in the rotated frame, (K, P)."""
    variances = gm.rotated_variances_
    return variances if variances.ndim == 2 else np.tile(variances[:, None], gm.sketcher_.n_rotated_)


def dense_log_density(gm: GaussianMixture, X: Array) -> Array:
    """Log weight plus log density by dense covariance matrices."""
    k = len(gm.weights_)
    columns = [multivariate_normal(gm.means_[c], gm.covariance(c)).logpdf(X) for c in range(k)]
    densities: Array = np.log(gm.weights_) + np.transpose(columns)
    return densities


def sketch_joint(gm: GaussianMixture, sketch: Sketch) -> Array:
    """Log weight plus log density of the kept entries, by the reference."""
    means = gm.means_ @ dense_frame(gm.sketcher_).T
    return reference.joint_log_density(
        sketch.values.astype(float), sketch.indices, gm.weights_, means, rotated_diagonals(gm)
    )


# -- beside scikit-learn ----------------------------------------------------------------------------------


def sklearn_from_our_start(X: Array, means: Array, family: str, n_iter: int) -> mixture.GaussianMixture:
    """scikit-learn's fit from the bootstrap that the paper prescribes: hard assignment to the nearest mean."""
    k = len(means)
    nearest = ((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    variances = np.array([((X[nearest == c] - means[c]) ** 2).mean(axis=0) for c in range(k)])
    if family == "spherical":
        variances = variances.mean(axis=1)
    theirs = mixture.GaussianMixture(
        k,
        covariance_type=family,
        tol=0,
        max_iter=n_iter,
        weights_init=np.bincount(nearest, minlength=k) / len(X),
        means_init=means,
        precisions_init=1 / variances,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return theirs.fit(X)


@FAMILY
@pytest.mark.parametrize("n_iter", [1, 2, 17])
@MAY_NOT_CONVERGE
def test_with_all_entries_it_is_scikit_learns_mixture(family: str, n_iter: int) -> None:
    X, _ = clusters(500, 7)
    means = X[[3, 100, 210]]
    ours = in_full(family, means_init=means, tol=0, max_iter=n_iter).fit(X)
    theirs = sklearn_from_our_start(X, means, family, n_iter)
    assert ours.n_iter_ == theirs.n_iter_ == n_iter
    assert_allclose(ours.weights_, theirs.weights_, 1e-6)
    assert_allclose(ours.means_, theirs.means_, 1e-6, 1e-9)
    assert_allclose(ours.rotated_variances_, theirs.covariances_, 1e-6)
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), 1e-6, 1e-9)
    assert_allclose(ours.score_samples(X), theirs.score_samples(X), 1e-6)
    assert_array_equal(ours.predict(X), theirs.predict(X))
    assert_array_equal(ours.labels_, theirs.predict(X))
    assert_allclose(ours.lower_bounds_[-1], theirs.lower_bound_, 1e-9)
    for criterion in ("score", "bic", "aic"):
        assert_allclose(getattr(ours, criterion)(X), getattr(theirs, criterion)(X), 1e-6)


@FAMILY
def test_weights_init_and_means_init_are_where_it_starts(family: str) -> None:
    X, _ = clusters(200, 4)
    means, weights = X[[0, 1, 2]], np.array([0.7, 0.2, 0.1])
    gm = in_full(family, means_init=means, weights_init=weights, max_iter=1, tol=1e9)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        gm.fit(X)
    nearest = ((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    variances = np.array([((X[nearest == k] - means[k]) ** 2).mean(axis=0) for k in range(3)])
    if family == "spherical":
        variances = np.tile(variances.mean(axis=1, keepdims=True), 4)
    indices = np.tile(np.arange(4), (200, 1))
    joint = reference.joint_log_density(X, indices, weights, means, variances)
    assert_allclose(gm.lower_bound_, reference.log_likelihood(joint).mean(), 1e-10)
    assert_allclose(gm.weights_, reference.responsibilities(joint).mean(axis=0), 1e-9)


# -- a sketch, or the rows themselves ---------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("transform", [*TRANSFORMS, "auto"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fitting_rows_is_fitting_their_sketch(family: str, transform: str, dtype: str) -> None:
    X, _ = clusters(400, 12)
    same: dict[str, Any] = {
        "sketch_size": 5,
        "transform": transform,
        "n_shared": 2,
        "dtype": dtype,
        "random_state": 7,
    }
    rows = GaussianMixture(3, covariance_type=family, **same).fit(X)
    sketch = Sketcher(**same).fit_transform(X)
    sketched = GaussianMixture(3, covariance_type=family, random_state=7).fit(sketch)
    for name in ("weights_", "means_", "variances_", "rotated_variances_", "labels_", "lower_bounds_"):
        assert_array_equal(getattr(rows, name), getattr(sketched, name))
    assert sketched.sketcher_ is sketch.sketcher
    assert sketched.n_features_in_ == 12


@FAMILY
def test_attributes(family: str) -> None:
    X, _ = clusters(400, 12)
    gm = GaussianMixture(3, covariance_type=family, sketch_size=6, random_state=0).fit(X)
    assert gm.weights_.shape == (3,)
    assert_allclose(gm.weights_.sum(), 1)
    assert gm.means_.shape == gm.variances_.shape == (3, 12)
    assert gm.rotated_variances_.shape == ((3, 12) if family == "diag" else (3,))
    assert gm.labels_.shape == (400,)
    assert gm.converged_
    assert gm.n_iter_ == len(gm.lower_bounds_)
    assert gm.lower_bound_ == gm.lower_bounds_[-1]
    assert gm.sketcher_.sketch_size_ == 6
    assert gm.n_features_in_ == 12
    assert_array_equal(gm.labels_, gm.predict(gm.sketcher_.transform(X)))


def test_a_fit_can_be_repeated_bit_by_bit() -> None:
    X, _ = clusters(300, 16)
    fits = [GaussianMixture(3, sketch_size=5, n_init=3, random_state=4).fit(X) for _ in range(2)]
    assert_array_equal(fits[0].means_, fits[1].means_)
    assert_array_equal(fits[0].labels_, fits[1].labels_)
    other = GaussianMixture(3, sketch_size=5, n_init=3, random_state=5).fit(X)
    assert (other.means_ != fits[0].means_).any()


def test_fit_predict_gives_the_labels_of_the_sketch() -> None:
    X, y = clusters(300, 16)
    gm = GaussianMixture(3, sketch_size=8, random_state=0)
    labels = gm.fit_predict(X)
    assert_array_equal(labels, gm.labels_)
    assert reference.accuracy(y, labels) > 0.8


# -- recovery ---------------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_known_mixture_is_recovered_from_an_eighth_of_the_entries(family: str, transform: str) -> None:
    n, p, q, k = 6000, 96, 12, 3
    rng = np.random.default_rng(0)
    weights, means = np.array([0.5, 0.3, 0.2]), 2 * rng.normal(size=(k, p))
    variances = rng.uniform(0.5, 2, (k, p)) if family == "diag" else np.tile([[0.5], [1.0], [2.0]], p)
    y = rng.choice(k, n, p=weights)
    rotated = means[y] + np.sqrt(variances[y]) * rng.normal(size=(n, p))
    frame: dict[str, Any] = {"sketch_size": q, "transform": transform, "random_state": 1}
    sketcher = Sketcher(**frame).fit(rotated)
    gm = GaussianMixture(k, covariance_type=family, n_init=5, **frame).fit(sketcher.unrotate(rotated))

    assert reference.accuracy(y, gm.labels_) > 0.995
    order = [int(np.argmax(np.bincount(gm.labels_[y == c]))) for c in range(k)]
    size = n * weights
    assert (np.abs(gm.weights_[order] - size / n) < 4 * np.sqrt(weights * (1 - weights) / n)).all()
    # A coordinate of a component was kept by size * q / p rows.
    kept = (size * q / p)[:, None]
    z = (sketcher.rotate(gm.means_[order]) - means) / np.sqrt(variances / kept)
    assert np.abs(z).max() < 5
    assert 0.85 < np.sqrt((z**2).mean()) < 1.15
    if family == "diag":
        z = (gm.rotated_variances_[order] / variances - 1) / np.sqrt(2 / kept)
        assert np.abs(z).max() < 7  # chi-square's tail is heavier
        assert 0.8 < np.sqrt((z**2).mean()) < 1.25
    else:
        z = (gm.rotated_variances_[order] / variances[:, 0] - 1) / np.sqrt(2 / (size * q))
        assert np.abs(z).max() < 5


def test_clusters_that_differ_in_spread_alone_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=2000)
    X = np.where(y, 5.0, 1.0)[:, None] * rng.normal(size=(2000, 64))
    gm = GaussianMixture(2, covariance_type="spherical", sketch_size=24, n_init=5, random_state=0).fit(X)
    assert reference.accuracy(y, gm.labels_) > 0.99
    assert_allclose(np.sort(gm.rotated_variances_), [1, 25], rtol=0.05)


def test_real_digits(digits_039: tuple[Array, Array]) -> None:
    X, y = digits_039

    def accuracy(seed: int, dtype: str) -> float:
        gm = GaussianMixture(3, sketch_size=30, n_init=3, dtype=dtype, random_state=seed).fit(X)
        return reference.accuracy(y, gm.labels_)

    single = [accuracy(seed, "float32") for seed in range(3)]
    assert min(single) >= 0.865
    assert max(single) - min(single) < 0.02
    assert abs(accuracy(0, "float16") - single[0]) < 0.01


# -- covariances in the user's space ----------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("p", [1, 2, 7, 12, 16, 257])
@pytest.mark.parametrize("transform", TRANSFORMS)
@MAY_NOT_CONVERGE
def test_covariance_is_the_rotated_diagonal(family: str, transform: str, p: int) -> None:
    X, _ = clusters(60, p, 2)
    gm = GaussianMixture(
        2, covariance_type=family, transform=transform, sketch_size=0.5, max_iter=5, reg_covar=1e-2, random_state=0
    ).fit(X)
    frame, diagonals = dense_frame(gm.sketcher_), rotated_diagonals(gm)
    for k in range(2):
        covariance = gm.covariance(k)
        assert covariance.shape == (p, p)
        assert_allclose(covariance, frame.T @ np.diag(diagonals[k]) @ frame, 1e-9, 1e-9)
        assert_allclose(covariance, covariance.T, 1e-12, 1e-12)
        assert np.linalg.eigvalsh(covariance).min() > 0
        assert_allclose(gm.variances_[k], np.diag(covariance), 1e-9)


def test_a_spherical_covariance_looks_the_same_in_every_frame() -> None:
    X, _ = clusters(200, 16, 2)
    gm = GaussianMixture(2, covariance_type="spherical", sketch_size=8, random_state=0).fit(X)
    assert_allclose(gm.covariance(1), gm.rotated_variances_[1] * np.eye(16), atol=1e-12)


@pytest.mark.parametrize(("k", "message"), [(-1, "k must be at least 0; got -1"), (2, "k=2, but the components")])
def test_covariance_of_a_component_that_is_not_there(k: int, message: str) -> None:
    gm = GaussianMixture(2, random_state=0).fit(clusters(100, 4, 2)[0])
    with pytest.raises(ValueError, match=message):
        gm.covariance(k)


# -- predictions ------------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_of_a_sketch_the_kept_entries_are_used_alone(family: str, transform: str) -> None:
    X, _ = clusters(250, 12)
    gm = GaussianMixture(
        3, covariance_type=family, sketch_size=4, transform=transform, dtype="float64", random_state=0
    ).fit(X)
    fresh, _ = clusters(90, 12, seed=1)
    sketch = gm.sketcher_.transform(fresh, first_row=250)
    joint = sketch_joint(gm, sketch)
    assert_array_equal(gm.predict(sketch), joint.argmax(axis=1))
    assert_allclose(gm.predict_proba(sketch), reference.responsibilities(joint), 1e-8, 1e-12)
    assert_allclose(gm.score_samples(sketch), reference.log_likelihood(joint), 1e-9)
    assert_allclose(gm.score(sketch), reference.log_likelihood(joint).mean(), 1e-9)


@FAMILY
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_raw_rows_all_entries_are_used(family: str, transform: str, dtype: str) -> None:
    X, _ = clusters(250, 12)
    gm = GaussianMixture(3, covariance_type=family, sketch_size=4, transform=transform, random_state=0).fit(X)
    fresh = clusters(90, 12, seed=1)[0].astype(dtype)
    joint = dense_log_density(gm, fresh.astype(float))
    rtol = 1e-4 if dtype == "float32" else 1e-8
    assert_allclose(gm.score_samples(fresh), logsumexp(joint, axis=1), rtol)
    assert_allclose(gm.predict_proba(fresh), reference.responsibilities(joint), rtol, 1e-2 * rtol)
    assert_array_equal(gm.predict(fresh), joint.argmax(axis=1))
    assert_allclose(gm.predict_proba(fresh).sum(axis=1), 1)


def test_the_score_is_the_mean_of_the_rows() -> None:
    X, _ = clusters(100, 8)
    gm = GaussianMixture(3, random_state=0).fit(X)
    assert_allclose(gm.score(X), gm.score_samples(X).sum() / 100)
    assert_allclose(gm.score(X, np.zeros(100)), gm.score(X))


def test_predictions_do_not_depend_on_how_many_rows_are_asked_for_at_once() -> None:
    X, _ = clusters(20_000, 6)
    gm = GaussianMixture(3, sketch_size=3, random_state=0).fit(X)
    sketch = gm.sketcher_.transform(X)
    for rows in (X, sketch):
        parts = [gm.score_samples(rows[a:b]) for a, b in ((0, 1), (1, 9000), (9000, 20_000))]
        assert_allclose(np.concatenate(parts), gm.score_samples(rows), 1e-5)
        assert gm.predict_proba(rows).shape == (20_000, 3)
    assert_array_equal(gm.predict(sketch), gm.labels_)


def test_a_row_far_from_everything_still_has_probabilities() -> None:
    X = np.random.default_rng(0).normal(size=(4000, 200)).astype(np.float32)
    gm = GaussianMixture(10, sketch_size=40, random_state=0).fit(X)
    X[5] = 1e20
    alone, among_others = gm.predict_proba(X[5:6])[0], gm.predict_proba(X)[5]
    assert_allclose(alone.sum(), 1)
    assert_allclose(among_others.sum(), 1)


@FAMILY
@pytest.mark.parametrize("method", ["predict", "predict_proba", "score_samples", "score", "bic", "aic", "icl"])
def test_an_empty_sketch_is_refused_in_words(family: str, method: str) -> None:
    X, _ = clusters(60, 6)
    gm = GaussianMixture(3, covariance_type=family, random_state=0).fit(X)
    empty = gm.sketcher_.transform(X)[:0]
    with pytest.raises(ValueError, match="0 rows"):
        getattr(gm, method)(empty)


@pytest.mark.parametrize(("covariance_type", "per_component"), [("diag", 10), ("spherical", 6)])
def test_bic_and_aic_by_hand(covariance_type: str, per_component: int) -> None:
    # 5 means and 5 variances (or one) for each of 3 components, and 2 free weights.
    X, _ = clusters(80, 5)
    gm = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(X)
    total = dense_log_density(gm, X).astype(float)
    deviance = -2 * logsumexp(total, axis=1).sum()
    n_parameters = 2 + 3 * per_component
    assert_allclose(gm.bic(X), deviance + np.log(80) * n_parameters, 1e-6)
    assert_allclose(gm.aic(X), deviance + 2 * n_parameters, 1e-6)


@pytest.mark.parametrize("sketched", [False, True])
def test_icl_by_hand(sketched: bool) -> None:
    X, _ = clusters(80, 5)
    gm = GaussianMixture(3, sketch_size=3, random_state=0).fit(X)
    rows = gm.sketcher_.transform(X) if sketched else X
    entropy = 0.0
    for row in gm.predict_proba(rows):
        for r in row:
            entropy -= r * np.log(r) if r > 0 else 0
    assert entropy > 0.1
    assert_allclose(gm.icl(rows), gm.bic(rows) + 2 * entropy, 1e-9)


def test_icl_of_one_component_and_of_clear_clusters_is_bic(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    one = GaussianMixture(random_state=0).fit(X)
    assert one.icl(X) == one.bic(X)
    four = GaussianMixture(4, n_init=5, random_state=0).fit(X)
    assert_allclose(four.icl(X), four.bic(X), 1e-9)
    far = GaussianMixture(2, means_init=X[:2], random_state=0).fit(X)
    assert np.isfinite(far.icl(np.full((1, 64), 1e10)))


def test_icl_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = clusters(80, 5)
    gm = GaussianMixture(3, sketch_size=3, random_state=0).fit(X)
    at_once = gm.icl(X)
    monkeypatch.setattr("sketchmix.base.ROWS_AT_A_TIME", 7)
    assert_allclose(gm.icl(X), at_once, 1e-12)


def test_icl_joins_gaussians_that_describe_one_cluster_together() -> None:
    # A narrow and a wide Gaussian around each of two centres: four Gaussians, two clusters.
    rng = np.random.default_rng(0)
    spread = rng.choice([0.5, 1.0], size=(2000, 1))
    X = spread * rng.normal(size=(2000, 4)) + 20 * rng.integers(2, size=(2000, 1))
    sketch = Sketcher(4, transform="none", random_state=0).fit_transform(X)
    fits = [
        GaussianMixture(k, covariance_type="spherical", n_init=5, max_iter=500, random_state=0).fit(sketch)
        for k in (1, 2, 3, 4)
    ]
    assert min(fits, key=lambda gm: gm.bic(sketch)).n_components == 4
    assert min(fits, key=lambda gm: gm.icl(sketch)).n_components == 2


def test_bic_finds_the_number_of_clusters(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    sketch = Sketcher(sketch_size=16, random_state=0).fit_transform(X)
    fits = {
        k: GaussianMixture(k, covariance_type="spherical", n_init=5, random_state=0).fit(sketch)
        for k in range(1, 7)
    }
    assert min(fits, key=lambda k: fits[k].bic(sketch)) == 4


# -- sampling ---------------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize(("transform", "p"), [("hadamard", 6), ("dct", 6), ("none", 6), ("hadamard", 257)])
def test_samples_have_the_mean_and_the_covariance(family: str, transform: str, p: int) -> None:
    X, _ = clusters(400, p, 2)
    gm = GaussianMixture(
        2, covariance_type=family, transform=transform, sketch_size=0.5, reg_covar=0.1, random_state=0
    ).fit(X)
    n = 20_000
    drawn, y = gm.sample(n)
    assert drawn.shape == (n, p)
    assert (np.diff(y) >= 0).all()
    counts = np.bincount(y, minlength=2)
    assert (np.abs(counts - n * gm.weights_) < 5 * np.sqrt(n * gm.weights_ * (1 - gm.weights_))).all()
    for k in range(2):
        rows, covariance = drawn[y == k], gm.covariance(k)
        variance = np.diag(covariance)
        assert (np.abs(rows.mean(axis=0) - gm.means_[k]) < 5.5 * np.sqrt(variance / len(rows))).all()
        error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(rows))
        assert (np.abs(np.cov(rows.T) - covariance) < 6 * error).all()


def test_a_sample_of_one_and_none() -> None:
    X, _ = clusters(50, 4)
    gm = GaussianMixture(3, random_state=0).fit(X)
    row, y = gm.sample()
    assert row.shape == (1, 4)
    assert y.shape == (1,)
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        gm.sample(0)


# -- a second pass ----------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("transform", ["hadamard", "none"])
def test_refine_is_one_dense_step_of_em(family: str, transform: str) -> None:
    X, _ = clusters(400, 12)
    gm = GaussianMixture(3, covariance_type=family, sketch_size=4, transform=transform, random_state=0).fit(X)
    frame = dense_frame(gm.sketcher_)
    step = mixture.GaussianMixture(
        3,
        covariance_type=family,
        weights_init=gm.weights_,
        means_init=gm.means_ @ frame.T,
        precisions_init=1 / gm.rotated_variances_,
        max_iter=1,
        tol=0,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        step.fit(X @ frame.T)
    before = gm.predict(X)
    assert gm.refine(X) is gm
    assert_allclose(gm.weights_, step.weights_, 1e-6)
    assert_allclose(gm.means_, step.means_ @ frame, 1e-6, 1e-8)
    assert_allclose(gm.rotated_variances_, step.covariances_, 1e-5)
    assert_array_equal(gm.labels_, before)  # those of the E-step


@FAMILY
def test_refine_moves_the_means_to_the_dense_ones(family: str, blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    gm = GaussianMixture(4, covariance_type=family, sketch_size=16, n_init=3, random_state=0).fit(X)
    truth = np.array([X[gm.labels_ == k].mean(axis=0) for k in range(4)])
    before = np.linalg.norm(gm.means_ - truth)
    gm.refine(X)
    assert np.linalg.norm(gm.means_ - truth) < 0.05 * before
    assert reference.accuracy(y, gm.labels_) == 1


# -- starts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init_params", ["k-means++", "random_from_data"])
def test_more_starts_are_at_least_as_good(init_params: str) -> None:
    rng = np.random.default_rng(0)
    X = 8 * np.repeat(rng.normal(size=(8, 10)), 60, axis=0) + rng.normal(size=(480, 10))
    sketch = Sketcher(sketch_size=5, random_state=0).fit_transform(X)

    def likelihood(n_init: int, seed: int) -> float:
        gm = GaussianMixture(
            8, covariance_type="spherical", n_init=n_init, init_params=init_params, random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return float(gm.fit(sketch).lower_bound_)

    one, many = (np.array([likelihood(n, seed) for seed in range(8)]) for n in (1, 20))
    assert (many >= one - 0.05).all()
    assert many.mean() > one.mean()


@FAMILY
@MAY_NOT_CONVERGE
def test_warm_start_goes_on(family: str) -> None:
    X, _ = clusters(300, 10)
    same: dict[str, Any] = {
        "covariance_type": family,
        "sketch_size": 4,
        "dtype": "float64",
        "tol": 0,
        "random_state": 3,
    }
    once = GaussianMixture(3, max_iter=8, **same).fit(X)
    twice = GaussianMixture(3, max_iter=4, warm_start=True, **same).fit(X)
    first = list(twice.lower_bounds_)
    twice.fit(X)
    assert_allclose([*first, *twice.lower_bounds_], once.lower_bounds_, 1e-12)
    assert_allclose(twice.means_, once.means_, 1e-9, 1e-12)
    assert_allclose(twice.variances_, once.variances_, 1e-9)


@MAY_NOT_CONVERGE
def test_warm_start_on_a_sketch_keeps_its_frame() -> None:
    X, _ = clusters(300, 10)
    sketch = Sketcher(sketch_size=4, random_state=0).fit_transform(X)
    gm = GaussianMixture(3, max_iter=3, tol=0, warm_start=True, random_state=None).fit(sketch)
    assert gm.fit(sketch).lower_bounds_[0] >= gm.lower_bounds_[-1] - 10
    other = Sketcher(sketch_size=4, random_state=1).fit_transform(X)
    with pytest.raises(ValueError, match="rotation differs"):
        gm.fit(other)


@MAY_NOT_CONVERGE
def test_without_a_warm_start_a_fit_begins_anew() -> None:
    X, _ = clusters(300, 10)
    gm = GaussianMixture(3, sketch_size=4, max_iter=3, random_state=0).fit(X)
    means = gm.means_
    assert_array_equal(gm.fit(X).means_, means)


# -- weights ----------------------------------------------------------------------------------------------


def assert_same_model(a: GaussianMixture, b: GaussianMixture, rtol: float = 1e-7) -> None:
    assert_allclose(a.weights_, b.weights_, rtol)
    assert_allclose(a.means_, b.means_, rtol, rtol)
    assert_allclose(a.variances_, b.variances_, rtol)
    assert_allclose(a.lower_bounds_, b.lower_bounds_, rtol)


@FAMILY
@pytest.mark.parametrize("init_params", ["k-means++", "random_from_data"])
@pytest.mark.parametrize("n_init", [1, 3])
def test_weight_zero_is_absence(family: str, init_params: str, n_init: int) -> None:
    X, _ = clusters(240, 5)
    weight = (np.arange(240) % 3 > 0).astype(float)
    X[weight == 0] += 50
    same: dict[str, Any] = {"init_params": init_params, "n_init": n_init}
    weighted = in_full(family, **same).fit(X, sample_weight=weight)
    assert_same_model(weighted, in_full(family, **same).fit(X[weight > 0]))


@FAMILY
@pytest.mark.parametrize("n_init", [1, 3])
def test_weight_two_is_the_row_twice(family: str, n_init: int) -> None:
    X, _ = clusters(240, 5)
    times = np.random.default_rng(0).integers(1, 4, 240)
    weighted = in_full(family, n_init=n_init).fit(X, sample_weight=times)
    assert_same_model(weighted, in_full(family, n_init=n_init).fit(np.repeat(X, times, axis=0)))


@FAMILY
def test_weight_two_is_the_row_twice_where_the_first_features_are_constant(family: str) -> None:
    X, _ = clusters(240, 5)
    X = np.hstack([np.zeros((240, 20)), X])
    times = np.random.default_rng(0).integers(1, 4, 240)
    order = np.random.default_rng(1).permutation(times.sum())
    weighted = in_full(family).fit(X, sample_weight=times)
    assert_same_model(weighted, in_full(family).fit(np.repeat(X, times, axis=0)[order]))


@FAMILY
@pytest.mark.parametrize("scale", [1e-60, 1e-3, 1e3, 1e60])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_the_unit_of_the_weights_does_not_matter(
    family: str, scale: float, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "single":
        monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    X, _ = clusters(300, 12)
    weight = np.random.default_rng(0).uniform(0.5, 2, 300)
    gm = GaussianMixture(3, covariance_type=family, sketch_size=4, random_state=0)
    plain, scaled = clone(gm).fit(X, sample_weight=weight), gm.fit(X, sample_weight=scale * weight)
    assert_same_model(scaled, plain, 1e-9 if precision == "double" else 1e-3)


def test_weights_of_a_part_of_many_rows() -> None:
    X, _ = clusters(41_000, 3)
    weight = np.zeros(41_000)
    weight[1::2] = 1
    gm = in_full("diag", n_init=3).fit(X, sample_weight=weight)
    plain = in_full("diag", n_init=3).fit(X[1::2])
    assert_allclose(np.sort(gm.weights_), np.sort(plain.weights_), atol=0.02)


# -- awkward data -----------------------------------------------------------------------------------------


@FAMILY
def test_labels_from_entries_that_all_rows_share(family: str, blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    gm = GaussianMixture(4, covariance_type=family, sketch_size=16, n_shared=16, n_init=3, random_state=0).fit(X)
    assert reference.accuracy(y, gm.labels_) > 0.99
    assert np.isfinite(gm.means_).all()
    assert (gm.variances_ > 0).all()


def test_coordinates_that_no_row_kept_get_a_variance_that_the_data_support() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=3000)
    X = 0.3 * rng.normal(size=(3, 200))[y] + rng.normal(size=(3000, 200))
    gm = GaussianMixture(3, sketch_size=40, n_shared=40, random_state=0).fit(X)
    # All rotated coordinates of these rows have a variance near 1.
    assert gm.rotated_variances_.min() > 0.05


@FAMILY
def test_a_second_pass_repairs_the_means_of_a_shared_sketch(family: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=3000)
    X = 0.5 * rng.normal(size=(3, 200))[y] + rng.normal(size=(3000, 200))
    gm = GaussianMixture(3, covariance_type=family, sketch_size=40, n_shared=40, n_init=3, random_state=0).fit(X)
    assert reference.accuracy(y, gm.labels_) > 0.95
    for _ in range(5):
        gm.refine(X)
    assert reference.accuracy(y, gm.predict(X)) > 0.99


def assert_sound(gm: GaussianMixture, X: Array) -> None:
    for name in ("weights_", "means_", "variances_", "rotated_variances_", "lower_bounds_"):
        assert np.isfinite(getattr(gm, name)).all(), name
    assert (gm.rotated_variances_ > 0).all()
    assert_allclose(gm.weights_.sum(), 1)
    assert np.isfinite(gm.predict_proba(X)).all()
    assert np.isfinite(gm.score_samples(X)).all()


EVERY_SIZE = pytest.mark.parametrize("sketch_size", [2, 8])


@FAMILY
@EVERY_SIZE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reg_covar", [0.0, 1e-6])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e4, -1e-4])
def test_all_rows_equal(family: str, sketch_size: int, dtype: str, reg_covar: float, value: float) -> None:
    X = np.full((20, 8), value)
    gm = GaussianMixture(
        2, covariance_type=family, sketch_size=sketch_size, dtype=dtype, reg_covar=reg_covar, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match=r"component 1 has lost all its rows"):
        gm.fit(X)
    assert_sound(gm, X)
    assert_allclose(gm.means_[0], value, 1e-5, 1e-7)


@FAMILY
@EVERY_SIZE
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_few_distinct_rows(family: str, sketch_size: int) -> None:
    X = np.random.default_rng(0).normal(size=(3, 8))[np.arange(60) % 3]
    gm = GaussianMixture(5, covariance_type=family, sketch_size=sketch_size, random_state=0).fit(X)
    assert_sound(gm, X)


@FAMILY
@pytest.mark.filterwarnings("ignore:component . has collapsed")
def test_duplicates_that_empty_a_component_are_reported(family: str) -> None:
    X = np.random.default_rng(0).normal(size=(2, 8))[np.arange(60) % 2]
    with pytest.warns(ConvergenceWarning, match=r"component 2 has lost all its rows \(weight 0\); lower n_comp"):
        in_full(family).fit(X)


@FAMILY
@EVERY_SIZE
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_constant_features(family: str, sketch_size: int) -> None:
    X, y = clusters(300, 8)
    X[:, 5:] = [0, 1e5, -3]
    gm = GaussianMixture(
        3, covariance_type=family, transform="none", sketch_size=sketch_size, reg_covar=0, random_state=0
    ).fit(X)
    assert_sound(gm, X)
    assert_allclose(gm.means_[:, 5:], [[0, 1e5, -3]] * 3, 1e-5, 1e-9)
    if sketch_size == 8 and family == "diag":
        assert reference.accuracy(y, gm.labels_) > 0.8


def test_a_constant_feature_is_not_a_collapse() -> None:
    X, _ = clusters(300, 8)
    X[:, 3] = 7.0
    gm = in_full("diag").fit(X)
    assert gm.converged_


@FAMILY
@EVERY_SIZE
@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_as_many_components_as_rows(family: str, sketch_size: int, n: int) -> None:
    X = 5 * np.random.default_rng(0).normal(size=(n, 8))
    gm = GaussianMixture(n, covariance_type=family, sketch_size=sketch_size, random_state=0).fit(X)
    assert_sound(gm, X)


# Rows of unit length and 3,072 features, as embeddings have them, have standard deviations near 0.018.
@FAMILY
@pytest.mark.parametrize("deviation", [1.0, 0.018])
def test_a_collapse_is_reported_by_component(family: str, deviation: float) -> None:
    rng = np.random.default_rng(0)
    X = deviation * np.vstack([rng.normal(size=(50, 4)), np.full((5, 4), 3.0)])
    start = deviation * np.array([[0.0] * 4, [3.0] * 4])
    with pytest.warns(ConvergenceWarning, match="component 1 has collapsed") as caught:
        in_full(family, 2, means_init=start).fit(X)
    assert not any("component 0" in str(warning.message) for warning in caught)


@FAMILY
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transform", ["hadamard", "none"])
def test_a_huge_offset(family: str, dtype: str, transform: str) -> None:
    X, _ = clusters(600, 16)
    same: dict[str, Any] = {
        "covariance_type": family,
        "sketch_size": 8,
        "dtype": dtype,
        "transform": transform,
        "random_state": 0,
    }
    plain = GaussianMixture(3, **same).fit(X)
    moved = GaussianMixture(3, **same).fit(X + 1e6)
    assert reference.accuracy(plain.labels_, moved.labels_) > 0.97
    assert_allclose(moved.variances_.sum(), plain.variances_.sum(), 0.1)
    assert_allclose(moved.weights_.sum(), 1)
    if dtype == "float64":
        assert_allclose(moved.means_ - 1e6, plain.means_, 1e-3, 1e-3)


@FAMILY
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-10, 1e-5, 1e-3, 1e5, 1e10, 1e16])
def test_the_unit_of_the_data_does_not_matter(
    family: str, dtype: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    X, _ = clusters(2000, 20)
    same: dict[str, Any] = {
        "covariance_type": family,
        "sketch_size": 8,
        "dtype": dtype,
        "reg_covar": 0.0,
        "random_state": 0,
    }
    plain = GaussianMixture(3, **same).fit(X)
    scaled = GaussianMixture(3, **same).fit(X * scale)
    assert reference.accuracy(plain.labels_, scaled.labels_) > 0.99
    assert_allclose(scaled.means_ / scale, plain.means_, atol=0.02)


@pytest.mark.parametrize("family", ["diag", "spherical", "low_rank", "full", "tied"])
@pytest.mark.parametrize("scale", [1e-5, 1e-3])
@pytest.mark.parametrize("sketch_size", [6, 16])
@pytest.mark.filterwarnings("ignore:component . has collapsed")
def test_a_reg_covar_that_drowns_the_data_is_no_trouble(family: str, scale: float, sketch_size: int) -> None:
    X, _ = clusters(1000, 16)
    gm = GaussianMixture(3, covariance_type=family, rank=2, sketch_size=sketch_size, n_init=3, random_state=0)
    gm.fit(scale * X)
    assert gm.converged_
    assert 1e-6 <= gm.variances_.mean() < 1.01e-6 + 5 * scale**2


def test_float16_sketches() -> None:
    X, _ = clusters(600, 32)
    single, half = (
        GaussianMixture(3, sketch_size=16, dtype=d, random_state=0).fit(X) for d in ("float32", "float16")
    )
    assert half.sketcher_.transform(X).values.dtype == np.float16
    assert half.means_.dtype == np.float64
    assert_allclose(half.means_, single.means_, atol=0.02)
    assert reference.accuracy(single.labels_, half.labels_) > 0.99


@pytest.mark.parametrize("order", ["F", ">"])
def test_a_sketch_of_any_memory_layout(order: str) -> None:
    X, _ = clusters(200, 12)
    sketch = Sketcher(sketch_size=4, random_state=0).fit_transform(X)
    values, indices = sketch.values, sketch.indices
    if order == "F":
        values, indices = np.asfortranarray(values), np.asfortranarray(indices)
    else:
        values, indices = values.astype(">f4"), indices.astype(">u2")
    plain = GaussianMixture(3, random_state=0).fit(Sketch(sketch.values, sketch.indices, sketch.sketcher))
    other = GaussianMixture(3, random_state=0).fit(Sketch(values, indices, sketch.sketcher))
    assert_array_equal(other.labels_, plain.labels_)


# -- manners ----------------------------------------------------------------------------------------------


def test_too_few_iterations_are_reported() -> None:
    X, _ = clusters(300, 10)
    gm = GaussianMixture(3, sketch_size=5, max_iter=2, tol=1e-9, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"EM did not converge in 2 iterations.*Increase max_iter or tol"):
        gm.fit(X)
    assert not gm.converged_
    assert gm.n_iter_ == 2


def test_verbose_prints_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = clusters(100, 6)
    gm = GaussianMixture(2, random_state=0, verbose=1).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == gm.n_iter_
    assert f"{gm.lower_bound_:.6f}" in lines[-1]
    GaussianMixture(2, random_state=0).fit(X)
    assert not capsys.readouterr().out


@FAMILY
def test_pickles_and_clones(family: str) -> None:
    X, _ = clusters(150, 12)
    gm = GaussianMixture(3, covariance_type=family, sketch_size=4, transform="dct", random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(gm))
    assert_array_equal(again.predict_proba(X), gm.predict_proba(X))
    assert_array_equal(again.sketcher_.transform(X).values, gm.sketcher_.transform(X).values)
    assert_array_equal(again.refine(X).means_, gm.refine(X).means_)
    fresh = clone(gm)
    assert fresh.get_params() == gm.get_params()
    assert not hasattr(fresh, "weights_")


def test_the_last_step_of_a_pipeline(blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    pipeline = make_pipeline(StandardScaler(), GaussianMixture(4, sketch_size=16, n_init=3, random_state=0))
    assert reference.accuracy(y, pipeline.fit_predict(X)) > 0.99
    assert reference.accuracy(y, pipeline.predict(X)) == 1
    assert pipeline.predict_proba(X).shape == (2000, 4)
    assert not hasattr(pipeline, "transform")
    assert np.isfinite(pipeline.score(X))
    with pytest.raises(TypeError, match="transform"):
        Pipeline([("mixture", GaussianMixture()), ("scaler", StandardScaler())]).fit(X)


def test_grid_search(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    grid = {"n_components": [2, 4], "sketch_size": [8, 32]}
    search = GridSearchCV(
        GaussianMixture(covariance_type="spherical", n_init=5, random_state=0), grid, cv=3, error_score="raise"
    ).fit(X)
    assert search.best_params_["n_components"] == 4
    assert search.best_estimator_.sketcher_.sketch_size_ == search.best_params_["sketch_size"]
