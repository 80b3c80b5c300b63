"""A `Sketcher` as JSON, for what is written to disk: all that makes it, so that any machine makes the same one."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sketchmix import validation
from sketchmix.rotation import ROTATIONS
from sketchmix.sketch import Sketcher

Array = NDArray[Any]

LARGEST_SEED = 2**63 - 1


def sketcher_to_json(sketcher: Sketcher) -> dict[str, Any]:
    """A fitted sketcher as what JSON can hold: its parameters, and what it drew."""
    return {
        "parameters": parameters_to_json(sketcher),
        "n_features": sketcher.n_features_in_,
        "n_rotated": sketcher.n_rotated_,
        "sketch_size": sketcher.sketch_size_,
        "transform": sketcher.transform_,
        "seed": sketcher.seed_,
        "signs": np.packbits(sketcher.signs_ > 0).tobytes().hex(),
        "shared_indices": sketcher.shared_indices_.tolist(),
        "feature_names": list(getattr(sketcher, "feature_names_in_", [])) or None,
    }


def parameters_to_json(sketcher: Sketcher) -> dict[str, Any]:
    """A sketcher's parameters as what JSON can hold."""
    return {
        "sketch_size": as_plain_number(sketcher.sketch_size),
        "transform": vars(sketcher)["transform"],
        "n_shared": int(sketcher.n_shared),
        "dtype": validation.check_dtype(sketcher.dtype).name,
        "random_state": seed_of(sketcher.random_state),
    }


def sketcher_of_json(state: object) -> Sketcher:
    """The sketcher that `sketcher_to_json` wrote; a ValueError where it cannot have written this."""
    parameters = member(state, "parameters", dict)
    n_features = whole_number(state, "n_features", 1, 2**31)
    transform = validation.check_choice("transform", member(state, "transform", str), tuple(ROTATIONS))
    signs = signs_of(member(state, "signs", str), n_features)
    sketcher = Sketcher(**{name: member(parameters, name) for name in Sketcher().get_params()})
    validation.check_dtype(sketcher.dtype)
    sketcher.n_features_in_, sketcher.transform_ = n_features, transform
    sketcher.rotation_ = ROTATIONS[transform](n_features, signs)
    sketcher.signs_ = sketcher.rotation_.signs
    n_rotated = whole_number(state, "n_rotated", 1, 2**31)
    if n_rotated != sketcher.n_rotated_:
        refuse(f"n_rotated is {n_rotated}, but rows of {n_features} features have {sketcher.n_rotated_}")
    sketcher.sketch_size_ = whole_number(state, "sketch_size", 1, n_features)
    sketcher.seed_ = whole_number(state, "seed", 0, LARGEST_SEED)
    sketcher.shared_indices_ = shared_of(member(state, "shared_indices", list), sketcher)
    names = member(state, "feature_names", list | None)
    if names is not None:
        if len(names) != n_features or not all(isinstance(name, str) for name in names):
            refuse(f"feature_names are not {n_features} strings")
        sketcher.feature_names_in_ = np.array(names, dtype=object)
    return sketcher


def signs_of(text: str, n_features: int) -> Array:
    """+1 and -1 from the bits that a hexadecimal text packs."""
    try:
        packed = np.frombuffer(bytes.fromhex(text), np.uint8)
    except ValueError:
        refuse("signs are not hexadecimal")
    if len(packed) != -(-n_features // 8):
        refuse(f"signs are {8 * len(packed)} bits for {n_features} features")
    return np.where(np.unpackbits(packed, count=n_features), 1, -1).astype(np.int8)


def shared_of(listed: list[Any], sketcher: Sketcher) -> Array:
    """The entries that every row keeps, if they can be that."""
    in_range = all(type(index) is int and 0 <= index < sketcher.n_rotated_ for index in listed)
    if not in_range or listed != sorted(set(listed)) or len(listed) > sketcher.sketch_size_:
        refuse("shared_indices are not increasing positions in a rotated row, at most as many as are kept")
    return np.array(listed, np.uint32)


def seed_of(random_state: Any) -> int | None:
    """A `random_state` that can be written; a generator has moved on, and what it drew is written instead."""
    return int(random_state) if isinstance(random_state, Integral) else None


def as_plain_number(value: Any) -> Any:
    """A NumPy number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


# -- reading JSON that anybody may have written -----------------------------------------------------------


def member(state: object, name: str, kind: Any = object) -> Any:
    """A member of a JSON object, if it is of that kind."""
    if not isinstance(state, dict) or name not in state:
        refuse(f"{name} is missing")
    value = state[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        refuse(f"{name} is {value!r}")
    return value


def whole_number(state: object, name: str, least: int, most: int) -> int:
    """An integer member within bounds."""
    value: int = member(state, name, int)
    if not least <= value <= most:
        refuse(f"{name} is {value}, not in [{least}, {most}]")
    return value


def refuse(what: str) -> NoReturn:
    """Say what is wrong with a file's contents; whoever opened the file says which it is."""
    raise ValueError(what)
