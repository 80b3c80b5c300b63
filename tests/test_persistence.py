"""A saved model comes back as it was, and nothing else is taken for one."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

import sketchmix as sm
from sketchmix import PCA, GaussianMixture, KMeans, persistence
from sketchmix.families import COVARIANCE_TYPES
from sketchmix.persistence import Contents

Array = NDArray[Any]

ROOT = Path(__file__).parents[1]
# 514 = 2 * 257 is padded by the Hadamard transform.
PADDED = 514


def mixture(covariance_type: str, **parameters: Any) -> GaussianMixture:
    common = {"rank": 2, "sketch_size": 8, "max_iter": 6, "tol": 10.0, "random_state": 0}
    return GaussianMixture(3, covariance_type=covariance_type, **common | parameters)


MODELS: dict[str, Callable[..., Any]] = {
    **{name: partial(mixture, name) for name in COVARIANCE_TYPES},
    "kmeans": partial(KMeans, 3, sketch_size=8, random_state=0),
    "pca": partial(PCA, 2, sketch_size=8, tol=10.0, random_state=0),
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
FAMILY = pytest.mark.parametrize("family", COVARIANCE_TYPES)


def rows(n: int = 300, p: int = 24) -> Array:
    rng = np.random.default_rng(0)
    return 0.7 * rng.normal(size=(3, p))[rng.integers(3, size=n)] + rng.normal(size=(n, p))


@cache
def fitted(name: str) -> Any:
    """A model that no test may change."""
    return MODELS[name]().fit(rows())


def saved_and_loaded(model: Any, folder: Path) -> Any:
    model.save(folder / "model.safetensors")
    return sm.load(folder / "model.safetensors")


def attributes_of(model: Any) -> dict[str, Any]:
    """What a fit set, and `load` sets too."""
    inner = ("_family", "_limits", "_parameters", "_mixture", "sketcher_", "labels_")
    return {name: value for name, value in vars(model).items() if name not in inner}


def answers_of(model: Any, X: Array) -> dict[str, Array]:
    """All that a model says of rows, and of a sketch of them."""
    answers = {}
    for name in ("predict", "predict_proba", "score_samples", "transform", "bic", "aic", "icl", "score"):
        if hasattr(model, name):
            for kind, data in (("rows", X), ("sketch", model.sketcher_.transform(X))):
                answers[f"{name} of {kind}"] = np.asarray(getattr(model, name)(data))
    if isinstance(model, GaussianMixture):
        answers["sample"] = model.sample(20)[0]
        answers["covariance"] = np.array([model.covariance(k) for k in range(3)])
    return answers


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_array_equal(found[name], value, err_msg=name)


# -- there and back ---------------------------------------------------------------------------------------


@EVERY_MODEL
@pytest.mark.parametrize(
    ("transform", "dtype"),
    [("hadamard", "float32"), ("dct", "float64"), ("fourier", "float16"), ("none", "float64")],
)
def test_a_loaded_model_is_the_saved_one_bit_by_bit(name: str, transform: str, dtype: str, tmp_path: Path) -> None:
    X = rows()
    model = MODELS[name](transform=transform, dtype=dtype, n_shared=2).fit(X)
    again = saved_and_loaded(model, tmp_path)
    assert type(again) is type(model)
    assert_same(attributes_of(again), attributes_of(model))
    assert_same(answers_of(again, X), answers_of(model, X))
    assert again.sketcher_.is_same_operator(model.sketcher_)
    if hasattr(model, "refine"):
        assert_same(attributes_of(again.refine(X)), attributes_of(model.refine(X)))
        assert_array_equal(again.labels_, model.labels_)
        assert_same(answers_of(saved_and_loaded(model, tmp_path), X), answers_of(model, X))


@pytest.mark.parametrize("name", ["diag", "spherical", "low_rank", "kmeans", "pca"])
def test_a_padded_model_too(name: str, tmp_path: Path) -> None:
    X = rows(60, PADDED)
    model = MODELS[name](transform="hadamard").fit(X)
    assert model.sketcher_.n_rotated_ > PADDED
    assert_same(answers_of(saved_and_loaded(model, tmp_path), X), answers_of(model, X))


@FAMILY
def test_a_warm_start_goes_on_from_a_loaded_model(family: str, tmp_path: Path) -> None:
    X = rows()
    model = mixture(family, warm_start=True).fit(X)
    again = saved_and_loaded(model, tmp_path)
    assert_same(attributes_of(again.fit(X[::2])), attributes_of(model.fit(X[::2])))


def test_a_rank_that_the_data_chose_is_kept(tmp_path: Path) -> None:
    model = mixture("low_rank", rank="auto").fit(rows())
    again = saved_and_loaded(model, tmp_path)
    assert again.rank == "auto"
    assert again.factors_.shape == model.factors_.shape
    assert again.bic(rows()) == model.bic(rows())


def test_a_model_is_what_was_fitted_whatever_its_parameters_have_become(tmp_path: Path) -> None:
    model = mixture("full").fit(rows()).set_params(n_components=7, covariance_type="low_rank", rank=3)
    again = saved_and_loaded(model, tmp_path)
    assert (again.n_components, again.covariance_type, again.rank) == (7, "low_rank", 3)
    assert_same(answers_of(again, rows()), answers_of(model, rows()))


def test_names_of_features_are_kept(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows(50, 3), columns=["a", "b", "ü"])
    model = KMeans(2, random_state=0).fit(frame)
    again = saved_and_loaded(model, tmp_path)
    assert again.feature_names_in_.tolist() == ["a", "b", "ü"]
    assert_array_equal(again.predict(frame), model.predict(frame))


def test_on_another_cpu_answers_are_the_same_but_for_rounding(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import numpy as np
import sketchmix as sm
from tests.test_persistence import MODELS, answers_of, rows

folder = Path(sys.argv[1])
for name in MODELS:
    np.savez(folder / f"{name}.npz", **answers_of(sm.load(folder / name), rows()))
"""
    for name in MODELS:
        fitted(name).save(tmp_path / name)
    environment = os.environ | {"SKETCHMIX_CPU": "baseline"}
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, env=environment, check=True, timeout=300)
    for name in MODELS:
        with np.load(tmp_path / f"{name}.npz") as there:
            for question, answer in answers_of(fitted(name), rows()).items():
                assert_allclose(there[question], answer, rtol=1e-6, atol=1e-8, err_msg=f"{name}, {question}")


