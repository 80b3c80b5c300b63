"""KMeans: Lloyd's algorithm on sketches, against scikit-learn, slow twins and by hand."""

import pickle
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn import cluster
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from sketchmix import KMeans, Sketch, Sketcher, em, kmeans, moments
from sketchmix.seeding import Candidates
from tests import reference

Array = NDArray[Any]

MAY_NOT_CONVERGE = pytest.mark.filterwarnings("ignore:k-means did not converge")
TRANSFORMS = ["hadamard", "dct", "fourier", "none"]


def clusters(n: int = 300, p: int = 6, k: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Overlapping round clusters."""
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return 2 * rng.normal(size=(k, p))[y] + rng.normal(size=(n, p)), y


def in_full(k: int = 4, **parameters: Any) -> KMeans:
    """k-means on all entries as they are: what scikit-learn fits."""
    whole: dict[str, Any] = {"transform": "none", "sketch_size": 1.0, "dtype": "float64", "random_state": 0}
    return KMeans(k, **{**whole, **parameters})


def rotated_centers(km: KMeans) -> Array:
    sketcher = km.sketcher_
    mixing = reference.mixing_matrix(sketcher.transform_, sketcher.n_rotated_)[:, : sketcher.n_features_in_]
    centers: Array = km.cluster_centers_ @ (mixing * sketcher.signs_).T
    return centers


def scaled_distances(km: KMeans, sketch: Sketch) -> Array:
    """Squared distances between the kept entries and the centers, times P/Q: one entry at a time."""
    centers, q = rotated_centers(km), sketch.sketch_size
    return np.array(
        [
            [sum((x - c[p]) ** 2 for x, p in zip(row, kept, strict=True)) * len(c) / q for c in centers]
            for row, kept in zip(sketch.values.astype(float), sketch.indices, strict=True)
        ]
    )


# -- beside scikit-learn, and step by step ----------------------------------------------------------------


@pytest.mark.parametrize("max_iter", [1, 2, 3, 300])
@pytest.mark.parametrize("weighted", [False, True])
@MAY_NOT_CONVERGE
def test_with_all_entries_it_is_scikit_learns_k_means(max_iter: int, weighted: bool) -> None:
    X, _ = clusters(500, 7)
    weight = np.random.default_rng(1).uniform(0.5, 2, 500) if weighted else None
    start = X[[3, 100, 210, 400]]
    ours = in_full(init=start, max_iter=max_iter).fit(X, sample_weight=weight)
    theirs = cluster.KMeans(4, init=start, n_init=1, algorithm="lloyd", max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(X, sample_weight=weight)
    assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, 1e-6, 1e-9)
    assert_array_equal(ours.labels_, theirs.labels_)
    assert_allclose(ours.inertia_, theirs.inertia_, 1e-6)
    assert_array_equal(ours.predict(X), theirs.predict(X))
    assert_allclose(ours.transform(X), theirs.transform(X), 1e-6, 1e-9)
    assert_allclose(ours.score(X, sample_weight=weight), theirs.score(X, sample_weight=weight), 1e-6)


@pytest.mark.parametrize("transform", TRANSFORMS)
@MAY_NOT_CONVERGE
def test_one_step_assigns_and_averages(transform: str) -> None:
    X, _ = clusters(200, 12)
    start = X[:4]
    sketch = Sketcher(5, transform=transform, dtype="float64", random_state=0).fit_transform(X)
    km = KMeans(4, init=start, max_iter=1).fit(sketch)
    before = sketch.sketcher.rotate(start)
    nearest = reference.nearest(sketch.values, sketch.indices, before)
    count, total, _ = reference.weighted_moments(sketch.values, sketch.indices, np.eye(4)[nearest], 0 * before)
    # A coordinate that no row of a cluster kept says nothing about the center.
    expected = np.where(count > 0, total / np.where(count > 0, count, 1), before)
    assert_allclose(km.cluster_centers_, sketch.sketcher.unrotate(expected), 1e-9, 1e-9)
    assert_array_equal(km.labels_, reference.nearest(sketch.values, sketch.indices, expected))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@MAY_NOT_CONVERGE
def test_inertia_is_the_scaled_sum_and_never_rises(dtype: str) -> None:
    X, _ = clusters(300, 16, 6)
    sketch = Sketcher(4, dtype=dtype, random_state=0).fit_transform(X)
    inertias = []
    for max_iter in range(1, 12):
        km = KMeans(6, init=X[:6], max_iter=max_iter, tol=0).fit(sketch)
        assert_allclose(km.inertia_, scaled_distances(km, sketch).min(axis=1).sum(), 1e-5)
        inertias.append(km.inertia_)
    assert (np.diff(inertias) <= 1e-6 * inertias[0]).all()
    assert inertias[-1] < 0.95 * inertias[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_estimate_of_the_inertia_is_that_of_the_rows(blobs: tuple[Array, Array], weighted: bool) -> None:
    X, _ = blobs
    weight = np.random.default_rng(0).uniform(0.5, 2, 2000) if weighted else np.ones(2000)
    km = KMeans(4, sketch_size=16, random_state=0).fit(X, sample_weight=weight)
    dense = weight @ ((X - km.cluster_centers_[km.labels_]) ** 2).sum(axis=1)
    assert_allclose(km.inertia_, dense, 0.05)


# -- attributes and predictions ---------------------------------------------------------------------------


def test_attributes() -> None:
    X, _ = clusters(300, 12)
    km = KMeans(4, sketch_size=6, random_state=0).fit(X)
    assert km.cluster_centers_.shape == (4, 12)
    assert km.labels_.shape == (300,)
    assert set(km.labels_) == {0, 1, 2, 3}
    assert 1 <= km.n_iter_ <= 300
    assert isinstance(km.inertia_, float)
    assert km.n_features_in_ == 12
    sketch = km.sketcher_.transform(X)
    assert_array_equal(km.labels_, km.predict(sketch))
    assert_allclose(km.inertia_, -km.score(sketch))
    assert_array_equal(KMeans(4, sketch_size=6, random_state=0).fit_predict(X), km.labels_)


@pytest.mark.parametrize("transform", [*TRANSFORMS, "auto"])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_fitting_rows_is_fitting_their_sketch(transform: str, init: str) -> None:
    X, _ = clusters(300, 12)
    same: dict[str, Any] = {"sketch_size": 5, "transform": transform, "n_shared": 1, "random_state": 7}
    rows = KMeans(4, init=init, **same).fit(X)
    sketched = KMeans(4, init=init, random_state=7).fit(Sketcher(**same).fit_transform(X))
    assert_array_equal(rows.cluster_centers_, sketched.cluster_centers_)
    assert_array_equal(rows.labels_, sketched.labels_)
    assert rows.inertia_ == sketched.inertia_


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_raw_rows_all_entries_are_used(transform: str, dtype: str) -> None:
    X, _ = clusters(300, 12)
    km = KMeans(4, sketch_size=5, transform=transform, random_state=0).fit(X)
    fresh = clusters(100, 12, seed=1)[0].astype(dtype)
    expected = cdist(fresh, km.cluster_centers_)
    rtol = 1e-4 if dtype == "float32" else 1e-10
    distances = km.transform(fresh)
    assert_allclose(distances, expected, rtol)
    assert_array_equal(km.predict(fresh), expected.argmin(axis=1))
    assert_allclose(km.score(fresh), -(expected.min(axis=1) ** 2).sum(), rtol)
    weight = np.arange(100.0)
    assert_allclose(km.score(fresh, sample_weight=weight), -(weight @ expected.min(axis=1) ** 2), rtol)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_of_a_sketch_the_kept_entries_are_used_and_scaled(transform: str) -> None:
    X, _ = clusters(300, 12)
    km = KMeans(4, sketch_size=5, transform=transform, dtype="float64", random_state=0).fit(X)
    sketch = km.sketcher_.transform(clusters(60, 12, seed=1)[0])
    expected = scaled_distances(km, sketch)
    assert_allclose(km.transform(sketch), np.sqrt(expected), 1e-9)
    assert_array_equal(km.predict(sketch), expected.argmin(axis=1))
    assert_allclose(km.score(sketch), -expected.min(axis=1).sum(), 1e-9)


def test_a_row_at_a_center_is_at_distance_plus_zero() -> None:
    distances = KMeans(3, random_state=0).fit(np.eye(3)).transform(np.eye(3))
    assert_allclose(np.sort(distances, axis=1), [[0, np.sqrt(2), np.sqrt(2)]] * 3)
    assert not np.signbit(distances).any()


def test_predictions_do_not_depend_on_how_many_rows_are_asked_for_at_once() -> None:
    X, _ = clusters(20_000, 6)
    km = KMeans(4, sketch_size=3, random_state=0).fit(X)
    for rows in (X, km.sketcher_.transform(X)):
        parts = np.concatenate([km.transform(rows[a:b]) for a, b in ((0, 1), (1, 9000), (9000, 20_000))])
        assert_allclose(km.transform(rows), parts, 1e-4, 1e-5)


@pytest.mark.parametrize("method", ["predict", "transform", "score"])
def test_an_empty_sketch_is_refused_in_words(method: str) -> None:
    X, _ = clusters(60, 6)
    km = KMeans(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="0 rows"):
        getattr(km, method)(km.sketcher_.transform(X)[:0])


# -- a second pass ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_refine_assigns_and_averages_all_entries(transform: str) -> None:
    X, _ = clusters(400, 12)
    km = KMeans(4, sketch_size=4, transform=transform, random_state=0).fit(X)
    nearest = cdist(X, km.cluster_centers_).argmin(axis=1)
    assert km.refine(X) is km
    assert_array_equal(km.labels_, nearest)
    assert_allclose(km.cluster_centers_, [X[nearest == k].mean(axis=0) for k in range(4)], 1e-9, 1e-9)


def test_after_refine_the_inertia_is_that_of_the_refined_clusters() -> None:
    X, _ = clusters(400, 12)
    km = KMeans(4, sketch_size=4, random_state=0).fit(X).refine(X)
    assert_allclose(km.inertia_, ((X - km.cluster_centers_[km.labels_]) ** 2).sum(), 1e-9)


def test_refine_leaves_a_center_without_rows_where_it_is() -> None:
    X, _ = clusters(400, 12)
    km = KMeans(4, sketch_size=4, random_state=0).fit(X)
    before, row = km.cluster_centers_.copy(), X[:1]
    only = km.predict(row)[0]
    km.refine(row)
    assert_allclose(km.cluster_centers_[only], X[0])
    others = np.arange(4) != only
    assert_allclose(km.cluster_centers_[others], before[others], 1e-12, 1e-12)


def test_rounds_of_refine_are_lloyds_algorithm() -> None:
    X, _ = clusters(400, 8)
    km = KMeans(4, sketch_size=3, random_state=0).fit(X)
    theirs = cluster.KMeans(4, init=km.cluster_centers_, n_init=1, tol=0).fit(X)
    for _ in range(theirs.n_iter_):
        km.refine(X)
    assert_allclose(km.cluster_centers_, theirs.cluster_centers_, 1e-6, 1e-9)


# -- convergence and starts -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sketch_size", [6, 20])
def test_it_ends_when_no_row_changes_its_cluster_even_with_tol_0(
    dtype: str, sketch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    X, _ = clusters(500, 20)
    km = KMeans(4, sketch_size=sketch_size, tol=0, dtype=dtype, random_state=0).fit(X)
    assert km.n_iter_ < 100


def test_too_few_iterations_are_reported() -> None:
    X, _ = clusters(500, 20)
    with pytest.warns(ConvergenceWarning, match=r"did not converge in 2 iterations\. Increase max_iter or tol"):
        km = KMeans(4, init=X[:4], sketch_size=5, max_iter=2, tol=1e-9).fit(X)
    assert km.n_iter_ == 2


def test_tol_is_a_share_of_the_variance() -> None:
    X, _ = clusters(500, 6)
    start = X[:4]
    moves = []
    centers = start
    for _ in range(30):
        nearest = cdist(X, centers).argmin(axis=1)
        moved = np.array([X[nearest == k].mean(axis=0) for k in range(4)])
        moves.append(((moved - centers) ** 2).sum())
        centers = moved
    tol = 0.02
    expected = 1 + int(np.argmax(np.array(moves) <= tol * X.var(axis=0).mean()))
    assert 1 < expected < 30
    assert in_full(init=start, tol=tol).fit(X).n_iter_ == expected
    assert in_full(init=1e4 * start, tol=tol).fit(1e4 * X).n_iter_ == expected


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_more_starts_are_at_least_as_good(init: str) -> None:
    rng = np.random.default_rng(0)
    X = 8 * np.repeat(rng.normal(size=(8, 10)), 60, axis=0) + rng.normal(size=(480, 10))
    sketch = Sketcher(sketch_size=5, random_state=0).fit_transform(X)

    def inertia(n_init: int | str, seed: int) -> float:
        return float(KMeans(8, init=init, n_init=n_init, random_state=seed).fit(sketch).inertia_)

    one, many = (np.array([inertia(n, seed) for seed in range(8)]) for n in (1, 20))
    assert (many <= 1.01 * one).all()
    if init == "random":
        assert many.mean() < 0.99 * one.mean()
    as_many: int = 10 if init == "random" else 1
    assert inertia("auto", 3) == inertia(as_many, 3)


def test_a_given_start_is_one_start() -> None:
    X, _ = clusters(200, 6)
    plain = in_full(init=X[:4]).fit(X)
    many = in_full(init=X[:4].tolist(), n_init=10).fit(X)
    assert_array_equal(many.cluster_centers_, plain.cluster_centers_)


def test_a_fit_can_be_repeated_bit_by_bit() -> None:
    X, _ = clusters(300, 16)
    fits = [KMeans(3, sketch_size=5, init="random", random_state=4).fit(X) for _ in range(2)]
    assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)
    assert fits[0].inertia_ == fits[1].inertia_


def test_thinned_rows_keep_some_that_have_weight() -> None:
    X, _ = clusters(100, 5)
    weight = np.zeros(100)
    weight[1::2] = 1
    sketch = Sketcher(5, transform="none", random_state=0).fit_transform(X)
    thinned = kmeans.Lloyd(sketch, weight, Candidates.of(sketch, weight, 3)).thinned(50)
    assert thinned.sample_weight is not None
    assert thinned.sample_weight.any()


def test_starts_are_compared_on_a_part_of_many_rows() -> None:
    n = 3 * em.TRIAL_ROWS
    X, _ = clusters(n, 3)
    weight = np.where(np.arange(n) % 3 == 1, 1.0, 0.0)
    km = in_full(init="random", n_init=5).fit(X, sample_weight=weight)
    plain = in_full(init="random", n_init=5).fit(X[1::3])
    assert_allclose(km.inertia_, plain.inertia_, 0.01)


# -- empty clusters and duplicates ------------------------------------------------------------------------


@pytest.mark.parametrize("sketch_size", [3, 8])
@pytest.mark.parametrize("reservoir", [True, False])
def test_empty_clusters_are_refilled(sketch_size: int, reservoir: bool) -> None:
    X, _ = clusters(400, 8)
    sketch = Sketcher(sketch_size, random_state=0).fit_transform(X)
    if not reservoir:
        sketch = Sketch(sketch.values, sketch.indices, sketch.sketcher)
    start = np.repeat(X.mean(axis=0, keepdims=True), 4, axis=0)
    start[1:] += 1e6
    km = KMeans(4, init=start).fit(sketch)
    assert (np.bincount(km.labels_, minlength=4) > 0).all()
    assert km.inertia_ < 0.8 * KMeans(1).fit(sketch).inertia_


def test_an_empty_cluster_moves_to_the_farthest_row() -> None:
    X = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])
    km = in_full(2, init=[[2.0], [1e6]]).fit(X)
    assert_allclose(np.sort(km.cluster_centers_.ravel()), [1.5, 100])
    assert_allclose(km.inertia_, 5)


@pytest.mark.parametrize("sketch_size", [4, 10])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_fewer_distinct_rows_than_clusters(sketch_size: int, init: str) -> None:
    # Of kept entries, a center may be a little nearer to some rows than its twin.
    found = "3" if sketch_size == 10 else "[34]"
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3, 10))[rng.integers(3, size=50)]
        km = KMeans(5, init=init, sketch_size=sketch_size, random_state=seed)
        with pytest.warns(ConvergenceWarning) as caught:
            km.fit(X)
        # It is the rows that are too few, not the iterations.
        assert len(caught) == 1
        assert re.match(f"only {found} of the 5 clusters have rows; lower n_clusters", str(caught[0].message))
        assert_allclose(km.inertia_, 0, atol=1e-9)
        assert km.n_iter_ < 20


@pytest.mark.parametrize("value", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("sketch_size", [2, 8])
@MAY_NOT_CONVERGE
def test_all_rows_equal(value: float, sketch_size: int) -> None:
    X = np.full((20, 8), value)
    with pytest.warns(ConvergenceWarning, match="only 1 of the 3 clusters"):
        km = KMeans(3, sketch_size=sketch_size, random_state=0).fit(X)
    assert_allclose(km.cluster_centers_, value, 1e-5, 1e-7)
    assert_allclose(km.inertia_, 0, atol=1e-4 * value**2)


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("sketch_size", [3, 8])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_as_many_clusters_as_rows(n: int, sketch_size: int) -> None:
    X = 5 * np.random.default_rng(0).normal(size=(n, 8))
    km = KMeans(n, sketch_size=sketch_size, random_state=0).fit(X)
    assert np.isfinite(km.cluster_centers_).all()
    if sketch_size == 8:
        assert_allclose(km.cluster_centers_[km.labels_], X, 1e-5, 1e-6)
        assert_allclose(km.inertia_, 0, atol=1e-8)


# -- weights ----------------------------------------------------------------------------------------------


def assert_same_model(a: KMeans, b: KMeans, rtol: float = 1e-9) -> None:
    assert_allclose(a.cluster_centers_, b.cluster_centers_, rtol, rtol)
    assert_allclose(a.inertia_, b.inertia_, rtol)
    assert a.n_iter_ == b.n_iter_


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_weight_zero_is_absence(init: str) -> None:
    X, _ = clusters(240, 5)
    weight = (np.arange(240) % 3 > 0).astype(float)
    X[weight == 0] += 50
    weighted = in_full(init=init).fit(X, sample_weight=weight)
    assert_same_model(weighted, in_full(init=init).fit(X[weight > 0]))


@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("constant", [0, 20])
def test_weight_two_is_the_row_twice(init: str, constant: int) -> None:
    X, _ = clusters(240, 5)
    X = np.hstack([np.ones((240, constant)), X])
    times = np.random.default_rng(0).integers(1, 4, 240)
    order = np.random.default_rng(1).permutation(times.sum())
    weighted = in_full(init=init, n_init=3).fit(X, sample_weight=times)
    assert_same_model(weighted, in_full(init=init, n_init=3).fit(np.repeat(X, times, axis=0)[order]))


@pytest.mark.parametrize("scale", [1e-60, 1e-3, 1e3, 1e60])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_the_unit_of_the_weights_does_not_matter(
    scale: float, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "single":
        monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    X, _ = clusters(300, 12)
    weight = np.random.default_rng(0).uniform(0.5, 2, 300)
    km = KMeans(4, sketch_size=4, random_state=0)
    plain, scaled = clone(km).fit(X, sample_weight=weight), km.fit(X, sample_weight=scale * weight)
    assert_allclose(scaled.cluster_centers_, plain.cluster_centers_, 1e-3, 1e-4)
    assert_allclose(scaled.inertia_ / scale, plain.inertia_, 1e-4)


def test_weights_pull_the_centers() -> None:
    X = np.array([[0.0], [4.0], [100.0]])
    km = in_full(2, init=[[1.0], [99.0]]).fit(X, sample_weight=[3, 1, 1])
    assert_allclose(km.cluster_centers_, [[1], [100]])
    assert_allclose(km.inertia_, 3 * 1 + 9)


# -- recovery and numerics --------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_blobs_are_recovered_from_a_quarter_of_the_entries(
    blobs: tuple[Array, Array], transform: str, dtype: str
) -> None:
    X, y = blobs
    km = KMeans(4, sketch_size=0.25, transform=transform, dtype=dtype, random_state=0).fit(X)
    assert reference.accuracy(y, km.labels_) > 0.999
    # A quarter of the 500 rows of a cluster show each coordinate, of standard deviation 1.
    truth = np.array([X[km.labels_ == k].mean(axis=0) for k in range(4)])
    error = km.cluster_centers_ - truth
    assert np.abs(error).max() < 5 / np.sqrt(125)
    assert np.sqrt((error**2).mean()) < 1.2 / np.sqrt(125)


def test_labels_from_entries_that_all_rows_share(blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    km = KMeans(4, sketch_size=16, n_shared=16, random_state=0).fit(X)
    assert reference.accuracy(y, km.labels_) > 0.999
    assert np.isfinite(km.cluster_centers_).all()
    assert reference.accuracy(y, km.refine(X).predict(X)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-10, 1e-5, 1e-3, 1e5, 1e10, 1e16])
def test_the_unit_of_the_data_does_not_matter(dtype: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    X, _ = clusters(2000, 20)
    same: dict[str, Any] = {"sketch_size": 8, "dtype": dtype, "random_state": 0}
    plain, scaled = KMeans(4, **same).fit(X), KMeans(4, **same).fit(X * scale)
    assert reference.accuracy(plain.labels_, scaled.labels_) > 0.99
    assert_allclose(scaled.cluster_centers_ / scale, plain.cluster_centers_, atol=0.02)
    assert_allclose(scaled.inertia_ / scale**2, plain.inertia_, 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_huge_offset(dtype: str) -> None:
    X, _ = clusters(600, 16)
    plain = KMeans(4, sketch_size=8, dtype=dtype, random_state=0).fit(X)
    moved = KMeans(4, sketch_size=8, dtype=dtype, random_state=0).fit(X + 1e6)
    assert reference.accuracy(plain.labels_, moved.labels_) > 0.97
    assert_allclose(moved.inertia_, plain.inertia_, 0.05)


@pytest.mark.parametrize("k", [3, 20])
def test_the_same_bits_for_any_number_of_threads(k: int) -> None:
    X, _ = clusters(20_000, 16, k)

    def fitted(threads: int) -> KMeans:
        with threadpool_limits(threads, user_api="openmp"):
            return KMeans(k, sketch_size=4, init="random", n_init=2, random_state=0).fit(X)

    one, two = fitted(1), fitted(2)
    assert_array_equal(one.cluster_centers_, two.cluster_centers_)
    assert_array_equal(one.labels_, two.labels_)
    assert one.inertia_ == two.inertia_


# -- manners ----------------------------------------------------------------------------------------------


def test_verbose_prints_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = clusters(100, 6)
    km = KMeans(3, random_state=0, verbose=1).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == km.n_iter_
    assert lines[0].startswith("iteration 1: inertia ")
    KMeans(3, random_state=0).fit(X)
    assert not capsys.readouterr().out


def test_pickles_and_clones() -> None:
    X, _ = clusters(150, 12)
    km = KMeans(3, sketch_size=4, transform="dct", random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(km))
    assert_array_equal(again.transform(X), km.transform(X))
    assert_array_equal(again.refine(X).cluster_centers_, km.refine(X).cluster_centers_)
    assert clone(km).get_params() == km.get_params()


def test_names_of_the_distances() -> None:
    X, _ = clusters(50, 4)
    km = KMeans(3, random_state=0).fit(X)
    assert km.get_feature_names_out().tolist() == ["kmeans0", "kmeans1", "kmeans2"]


def test_data_frames_in_and_out() -> None:
    X, _ = clusters(50, 4)
    frame = pd.DataFrame(X, columns=list("abcd"), index=np.arange(50) + 1000)
    km = KMeans(3, random_state=0).set_output(transform="pandas").fit(frame)
    assert km.feature_names_in_.tolist() == list("abcd")
    distances = km.transform(frame)
    assert isinstance(distances, pd.DataFrame)
    assert distances.columns.tolist() == ["kmeans0", "kmeans1", "kmeans2"]
    assert_array_equal(distances.index, frame.index)
    assert_allclose(distances.to_numpy(), cdist(X, km.cluster_centers_), 1e-9)
    assert len(km.fit_transform(frame)) == 50


def test_a_step_of_a_pipeline(blobs: tuple[Array, Array]) -> None:
    X, y = blobs
    pipeline = make_pipeline(
        StandardScaler(), KMeans(4, sketch_size=16, transform="dct", random_state=0), LogisticRegression()
    )
    assert pipeline.fit(X, y).score(X, y) > 0.999
    last = make_pipeline(StandardScaler(), KMeans(4, sketch_size=16, random_state=0))
    assert reference.accuracy(y, last.fit_predict(X)) > 0.999
    assert last.transform(X).shape == (2000, 4)


def test_grid_search(blobs: tuple[Array, Array]) -> None:
    X, _ = blobs
    grid = {"n_clusters": [2, 4], "sketch_size": [8, 32], "transform": ["hadamard", "dct"]}
    search = GridSearchCV(KMeans(random_state=0), grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_["n_clusters"] == 4
    assert search.best_estimator_.sketcher_.transform_ == search.best_params_["transform"]
