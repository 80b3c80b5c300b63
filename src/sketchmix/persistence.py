"""Models as safetensors files: arrays of float64, and one JSON text that says what they are. None of it is code.

An estimator says what it is made of as `Contents`. A `Reader` hands that out again, and refuses what no fit makes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sketchmix import validation
from sketchmix.families import COVARIANCE_TYPES, Family, Limits, LowRank, Mixture, Unrestricted, family_of
from sketchmix.families.full import FullMixture, root_if_positive
from sketchmix.families.low_rank import LowRankMixture
from sketchmix.files import write_atomically
from sketchmix.moments import Parameters
from sketchmix.portable import as_plain_number, member, refuse, seed_of, whole_number

Array = NDArray[Any]

FORMAT = "sketchmix model"
VERSION = 1
# In the metadata of the file, which are texts by name.
TEXT, CHECKSUM = "sketchmix", "sha256"
# Before the name of a parameter of the constructor that is an array.
PARAMETER = "parameters."
LARGEST_COUNT = 2**53  # which every reader of JSON knows exactly
# Of the largest entry: how far from symmetric rounding may leave a matrix, and how negative a variance of zero.
ROUNDING = 1e-10


@dataclass(frozen=True)
class Contents:
    """What is in a file."""

    estimator: str
    state: dict[str, Any]  # what JSON can hold
    tensors: dict[str, Array]


# -- the file ---------------------------------------------------------------------------------------------


def write(path: Path, contents: Contents) -> None:
    """Write a file, whole or not at all."""
    package = safetensors()
    head = {"format": FORMAT, "version": VERSION, "estimator": contents.estimator}
    text = json.dumps(head | contents.state, allow_nan=False)
    tensors = {name: np.ascontiguousarray(array, dtype="<f8") for name, array in contents.tensors.items()}
    metadata = {TEXT: text, CHECKSUM: checksum(text, tensors)}
    write_atomically(path, in_order(package.numpy.save(tensors, metadata)))


def in_order(data: bytes) -> bytes:
    """A safetensors file whose metadata are sorted: the same model is the same bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def read(path: Path) -> Contents:
    """What is in a file, of which nothing is known but that it is what was written."""
    package = safetensors()
    path.open("rb").close()  # whose errors name the path
    try:
        with package.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            state = state_of(member(metadata, TEXT, str))
            tensors = {name: tensor_of(file, name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except package.SafetensorError as error:
        refuse(f"it is no safetensors file, or a damaged one ({error})")
    if metadata.get(CHECKSUM) != checksum(metadata[TEXT], tensors):
        refuse("its checksum is not that of its contents, so that it is damaged")
    return Contents(member(state, "estimator", str), state, tensors)


def safetensors() -> Any:
    """The package that reads and writes the format."""
    try:
        import_module("safetensors.numpy")
    except ImportError as error:
        raise ImportError(
            "models are saved in safetensors files; install what reads and writes them with "
            '`pip install "sketchmix[models]"`.'
        ) from error
    return import_module("safetensors")


def state_of(text: str) -> dict[str, Any]:
    """What the text of a file says, if this version can know what it means."""
    try:
        state = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        refuse("its JSON is nested too deeply")
    if member(state, "format") != FORMAT:
        refuse(f"its format is {state['format']!r}, not {FORMAT!r}")
    if whole_number(state, "version", 1, LARGEST_COUNT) > VERSION:
        refuse(f"it was written by a newer sketchmix, in version {state['version']} of the format; upgrade")
    return dict(state)


def refuse_constant(name: str) -> NoReturn:
    """NaN and infinity are no JSON, though Python reads them."""
    refuse(f"its JSON contains {name}")


def tensor_of(file: Any, name: str) -> Array:
    """An array of a file, in memory of its own."""
    dtype = file.get_slice(name).get_dtype()
    if dtype != "F64":
        refuse(f"tensor {name!r} has dtype {dtype}, not F64")
    return np.array(file.get_tensor(name), dtype=np.float64, order="C")


def checksum(text: str, tensors: dict[str, Array]) -> str:
    """Of all that a file says."""
    digest = sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].shape}".encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


# -- parameters of a constructor --------------------------------------------------------------------------


