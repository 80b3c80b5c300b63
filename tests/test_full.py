"""Covariances of any form: the kernel against slow twins, EM against its theory, fits against known truths."""

import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn import mixture
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sketchmix import GaussianMixture, Sketch, Sketcher, _core, em
from sketchmix.families import FAMILIES, UNRESTRICTED, Limits, Unrestricted
from sketchmix.families import full as full_module
from sketchmix.families.full import FullMixture, FullStatistics, repaired, sparse_statistics
from sketchmix.moments import LOG_2_PI, Block, dense_block
from tests import reference

Array = NDArray[Any]

FAMILY = pytest.mark.parametrize("family", UNRESTRICTED.values(), ids=list(UNRESTRICTED))
NAME = pytest.mark.parametrize("name", list(UNRESTRICTED))
MAY_NOT_CONVERGE = pytest.mark.filterwarnings("ignore:EM did not converge")
# n, P, Q, K: one of everything, all of everything, and nothing that is a whole number of vectors.
SIZES = pytest.mark.parametrize(
    ("n", "p", "q", "k"),
    [
        (1, 1, 1, 1),
        (1, 9, 4, 3),
        (7, 5, 1, 3),
        (6, 5, 5, 1),
        (3, 6, 6, 4),
        (17, 11, 2, 4),
        (19, 11, 3, 2),
        (33, 11, 5, 5),
        (25, 23, 17, 2),
        (9, 40, 33, 3),
        (1030, 4, 2, 2),  # several batches, the last of them short
    ],
)


@pytest.fixture(autouse=True)
def one_blas_thread() -> Iterator[None]:
    """As in a fit."""
    with threadpool_limits(1, user_api="blas"):
        yield


def random_block(n: int, p: int, q: int, seed: int = 0, dtype: str = "float64") -> Block:
    """Rows that keep q of p entries each."""
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.permuted(np.tile(np.arange(p), (n, 1)), axis=1)[:, :q], axis=1)
    return Block.of((1.5 * rng.normal(size=(n, q)) + 0.5).astype(dtype), kept.astype(np.uint16))


def random_covariance(p: int, rng: np.random.Generator) -> Array:
    """Correlations of all sizes, and standard deviations that differ."""
    A = rng.normal(size=(p, p + 2))
    spread = rng.uniform(0.5, 2, p)
    covariance: Array = (A @ A.T / (p + 2) + 0.1 * np.eye(p)) * np.outer(spread, spread)
    return covariance


def random_mixture(family: Unrestricted, p: int, k: int, seed: int = 1) -> FullMixture:
    rng = np.random.default_rng(seed)
    covariances = np.array([random_covariance(p, rng) for _ in family.sharing(k)])
    return FullMixture(rng.dirichlet(np.ones(k)), rng.normal(size=(p, k)), covariances)


def by_component(parameters: FullMixture) -> tuple[Array, Array, Array]:
    """Weights (K,), means (K, P) and covariances (K, P, P), as the reference takes them."""
    k = len(parameters.weights)
    return parameters.weights, parameters.means.T, np.array([parameters.covariance(c) for c in range(k)])


def joint(block: Block, parameters: FullMixture) -> Array:
    return reference.full_joint_log_density(block.values.astype(float), block.indices, *by_component(parameters))


def no_limits(family: Unrestricted, k: int, reg_covar: float = 0.0) -> Limits:
    return Limits(reg_covar, np.zeros(len(family.sharing(k))), 2.0)


def assert_sums(
    family: Unrestricted, got: FullStatistics, block: Block, parameters: FullMixture, weight: Array | None = None
) -> None:
    """That the statistics are those of the reference."""
    densities = joint(block, parameters)
    weight = np.ones(len(densities)) if weight is None else weight
    r = reference.responsibilities(densities) * weight[:, None]
    gradient, precision, outer = reference.full_sums(
        block.values.astype(float), block.indices, r, *by_component(parameters)[1:]
    )
    curvature = [(outer - precision)[shared].sum(axis=0) for shared in family.sharing(len(r.T))]
    assert_allclose(got.log_likelihood, weight @ reference.log_likelihood(densities), 1e-10)
    assert_allclose(got.size, r.sum(axis=0), 1e-9, 1e-12)
    assert_allclose(got.gradient, gradient.T, 1e-8, 1e-9 * max(1, np.abs(gradient).max()))
    assert_allclose(got.curvature, curvature, 1e-8, 1e-9 * max(1, np.abs(outer).max()))