# -- parameters -------------------------------------------------------------------------------------------


def test_parameters_come_back(tmp_path: Path) -> None:
    X = rows()
    given_parameters = {
        "means_init": X[:3].tolist(),
        "weights_init": np.array([0.2, 0.3, 0.5]),
        "sketch_size": np.int64(8),
        "tol": np.float32(0.1),
        "max_iter": 300,
        "dtype": np.float64,
        "verbose": False,
    }
    again = saved_and_loaded(GaussianMixture(3, random_state=4, **given_parameters).fit(X), tmp_path)
    found = again.get_params()
    assert_array_equal(found.pop("means_init"), X[:3])
    assert found.pop("weights_init").tolist() == [0.2, 0.3, 0.5]
    expected = GaussianMixture(
        3, random_state=4, sketch_size=8, tol=float(np.float32(0.1)), max_iter=300, dtype="float64", verbose=False
    )
    assert found == {name: expected.get_params()[name] for name in found}
    assert_array_equal(again.fit(X).means_, GaussianMixture(3, random_state=4, **given_parameters).fit(X).means_)


def test_initial_centers_come_back(tmp_path: Path) -> None:
    X = rows()
    again = saved_and_loaded(KMeans(3, init=X[:3], sketch_size=8, random_state=0).fit(X), tmp_path)
    assert_array_equal(again.init, X[:3])
    assert_array_equal(again.fit(X).labels_, KMeans(3, init=X[:3], sketch_size=8, random_state=0).fit(X).labels_)


