"""The statistics, the families and the loop, against slow twins and by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from sketchmix import Sketch, Sketcher, _core, em, moments
from sketchmix.families import AXIS_ALIGNED, AxisAligned, Limits
from sketchmix.moments import Block, Moments, Parameters, add_up, dense_block, log_density, unit_spheres
from tests import reference

Array = NDArray[Any]

FAMILY = pytest.mark.parametrize("family", AXIS_ALIGNED.values(), ids=list(AXIS_ALIGNED))
# n, P, Q, K: one of everything, all of everything, and nothing that is a whole number of vectors.
SIZES = pytest.mark.parametrize(
    ("n", "p", "q", "k"),
    [
        (1, 1, 1, 1),
        (1, 9, 4, 3),
        (50, 1, 1, 20),
        (23, 5, 1, 3),
        (6, 5, 5, 1),
        (19, 11, 4, 4),
        (19, 11, 4, 5),
        (130, 37, 31, 5),
        (15, 33, 33, 20),
        (41, 21, 7, 17),
        (30, 12, 5, 37),
        (1500, 2, 1, 3),  # two shards
        (1500, 2, 1, 20),
    ],
)


def random_block(n: int, p: int, q: int, seed: int = 0, dtype: str = "float64") -> Block:
    """Rows that keep q of p entries each."""
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.permuted(np.tile(np.arange(p), (n, 1)), axis=1)[:, :q], axis=1)
    return Block.of((1.5 * rng.normal(size=(n, q)) + 0.5).astype(dtype), kept.astype(np.uint16))


def random_parameters(family: AxisAligned, p: int, k: int, seed: int = 1) -> Parameters:
    rng = np.random.default_rng(seed)
    variances = rng.uniform(0.3, 3, (p, k) if family.name == "diag" else k)
    return Parameters(rng.dirichlet(np.ones(k)), rng.normal(size=(p, k)), variances)


def no_limits(parameters: Parameters, reg_covar: float = 0.0) -> Limits:
    return Limits(reg_covar, np.zeros_like(parameters.variances), 2.0)


def by_component(parameters: Parameters) -> tuple[Array, Array, Array]:
    """Weights (K,), means (K, P) and variances (K, P), as the reference takes them."""
    means = parameters.means.T
    variances = parameters.variances.T
    return (
        parameters.weights,
        means,
        variances if variances.ndim == 2 else np.tile(variances[:, None], means.shape[1]),
    )


def joint(block: Block, parameters: Parameters) -> Array:
    return reference.joint_log_density(block.values.astype(float), block.indices, *by_component(parameters))


def hard(densities: Array) -> Array:
    onehot: Array = np.eye(densities.shape[1])[densities.argmax(axis=1)]
    return onehot


def assert_moments(got: Moments, block: Block, parameters: Parameters, r: Array, rtol: float = 1e-11) -> None:
    """That the sums are those of the reference, for the given responsibilities (times the rows' weights)."""
    count, first, second = reference.weighted_moments(
        block.values.astype(float), block.indices, r, parameters.means.T
    )
    if parameters.variances.ndim == 1:
        second = second.sum(axis=1)
    atol = rtol * max(1, len(r))
    assert_allclose(got.size, r.sum(axis=0), rtol, atol)
    assert_allclose(got.count, count.T, rtol, atol)
    assert_allclose(got.first, first.T, rtol, 10 * atol)
    assert_allclose(got.second, second.T, rtol, 10 * atol)


# -- statistics and densities -----------------------------------------------------------------------------


@FAMILY
@SIZES
def test_soft_sums_are_those_of_the_reference(family: AxisAligned, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_parameters(family, p, k)
    got = add_up(block, parameters, None)
    densities = joint(block, parameters)
    assert_moments(got, block, parameters, reference.responsibilities(densities))
    assert_allclose(got.log_likelihood, reference.log_likelihood(densities).sum(), 1e-12)


@FAMILY
@SIZES
def test_hard_sums_give_a_row_to_its_densest_component(
    family: AxisAligned, n: int, p: int, q: int, k: int
) -> None:
    block, parameters = random_block(n, p, q), random_parameters(family, p, k)
    got = add_up(block, parameters, None, hard=True)
    densities = joint(block, parameters)
    assert_moments(got, block, parameters, hard(densities))
    assert_allclose(got.log_likelihood, densities.max(axis=1).sum(), 1e-12)


@FAMILY
@SIZES
def test_log_density_is_that_of_the_reference(family: AxisAligned, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_parameters(family, p, k)
    assert_allclose(log_density(block, parameters), joint(block, parameters), 1e-12, 1e-12)
    assert_allclose(family.log_density(block, parameters), joint(block, parameters), 1e-12, 1e-12)


@FAMILY
@pytest.mark.parametrize("k", [1, 3, 5, 20])
@pytest.mark.parametrize("is_hard", [False, True], ids=["soft", "hard"])
def test_weights_multiply_the_responsibilities(family: AxisAligned, k: int, is_hard: bool) -> None:
    block, parameters = random_block(60, 7, 3), random_parameters(family, 7, k)
    weight = np.random.default_rng(2).uniform(0, 3, 60)
    weight[[0, 7, 59]] = 0, 1, 0
    densities = joint(block, parameters)
    r = hard(densities) if is_hard else reference.responsibilities(densities)
    of_rows = densities.max(axis=1) if is_hard else reference.log_likelihood(densities)
    got = add_up(block, parameters, weight, hard=is_hard)
    assert_moments(got, block, parameters, r * weight[:, None])
    assert_allclose(got.log_likelihood, weight @ of_rows, 1e-12)


@FAMILY
@pytest.mark.parametrize("k", [3, 5, 20])
def test_the_kernels_in_float32(family: AxisAligned, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block, parameters = random_block(200, 13, 6, dtype="float32"), random_parameters(family, 13, k)
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    densities = joint(block, parameters)
    assert_allclose(log_density(block, parameters), densities, 2e-6, 2e-6)
    got = add_up(block, parameters, None)
    assert_moments(got, block, parameters, reference.responsibilities(densities), 5e-6)
    assert_allclose(got.log_likelihood, reference.log_likelihood(densities).sum(), 1e-6)


@FAMILY
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("index", ["uint16", "uint32"])
def test_every_type_of_a_sketch(family: AxisAligned, dtype: str, index: str) -> None:
    block, parameters = random_block(30, 9, 4, dtype=dtype), random_parameters(family, 9, 5)
    block = block._replace(indices=block.indices.astype(index))
    assert_allclose(log_density(block, parameters), joint(block, parameters), 1e-12, 1e-12)


@FAMILY
def test_an_index_that_a_file_was_given_meanwhile_leads_nowhere_else(family: AxisAligned) -> None:
    block, parameters = random_block(50, 6, 3), random_parameters(family, 6, 3)
    damaged, clipped = block.indices.copy(), block.indices.copy()
    damaged[::7, -1], clipped[::7, -1] = 65535, 5
    got, expected = (add_up(block._replace(indices=some), parameters, None) for some in (damaged, clipped))
    assert_array_equal(got.first, expected.first)


@FAMILY
def test_a_dense_block_keeps_every_entry(family: AxisAligned) -> None:
    rows, parameters = np.random.default_rng(3).normal(size=(20, 6)), random_parameters(family, 6, 5)
    explicit = Block.of(rows, np.tile(np.arange(6, dtype=np.uint32), (20, 1)))
    assert_array_equal(log_density(dense_block(rows), parameters), log_density(explicit, parameters))
    assert_moments(
        add_up(dense_block(rows), parameters, None),
        explicit,
        parameters,
        reference.responsibilities(joint(explicit, parameters)),
    )


@FAMILY
@pytest.mark.parametrize("k", [1, 5, 20])
def test_no_rows_add_up_to_nothing(family: AxisAligned, k: int) -> None:
    some, parameters = random_block(5, 6, 2), random_parameters(family, 6, k)
    block = Block.of(some.values[:0], some.indices[:0])
    got = add_up(block, parameters, None)
    assert got.log_likelihood == 0
    for total in (got.size, got.count, got.first, got.second):
        assert not total.any()
    assert log_density(block, parameters).shape == (0, k)


@FAMILY
@pytest.mark.parametrize("k", [3, 20])
def test_the_sums_of_blocks_add_up_to_those_of_the_whole(family: AxisAligned, k: int) -> None:
    block, parameters = random_block(101, 9, 4), random_parameters(family, 9, k)
    weight = np.random.default_rng(4).uniform(0, 2, 101)
    whole = add_up(block, parameters, weight)
    cuts = [(0, 1), (1, 40), (40, 40), (40, 101)]
    parts = [add_up(Block.of(block.values[a:b], block.indices[a:b]), parameters, weight[a:b]) for a, b in cuts]
    together = parts[0] + parts[1] + parts[2] + parts[3]
    assert_allclose(together.log_likelihood, whole.log_likelihood, 1e-12)
    for name in ("size", "count", "first", "second"):
        assert_allclose(getattr(together, name), getattr(whole, name), 1e-12, 1e-12)


def test_the_first_of_equally_dense_components_gets_the_row() -> None:
    block, one = random_block(10, 4, 2), random_parameters(AXIS_ALIGNED["diag"], 4, 1)
    six = Parameters(np.full(6, 1 / 6), np.tile(one.means, 6), np.tile(one.variances, 6))
    assert_array_equal(add_up(block, six, None, hard=True).size, [10, 0, 0, 0, 0, 0])


@FAMILY
@pytest.mark.parametrize("k", [1, 3, 4, 5, 20])
@pytest.mark.parametrize("distance", [1e3, 1e10, 1e14, 1e17])
def test_a_row_counts_however_far_from_all_components_it_lies(
    family: AxisAligned, k: int, distance: float
) -> None:
    block, random = random_block(12, 5, 3), random_parameters(family, 5, k)
    parameters = Parameters(random.weights, random.means, np.full_like(random.variances, 0.5))
    far = block._replace(values=block.values + distance)
    got = add_up(far, parameters, None)
    assert_allclose(got.size.sum(), 12)
    assert_allclose(got.log_likelihood, reference.log_likelihood(joint(far, parameters)).sum(), 1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_nearest_mean_does_not_depend_on_the_unit_of_the_data(
    scale: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    block = random_block(300, 20, 8)
    means = np.random.default_rng(5).normal(size=(20, 4))
    scaled = Block.of((block.values * scale).astype(dtype), block.indices)
    got = add_up(scaled, unit_spheres(means * scale), None, hard=True)
    nearest = reference.nearest(block.values, block.indices, means.T)
    # A tie to float32's precision may go either way.
    assert_allclose(got.size, np.bincount(nearest, minlength=4), atol=1)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_variances_of_all_rows_survive_an_offset(offset: float, dtype: str) -> None:
    X = np.random.default_rng(6).normal(size=(3000, 7)) + offset
    sketch = Sketcher(sketch_size=3, transform="none", dtype=dtype, random_state=0).fit_transform(X)
    pairs = list(zip(sketch.indices.ravel(), sketch.values.ravel().astype(float), strict=True))
    expected = [np.var([value for p, value in pairs if p == feature]) for feature in range(7)]
    assert_allclose(em.pooled_variances(sketch, None), expected, 1e-4 if dtype == "float32" else 1e-9)


# -- the M-step -------------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize(("n", "p", "q", "k"), [(1, 1, 1, 1), (40, 7, 3, 5), (30, 4, 4, 1), (60, 9, 1, 20)])
def test_maximise_is_the_papers_estimator(family: AxisAligned, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_parameters(family, p, k)
    got = family.maximise(family.statistics(block, parameters, None), parameters, no_limits(parameters))
    _, means, variances = by_component(parameters)
    r = reference.responsibilities(joint(block, parameters))
    expected = reference.m_step(
        block.values, block.indices, r, means, variances, spherical=family.name == "spherical"
    )
    for ours, theirs in zip(by_component(got), expected, strict=True):
        assert_allclose(ours, theirs, 1e-9, 1e-12)


@FAMILY
def test_coordinates_that_nobody_kept_stay_as_they_were(family: AxisAligned) -> None:
    block, parameters = random_block(200, 4, 2), random_parameters(family, 7, 3)
    got = family.maximise(family.statistics(block, parameters, None), parameters, no_limits(parameters, 1e-3))
    assert_array_equal(got.means[4:], parameters.means[4:])
    assert (got.means[:4] != parameters.means[:4]).all()
    if family.name == "diag":
        assert_allclose(got.variances[4:], parameters.variances[4:], 1e-14)
        assert (got.variances[:4] != parameters.variances[:4]).all()


@FAMILY
def test_reg_covar_is_added_to_every_variance(family: AxisAligned) -> None:
    block, parameters = random_block(50, 6, 3), random_parameters(family, 6, 2)
    statistics = family.statistics(block, parameters, None)
    plain = family.maximise(statistics, parameters, no_limits(parameters))
    regularised = family.maximise(statistics, parameters, no_limits(parameters, 0.25))
    assert_allclose(regularised.variances, plain.variances + 0.25, 1e-12)
    assert_array_equal(regularised.means, plain.means)


@FAMILY
def test_no_variance_falls_below_the_floor(family: AxisAligned) -> None:
    block = Block.of(np.full((8, 2), 3.0), np.tile(np.array([0, 2], np.uint16), (8, 1)))
    parameters = random_parameters(family, 3, 1)
    floor = np.full_like(parameters.variances, 0.125)
    got = family.maximise(family.statistics(block, parameters, None), parameters, Limits(0.0, floor, 2.0))
    assert_allclose(got.means[[0, 2]], [[3], [3]])
    assert_array_equal(got.variances if family.name == "spherical" else got.variances[[0, 2]].ravel(), 0.125)


def test_a_variance_by_hand() -> None:
    # Rows (1, ., 4) and (3, 5, .) of one component: coordinate 0 has mean 2 and variance 1; one row says nothing
    # about the variance of the others, which stays 7.
    block = Block.of(np.array([[1.0, 4.0], [3.0, 5.0]]), np.array([[0, 2], [0, 1]], np.uint16))
    diag = Parameters(np.ones(1), np.zeros((3, 1)), np.full((3, 1), 7.0))
    got = AXIS_ALIGNED["diag"].maximise(add_up(block, diag, None), diag, no_limits(diag))
    assert_allclose(got.means[:, 0], [2, 5, 4])
    assert_allclose(got.variances[:, 0], [1, 7, 7], atol=1e-15)
    round_ = Parameters(np.ones(1), np.zeros((3, 1)), np.ones(1))
    got = AXIS_ALIGNED["spherical"].maximise(add_up(block, round_, None), round_, no_limits(round_))
    assert_allclose(got.variances, [2 / 4])


# -- a problem: the bootstrap and one whole iteration -----------------------------------------------------


def random_sketch(n: int, p: int, q: int, seed: int = 0, dtype: str = "float64") -> Sketch:
    """Rows of three overlapping clusters, each with its own spread in each coordinate."""
    rng = np.random.default_rng(seed)
    centers, spread, y = rng.normal(size=(3, p)), rng.uniform(0.5, 1.5, (3, p)), rng.integers(3, size=n)
    X = centers[y] + spread[y] * rng.normal(size=(n, p))
    return Sketcher(sketch_size=q, transform="none", dtype=dtype, random_state=seed).fit_transform(X)


def pooled_variances(sketch: Sketch, weight: Array) -> Array:
    """The variance at each coordinate of what all rows kept there."""
    out = []
    for p in range(sketch.sketcher.n_rotated_):
        rows, places = np.nonzero(sketch.indices == p)
        x, w = sketch.values[rows, places], weight[rows]
        out.append(np.average((x - np.average(x, weights=w)) ** 2, weights=w))
    return np.array(out)


def reference_start(family: AxisAligned, sketch: Sketch, weight: Array, means: Array) -> tuple[Array, Array]:
    """The paper's bootstrap: weights and variances (K, P) by hard assignment to the nearest of `means` (K, P).

    What no row says is what all rows together say, and so is a spread where less than two rows speak; the least
    that is allowed is 1e-10 of that.
    """
    r = np.eye(len(means))[reference.nearest(sketch.values, sketch.indices, means)] * weight[:, None]
    count, _, second = reference.weighted_moments(sketch.values, sketch.indices, r, means)
    pooled = np.tile(pooled_variances(sketch, weight), (len(means), 1))
    if family.name == "spherical":
        count, second, pooled = (
            np.tile(a.sum(axis=1, keepdims=True), means.shape[1]) for a in (count, second, pooled)
        )
        pooled /= means.shape[1]
    size = r.sum(axis=0)[:, None]
    known = (
        (count >= 2 * weight.mean()) | np.isclose(count, size, rtol=1e-6, atol=0) | (family.name == "spherical")
    )
    variances = np.where(known & (count > 0), second / np.where(count > 0, count, 1), pooled)
    return r.sum(axis=0) / r.sum(), np.maximum(variances, 1e-10 * pooled)


@FAMILY
@pytest.mark.parametrize(("n", "p", "q", "k"), [(80, 9, 4, 3), (60, 7, 7, 1), (90, 6, 1, 5), (70, 8, 5, 20)])
@pytest.mark.parametrize("weighted", [False, True])
def test_bootstrap_and_first_iteration(
    family: AxisAligned, n: int, p: int, q: int, k: int, weighted: bool
) -> None:
    sketch = random_sketch(n, p, q)
    rng = np.random.default_rng(7)
    weight = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    means = rng.normal(size=(k, p))
    if k > 1:
        means[1] = means[0]  # the first of the two gets all rows
    problem = em.Problem.of(family, sketch, weight if weighted else None, k, 0.0)

    start = problem.start(np.ascontiguousarray(means.T))
    weights, variances = reference_start(family, sketch, weight, means)
    for ours, theirs in zip(by_component(start), (weights, means, variances), strict=True):
        assert_allclose(ours, theirs, 1e-9, 1e-14)

    moved = problem.maximise(problem.statistics(start), start)
    tiny = np.maximum(weights, np.finfo(float).tiny)  # of a component that has no rows
    densities = reference.joint_log_density(sketch.values, sketch.indices, tiny, means, variances)
    r = reference.responsibilities(densities) * weight[:, None]
    spherical = family.name == "spherical"
    support = 2 * weight.mean()
    after = reference.m_step(
        sketch.values, sketch.indices, r, means, variances, spherical=spherical, support=support
    )
    full = weights > 0
    for ours, theirs in zip(by_component(moved), after, strict=True):
        assert_allclose(ours[full], theirs[full], 1e-7, 1e-9)
    assert_allclose(moved.weights[~full], 0, atol=1e-100)


@FAMILY
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_start_does_not_depend_on_the_unit_of_the_data(
    family: AxisAligned, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    means = np.random.default_rng(8).normal(size=(3, 30))
    X = np.random.default_rng(9).normal(size=(3000, 30)) + means[np.arange(3000) % 3]
    starts = []
    for scale in (1.0, 1e-5):
        sketch = Sketcher(10, transform="none", dtype=dtype, random_state=0).fit_transform(X * scale)
        problem = em.Problem.of(family, sketch, None, 3, 0.0)
        starts.append(problem.start(np.ascontiguousarray(means.T * scale)))
    assert_allclose(starts[1].weights, starts[0].weights, atol=2e-3)
    assert_allclose(starts[1].variances * 1e10, starts[0].variances, 1e-2)


def test_thinned_problems_keep_rows_that_have_weight() -> None:
    sketch = random_sketch(100, 5, 2)
    weight = np.zeros(100)
    weight[1::2] = 1
    problem = em.Problem.of(AXIS_ALIGNED["diag"], sketch, weight, 2, 0.0)
    assert problem.thinned(100).sketch.n_samples == 100
    thinned = problem.thinned(50)
    assert thinned.sample_weight is not None
    assert thinned.sample_weight.any()
    plain = em.Problem.of(AXIS_ALIGNED["diag"], sketch, None, 2, 0.0).thinned(20)
    assert_array_equal(plain.sketch.values, sketch.values[::5])


# -- the loop ---------------------------------------------------------------------------------------------

HARD_PROBLEMS = pytest.mark.parametrize(
    ("n", "p", "q", "k", "seed"),
    [
        (300, 6, 2, 2, 0),
        (200, 10, 1, 3, 1),
        (150, 8, 3, 5, 2),
        (400, 20, 2, 6, 3),
        (100, 5, 5, 4, 4),
        (60, 30, 2, 3, 5),
    ],
)


def random_problem(
    family: AxisAligned, n: int, p: int, q: int, k: int, seed: int, dtype: str = "float64"
) -> tuple[em.Problem, Parameters]:
    sketch = random_sketch(n, p, q, seed, dtype)
    problem = em.Problem.of(family, sketch, None, k, 0.0)
    means = np.random.default_rng(seed).normal(size=(p, k))
    return problem, problem.start(means)


@FAMILY
@HARD_PROBLEMS
def test_the_likelihood_never_falls(family: AxisAligned, n: int, p: int, q: int, k: int, seed: int) -> None:
    problem, start = random_problem(family, n, p, q, k, seed)
    bounds = np.array(em.fit(problem, start, tol=-np.inf, max_iter=150).lower_bounds)
    assert len(bounds) == 150
    assert (np.diff(bounds) >= -1e-9 * np.abs(bounds[1:])).all()


@FAMILY
@HARD_PROBLEMS
def test_the_likelihood_never_falls_in_float32(
    family: AxisAligned, n: int, p: int, q: int, k: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    problem, start = random_problem(family, n, p, q, k, seed, "float32")
    bounds = np.array(em.fit(problem, start, tol=-np.inf, max_iter=100).lower_bounds)
    assert (np.diff(bounds) >= -1e-5 * np.maximum(1, np.abs(bounds[1:]))).all()


@FAMILY
def test_the_reported_likelihood_is_the_mean_of_the_rows(family: AxisAligned) -> None:
    problem, start = random_problem(family, 90, 7, 3, 3, 0)
    parameters = [start]
    for _ in range(3):
        parameters.append(problem.maximise(problem.statistics(parameters[-1]), parameters[-1]))
    result = em.fit(problem, start, tol=-np.inf, max_iter=4)
    expected = [reference.log_likelihood(joint(problem.sketch.kept.whole(), each)).mean() for each in parameters]
    assert_allclose(result.lower_bounds, expected, 1e-11)
    assert result.n_iter == 4


def with_logits(logits: Array) -> Array:
    weights: Array = np.exp(logits) / np.exp(logits).sum()
    return weights


def gradient(f: Callable[[Array], float], at: Array) -> Array:
    """By central differences."""
    step = 1e-5
    moves = step * np.eye(at.size).reshape(at.size, *at.shape)
    return np.array([(f(at + move) - f(at - move)) / (2 * step) for move in moves])


@FAMILY
def test_the_gradient_of_the_likelihood_vanishes_at_convergence(family: AxisAligned) -> None:
    problem, start = random_problem(family, 150, 4, 2, 2, 11)
    fitted = em.fit(problem, start, tol=-np.inf, max_iter=6000).parameters
    block = problem.sketch.kept.whole()

    def likelihood(weights: Array, means: Array, log_variances: Array) -> float:
        parameters = Parameters(weights, means, np.exp(log_variances))
        return float(reference.log_likelihood(joint(block, parameters)).mean())

    weights, means, log_variances = fitted.weights, fitted.means, np.log(fitted.variances)
    assert weights.min() > 0.05
    assert np.exp(log_variances).min() > 1e-3
    slopes = [
        gradient(lambda z: likelihood(with_logits(z), means, log_variances), np.log(weights)),
        gradient(lambda m: likelihood(weights, m, log_variances), means),
        gradient(lambda v: likelihood(weights, means, v), log_variances),
    ]
    start_slope = gradient(lambda m: likelihood(start.weights, m, np.log(start.variances)), start.means)
    assert np.abs(start_slope).max() > 1e-2
    for slope in slopes:
        assert np.abs(slope).max() < 1e-6


def test_the_loop_ends_when_an_iteration_gains_less_than_tol() -> None:
    problem, start = random_problem(AXIS_ALIGNED["diag"], 300, 6, 3, 3, 0)
    result = em.fit(problem, start, tol=1e-3, max_iter=500)
    gains = np.diff(result.lower_bounds)
    assert result.converged
    assert gains[-1] < 1e-3
    assert (gains[:-1] >= 1e-3).all()
    short = em.fit(problem, start, tol=1e-3, max_iter=result.n_iter - 1)
    assert not short.converged
    assert short.lower_bounds == result.lower_bounds[:-1]


@pytest.mark.parametrize(
    ("bounds", "tol", "expected"),
    [
        ([-3.0], 1e-3, False),
        ([-3.0, -2.0], 1e-3, False),
        ([-3.0, -2.9995], 1e-3, True),
        ([-3.0, -3.0], 1e-3, True),
        ([-3.0, -3.0], 0.0, False),
        ([-3.0, -3.0 - 1e-7], 1e-3, True),  # float32's rounding
        ([-3.0, -3.1], 1e-3, False),  # a fall
        ([-3.0, -1e6], np.inf, False),
        ([-9.0, -3.0, -2.9995], 1e-3, True),  # only the last two count
        ([-2.9995, -2.9994, -1.0], 1e-3, False),
        ([-3.0, float("nan")], 1e-3, False),
    ],
)
def test_convergence(bounds: list[float], tol: float, expected: bool) -> None:
    assert em.has_converged(bounds, tol) is expected


@FAMILY
def test_of_several_starts_the_likeliest_goes_on(family: AxisAligned) -> None:
    rng = np.random.default_rng(0)
    centers = 6 * rng.normal(size=(3, 10))
    X = np.repeat(centers, 100, axis=0) + rng.normal(size=(300, 10))
    sketch = Sketcher(sketch_size=5, transform="none", dtype="float64", random_state=0).fit_transform(X)
    problem = em.Problem.of(family, sketch, None, 3, 0.0)
    good = problem.start(np.ascontiguousarray(centers.T))
    bad = problem.start(np.ascontiguousarray(centers[[0, 0, 1]].T))  # one component without rows
    for starts in ([good, bad], [bad, good], [bad, bad, good, bad]):
        assert_allclose(em.best_start(problem, starts).means.T, centers, atol=1)
    assert em.best_start(problem, [bad]) is bad


def test_troubles_name_the_component_and_the_cure() -> None:
    sketch = random_sketch(100, 4, 2)
    problem = em.Problem.of(AXIS_ALIGNED["diag"], sketch, None, 3, 1e-6)
    variances = np.ones((4, 3))
    variances[2, 1] = 1e-6
    parameters = Parameters(np.array([0.5, 0.5, 0.0]), np.zeros((4, 3)), variances)
    found = list(em.troubles(em.Fit(parameters, [-3.0, -2.5], converged=False, n_iter=2), problem))
    assert len(found) == 3
    assert "did not converge in 2 iterations" in found[0]
    assert "0.5" in found[0]
    assert "component 2 has lost all its rows" in found[1]
    assert "component 1 has collapsed" in found[2]
    sound = Parameters(np.full(3, 1 / 3), np.zeros((4, 3)), np.ones((4, 3)))
    assert not list(em.troubles(em.Fit(sound, [-3.0, -3.0], converged=True, n_iter=2), problem))


def test_a_fit_that_ran_wild_says_so() -> None:
    sound = em.Fit(None, [-3.0, -2.5], converged=False, n_iter=3)
    wild = em.Fit(None, [-3.0, -2.5], converged=False, n_iter=3, ran_wild=True)
    assert "Increase max_iter or tol" in em.not_converged(sound)
    assert "stopped after 3 iterations" in em.not_converged(wild)
    assert "Raise reg_covar" in em.not_converged(wild)


# -- shards and threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "p", "expected"),
    [(8, 8, 256), (10, 100, 2560), (3, 7, 598), (1, 2**17, 2**17)],  # 256 rows meet each coordinate
)
def test_the_rows_of_a_shard(q: int, p: int, expected: int) -> None:
    assert moments.rows_of_shard(q, p) == expected


def with_threads(n: int, compute: Callable[[], Any]) -> Any:
    with threadpool_limits(n, user_api="openmp"):
        if _core.max_threads() != n:
            pytest.skip("the core was built without OpenMP")
        return compute()


@FAMILY
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_hard", [False, True], ids=["soft", "hard"])
def test_the_same_bits_for_any_number_of_threads(family: AxisAligned, k: int, dtype: str, is_hard: bool) -> None:
    block, parameters = random_block(20_001, 19, 7, dtype=dtype), random_parameters(family, 19, k)
    weight = np.random.default_rng(3).uniform(0, 2, 20_001)
    assert 20_001 / moments.rows_of_shard(7, 19) > 28

    def results() -> list[Array]:
        got = add_up(block, parameters, weight, hard=is_hard)
        plain = add_up(block, parameters, None, hard=is_hard)
        densities = log_density(block, parameters)
        sums = [np.array(got.log_likelihood), got.size, got.count, got.first, got.second]
        return [*sums, np.array(plain.log_likelihood), plain.first, densities]

    one = with_threads(1, results)
    for n in (2, 3, 7):
        for a, b in zip(one, with_threads(n, results), strict=True):
            assert a.tobytes() == b.tobytes()


@FAMILY
@pytest.mark.parametrize("k", [3, 20])
def test_a_whole_fit_has_the_same_bits_for_any_number_of_threads(family: AxisAligned, k: int) -> None:
    problem, start = random_problem(family, 20_000, 16, 4, k, 0, "float32")

    def fitted() -> em.Fit:
        return em.fit(problem, start, tol=-np.inf, max_iter=10)

    one, two = with_threads(1, fitted), with_threads(2, fitted)
    assert one.lower_bounds == two.lower_bounds
    assert_array_equal(one.parameters.means, two.parameters.means)
    assert_array_equal(one.parameters.variances, two.parameters.variances)