def parameters_of(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Parameters of a constructor: those that JSON can hold, and those that are arrays."""
    named = {"random_state": seed_of(given["random_state"]), "dtype": validation.check_dtype(given["dtype"]).name}
    given = given | named
    arrays = {name: validation.real_array(name, value) for name, value in given.items() if np.ndim(value) > 0}
    plain = {name: as_plain_number(value) for name, value in given.items() if name not in arrays}
    return plain, {PARAMETER + name: array for name, array in arrays.items()}


# -- contents that anybody may have written ---------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Hands out the contents of a file, each with what it must be."""

    contents: Contents
    seen: set[str] = field(default_factory=set)

    def parameters(self, names: set[str]) -> dict[str, Any]:
        """The parameters of a constructor, which must have these names."""
        found: dict[str, Any] = dict(member(self.contents.state, "parameters", dict))
        for name, value in found.items():
            if not isinstance(value, bool | int | float | str | None):
                refuse(f"parameter {name} is {value!r}")
        arrays = [tensor for tensor in self.contents.tensors if tensor.startswith(PARAMETER)]
        found |= {name.removeprefix(PARAMETER): self.tensor(name) for name in arrays}
        if set(found) != names:
            refuse(f"parameters are {', '.join(sorted(found))}; expected {', '.join(sorted(names))}")
        return found

    def flag(self, name: str) -> bool:
        """Something that is so or not."""
        return bool(member(self.contents.state, name, bool))

    def count(self, name: str, least: int, most: int) -> int:
        """A number of things."""
        return whole_number(self.contents.state, name, least, most)

    def real(self, name: str) -> float:
        """A number that is not negative."""
        value = member(self.contents.state, name, int | float)
        return float(validation.check_real(name, value))

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        """Finite numbers, in this shape if one is known."""
        if name not in self.contents.tensors:
            refuse(f"tensor {name!r} is missing")
        self.seen.add(name)
        tensor = self.contents.tensors[name]
        if shape is not None and tensor.shape != shape:
            refuse(f"tensor {name!r} has shape {tensor.shape}; expected {shape}")
        if not np.isfinite(tensor).all():
            refuse(f"tensor {name!r} contains NaN or infinity")
        return tensor

    def positive(self, name: str, shape: tuple[int, ...]) -> Array:
        """Numbers above zero."""
        tensor = self.tensor(name, shape)
        if not (tensor > 0).all():
            refuse(f"tensor {name!r} has numbers that are not positive; the smallest is {tensor.min():g}")
        return tensor

    def vector(self, name: str) -> Array:
        """One number at least, and no matrix of them."""
        tensor = self.tensor(name)
        if tensor.ndim != 1 or not tensor.size:
            refuse(f"tensor {name!r} has shape {tensor.shape}; expected one number at least, in one row")
        return tensor

    def weights(self, shape: tuple[int, ...] | None = None) -> Array:
        """The weights of a mixture, or the shares of clusters."""
        weights = self.vector("weights") if shape is None else self.tensor("weights", shape)
        if not (weights >= 0).all() or not np.isclose(weights.sum(), 1):
            refuse(f"weights must be non-negative and sum to 1; their sum is {weights.sum():g}")
        return weights

    def lower_bounds(self, n_iter: int) -> list[float]:
        """The likelihood at every iteration that did not lead nowhere."""
        bounds: list[float] = self.vector("lower_bounds").tolist()
        if len(bounds) > n_iter:
            refuse(f"there are {len(bounds)} lower_bounds of {n_iter} iterations")
        return bounds

    def family(self, n_features: int) -> Family[Any, Any]:
        """A family of covariances."""
        name = validation.check_choice("family", member(self.contents.state, "family", str), COVARIANCE_TYPES)
        return family_of(name, self.count("rank", 1, n_features - 1) if name == LowRank.name else 1)

    def mixture(self, family: Family[Any, Any], n_rotated: int) -> Mixture:
        """A mixture of a family, in the rotated frame."""
        weights = self.weights()
        k, p = len(weights), n_rotated
        means = self.tensor("means", (p, k))
        if isinstance(family, Unrestricted):
            covariances = self.tensor("covariances", (len(family.sharing(k)), p, p))
            return FullMixture(weights, means, checked_covariances(covariances))
        if isinstance(family, LowRank):
            return self._low_rank(weights, means, family.rank)
        return Parameters(weights, means, self.positive("variances", shape_of_floor(family, p, k)))

    def gaussian(self, rank: int, n_rotated: int) -> LowRankMixture:
        """The one component that a PCA is."""
        self.tensor("weights", (1,))
        return self._low_rank(self.weights(), self.tensor("means", (n_rotated, 1)), rank)

    def _low_rank(self, weights: Array, means: Array, rank: int) -> LowRankMixture:
        p, k = means.shape
        factors = self.tensor("factors", (k, p, rank))
        prior = checked_prior(self.tensor("prior", (k, rank, rank)))
        return LowRankMixture(weights, means, factors, self.positive("noise", (k,)), prior)

    def centers(self, n_rotated: int) -> Array:
        """Centers of clusters in the rotated frame, (P, K)."""
        centers = self.tensor("centers")
        if centers.ndim != 2 or len(centers) != n_rotated or not centers.size:
            refuse(f"tensor 'centers' has shape {centers.shape}; expected ({n_rotated}, number of clusters)")
        return centers

    def limits(self, family: Family[Any, Any], mixture: Mixture) -> Limits:
        """What kept variances away from zero."""
        floor = self.positive("floor", shape_of_floor(family, *mixture.means.shape))
        return Limits(self.real("reg_covar"), floor, self.real("support"), self.real("share"))

    def finish(self, model: object) -> None:
        """Nothing was left over, and what was read is no more than numbers can hold."""
        if left := set(self.contents.tensors) - self.seen:
            refuse(f"there are tensors that no such model has: {', '.join(sorted(left))}")
        for name, value in vars(model).items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
                refuse(f"{name} would contain NaN or infinity, as the tensors hold numbers that are too large")


def shape_of_floor(family: Family[Any, Any], n_rotated: int, n_components: int) -> tuple[int, ...]:
    """That of the variances that a family raises to its floor."""
    shape: tuple[int, ...] = family.shared_variances(np.ones(n_rotated), n_components).shape
    return shape


def checked_covariances(covariances: Array) -> Array:
    """Symmetric positive definite matrices."""
    for c, matrix in enumerate(covariances):
        if not is_symmetric(matrix) or root_if_positive(matrix) is None:
            refuse(f"covariance {c} is not symmetric and positive definite")
    return covariances


def checked_prior(prior: Array) -> Array:
    """Symmetric matrices without negative eigenvalues."""
    for k, matrix in enumerate(prior):
        least = -ROUNDING * np.abs(matrix).max()
        if not (is_symmetric(matrix) and np.linalg.eigvalsh(matrix)[0] >= least):
            refuse(f"the prior of component {k} is not symmetric and positive semi-definite")
    return prior


def is_symmetric(matrix: Array) -> bool:
    """Whether a matrix is its own transpose, but for rounding."""
    return bool(np.abs(matrix - matrix.T).max() <= ROUNDING * np.abs(matrix).max())