def test_a_generator_is_not_saved_but_what_it_drew_is(tmp_path: Path) -> None:
    model = KMeans(3, sketch_size=8, random_state=np.random.RandomState(0)).fit(rows())
    again = saved_and_loaded(model, tmp_path)
    assert again.random_state is None
    assert_array_equal(again.predict(rows()), model.predict(rows()))


# -- the file ---------------------------------------------------------------------------------------------


def test_any_reader_of_safetensors_reads_the_arrays(tmp_path: Path) -> None:
    model = fitted("full")
    model.save(tmp_path / "model")
    arrays = safetensors.numpy.load_file(tmp_path / "model")
    assert_array_equal(arrays["covariances"], model._parameters.covariances)
    assert_array_equal(model.sketcher_.unrotate(arrays["means"].T), model.means_)
    with safetensors.safe_open(tmp_path / "model", framework="numpy") as file:
        said = json.loads(file.metadata()["sketchmix"])
    assert (said["format"], said["version"]) == ("sketchmix model", 1)
    assert said["parameters"]["covariance_type"] == "full"


def test_no_labels_are_in_it(tmp_path: Path) -> None:
    model = KMeans(3, sketch_size=8, random_state=0).fit(rows(20_000))
    assert not hasattr(saved_and_loaded(model, tmp_path), "labels_")
    assert (tmp_path / "model.safetensors").stat().st_size < 5_000


