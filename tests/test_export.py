"""Models as scikit-learn's own, which say the same of raw rows."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from sketchmix import PCA, GaussianMixture, KMeans
from sketchmix.families import COVARIANCE_TYPES

Array = NDArray[Any]

FAMILY = pytest.mark.parametrize("family", COVARIANCE_TYPES)
# Odd and above 255: padded.
PADDED = 257


def clusters(n: int, p: int) -> Array:
    rng = np.random.default_rng(0)
    return 0.6 * rng.normal(size=(3, p))[rng.integers(3, size=n)] + rng.normal(size=(n, p)) + 5


def mixture(family: str, **parameters: Any) -> GaussianMixture:
    settings = {"rank": 2, "sketch_size": 0.4, "max_iter": 5, "tol": 10.0, "random_state": 0, **parameters}
    return GaussianMixture(3, covariance_type=family, **settings)


@FAMILY
@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mixture_says_the_same_of_rows(family: str, transform: str, dtype: str) -> None:
    X = clusters(400, 20).astype(dtype)
    ours = mixture(family, transform=transform, dtype=dtype).fit(X)
    theirs = ours.to_sklearn()
    assert_array_equal(theirs.predict(X), ours.predict(X))
    # They compute in the rows' own precision, we in float64.
    rounding = 1e-8 if dtype == "float64" else 2e-3
    assert_allclose(theirs.predict_proba(X), ours.predict_proba(X), atol=rounding)
    assert_allclose(theirs.score_samples(X), ours.score_samples(X), rtol=rounding)


@FAMILY
def test_a_mixture_is_no_wider_than_it_must_be(family: str) -> None:
    X = clusters(400, 20)
    for transform, of_diagonal in (("hadamard", "full"), ("none", "diag")):
        theirs = mixture(family, transform=transform).fit(X).to_sklearn()
        expected = {"diag": of_diagonal, "low_rank": "full"}.get(family, family)
        assert theirs.covariance_type == expected
        shape = {"spherical": (3,), "diag": (3, 20), "tied": (20, 20), "full": (3, 20, 20)}[expected]
        assert theirs.covariances_.shape == theirs.precisions_.shape == theirs.precisions_cholesky_.shape == shape


@FAMILY
def test_attributes_are_those_of_the_model(family: str) -> None:
    ours = mixture(family).fit(clusters(400, 20))
    theirs = ours.to_sklearn()
    assert_array_equal(theirs.means_, ours.means_)
    assert_allclose(theirs.weights_, ours.weights_, rtol=1e-14)
    assert (theirs.n_iter_, theirs.converged_, theirs.n_features_in_) == (ours.n_iter_, ours.converged_, 20)
    if theirs.covariance_type == "full":
        for k, (covariance, precision) in enumerate(zip(theirs.covariances_, theirs.precisions_, strict=True)):
            assert_array_equal(covariance, ours.covariance(k))
            assert_allclose(precision @ covariance, np.eye(20), atol=1e-10)
    assert theirs.sample(3)[0].shape == (3, 20)


@FAMILY
def test_a_padded_mixture_is_given_the_padding(family: str) -> None:
    X = clusters(300, PADDED)
    ours = mixture(family, transform="hadamard", sketch_size=12).fit(X)
    assert ours.sketcher_.n_rotated_ > PADDED
    theirs = ours.to_sklearn()
    assert_array_equal(theirs.predict(X), ours.predict(X))
    assert_allclose(theirs.predict_proba(X), ours.predict_proba(X), atol=1e-6)
    apart = ours.score_samples(X) - theirs.score_samples(X)
    assert_allclose(apart, apart[0], atol=1e-6)


@FAMILY
def test_a_mixture_goes_on_to_onnx(family: str) -> None:
    skl2onnx, reference = pytest.importorskip("skl2onnx"), pytest.importorskip("onnx.reference")
    X = clusters(400, 20)
    ours = mixture(family).fit(X)
    converted = skl2onnx.to_onnx(ours.to_sklearn(), X[:1])
    labels, probabilities = reference.ReferenceEvaluator(converted).run(None, {"X": X})
    assert_array_equal(labels.ravel(), ours.predict(X))
    assert_allclose(probabilities, ours.predict_proba(X), atol=1e-8)


def test_an_empty_component_is_no_trouble() -> None:
    X = np.repeat(np.eye(8), 20, axis=0)
    with pytest.warns(UserWarning, match="component"):
        ours = GaussianMixture(8, means_init=np.vstack([np.eye(8)[:7], 1e6 * np.ones(8)]), random_state=0).fit(X)
    assert ours.weights_.min() == 0
    assert_array_equal(ours.to_sklearn().predict(X), ours.predict(X))


@pytest.mark.parametrize("n_clusters", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_k_means_says_the_same_of_rows(n_clusters: int, dtype: str) -> None:
    X = clusters(400, 20)
    ours = KMeans(n_clusters, sketch_size=8, random_state=0, dtype=dtype).fit(X.astype(dtype))
    theirs = ours.to_sklearn()
    assert_array_equal(theirs.predict(X), ours.predict(X))
    assert_array_equal(theirs.labels_, ours.labels_)
    assert_array_equal(theirs.cluster_centers_, ours.cluster_centers_)
    assert_allclose(theirs.transform(X), ours.transform(X), rtol=1e-5)
    assert_allclose(theirs.score(X), ours.score(X), rtol=1e-5)
    assert (theirs.inertia_, theirs.n_iter_) == (ours.inertia_, ours.n_iter_)


def test_clusters_at_the_same_place_are_no_trouble() -> None:
    with pytest.warns(UserWarning, match="clusters have rows"):
        ours = KMeans(3, random_state=0).fit(np.ones((9, 4)))
    assert ours.to_sklearn().predict(np.ones((2, 4))).tolist() == [0, 0]


@pytest.mark.parametrize("n_features", [20, PADDED])
def test_a_pca_says_the_same_of_rows(n_features: int) -> None:
    X = clusters(300, n_features)
    ours = PCA(2, sketch_size=0.4, transform="hadamard", random_state=0).fit(X)
    theirs = ours.to_sklearn()
    coordinates = ours.transform(X)
    assert_allclose(theirs.transform(X), coordinates, atol=1e-9)
    assert_allclose(theirs.inverse_transform(coordinates), ours.inverse_transform(coordinates), rtol=1e-12)
    assert_allclose(theirs.get_covariance(), ours.get_covariance(), atol=1e-12)
    if n_features == 20:
        assert_allclose(theirs.score_samples(X), ours.score_samples(X), rtol=1e-8)


@pytest.mark.parametrize("model", [GaussianMixture(2), KMeans(2), PCA(1)])
def test_names_of_features_go_along(model: Any) -> None:
    pd = pytest.importorskip("pandas")
    theirs = model.fit(pd.DataFrame(clusters(50, 3), columns=["a", "b", "c"])).to_sklearn()
    assert theirs.feature_names_in_.tolist() == ["a", "b", "c"]
    assert theirs.n_features_in_ == 3


@pytest.mark.parametrize("kind", [GaussianMixture, KMeans, PCA])
def test_before_the_fit(kind: type[Any]) -> None:
    with pytest.raises(NotFittedError):
        kind().to_sklearn()
