"""What scikit-learn, `help` and a reader may expect of every public name."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

import sketchmix as sm
from sketchmix import PCA, GaussianMixture, KMeans, Sketch, Sketcher, sources
from sketchmix.base import one_blas_thread

Array = NDArray[Any]

ESTIMATORS = pytest.mark.parametrize("kind", [GaussianMixture, KMeans, PCA, Sketcher])
FITTED = pytest.mark.parametrize("kind", [GaussianMixture, KMeans])
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(sm.__path__, "sketchmix.")
    if not module.name.endswith("._core")
)


def rows(n: int = 60, p: int = 8) -> Array:
    return np.random.default_rng(0).normal(size=(n, p))


# -- scikit-learn's own checks ----------------------------------------------------------------------------


# Four components, as check_estimator_sparse_container takes everything with predict_proba for a classifier of the
# four classes that it made.
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        GaussianMixture(n_components=4),
        GaussianMixture(n_components=4, covariance_type="spherical"),
        GaussianMixture(n_components=4, covariance_type="low_rank", rank=1),
        GaussianMixture(n_components=4, covariance_type="full"),
        GaussianMixture(n_components=4, covariance_type="tied"),
        KMeans(),
        KMeans(n_clusters=2, init="random"),
        PCA(n_components=1),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_checks(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)


# -- parameters -------------------------------------------------------------------------------------------


def test_the_public_names() -> None:
    classes = ["GaussianMixture", "KMeans", "PCA", "Selection", "Sketch", "Sketcher"]
    assert sorted(sm.__all__) == [*classes, "concatenate", "load", "select"]
    assert all(hasattr(sm, name) for name in sm.__all__)


def test_a_parameter_named_transform_beside_the_method() -> None:
    km = KMeans(transform="dct")
    assert km.get_params()["transform"] == "dct"
    assert KMeans().get_params()["transform"] == "auto"
    assert inspect.ismethod(km.transform)
    assert inspect.ismethod(Sketcher().transform)
    assert "transform='dct'" in repr(km)


def test_a_mixture_is_no_transformer() -> None:
    gm = GaussianMixture(transform="fourier")
    assert not hasattr(gm, "transform")
    assert not hasattr(GaussianMixture, "transform")
    assert gm.get_params()["transform"] == "fourier"
    with pytest.raises(AttributeError, match="no method transform; read the parameter with get_params"):
        gm.transform  # noqa: B018


@ESTIMATORS
def test_set_params_sets_the_transform(kind: type[Any]) -> None:
    estimator = kind(random_state=0)
    assert estimator.set_params(transform="dct") is estimator
    assert estimator.get_params()["transform"] == "dct"
    assert clone(estimator).get_params()["transform"] == "dct"
    fitted = estimator.fit(rows())
    sketcher = fitted if kind is Sketcher else fitted.sketcher_
    assert sketcher.transform_ == "dct"
    with pytest.raises(ValueError, match="Invalid parameter"):
        kind().set_params(transforms="dct")


def test_a_subclass_may_override_transform() -> None:
    class Doubled(KMeans):
        def transform(self, X: Any) -> Array:
            return 2 * super().transform(X)

    X = rows()
    doubled, plain = Doubled(3, random_state=0).fit(X), KMeans(3, random_state=0).fit(X)
    assert doubled.get_params()["transform"] == "auto"
    assert_array_equal(doubled.transform(X), 2 * plain.transform(X))


def test_a_subclass_keeps_its_parameters() -> None:
    class Named(GaussianMixture):
        pass

    assert Named(3, transform="dct").get_params() == GaussianMixture(3, transform="dct").get_params()
    assert Named(3, random_state=0).fit(rows()).weights_.shape == (3,)


def some_parameters(kind: type[Any]) -> dict[str, Any]:
    """A value for every parameter, none of them what a fit would store."""
    of_sketcher = {"sketch_size": 0.5, "transform": "auto", "n_shared": 1, "dtype": "float64", "random_state": 3}
    everyone = of_sketcher | {"learning_decay": 1}
    if kind is GaussianMixture:
        own = {
            "n_components": 2,
            "covariance_type": "spherical",
            "rank": 3,
            "tol": 1,
            "reg_covar": 1,
            "max_iter": 50,
        }
        start = {"n_init": 2, "init_params": "random_from_data", "weights_init": [0.5, 0.5], "means_init": None}
        return {**everyone, **own, **start, "warm_start": False, "verbose": False}
    if kind is KMeans:
        own = {"n_clusters": 2, "init": rows()[:2].tolist(), "n_init": "auto", "max_iter": 50, "tol": 1}
        return {**everyone, **own, "verbose": False}
    if kind is PCA:
        return {**everyone, "n_components": 2, "tol": 1, "max_iter": 50, "verbose": False}
    return of_sketcher


@ESTIMATORS
def test_fit_does_not_rewrite_parameters(kind: type[Any]) -> None:
    given = some_parameters(kind)
    assert set(given) == set(kind().get_params())
    estimator = kind(**given).fit(rows())
    for name, value in estimator.get_params().items():
        assert value is given[name]


@ESTIMATORS
def test_init_only_stores(kind: type[Any]) -> None:
    nonsense = {name: object() for name in kind().get_params()}
    estimator = kind(**nonsense)
    assert vars(estimator) == nonsense


@ESTIMATORS
def test_names_of_the_columns_are_kept(kind: type[Any]) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows(), columns=list("abcdefgh"))
    estimator = kind().fit(frame)
    assert estimator.feature_names_in_.tolist() == list("abcdefgh")
    with pytest.raises(ValueError, match="feature names"):
        (estimator.predict if hasattr(estimator, "predict") else estimator.transform)(frame[list("hgfedcba")])
    assert not hasattr(estimator.fit(rows()), "feature_names_in_")


@FITTED
def test_a_model_of_a_sketch_knows_the_names(kind: type[Any]) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows(), columns=list("abcdefgh"))
    sketch = Sketcher(sketch_size=4).fit_transform(frame)
    assert kind(random_state=0).fit(sketch).feature_names_in_.tolist() == list("abcdefgh")


@FITTED
def test_before_the_fit(kind: type[Any]) -> None:
    methods = ["predict", "score", "refine"]
    methods += ["transform"] if kind is KMeans else ["predict_proba", "score_samples", "bic", "aic", "icl"]
    for name in methods:
        with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
            getattr(kind(), name)(rows())


@FITTED
def test_a_refused_fit_leaves_the_model_as_it_was(kind: type[Any]) -> None:
    X = rows()
    model = kind(3, sketch_size=4, random_state=0).fit(X)
    before = model.predict(X)
    start = {"means_init": X[:2]} if kind is GaussianMixture else {"init": X[:2]}
    model.set_params(random_state=1, **start)
    with pytest.raises(ValueError, match="expected"):
        model.fit(X)
    assert_array_equal(model.predict(X), before)


def test_a_warm_start_with_other_features_is_refused_in_words() -> None:
    X = rows()
    gm = GaussianMixture(2, sketch_size=4, warm_start=True, random_state=0).fit(X)
    before = gm.predict(X)
    with pytest.raises(ValueError, match="5 features"):
        gm.fit(X[:, :5])
    assert_array_equal(gm.predict(X), before)


@pytest.mark.parametrize("model", [GaussianMixture(2), KMeans(2, init="random", n_init=1), PCA(2)])
def test_a_warning_points_at_who_called_fit(model: Any) -> None:
    with pytest.warns(ConvergenceWarning, match="did not converge") as caught:
        model.set_params(max_iter=1, random_state=0).fit(rows())
    assert {warning.filename for warning in caught} == {__file__}


def test_blas_has_one_thread_in_a_fit_and_its_own_afterwards() -> None:
    def of_blas() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        assert one_blas_thread(of_blas)() == {1}
        assert of_blas() == {2}


# -- documentation ----------------------------------------------------------------------------------------


def public_callables() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method that this package defines."""
    for name, thing in [(name, getattr(module, name)) for module in (sm, sources) for name in module.__all__]:
        yield name, thing
        if inspect.isclass(thing):
            for attribute, member in inspect.getmembers(thing):
                ours = getattr(inspect.unwrap(member), "__module__", "") if callable(member) else ""
                if not attribute.startswith("_") and str(ours).startswith("sketchmix"):
                    yield f"{name}.{attribute}", member


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in public_callables()])
def test_documentation_says_everything(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing)
    assert text
    assert text.splitlines()[0].endswith(".")
    # As they are written in the signature: `**parameters` with its stars.
    parameters = [str(p).split(":")[0].split("=")[0] for p in inspect.signature(thing).parameters.values()]
    parameters = [p for p in parameters if p != "self"]
    if parameters:
        assert "Parameters\n----------" in text
        for parameter in parameters:
            assert f"\n{parameter} : " in text, parameter
    if inspect.isclass(thing) or "." not in name:
        assert "Examples\n--------" in text
    if not inspect.isclass(thing):
        assert "Returns\n-------" in text


def test_properties_are_documented() -> None:
    for kind in (Sketch, Sketcher):
        for name, member in inspect.getmembers(kind, lambda member: isinstance(member, property)):
            assert name.startswith("_") or inspect.getdoc(member), name


@ESTIMATORS
def test_every_attribute_of_a_fit_is_documented(kind: type[Any]) -> None:
    pd = pytest.importorskip("pandas")
    estimator = kind(random_state=0).fit(pd.DataFrame(rows(), columns=list("abcdefgh")))
    attributes = [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]
    assert len(attributes) >= 6
    text = inspect.getdoc(kind) or ""
    documented = text[text.index("Attributes\n") :]
    for name in attributes:
        if not (kind is Sketcher and name == "feature_names_in_"):
            assert f"\n{name} : " in documented, name


@pytest.mark.parametrize("name", ["sketchmix", *MODULES])
def test_examples_in_the_documentation(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module, raise_on_error=False).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert {test.name.split(".")[-1] for test in found} >= {*sm.__all__, *sources.__all__}