def test_it_replaces_another(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    fitted("kmeans").save(path)
    fitted("pca").save(path)
    assert isinstance(sm.load(path), PCA)
    assert list(tmp_path.iterdir()) == [Path(path)]


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = MODELS["kmeans"]().fit(rows())
    model._centers[0, 0] = np.nan
    with pytest.raises(ValueError, match="tensor 'centers' contains NaN or infinity"):
        model.save(tmp_path / "model")
    model = MODELS["kmeans"]().fit(rows()).set_params(tol=-1)
    with pytest.raises(ValueError, match="tol must be finite and at least 0"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [GaussianMixture, KMeans, PCA])
def test_a_model_that_was_not_fitted_is_not_saved(kind: type[Any], tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
        kind().save(tmp_path / "model")


def test_a_class_that_load_does_not_know_is_not_saved(tmp_path: Path) -> None:
    class Doubled(KMeans):
        pass

    with pytest.raises(
        TypeError, match="Doubled is not a class of sketchmix, and load would not know it; pickle it"
    ):
        Doubled(3, random_state=0).fit(rows()).save(tmp_path / "model")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("kmeans")
    model.save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for fails in (lambda: model.save(tmp_path / "model"), lambda: sm.load(tmp_path / "model")):
        with pytest.raises(ImportError, match=r'pip install "sketchmix\[models\]"'):
            fails()


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        sm.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no such folder; make it first: '.*no folder'"):
        fitted("kmeans").save(tmp_path / "no folder" / "model")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        sm.load(tmp_path)


# -- what is refused --------------------------------------------------------------------------------------


def load_contents(contents: Contents, folder: Path) -> Any:
    """What `load` makes of contents, with a checksum that is theirs."""
    persistence.write(folder / "model", contents)
    return sm.load(folder / "model")


def changed(contents: Contents, path: str, value: object) -> Contents:
    """The contents with one member of the JSON, or one tensor, replaced; removed by None."""
    contents = deepcopy(contents)
    kind, *names = path.split("/")
    place: Any = contents.state if kind == "json" else contents.tensors
    for name in names[:-1]:
        place = place[name]
    if value is None:
        del place[names[-1]]
    else:
        place[names[-1]] = value
    return contents


def with_entry(array: Array, value: float) -> Array:
    """The array with its first number replaced."""
    other = array.copy()
    other.flat[0] = value
    return other


TEXTS = [
    ("kmeans", "json/format", "cake", "its format is 'cake', not 'sketchmix model'"),
    ("kmeans", "json/version", 2, "it was written by a newer sketchmix, in version 2 of the format; upgrade"),
    ("kmeans", "json/version", "1", "version is '1'"),
    ("kmeans", "json/estimator", "os.system", "estimator must be one of 'GaussianMixture', 'KMeans', 'PCA'"),
    ("kmeans", "json/parameters", [], r"parameters is \[\]"),
    ("kmeans", "json/parameters/shape", 3, "parameters are .*shape.*; expected"),
    ("kmeans", "json/parameters/tol", None, "parameters are .*; expected .*tol"),
    ("kmeans", "json/parameters/tol", -1, "tol must be finite and at least 0; got -1"),
    ("kmeans", "json/parameters/tol", [1], r"parameter tol is \[1\]"),
    ("kmeans", "json/parameters/tol", 10**400, "too large"),
    ("kmeans", "json/parameters/max_iter", "many", "max_iter must be an integer; got 'many'"),
    ("kmeans", "json/sketcher", None, "sketcher is missing"),
    ("kmeans", "json/sketcher/n_features", 25, "signs are 24 bits for 25 features"),
    ("kmeans", "json/sketcher/n_features", 2**31, "signs are 24 bits for 2147483648 features"),
    ("kmeans", "json/n_iter", 0, "n_iter is 0, not in"),
    ("kmeans", "json/inertia", -1.0, "inertia must be finite and at least 0; got -1"),
    ("kmeans", "json/inertia", True, "inertia must be a number; got True"),
    ("diag", "json/converged", 1, "converged is 1"),
    ("diag", "json/family", "square", "family must be one of 'diag'"),
    ("diag", "json/family", "full", "tensor 'covariances' is missing"),
    ("diag", "json/support", "x", "support is 'x'"),
    ("diag", "json/n_iter", 1, r"there are \d lower_bounds of 1 iterations"),
    ("low_rank", "json/rank", 24, r"rank is 24, not in \[1, 23\]"),
    ("low_rank", "json/rank", 3, r"tensor 'factors' has shape \(3, 24, 2\); expected \(3, 24, 3\)"),
    ("pca", "json/rank", 0, "rank is 0"),
]
TENSORS: list[tuple[str, str, Callable[[Array], Array | None], str]] = [
    ("kmeans", "centers", lambda x: None, "tensor 'centers' is missing"),
    ("kmeans", "centers", lambda x: x[:-1], r"tensor 'centers' has shape \(23, 3\); expected \(24, number of"),
    ("kmeans", "centers", lambda x: x[:, :0], r"tensor 'centers' has shape \(24, 0\)"),
    ("kmeans", "centers", lambda x: x.ravel(), r"tensor 'centers' has shape \(72,\)"),
    ("kmeans", "centers", lambda x: with_entry(x, np.inf), "tensor 'centers' contains NaN or infinity"),
    ("kmeans", "centers", lambda x: np.full_like(x, 1e308), "cluster_centers_ would contain NaN or infinity"),
    ("diag", "weights", lambda x: 2 * x, "weights must be non-negative and sum to 1; their sum is 2"),
    ("diag", "weights", lambda x: x - [1, 0, -1], "weights must be non-negative"),
    ("diag", "weights", lambda x: x[:0], r"tensor 'weights' has shape \(0,\); expected one number at least"),
    ("diag", "weights", lambda x: x[None], r"tensor 'weights' has shape \(1, 3\)"),
    ("diag", "means", lambda x: x[:, :2], r"tensor 'means' has shape \(24, 2\); expected \(24, 3\)"),
    ("diag", "means", lambda x: with_entry(x, np.nan), "tensor 'means' contains NaN or infinity"),
    (
        "diag",
        "variances",
        lambda x: with_entry(x, 0),
        "tensor 'variances' has numbers that are not positive; .* is 0",
    ),
    (
        "spherical",
        "variances",
        lambda x: with_entry(x, -1),
        "tensor 'variances' has numbers that are not positive",
    ),
    ("spherical", "variances", lambda x: x[:2], r"tensor 'variances' has shape \(2,\); expected \(3,\)"),
    ("diag", "floor", lambda x: x[0], r"tensor 'floor' has shape \(3,\); expected \(24, 3\)"),
    ("diag", "lower_bounds", lambda x: x[:0], r"tensor 'lower_bounds' has shape \(0,\)"),
    ("diag", "lower_bounds", lambda x: with_entry(x, np.nan), "tensor 'lower_bounds' contains NaN"),
    ("full", "covariances", lambda x: x[:2], r"tensor 'covariances' has shape \(2, 24, 24\); expected \(3, 24"),
    ("full", "covariances", lambda x: -x, "covariance 0 is not symmetric and positive definite"),
    ("full", "covariances", lambda x: x + np.triu(np.ones(24), 1), "covariance 0 is not symmetric"),
    ("tied", "covariances", lambda x: 0 * x, "covariance 0 is not symmetric and positive definite"),
    ("low_rank", "noise", lambda x: -x, "tensor 'noise' has numbers that are not positive"),
    ("low_rank", "prior", lambda x: -x, "the prior of component 0 is not symmetric and positive semi-definite"),
    ("low_rank", "factors", lambda x: with_entry(x, 1e200), "variances_ would contain NaN or infinity"),
    ("pca", "weights", lambda x: np.array([0.5, 0.5]), r"tensor 'weights' has shape \(2,\); expected \(1,\)"),
    ("pca", "weights", lambda x: 2 * x, "weights must be non-negative and sum to 1; their sum is 2"),
    ("pca", "noise", lambda x: 0 * x, "tensor 'noise' has numbers that are not positive"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), TEXTS)
def test_a_text_that_no_model_has_is_refused(
    name: str, path: str, value: object, message: str, tmp_path: Path
) -> None:
    contents = fitted(name)._contents()
    head = {"format": "sketchmix model", "version": 1, "estimator": contents.estimator}
    whole = replace(contents, state=head | contents.state)
    with pytest.raises(ValueError, match=f"model cannot be loaded: .*{message}.*Save the model again, or upgrade"):
        load_contents(changed(whole, path, value), tmp_path)


@pytest.mark.parametrize(("name", "tensor", "change", "message"), TENSORS)
def test_a_tensor_that_no_model_has_is_refused(
    name: str, tensor: str, change: Callable[[Array], Array | None], message: str, tmp_path: Path
) -> None:
    contents = fitted(name)._contents()
    broken = changed(contents, f"tensor/{tensor}", change(contents.tensors[tensor]))
    with pytest.raises(ValueError, match=f"model cannot be loaded: {message}"):
        load_contents(broken, tmp_path)


@EVERY_MODEL
def test_a_tensor_too_many_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are tensors that no such model has: more"):
        load_contents(changed(fitted(name)._contents(), "tensor/more", np.ones(3)), tmp_path)


def test_other_types_of_numbers_are_refused(tmp_path: Path) -> None:
    text = json.dumps({"format": "sketchmix model", "version": 1})
    data = safetensors.numpy.save({"centers": np.ones((2, 2), np.float32)}, {"sketchmix": text})
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(ValueError, match="tensor 'centers' has dtype F32, not F64"):
        sm.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "format is missing"),
        ('{"format": NaN}', "its JSON contains NaN"),
        ("[" * 100_000, "its JSON is nested too deeply"),
    ],
)
def test_texts_that_say_nothing_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(safetensors.numpy.save({}, {"sketchmix": text}))
    with pytest.raises(ValueError, match=message):
        sm.load(tmp_path / "model")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        b"no safetensors file at all",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 70)
        + b'{"x":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8]}}    '
        + b"8" * 8,
    ],
)
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(ValueError, match="model cannot be loaded: "):
        sm.load(tmp_path / "model")


