"""Every rotation against dense matrices written from the definitions."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix.rotation import ROTATIONS, Rotation, best_transform, cheapest_split
from tests import reference

Array = NDArray[Any]

SIZES = [1, 2, 3, 7, 16, 30, 33, 49, 64, 100, 101, 128, 255, 257, 384, 511, 768, 784, 997, 1000, 1024]
TRANSFORMS = ["hadamard", "dct", "fourier", "none"]
# Odd factors above 255: 257 -> 2 * 129, 511 -> 512, 997 -> 8 * 125.
PADDED = {257: 258, 511: 512, 997: 1000}

every_transform = pytest.mark.parametrize("transform", TRANSFORMS)
every_size = pytest.mark.parametrize("n", SIZES)


def rotation_of(transform: str, n: int) -> Rotation:
    signs = np.random.default_rng(n).choice(np.array([-1, 1], np.int8), n)
    return ROTATIONS[transform](n, signs)


@cache
def dense(transform: str, n: int) -> Array:
    """H D, cut to the n entries that a padded row really has: (n_rotated, n)."""
    rotation = rotation_of(transform, n)
    signs = np.ones(n) if transform == "none" else rotation.signs.astype(float)
    size = PADDED.get(n, n) if transform == "hadamard" else n
    matrix: Array = reference.mixing_matrix(transform, size)[:, :n] * signs
    return matrix


def rows(n: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, width))


@every_transform
@every_size
def test_forward_is_the_dense_matrix(transform: str, n: int) -> None:
    X = rows(5, n)
    rotated = rotation_of(transform, n).forward(X)
    np.testing.assert_allclose(rotated, X @ dense(transform, n).T, rtol=0, atol=1e-11)


@every_transform
@every_size
def test_columns_are_orthonormal(transform: str, n: int) -> None:
    matrix = rotation_of(transform, n).forward(np.eye(n))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(n), rtol=0, atol=1e-12)


@every_transform
@every_size
def test_inverse_undoes_forward(transform: str, n: int) -> None:
    rotation, X = rotation_of(transform, n), rows(4, n)
    np.testing.assert_allclose(rotation.inverse(rotation.forward(X)), X, rtol=0, atol=1e-12)


@every_transform
@every_size
def test_inverse_is_the_adjoint(transform: str, n: int) -> None:
    rotation = rotation_of(transform, n)
    x, y = rows(1, n), rows(1, rotation.n_rotated, seed=1)
    forward = (rotation.forward(x) * y).sum()
    backward = (x * rotation.inverse(y)).sum()
    assert forward == pytest.approx(backward, rel=1e-11, abs=1e-11)


@every_transform
@every_size
def test_variances_are_the_diagonal_of_the_rotated_back_covariance(transform: str, n: int) -> None:
    rotation, matrix = rotation_of(transform, n), dense(transform, n)
    v = np.random.default_rng(2).uniform(0.1, 3, size=(3, rotation.n_rotated))
    expected = np.einsum("pj,kp,pj->kj", matrix, v, matrix, optimize=True)
    np.testing.assert_allclose(rotation.variances(v), expected, rtol=1e-10)


def test_variances_do_not_touch_what_they_are_given() -> None:
    for transform in TRANSFORMS:
        v = np.ones((2, 12))
        rotation_of(transform, 12).variances(v)[...] = 7
        assert (v == 1).all()


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier"])
@every_size
def test_no_entry_of_the_mixing_matrix_is_large(transform: str, n: int) -> None:
    rotation = rotation_of(transform, n)
    largest = np.abs(rotation.forward(np.eye(n))).max()
    assert largest <= np.sqrt(2 / rotation.n_rotated) + 1e-12


@every_transform
@pytest.mark.parametrize("n", [1, 3, 16, 100, 257, 784, 997])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_floating_type_is_kept(transform: str, n: int, dtype: str) -> None:
    rotation, X = rotation_of(transform, n), rows(3, n).astype(dtype)
    rotated = rotation.forward(X)
    back = rotation.inverse(rotated)
    assert rotated.dtype == back.dtype == np.dtype(dtype)
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(rotated, X.astype(float) @ dense(transform, n).T, rtol=0, atol=tolerance)
    np.testing.assert_allclose(back, X, rtol=0, atol=tolerance)


@every_transform
def test_rows_are_not_changed(transform: str) -> None:
    X = rows(3, 24)
    before = X.copy()
    rotation = rotation_of(transform, 24)
    rotation.inverse(X)
    rotation.forward(X)
    np.testing.assert_array_equal(X, before)


@every_transform
@pytest.mark.parametrize("order", ["F", "reversed", "every second"])
def test_any_memory_layout(transform: str, order: str) -> None:
    X = rows(6, 40)
    odd = {"F": np.asfortranarray(X), "reversed": X[::-1, ::-1], "every second": X[::2, ::2]}[order]
    rotation = rotation_of(transform, odd.shape[1])
    plain = np.array(odd, order="C")
    np.testing.assert_allclose(rotation.forward(odd), rotation.forward(plain), rtol=0, atol=1e-13)
    np.testing.assert_allclose(rotation.inverse(odd), rotation.inverse(plain), rtol=0, atol=1e-13)


@every_transform
def test_no_rows(transform: str) -> None:
    rotation = rotation_of(transform, 24)
    assert rotation.forward(np.empty((0, 24))).shape == (0, 24)
    assert rotation.inverse(np.empty((0, 24))).shape == (0, 24)


# -- padding ----------------------------------------------------------------------------------------------


# 514 -> 4 * 129 (515 is odd), 1022 = 2 * 511 -> 1024, and 5000 = 8 * 625 -> 32 * 157.
@pytest.mark.parametrize(("n", "n_rotated"), [*PADDED.items(), (514, 516), (1022, 1024), (5000, 5024)])
def test_hadamard_pads_as_little_as_it_can(n: int, n_rotated: int) -> None:
    assert rotation_of("hadamard", n).n_rotated == n_rotated


def test_hadamard_pads_to_the_next_size_with_a_small_odd_factor() -> None:
    def odd_factor(m: int) -> int:
        while m % 2 == 0:
            m //= 2
        return m

    fitting = np.array([m for m in range(1, 4200) if odd_factor(m) <= 255])
    for n in range(1, 4001):
        expected = fitting[np.searchsorted(fitting, n)]
        got = ROTATIONS["hadamard"](n, np.ones(n, np.int8)).n_rotated
        assert got == expected
        assert got - n < 0.01 * n


@pytest.mark.parametrize("n", PADDED)
def test_padded_rows_keep_their_lengths_and_angles(n: int) -> None:
    X = rows(6, n)
    rotated = rotation_of("hadamard", n).forward(X)
    assert rotated.shape == (6, PADDED[n])
    np.testing.assert_allclose(rotated @ rotated.T, X @ X.T, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("transform", ["dct", "fourier", "none"])
@every_size
def test_the_others_never_pad(transform: str, n: int) -> None:
    assert rotation_of(transform, n).n_rotated == n


# -- which transform --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "sketch_size", "expected"),
    [
        (784, 30, "hadamard"),  # 16 * 49
        (255, 30, "hadamard"),
        (1024, 1023, "hadamard"),
        (257, 30, "hadamard"),
        (1022, 30, "hadamard"),  # 2 * 511
        (784, 784, "none"),
        (257, 257, "none"),
        (1, 1, "none"),
    ],
)
def test_what_auto_stands_for(n: int, sketch_size: int, expected: str) -> None:
    assert best_transform(n, sketch_size) == expected
    sketcher = sm.Sketcher(sketch_size, random_state=0).fit(np.zeros((1, n)))
    assert sketcher.transform_ == expected


def test_no_signs_without_mixing() -> None:
    sketcher = sm.Sketcher(3, transform="none", random_state=0).fit(np.zeros((1, 50)))
    assert (sketcher.signs_ == 1).all()
    X = rows(2, 50)
    np.testing.assert_array_equal(sketcher.rotate(X), X)


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier"])
def test_signs_are_a_fair_draw(transform: str) -> None:
    signs = np.concatenate(
        [
            sm.Sketcher(3, transform=transform, random_state=seed).fit(np.zeros((1, 1000))).signs_
            for seed in range(20)
        ]
    )
    assert set(signs.tolist()) == {-1, 1}
    # 20,000 fair coins: the sum has standard deviation sqrt(20,000).
    assert abs(int(signs.astype(int).sum())) < 5 * np.sqrt(20_000)


# -- how the core is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*SIZES, 4096, 40_000])
@pytest.mark.parametrize("sketch_size", [1, 20, 300])
def test_the_split_divides_the_row_or_there_is_none(n: int, sketch_size: int) -> None:
    lead = cheapest_split(n, sketch_size)
    assert lead is None or n % lead == 0


@pytest.mark.parametrize("transform", ["dct", "fourier"])
@pytest.mark.parametrize(("n", "sketch_size"), [(997, 40), (1021, 1), (2 * 509, 500), (1, 1), (3, 2)])
def test_without_a_cheap_split_a_whole_transform_gives_the_entries(
    transform: str, n: int, sketch_size: int
) -> None:
    assert rotation_of(transform, n).tables(sketch_size) is None
    check_sketch(transform, n, sketch_size)


@pytest.mark.parametrize("transform", ["dct", "fourier"])
@pytest.mark.parametrize(("n", "sketch_size"), [(31, 2), (49, 5), (784, 30), (1000, 100), (1024, 64)])
def test_with_a_cheap_split_the_core_computes_single_entries(transform: str, n: int, sketch_size: int) -> None:
    assert rotation_of(transform, n).tables(sketch_size) is not None
    check_sketch(transform, n, sketch_size)


@pytest.mark.parametrize("n", PADDED)
def test_the_core_computes_entries_of_padded_rows(n: int) -> None:
    check_sketch("hadamard", n, 40)


def check_sketch(transform: str, n: int, sketch_size: int) -> None:
    """A sketch holds what the dense matrix gives."""
    X = rows(60, n)
    sketcher = sm.Sketcher(sketch_size, transform=transform, dtype="float64", random_state=0).fit(X)
    sketch = sketcher.transform(X)
    size = PADDED.get(n, n) if transform == "hadamard" else n
    H = reference.mixing_matrix(transform, size)[:, :n]
    expected = np.take_along_axis((X * sketcher.signs_) @ H.T, sketch.indices.astype(int), axis=1)
    np.testing.assert_allclose(sketch.values, expected, rtol=0, atol=1e-11)
