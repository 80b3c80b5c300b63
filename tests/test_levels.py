"""Every instruction set that the core is compiled for gives what NumPy gives.

A level is chosen once, at import: so a process of its own computes all cases at that level, and the tests compare
what it saved. ``python -m tests.test_levels FILE`` is that process.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import sketchmix as sm
from sketchmix import _core, moments
from sketchmix.families.full import FullMixture, sparse_statistics
from sketchmix.moments import Block, Parameters
from tests import reference

Array = NDArray[Any]

LEVELS = ["baseline", "avx2", "avx512"]
ROOT = Path(__file__).parents[1]


# -- what is computed -------------------------------------------------------------------------------------


class MixtureCase(NamedTuple):
    """Rows, a mixture, and how to add up."""

    n_components: int
    sketch_size: int
    values: str
    indices: str
    family: str
    hard: bool
    weighted: bool
    double: bool
    n_rows: int = 21
    n_rotated: int = 31

    def __str__(self) -> str:
        return "-".join(str(part) for part in self)


COMPONENTS = [1, 3, 4, 5, 8, 9, 15, 16, 17, 33, 100]
KEPT = [1, 2, 15, 16, 17, 31]


def mixture_cases() -> Iterator[MixtureCase]:
    """All of K and Q, with the other choices changing from case to case, so that each pair of them occurs."""
    number = 0
    for k in COMPONENTS:
        for q in KEPT:
            for values in ("float16", "float32", "float64"):
                for family in ("diag", "spherical"):
                    number += 1
                    bits = [bool(number * 0x9E3779B1 >> shift & 1) for shift in (20, 21, 22, 23)]
                    indices = "uint32" if bits[3] else "uint16"
                    double = bits[2] or values == "float64"
                    yield MixtureCase(k, q, values, indices, family, bits[0], bits[1], double)
    # More entries of a row than a batch should hold.
    for family in ("diag", "spherical"):
        for k in (3, 20):
            yield MixtureCase(k, 2500, "float32", "uint16", family, False, False, False, 5, 2600)
    # Several batches and shards: the kernels hold at most 512 rows at a time.
    for k in (2, 16, 40):
        for family in ("diag", "spherical"):
            for hard in (False, True):
                yield MixtureCase(k, 9, "float32", "uint16", family, hard, k == 16, False, 4000)


class SketchCase(NamedTuple):
    """Rows and how to sketch them."""

    transform: str
    n_features: int
    sketch_size: int
    rows: str
    values: str
    n_shared: int

    def __str__(self) -> str:
        return "-".join(str(part) for part in self)


def sketch_cases() -> Iterator[SketchCase]:
    """All transforms and widths, with as many kept as vectors have lanes and one more or less."""
    number = 0
    for transform in ("hadamard", "dct", "fourier", "none"):
        for n in (1, 5, 16, 31, 33, 64, 100, 257, 784):
            for q in sorted({min(q, n) for q in (1, 2, 15, 16, 17, 31, n)}):
                number += 1
                rows, values = ("float32", "float64")[number % 2], ("float32", "float64", "float16")[number % 3]
                yield SketchCase(transform, n, q, rows, values, number % 4 if number % 4 < q else 0)


class Mixture(NamedTuple):
    """What a mixture case is computed from."""

    block: Block
    parameters: Parameters
    sample_weight: Array | None


@cache
def mixture_of(case: MixtureCase) -> Mixture:
    n, p, q, k = case.n_rows, case.n_rotated, case.sketch_size, case.n_components
    rng = np.random.default_rng([n, p, q, k])
    means = rng.normal(size=(p, k))
    y = rng.integers(k, size=n)
    indices = np.sort(rng.permuted(np.tile(np.arange(p), (n, 1)), axis=1)[:, :q], axis=1)
    values = means[indices, y[:, None]] + 0.7 * rng.normal(size=(n, q))
    variances = rng.uniform(0.3, 2, size=(p, k) if case.family == "diag" else k)
    weights = rng.dirichlet(np.full(k, 5.0))
    weight = rng.integers(0, 4, size=n) * 0.7 if case.weighted else None
    block = Block.of(values.astype(case.values), indices.astype(case.indices))
    return Mixture(block, Parameters(weights, means, variances), weight)


@cache
def rows_of(case: SketchCase) -> Array:
    rows = np.random.default_rng(case.n_features).normal(size=(70, case.n_features))
    return rows.astype(case.rows)


def sketcher_of(case: SketchCase) -> sm.Sketcher:
    sketcher = sm.Sketcher(
        case.sketch_size, case.transform, case.n_shared, case.values, random_state=case.sketch_size
    )
    return sketcher.fit(np.zeros((1, case.n_features)))


# -- the process at one level -----------------------------------------------------------------------------


def compute_all() -> dict[str, Array]:
    results: dict[str, Array] = {"level": np.array(_core.level)}
    for case in mixture_cases():
        block, parameters, weight = mixture_of(case)
        moments.SMALL_PROBLEM = 2**62 if case.double else 0
        sums = moments.add_up(block, parameters, weight, hard=case.hard)
        results[f"{case} log density"] = moments.log_density(block, parameters)
        results[f"{case} log-likelihood"] = np.array(sums.log_likelihood)
        for name in ("size", "count", "first", "second"):
            results[f"{case} {name}"] = getattr(sums, name)
    for name, block, parameters in ties():
        moments.SMALL_PROBLEM = 0 if block.values.dtype == np.float32 else 2**62
        results[f"ties {name}"] = moments.add_up(block, parameters, None, hard=True).size
    for name, block, parameters in far_rows():
        moments.SMALL_PROBLEM = 0 if block.values.dtype == np.float32 else 2**62
        sums = moments.add_up(block, parameters, None)
        results[f"far {name} size"], results[f"far {name} first"] = sums.size, sums.first
        results[f"far {name} log-likelihood"] = np.array(sums.log_likelihood)
    moments.SMALL_PROBLEM = 2**62
    for sketch_case in sketch_cases():
        sketch = sketcher_of(sketch_case).transform(rows_of(sketch_case))
        results[f"{sketch_case} values"], results[f"{sketch_case} indices"] = sketch.values, sketch.indices
    return results | dict(full_results()) | halves_read() | halves_written()


def ties() -> Iterator[tuple[str, Block, Parameters]]:
    """Components that are all the same."""
    for dtype in (np.float32, np.float64):
        for k in COMPONENTS:
            for family in ("diag", "spherical"):
                block = Block.of(np.ones((10, 3), dtype), np.tile(np.arange(3, dtype=np.uint16), (10, 1)))
                variances = np.ones((3, k) if family == "diag" else k)
                yield (
                    f"{k} {family} {block.values.dtype}",
                    block,
                    Parameters(np.ones(k), np.zeros((3, k)), variances),
                )


def far_rows() -> Iterator[tuple[str, Block, Parameters]]:
    """Rows 1,000 standard deviations from every component, the last of which is the nearest."""
    for dtype in (np.float32, np.float64):
        for k in COMPONENTS:
            for family in ("diag", "spherical"):
                block = Block.of(np.full((10, 4), 1024, dtype), np.tile(np.arange(4, dtype=np.uint16), (10, 1)))
                means = np.tile(np.arange(k, dtype=float) - k + 1, (4, 1))
                variances = np.ones((4, k) if family == "diag" else k)
                parameters = Parameters(np.full(k, 1 / k), means, variances)
                yield f"{k} {family} {block.values.dtype}", block, parameters


def full_cases() -> Iterator[tuple[str, Block, FullMixture]]:
    """Any covariances, one for each component or one for all, with as many rows as lanes and one more or less."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 17):
        for q in (1, 4, 5, 9, 12):
            for k, n_covariances in ((1, 1), (3, 1), (3, 3)):
                factors = rng.normal(size=(n_covariances, 13, 15))
                covariances = factors @ factors.transpose(0, 2, 1)
                parameters = FullMixture(rng.dirichlet(np.ones(k)), rng.normal(size=(13, k)), covariances)
                kept = np.sort(rng.permuted(np.tile(np.arange(13), (n, 1)), axis=1)[:, :q], axis=1)
                values = 3 * rng.normal(size=(n, q)).astype(("float16", "float32", "float64")[n % 3])
                yield f"full {n} {q} {k} {n_covariances}", Block.of(values, kept.astype(np.uint16)), parameters