# -- damage -----------------------------------------------------------------------------------------------


@EVERY_MODEL
def test_a_damaged_byte_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted(name).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    for position in [*range(8), *rng.integers(8, header, 150), *rng.integers(header, len(whole), 50)]:
        flipped = whole[position] ^ (1 << int(rng.integers(8)))
        path.write_bytes(whole[:position] + bytes([flipped]) + whole[position + 1 :])
        refused_or_the_same(path, fitted(name))


@EVERY_MODEL
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted(name).save(path)
    whole = path.read_bytes()
    for length in {*range(12), *range(0, len(whole), 97), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="model cannot be loaded: "):
            sm.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="model cannot be loaded: "):
        sm.load(path)


def refused_or_the_same(path: Path, model: Any) -> None:
    """What a damaged byte may do: a space in the header may turn into another one, but no number into another."""
    try:
        again = sm.load(path)
    except ValueError:
        return
    assert_same(attributes_of(again), attributes_of(model))


LEAVES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    2**31,
    2**70,
    0.5,
    1e-300,
    1e300,
    "",
    "diag",
    "full",
    "none",
    [],
    [1],
    {},
    {"a": 1},
)
NUMBERS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1.0, 1e-200, 1e200, 1e308, -1e308)


def leaves_of(state: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths to all members of a JSON object."""
    if not isinstance(state, dict):
        return [path]
    return [path, *(leaf for name, value in state.items() for leaf in leaves_of(value, (*path, name)))]


@EVERY_MODEL
def test_whatever_a_file_says_it_is_refused_or_makes_a_model(name: str, tmp_path: Path) -> None:
    contents = fitted(name)._contents()
    rng = np.random.default_rng(0)
    for path in leaves_of(contents.state)[1:]:
        for leaf in rng.choice(np.array(LEAVES, object), 6):
            refused_or_valid(changed(contents, "/".join(("json", *path)), leaf), tmp_path)
    for tensor, array in contents.tensors.items():
        for number in NUMBERS:
            other = array.copy()
            other.flat[rng.integers(other.size)] = number
            refused_or_valid(changed(contents, f"tensor/{tensor}", other), tmp_path)
            refused_or_valid(changed(contents, f"tensor/{tensor}", np.full_like(array, number)), tmp_path)


def refused_or_valid(contents: Contents, folder: Path) -> None:
    """Either a ValueError, or a model of finite numbers."""
    try:
        model = load_contents(contents, folder)
    except ValueError:
        return
    for name, value in attributes_of(model).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name


@pytest.mark.parametrize(
    "model",
    [
        KMeans(3, sketch_size=6, random_state=0),
        PCA(2, sketch_size=6, random_state=0),
        *[
            GaussianMixture(3, covariance_type=name, rank=2, sketch_size=6, random_state=0)
            for name in ("diag", "low_rank", "full")
        ],
    ],
    ids=str,
)
def test_a_stream_goes_on_from_a_loaded_model_as_from_a_fitted_one(model: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(600, 12)) + 5 * np.repeat(np.eye(3, 12), 200, axis=0)
    model.fit(X[::2]).save(tmp_path / "model")
    loaded: Any = sm.load(tmp_path / "model")
    assert loaded.n_samples_seen_ == 300
    for stream in (model, loaded):
        for batch in np.array_split(X[1::2], 3):
            stream.partial_fit(batch)
    assert loaded.n_samples_seen_ == model.n_samples_seen_ == 600
    np.testing.assert_array_equal(loaded.score(X), model.score(X))


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    model = KMeans(2, random_state=0).fit(np.random.default_rng(0).normal(size=(30, 5)))
    for name in "abcdefgh":
        model.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "a").read_bytes()