# -- statistics and densities -----------------------------------------------------------------------------


@FAMILY
@SIZES
def test_sums_are_those_of_the_reference(family: Unrestricted, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_mixture(family, p, k)
    assert_sums(family, family.statistics(block, parameters, None), block, parameters)


@FAMILY
@SIZES
def test_log_density_is_that_of_the_reference(family: Unrestricted, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_mixture(family, p, k)
    assert_allclose(family.log_density(block, parameters), joint(block, parameters), 1e-10, 1e-10)


@FAMILY
@pytest.mark.parametrize("q", [3, 7])
def test_weights_multiply_the_responsibilities(family: Unrestricted, q: int) -> None:
    block, parameters = random_block(60, 7, q), random_mixture(family, 7, 3)
    weight = np.random.default_rng(2).uniform(0, 3, 60)
    weight[[0, 7, 59]] = 0, 1, 0
    assert_sums(family, family.statistics(block, parameters, weight), block, parameters, weight)


@FAMILY
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("index", ["uint16", "uint32"])
@pytest.mark.parametrize("q", [4, 9])
def test_every_type_of_a_sketch(family: Unrestricted, dtype: str, index: str, q: int) -> None:
    block, parameters = random_block(30, 9, q, dtype=dtype), random_mixture(family, 9, 2)
    block = block._replace(indices=block.indices.astype(index))
    assert_allclose(family.log_density(block, parameters), joint(block, parameters), 1e-10, 1e-10)
    assert_sums(family, family.statistics(block, parameters, None), block, parameters)


@FAMILY
@pytest.mark.parametrize("n", [0, 1, 100])
def test_rows_that_keep_all_entries_need_no_kernel(
    family: Unrestricted, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, parameters = np.random.default_rng(3).normal(size=(n, 6)), random_mixture(family, 6, 3)
    block, weight = dense_block(rows), np.random.default_rng(4).uniform(0, 2, n)
    monkeypatch.setattr(full_module, "DENSE_ROWS_AT_A_TIME", 33)
    dense = family.statistics(block, parameters, weight)
    kernel = sparse_statistics(block, parameters, weight)
    assert_allclose(dense.log_likelihood, kernel.log_likelihood, 1e-10)
    for a, b in zip((dense.size, dense.gradient), (kernel.size, kernel.gradient), strict=True):
        assert_allclose(a, b, 1e-9, 1e-9)
    assert_allclose(dense.curvature, kernel.curvature, 1e-9, 1e-8)
    out = np.empty((n, 3))
    _core.full_log_density(
        block.values, block.indices, parameters.log_weights, parameters.means, parameters.covariances, out
    )
    assert_allclose(family.log_density(block, parameters), out - 3 * LOG_2_PI, 1e-10, 1e-10)


@FAMILY
def test_no_rows_add_up_to_nothing(family: Unrestricted) -> None:
    some, parameters = random_block(5, 6, 2), random_mixture(family, 6, 3)
    block = Block.of(some.values[:0], some.indices[:0])
    got = family.statistics(block, parameters, None)
    assert got.log_likelihood == 0
    assert not any(total.any() for total in (got.size, got.gradient, got.curvature))
    assert family.log_density(block, parameters).shape == (0, 3)


@FAMILY
def test_the_sums_of_blocks_add_up_to_those_of_the_whole(family: Unrestricted) -> None:
    block, parameters = random_block(101, 9, 4), random_mixture(family, 9, 3)
    whole = family.statistics(block, parameters, None)
    cuts = [(0, 1), (1, 40), (40, 40), (40, 101)]
    parts = [family.statistics(Block.of(block.values[a:b], block.indices[a:b]), parameters, None) for a, b in cuts]
    together = parts[0] + parts[1] + parts[2] + parts[3]
    assert_allclose(together.log_likelihood, whole.log_likelihood, 1e-12)
    assert_allclose(together.size, whole.size, 1e-12)
    assert_allclose(together.gradient, whole.gradient, 1e-9, 1e-10)
    assert_allclose(together.curvature, whole.curvature, 1e-9, 1e-10)


@FAMILY
def test_rows_that_are_far_from_everything(family: Unrestricted) -> None:
    block, parameters = random_block(20, 8, 3), random_mixture(family, 8, 3)
    far = block._replace(values=block.values + 1e6)
    got = family.statistics(far, parameters, None)
    assert_allclose(got.log_likelihood, reference.log_likelihood(joint(far, parameters)).sum(), 1e-9)
    assert_allclose(got.size.sum(), 20)


@FAMILY
def test_a_singular_block_gives_finite_sums(family: Unrestricted) -> None:
    block, sound = random_block(20, 6, 4), random_mixture(family, 6, 2)
    parameters = replace(sound, covariances=np.ones_like(sound.covariances))
    got = family.statistics(block, parameters, None)
    assert np.isfinite(got.log_likelihood)
    assert np.isfinite(got.curvature).all()


def gradient_of(f: Callable[[Array], float], at: Array, moves: Array) -> Array:
    """By central differences, along the given moves."""
    step = 1e-5
    return np.array([(f(at + step * move) - f(at - step * move)) / (2 * step) for move in moves])


@FAMILY
@pytest.mark.parametrize("q", [2, 4])
def test_statistics_are_derivatives_of_the_likelihood(family: Unrestricted, q: int) -> None:
    p, k = 4, 2
    block, parameters = random_block(25, p, q), random_mixture(family, p, k)

    def likelihood(means: Array, covariances: Array) -> float:
        moved = FullMixture(parameters.weights, means, covariances)
        return float(reference.log_likelihood(joint(block, moved)).sum())

    got = family.statistics(block, parameters, None)
    units = np.eye(p * k).reshape(-1, p, k)
    slope = gradient_of(lambda m: likelihood(m, parameters.covariances), parameters.means, units)
    assert_allclose(got.gradient.ravel(), slope, 1e-6, 1e-6)
    for c in range(len(parameters.covariances)):
        units = np.eye(p * p).reshape(-1, p, p)
        moves = np.zeros((p * p, *parameters.covariances.shape))
        moves[:, c] = (units + units.transpose(0, 2, 1)) / 2  # symmetric, as covariances are
        slope = gradient_of(lambda S: likelihood(parameters.means, S), parameters.covariances, moves)
        assert_allclose(0.5 * got.curvature[c].ravel(), slope, 1e-6, 1e-6)


# -- maximise ---------------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize(("n", "p", "q", "k"), [(40, 6, 3, 3), (30, 5, 5, 2), (25, 7, 1, 1)])
def test_a_step_is_em_on_completed_rows(family: Unrestricted, n: int, p: int, q: int, k: int) -> None:
    block, parameters = random_block(n, p, q), random_mixture(family, p, k)
    got = family.maximise(family.statistics(block, parameters, None), parameters, no_limits(family, k, 0.25))
    r = reference.responsibilities(joint(block, parameters))
    weights, means, covariances = reference.full_m_step(
        block.values, block.indices, r, *by_component(parameters)[1:], tied=family.name == "tied"
    )
    assert_allclose(got.weights, weights, 1e-9)
    assert_allclose(got.means.T, means, 1e-8, 1e-9)
    assert_allclose(by_component(got)[2], covariances + 0.25 * np.eye(p), 1e-8, 1e-9)


@FAMILY
def test_a_component_without_rows_stays_as_it_was(family: Unrestricted) -> None:
    block, parameters = random_block(40, 5, 3), random_mixture(family, 5, 3)
    parameters = replace(parameters, means=parameters.means + np.array([0, 1e4, 0]))
    got = family.maximise(family.statistics(block, parameters, None), parameters, no_limits(family, 3))
    assert got.weights[1] == 0
    assert_array_equal(got.means[:, 1], parameters.means[:, 1])
    if family.name == "full":
        assert_array_equal(got.covariance(1), parameters.covariance(1))


def test_only_what_is_not_positive_definite_is_repaired() -> None:
    sound = random_covariance(5, np.random.default_rng(0))
    assert_array_equal(repaired(sound, 0.0, 1e3), (sound + sound.T) / 2)
    mended = repaired(np.diag([2.0, 1.0, 0.0, -1.0]), 0.0, 0.1)
    assert_allclose(mended, np.diag([2, 1, 0.1, 0.1]), atol=1e-12)
    assert_allclose(repaired(np.diag([2.0, 1.0]), 1.5, 1.75), np.diag([2, 1.75]))


@FAMILY
def test_vectors_are_mixtures(family: Unrestricted) -> None:
    parameters = random_mixture(family, 5, 3)
    vector = family.to_vector(parameters)
    back = family.of_vector(vector, parameters)
    assert back is not None
    for a, b in zip(by_component(back), by_component(parameters), strict=True):
        assert_allclose(a, b, 1e-12)
    for nonsense in (np.nan, np.inf, 1e200):
        assert family.of_vector(np.append(vector[:-1], nonsense), parameters) is None


# -- the start --------------------------------------------------------------------------------------------


def known_truth(
    n: int, p: int, k: int, *, tied: bool, seed: int = 0, apart: float = 1.5
) -> tuple[Array, Array, FullMixture]:
    """Rows, their components, and the mixture that they are drawn from."""
    rng = np.random.default_rng(seed)
    covariances = np.array([random_covariance(p, rng) for _ in range(1 if tied else k)])
    truth = FullMixture(rng.dirichlet(np.full(k, 20.0)), apart * rng.normal(size=(p, k)), covariances)
    y = rng.choice(k, n, p=truth.weights)
    roots = [np.linalg.cholesky(truth.covariance(c)) for c in range(k)]
    X = truth.means.T[y] + np.array([roots[c] @ rng.normal(size=p) for c in y])
    return X, y, truth


def sketch_of(X: Array, q: int, dtype: str = "float64") -> Sketch:
    return Sketcher(q, transform="none", dtype=dtype, random_state=0).fit_transform(X)


def random_problem(
    family: Unrestricted,
    n: int,
    p: int,
    q: int,
    k: int,
    seed: int = 0,
    reg_covar: float = 0.0,
    apart: float = 1.5,
) -> tuple[em.Problem, FullMixture]:
    X, _, truth = known_truth(n, p, k, tied=family.name == "tied", seed=seed, apart=apart)
    problem = em.Problem.of(family, sketch_of(X, q), None, k, reg_covar)
    seeded = em.fit(problem.seeding, problem.seeding.start(truth.means), tol=1e-3, max_iter=20).parameters
    return problem, problem.begin(seeded)


def test_it_begins_where_pairs_of_entries_lead() -> None:
    X, y, truth = known_truth(4000, 6, 2, tied=False, apart=20)
    problem = em.Problem.of(FAMILIES["full"], sketch_of(X, 3), None, 2, 0.0)
    seeded = em.fit(problem.seeding, problem.seeding.start(truth.means), tol=1e-3, max_iter=20).parameters
    start = problem.begin(seeded)
    values, indices = problem.sketch.values, problem.sketch.indices
    for k in range(2):
        expected = np.zeros((6, 6))
        for p in range(6):
            for q in range(6):
                both = (y == k) & (indices == p).any(axis=1) & (indices == q).any(axis=1)
                x_p = values[both][indices[both] == p] - seeded.means[p, k]
                x_q = values[both][indices[both] == q] - seeded.means[q, k]
                expected[p, q] = (x_p * x_q).mean()
        assert_allclose(start.covariance(k), expected, 1e-8)
    assert_array_equal(start.means, seeded.means)


@FAMILY
def test_with_all_entries_it_begins_with_the_weighted_scatter(family: Unrestricted) -> None:
    X, y, truth = known_truth(500, 5, 3, tied=family.name == "tied", apart=20)
    problem = em.Problem.of(family, sketch_of(X, 5), None, 3, 0.0)
    start = problem.begin(problem.seeding.start(truth.means))
    scatters = [(X[y == k] - truth.means[:, k]).T @ (X[y == k] - truth.means[:, k]) for k in range(3)]
    for S, shared in zip(start.covariances, family.sharing(3), strict=True):
        size = np.isin(y, shared).sum()
        assert_allclose(S, sum(scatters[k] for k in shared) / size, 1e-8, 1e-12)


@FAMILY
def test_pairs_that_were_never_kept_together_begin_uncorrelated(family: Unrestricted) -> None:
    X, _, truth = known_truth(60, 8, 2, tied=family.name == "tied")
    problem = em.Problem.of(family, sketch_of(X, 1), None, 2, 0.0)
    seeded = problem.seeding.start(truth.means)
    start = problem.begin(seeded)
    for S in start.covariances:
        assert_allclose(S, np.diag(np.diag(S)))
        assert (np.diag(S) > 0).all()


# -- the loop ---------------------------------------------------------------------------------------------

HARD_PROBLEMS = pytest.mark.parametrize(
    ("n", "p", "q", "k", "seed"),
    [(400, 6, 3, 2, 0), (300, 8, 2, 3, 1), (200, 5, 1, 2, 2), (300, 6, 6, 3, 3), (150, 12, 6, 2, 4)],
)


@FAMILY
@HARD_PROBLEMS
def test_plain_em_never_lowers_the_likelihood(
    family: Unrestricted, n: int, p: int, q: int, k: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(family), "accelerated", False)
    problem, start = random_problem(family, n, p, q, k, seed)
    bounds = np.array(em.fit(problem, start, tol=-np.inf, max_iter=150).lower_bounds)
    assert len(bounds) == 150
    assert (np.diff(bounds) >= -1e-9 * np.abs(bounds[1:])).all()


@FAMILY
@HARD_PROBLEMS
def test_accelerated_em_never_lowers_the_likelihood(
    family: Unrestricted, n: int, p: int, q: int, k: int, seed: int
) -> None:
    problem, start = random_problem(family, n, p, q, k, seed)
    bounds = np.array(em.fit(problem, start, tol=-np.inf, max_iter=150).lower_bounds)
    assert (np.diff(bounds) >= -1e-9 * np.abs(bounds[1:])).all()


@FAMILY
def test_extrapolation_takes_fewer_iterations(family: Unrestricted, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, start = random_problem(family, 2000, 10, 3, 2)
    fast = em.fit(problem, start, tol=1e-5, max_iter=2000)
    monkeypatch.setattr(type(family), "accelerated", False)
    plain = em.fit(problem, start, tol=1e-5, max_iter=2000)
    assert fast.converged
    assert fast.n_iter < plain.n_iter / 2
    assert fast.lower_bounds[-1] >= plain.lower_bounds[-1] - 1e-4


@FAMILY
def test_the_papers_equations_hold_at_convergence(family: Unrestricted) -> None:
    problem, start = random_problem(family, 1500, 6, 3, 2)
    fitted = em.fit(problem, start, tol=1e-10, max_iter=3000).parameters
    block = problem.sketch.kept.whole()
    r = reference.responsibilities(joint(block, fitted))
    gradient, precision, outer = reference.full_sums(block.values, block.indices, r, *by_component(fitted)[1:])
    for k, mean in enumerate(fitted.means.T):
        # (sum r Lambda) mu = sum r Lambda x
        assert np.linalg.norm(gradient[k]) <= 1e-3 * np.linalg.norm(precision[k] @ mean)
    for shared in family.sharing(2):
        # sum r Lambda = sum r Lambda M Lambda
        expected = precision[shared].sum(axis=0)
        assert np.linalg.norm(outer[shared].sum(axis=0) - expected) <= 1e-3 * np.linalg.norm(expected)
    assert_allclose(fitted.weights, r.mean(axis=0), 1e-3)


def with_threads(n: int, compute: Callable[[], Any]) -> Any:
    with threadpool_limits(n, user_api="openmp"):
        if _core.max_threads() != n:
            pytest.skip("the core was built without OpenMP")
        return compute()


@FAMILY
def test_the_same_bits_for_any_number_of_threads(family: Unrestricted) -> None:
    block, parameters = random_block(5001, 11, 5, dtype="float32"), random_mixture(family, 11, 3)
    weight = np.random.default_rng(3).uniform(0, 2, 5001)
    assert 5001 / full_module.rows_of_shard(block, 11) > 7

    def results() -> list[Array]:
        got = family.statistics(block, parameters, weight)
        sums = [np.array(got.log_likelihood), got.size, got.gradient, got.curvature]
        return [*sums, family.log_density(block, parameters)]

    one = with_threads(1, results)
    for n in (2, 3, 7):
        for a, b in zip(one, with_threads(n, results), strict=True):
            assert a.tobytes() == b.tobytes()


@FAMILY
def test_a_whole_fit_has_the_same_bits_for_any_number_of_threads(family: Unrestricted) -> None:
    problem, start = random_problem(family, 3000, 8, 4, 3)

    def fitted() -> em.Fit:
        return em.fit(problem, start, tol=-np.inf, max_iter=10)

    one, two = with_threads(1, fitted), with_threads(2, fitted)
    assert one.lower_bounds == two.lower_bounds
    assert_array_equal(one.parameters.covariances, two.parameters.covariances)


# -- the estimator ----------------------------------------------------------------------------------------


@FAMILY
@pytest.mark.parametrize("n_iter", [1, 2, 17])
def test_with_all_entries_it_is_scikit_learns_mixture(
    family: Unrestricted, n_iter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(family), "accelerated", False)
    problem, start = random_problem(family, 500, 6, 6, 3, reg_covar=1e-3)
    ours = em.fit(problem, start, tol=-np.inf, max_iter=n_iter).parameters
    theirs = sklearns_mixture(family, problem.sketch.values, start, tol=0, max_iter=n_iter)
    assert_same_mixture(ours, theirs, 1e-7)


@FAMILY
def test_converged_with_all_entries_it_is_scikit_learns_mixture(family: Unrestricted) -> None:
    problem, start = random_problem(family, 500, 6, 6, 3, reg_covar=1e-3, apart=3)
    ours = em.fit(problem, start, tol=1e-14, max_iter=2000).parameters
    theirs = sklearns_mixture(family, problem.sketch.values, start, tol=1e-14, max_iter=2000)
    assert_same_mixture(ours, theirs, 1e-5)


def sklearns_mixture(
    family: Unrestricted, X: Array, start: FullMixture, *, tol: float, max_iter: int
) -> mixture.GaussianMixture:
    precisions = np.linalg.inv(start.covariances)
    theirs = mixture.GaussianMixture(
        len(start.weights),
        covariance_type=family.name,
        tol=tol,
        max_iter=max_iter,
        reg_covar=1e-3,
        weights_init=start.weights,
        means_init=start.means.T,
        precisions_init=precisions[0] if family.name == "tied" else precisions,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return theirs.fit(X)


def assert_same_mixture(ours: FullMixture, theirs: mixture.GaussianMixture, rtol: float) -> None:
    assert_allclose(ours.weights, theirs.weights_, rtol)
    assert_allclose(ours.means.T, theirs.means_, rtol, rtol)
    covariances = ours.covariances[0] if theirs.covariances_.ndim == 2 else ours.covariances
    assert_allclose(covariances, theirs.covariances_, rtol, rtol)


@NAME
@pytest.mark.parametrize("transform", ["hadamard", "dct", "fourier", "none"])
def test_a_known_mixture_is_recovered_from_a_third_of_the_entries(name: str, transform: str) -> None:
    X, y, truth = known_truth(20_000, 24, 3, tied=name == "tied")
    gm = GaussianMixture(3, covariance_type=name, sketch_size=8, transform=transform, n_init=3, random_state=0)
    gm.fit(X)
    order = [int(np.argmax(np.bincount(gm.labels_[y == c]))) for c in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert_allclose(gm.weights_[order], truth.weights, atol=0.02)
    assert np.linalg.norm(gm.means_[order] - truth.means.T) <= 0.05 * np.linalg.norm(truth.means)
    for k in range(3):
        expected = truth.covariance(k)
        covariance = gm.covariance(order[k])
        assert np.linalg.norm(covariance - expected) <= (0.1 if name == "tied" else 0.2) * np.linalg.norm(expected)
        assert_allclose(gm.variances_[order[k]], np.diag(covariance), 1e-9)
        assert_allclose(gm.covariances_ if name == "tied" else gm.covariances_[order[k]], covariance, 1e-9, 1e-12)
    assert gm.covariances_.shape == ((24, 24) if name == "tied" else (3, 24, 24))


def fitted(name: str, p: int = 12, **parameters: Any) -> tuple[GaussianMixture, Array]:
    X, _, _ = known_truth(600, p, 2, tied=name == "tied")
    gm = GaussianMixture(2, covariance_type=name, random_state=0, **{"sketch_size": 6, **parameters})
    return gm.fit(X), X


def dense_joint(gm: GaussianMixture, X: Array) -> Array:
    columns = [multivariate_normal(gm.means_[c], gm.covariance(c)).logpdf(X) for c in range(len(gm.weights_))]
    densities: Array = np.log(gm.weights_) + np.transpose(columns)
    return densities


@NAME
@pytest.mark.parametrize("transform", ["hadamard", "dct", "none"])
@MAY_NOT_CONVERGE
def test_of_raw_rows_all_entries_are_used(name: str, transform: str) -> None:
    gm, X = fitted(name, transform=transform)
    densities = dense_joint(gm, X)
    assert_allclose(gm.score_samples(X), logsumexp(densities, axis=1), 1e-8)
    assert_allclose(gm.predict_proba(X), reference.responsibilities(densities), 1e-6, 1e-9)
    assert_array_equal(gm.predict(X), densities.argmax(axis=1))


@NAME
@MAY_NOT_CONVERGE
def test_of_a_sketch_the_kept_entries_are_used_alone(name: str) -> None:
    gm, X = fitted(name, transform="none", dtype="float64")
    sketch = gm.sketcher_.transform(X[:50])
    covariances = np.array([gm.covariance(k) for k in range(2)])
    densities = reference.full_joint_log_density(
        sketch.values, sketch.indices, gm.weights_, gm.means_, covariances
    )
    assert_allclose(gm.score_samples(sketch), reference.log_likelihood(densities), 1e-9)
    assert_allclose(gm.predict_proba(sketch), reference.responsibilities(densities), 1e-8, 1e-12)
    assert_array_equal(gm.labels_, gm.predict(gm.sketcher_.transform(X)))


@NAME
@MAY_NOT_CONVERGE
def test_samples_have_the_covariances(name: str) -> None:
    gm, _ = fitted(name, transform="dct")
    X, y = gm.sample(40_000)
    for k in range(2):
        expected = gm.covariance(k)
        spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        assert np.abs((np.cov(X[y == k].T) - expected) / spread).max() < 0.06
        assert_allclose(X[y == k].mean(axis=0), gm.means_[k], atol=0.1)


@NAME
def test_criteria_count_the_parameters(name: str) -> None:
    gm, X = fitted(name, p=6, sketch_size=1.0)
    n_parameters = 1 + 2 * 6 + (1 if name == "tied" else 2) * 21
    assert_allclose(gm.aic(X), -2 * gm.score_samples(X).sum() + 2 * n_parameters)


@NAME
@MAY_NOT_CONVERGE
def test_a_fit_of_another_family_leaves_no_attributes(name: str) -> None:
    gm, X = fitted(name)
    gm.set_params(covariance_type="spherical").fit(X)
    assert not hasattr(gm, "covariances_")
    gm.set_params(covariance_type=name).fit(X)
    assert not hasattr(gm, "rotated_variances_")
    assert hasattr(gm, "covariances_")


@NAME
@MAY_NOT_CONVERGE
def test_a_second_pass_raises_the_likelihood_of_the_rows(name: str) -> None:
    gm, X = fitted(name)
    before = gm.score(X)
    gm.refine(X)
    assert gm.score(X) > before
    assert_array_equal(gm.labels_.shape, (600,))


@NAME
@MAY_NOT_CONVERGE
def test_a_warm_start_goes_on(name: str) -> None:
    gm, X = fitted(name, warm_start=True, tol=1e-2)
    before = gm.lower_bound_
    assert gm.fit(X).lower_bounds_[0] >= before - 1e-9


@NAME
@MAY_NOT_CONVERGE
def test_weight_two_is_the_row_twice(name: str) -> None:
    X, _, _ = known_truth(200, 6, 2, tied=name == "tied")
    weight = np.random.default_rng(0).integers(0, 3, 200)
    whole: dict[str, Any] = {"sketch_size": 1.0, "transform": "none", "dtype": "float64", "means_init": X[:2]}
    weighted = GaussianMixture(2, covariance_type=name, **whole).fit(X, sample_weight=weight)
    repeated = GaussianMixture(2, covariance_type=name, **whole).fit(np.repeat(X, weight, axis=0))
    assert_allclose(weighted.means_, repeated.means_, 1e-6, 1e-8)
    assert_allclose(weighted.covariances_, repeated.covariances_, 1e-6, 1e-8)


@NAME
@MAY_NOT_CONVERGE
def test_pickled(name: str) -> None:
    gm, X = fitted(name)
    again = pickle.loads(pickle.dumps(gm))
    assert_array_equal(again.covariances_, gm.covariances_)
    assert_array_equal(again.score_samples(X), gm.score_samples(X))


# -- data without enough in it ----------------------------------------------------------------------------


def collinear() -> Array:
    X = np.random.default_rng(0).normal(size=(200, 6))
    X[:, 3] = X[:, 0] + X[:, 1]
    return X


def constant() -> Array:
    X = np.random.default_rng(0).normal(size=(200, 6))
    X[:, 2] = 5
    return X


SINGULAR = {
    "collinear features": collinear(),
    "constant features": constant(),
    "fewer rows than features": np.random.default_rng(0).normal(size=(8, 20)),
    "equal rows": np.ones((10, 5)),
    "one feature": np.random.default_rng(0).normal(size=(30, 1)),
    "tiny numbers": 1e-9 * collinear(),
    "large numbers": 1e9 * collinear(),
}


@NAME
@pytest.mark.parametrize("X", SINGULAR.values(), ids=list(SINGULAR))
@pytest.mark.parametrize("sketch_size", [0.5, 1.0])
@pytest.mark.parametrize("reg_covar", [0.0, 1e-6])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_singular_data_is_fitted(name: str, X: Array, sketch_size: float, reg_covar: float) -> None:
    gm = GaussianMixture(
        2, covariance_type=name, sketch_size=sketch_size, reg_covar=reg_covar, random_state=0, dtype="float64"
    ).fit(X)
    for value in (gm.weights_, gm.means_, gm.covariances_, gm.variances_, gm.score_samples(X)):
        assert np.isfinite(value).all()
    assert (gm.variances_ > 0).all()
    assert np.isfinite(gm.sample(10)[0]).all()


def test_a_collapsed_component_is_named_with_the_cure() -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    X[:20] = 50 + np.outer(X[:20, 0], [1, 2, 3, 4])  # a line far away
    gm = GaussianMixture(
        2, covariance_type="full", sketch_size=1.0, means_init=[[50] * 4, [0] * 4], random_state=0
    )
    with pytest.warns(ConvergenceWarning, match=r"component 0 has collapsed.*Raise reg_covar"):
        gm.fit(X)


@NAME
def test_what_all_rows_lack_is_no_collapse(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        GaussianMixture(1, covariance_type=name, sketch_size=1.0, random_state=0).fit(collinear())


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
@pytest.mark.parametrize("sketch_size", [8, 20, 40])
def test_reg_covar_is_added_once_however_little_is_kept(covariance_type: str, sketch_size: int) -> None:
    X = np.random.default_rng(0).normal(size=(5000, 40))
    same: dict[str, Any] = {"covariance_type": covariance_type, "tol": 1e-7, "max_iter": 500, "dtype": "float64"}
    gm = GaussianMixture(1, sketch_size=sketch_size, reg_covar=0.1, random_state=0, **same).fit(X)
    assert_allclose(gm.variances_.mean(), 1.1, atol=0.02)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transform", ["hadamard", "none"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_without_reg_covar_a_constant_feature_does_no_harm(
    covariance_type: str, dtype: str, transform: str
) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=2000)
    X = 3 * rng.normal(size=(3, 12))[y] + rng.normal(size=(2000, 12))
    X[:, 3] = 5
    same: dict[str, Any] = {"covariance_type": covariance_type, "dtype": dtype, "transform": transform}
    gm = GaussianMixture(3, sketch_size=1.0, reg_covar=0, random_state=0, n_init=3, **same).fit(X)
    bounds = np.array(gm.lower_bounds_)
    assert (np.diff(bounds) > -em.STEEPEST_FALL).all()
    assert gm.score(gm.sketcher_.transform(X)) > bounds.max() - 1.5
    assert reference.accuracy(y, gm.labels_) > 0.95
