"""A sketcher goes to JSON and back, and nothing else is taken for one."""

import json

import numpy as np
import pytest

import sketchmix as sm
from sketchmix.portable import sketcher_of_json, sketcher_to_json


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
@pytest.mark.parametrize("n_features", [1, 5, 64, 100, 1013])
def test_there_and_back(transform: str, n_features: int) -> None:
    X = np.random.default_rng(0).normal(size=(5, n_features))
    sketcher = sm.Sketcher(sketch_size=0.5, transform=transform, n_shared=1, random_state=3).fit(X)
    again = sketcher_of_json(json.loads(json.dumps(sketcher_to_json(sketcher))))
    assert again.get_params() == sketcher.get_params()
    assert again.is_same_operator(sketcher)
    np.testing.assert_array_equal(again.transform(X).values, sketcher.transform(X).values)


def test_a_generator_is_not_written_but_what_it_drew_is() -> None:
    sketcher = sm.Sketcher(sketch_size=2, random_state=np.random.RandomState(0)).fit(np.zeros((1, 8)))
    again = sketcher_of_json(json.loads(json.dumps(sketcher_to_json(sketcher))))
    assert again.random_state is None
    assert again.is_same_operator(sketcher)


def test_feature_names_are_kept() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.zeros((2, 3)), columns=["a", "b", "c"])
    sketcher = sm.Sketcher(sketch_size=2, random_state=0).fit(frame)
    again = sketcher_of_json(json.loads(json.dumps(sketcher_to_json(sketcher))))
    assert again.feature_names_in_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_features", 0, r"n_features is 0, not in \[1, 2147483648\]"),
        ("n_features", 9, "signs are 8 bits for 9 features"),
        ("n_features", True, "n_features is True"),
        ("n_rotated", 16, "n_rotated is 16, but rows of 8 features have 8"),
        ("sketch_size", 9, r"sketch_size is 9, not in \[1, 8\]"),
        ("transform", "hartley", "transform must be one of"),
        ("seed", -1, "seed is -1"),
        ("signs", "zz", "signs are not hexadecimal"),
        ("shared_indices", [8], "shared_indices are not increasing"),
        ("shared_indices", [1, 1], "shared_indices are not increasing"),
        ("shared_indices", ["0"], "shared_indices are not increasing"),
        ("feature_names", ["a"], "feature_names are not 8 strings"),
        ("parameters", {}, "sketch_size is missing"),
        ("parameters", None, "parameters is None"),
    ],
)
def test_what_cannot_be_a_sketcher_is_refused(name: str, value: object, message: str) -> None:
    state = sketcher_to_json(sm.Sketcher(sketch_size=2, random_state=0).fit(np.zeros((1, 8))))
    with pytest.raises(ValueError, match=message):
        sketcher_of_json({**state, name: value})


def test_a_missing_member_is_named() -> None:
    state = sketcher_to_json(sm.Sketcher(sketch_size=2, random_state=0).fit(np.zeros((1, 8))))
    del state["seed"]
    with pytest.raises(ValueError, match="seed is missing"):
        sketcher_of_json(state)
    with pytest.raises(ValueError, match="parameters is missing"):
        sketcher_of_json([])