def full_results() -> Iterator[tuple[str, Array]]:
    for name, block, parameters in full_cases():
        sums = sparse_statistics(block, parameters, None)
        yield f"{name} log-likelihood", np.array(sums.log_likelihood)
        for part in ("size", "gradient", "curvature"):
            yield f"{name} {part}", getattr(sums, part)


def halves_read() -> dict[str, Array]:
    """Every float16, each in a coordinate of its own: the sum over a row's single entry is the entry."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)[:, None]
    places = np.arange(2**16, dtype=np.uint16)[:, None]
    finite = np.isfinite(halves[:, 0])
    centre = Parameters(np.ones(1), np.zeros((2**16, 1)), np.ones(1))
    first = moments.add_up(Block.of(halves[finite], places[finite]), centre, None).first[:, 0]
    distance = moments.squared_distances(Block.of(halves, places), centre.means)[:, 0]
    return {"halves read": first[finite], "halves squared": distance}


def floats_to_round() -> Array:
    """Around every float16 and every midpoint of two, and many others, as rows of 64."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    midpoints = (halves[1:] + halves[:-1]) / 2
    exact = np.concatenate([halves, midpoints])
    near = [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
    rng = np.random.default_rng(0)
    others = np.exp(rng.uniform(-20, 11, size=20_000)).astype(np.float32)
    tiny = np.array([1e-45, 1e-38, 1e-20, 2.0**-25, 65519.996, 65504.0], np.float32)
    every = np.concatenate([*near, others, tiny, np.zeros(64, np.float32)])
    every = np.concatenate([every, -every])
    return every[: len(every) // 64 * 64].reshape(-1, 64)


def halves_written() -> dict[str, Array]:
    sketcher = sm.Sketcher(64, transform="none", dtype="float16", random_state=0).fit(np.zeros((1, 64)))
    overflows = []
    for value in (65519.996, 65520.0, 65536.0, 1e9, 3e38, -65520.0):
        rows = np.ones((2, 64), np.float32)
        rows[1, 7] = value
        try:
            sketcher.transform(rows)
        except ValueError as error:
            overflows.append("float16" in str(error))
        else:
            overflows.append(False)
    return {"halves written": sketcher.transform(floats_to_round()).values, "overflows": np.array(overflows)}


@pytest.fixture(scope="module", params=LEVELS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """All cases, computed at one level."""
    level = request.param
    path = tmp_path_factory.mktemp(level) / "results.npz"
    environment = os.environ | {"SKETCHMIX_CPU": level}
    command = [sys.executable, "-W", "error", "-m", "tests.test_levels", str(path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    with np.load(path) as arrays:
        loaded = dict(arrays)
    if loaded["level"] != level:
        pytest.skip(f"this machine lacks {level} (it chose {loaded['level']})")
    return loaded


# -- what NumPy gives -------------------------------------------------------------------------------------


@cache
def expected_log_density(case: MixtureCase) -> Array:
    """log weight - sum over the kept entries of (log(2 pi v) + (x - mu)^2 / v) / 2."""
    block, parameters, _ = mixture_of(case)
    indices = block.indices.astype(int)
    means = parameters.means[indices]  # (n, Q, K)
    variances = parameters.variances[indices] if case.family == "diag" else parameters.variances
    gaps = block.values.astype(float)[:, :, None] - means
    terms = np.log(2 * np.pi * variances) + gaps**2 / variances
    density: Array = np.log(parameters.weights) - 0.5 * terms.sum(axis=1)
    return density


def expected_sums(case: MixtureCase) -> dict[str, Array]:
    block, parameters, weight = mixture_of(case)
    joint = expected_log_density(case)
    weight = np.ones(case.n_rows) if weight is None else weight
    if case.hard:
        r = np.eye(case.n_components)[joint.argmax(axis=1)]
        likelihood = joint.max(axis=1)
    else:
        r = reference.responsibilities(joint)
        likelihood = reference.log_likelihood(joint)
    r = r * weight[:, None]
    indices, shape = block.indices.astype(int), (case.n_rotated, case.n_components)
    gaps = block.values.astype(float)[:, :, None] - parameters.means[indices]
    count, first, second = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for power, total in enumerate([count, first, second]):
        np.add.at(total, indices, r[:, None, :] * gaps**power)
    if case.family == "spherical":
        second = second.sum(axis=0)
    likelihood_sum = np.array((weight * likelihood).sum())
    return {
        "size": r.sum(axis=0),
        "count": count,
        "first": first,
        "second": second,
        "log-likelihood": likelihood_sum,
    }


@cache
def mixing_matrix(transform: str, n: int) -> Array:
    return reference.mixing_matrix(transform, n)


def test_the_vectorised_twin_is_the_slow_one() -> None:
    for case in list(mixture_cases())[:60:7]:
        block, parameters, _ = mixture_of(case)
        variances = np.broadcast_to(parameters.variances, parameters.means.shape).T
        slow = reference.joint_log_density(
            block.values.astype(float), block.indices, parameters.weights, parameters.means.T, variances
        )
        np.testing.assert_allclose(expected_log_density(case), slow, rtol=1e-12)


# -- comparisons ------------------------------------------------------------------------------------------


def assert_close(got: Array, expected: Array, *, double: bool, what: str) -> None:
    """Within the rounding of float64, or of float32 after some hundred operations."""
    tolerance = 1e-10 if double else 3e-5
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale, err_msg=what)


@pytest.mark.parametrize("n_components", [2, 20, 40, *COMPONENTS])
def test_log_densities(results: dict[str, Array], n_components: int) -> None:
    for case in mixture_cases():
        if case.n_components == n_components:
            got = results[f"{case} log density"]
            assert_close(got, expected_log_density(case), double=case.double, what=str(case))


@pytest.mark.parametrize("n_components", [2, 20, 40, *COMPONENTS])
def test_statistics(results: dict[str, Array], n_components: int) -> None:
    for case in mixture_cases():
        if case.n_components == n_components:
            for name, expected in expected_sums(case).items():
                assert_close(results[f"{case} {name}"], expected, double=case.double, what=f"{name} of {case}")


def test_statistics_under_any_covariances(results: dict[str, Array]) -> None:
    for name, block, parameters in full_cases():
        values, k = block.values.astype(float), len(parameters.weights)
        by_component = parameters.means.T, np.array([parameters.covariance(c) for c in range(k)])
        joint = reference.full_joint_log_density(values, block.indices, parameters.weights, *by_component)
        r = reference.responsibilities(joint)
        gradient, precision, outer = reference.full_sums(values, block.indices, r, *by_component)
        curvature = outer - precision
        if len(parameters.covariances) == 1:
            curvature = curvature.sum(axis=0, keepdims=True)
        likelihood = reference.log_likelihood(joint).sum()
        expected = {"size": r.sum(axis=0), "gradient": gradient.T, "curvature": curvature}
        expected["log-likelihood"] = likelihood
        for part, value in expected.items():
            assert_close(results[f"{name} {part}"], value, double=True, what=f"{part} of {name}")


def test_the_first_of_equally_near_components_takes_the_row(results: dict[str, Array]) -> None:
    for name, _, parameters in ties():
        expected = np.zeros(len(parameters.weights))
        expected[0] = 10
        np.testing.assert_array_equal(results[f"ties {name}"], expected, err_msg=name)


def test_rows_that_are_far_from_everything(results: dict[str, Array]) -> None:
    for name, block, parameters in far_rows():
        k = len(parameters.weights)
        # The one before is (1025^2 - 1024^2) / 2 per entry less likely: exp(-4098) is nothing.
        size, first = np.zeros(k), np.zeros((4, k))
        size[-1], first[:, -1] = 10, 10 * 1024
        likelihood = -10 * (np.log(k) + 4 * (np.log(2 * np.pi) + 1024**2) / 2)
        rtol = 1e-6 if block.values.dtype == np.float32 else 1e-13
        np.testing.assert_allclose(results[f"far {name} size"], size, rtol=rtol, err_msg=name)
        np.testing.assert_allclose(results[f"far {name} first"], first, rtol=rtol, err_msg=name)
        np.testing.assert_allclose(results[f"far {name} log-likelihood"], likelihood, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
def test_indices_are_those_of_the_twin(results: dict[str, Array], transform: str) -> None:
    for case in sketch_cases():
        if case.transform == transform:
            sketcher = sketcher_of(case)
            shared = sketcher.shared_indices_.tolist()
            twin = [
                reference.kept_entries(sketcher.seed_, row, sketcher.n_rotated_, case.sketch_size, shared)
                for row in (0, 1, 69)
            ]
            np.testing.assert_array_equal(results[f"{case} indices"][[0, 1, 69]], twin, err_msg=str(case))


@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
def test_sketches_are_those_of_the_dense_matrix(results: dict[str, Array], transform: str) -> None:
    for case in sketch_cases():
        if case.transform == transform:
            got, indices = results[f"{case} values"], results[f"{case} indices"].astype(int)
            sketcher = sketcher_of(case)
            H = mixing_matrix(transform, sketcher.n_rotated_)[:, : case.n_features]
            rotated = (rows_of(case).astype(float) * sketcher.signs_) @ H.T
            expected = np.take_along_axis(rotated, indices, axis=1)
            assert got.dtype == np.dtype(case.values)
            double = "float64" in (case.rows, case.values)
            stored, smallest = np.finfo(case.values).eps, np.finfo(case.values).smallest_subnormal
            arithmetic = 1e-11 if double else 1e-5
            error = np.abs(got - expected)
            assert (error <= 0.51 * (stored * np.abs(expected) + smallest) + arithmetic).all(), str(case)


def test_every_half_is_read_as_numpy_reads_it(results: dict[str, Array]) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(float)
    np.testing.assert_array_equal(results["halves read"], halves[np.isfinite(halves)])
    squared = results["halves squared"]
    np.testing.assert_array_equal(np.isnan(squared), np.isnan(halves))
    np.testing.assert_array_equal(np.isposinf(squared), np.isinf(halves))
    finite = np.isfinite(halves)
    np.testing.assert_allclose(squared[finite], halves[finite] ** 2, rtol=1e-15, atol=1e-15)


def test_every_float_is_rounded_to_a_half_as_numpy_rounds_it(results: dict[str, Array]) -> None:
    expected = floats_to_round().astype(np.float16)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(results["halves written"].view(np.uint16), expected.view(np.uint16))


def test_floats_beyond_the_largest_half_are_refused(results: dict[str, Array]) -> None:
    # 65520 is the midpoint of 65504 and what would be 65536: a tie that rounds to infinity.
    np.testing.assert_array_equal(results["overflows"], [False, True, True, True, True, True])


def test_the_level_is_lowered_by_name_only() -> None:
    """An unknown name, or none, leaves the best level."""
    program = (
        f"import importlib.util as i; s = i.spec_from_file_location('_core', {_core.__file__!r});"
        "m = i.module_from_spec(s); s.loader.exec_module(m); print(m.level)"
    )

    def level_for(name: str) -> str:
        run = [sys.executable, "-c", program]
        environment = os.environ | {"SKETCHMIX_CPU": name}
        done = subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    best = level_for("")
    assert level_for("baseline") == "baseline"
    assert level_for("sse9") == best
    for name in LEVELS:
        assert level_for(name) == min(name, best, key=LEVELS.index)


if __name__ == "__main__":
    np.savez(sys.argv[1], **compute_all())  # type: ignore[arg-type]
