"""Low-rank covariances: kernels against dense matrices, the fixed point against gradients, fits against truths.

``python -m tests.test_low_rank FILE`` computes the kernels' results at the level that SKETCHMIX_CPU asks for.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sketchmix import GaussianMixture, Sketch, Sketcher, _core, em, moments
from sketchmix.families import Limits, LowRank
from sketchmix.families.low_rank import LowRankMixture, LowRankStatistics, principal_turn, with_ridge
from sketchmix.moments import Block, dense_block
from tests import reference

Array = NDArray[Any]

ROOT = Path(__file__).parents[1]
TRANSFORMS = ["hadamard", "dct", "fourier", "none"]


class Case(NamedTuple):
    """Rows and a mixture: more factors than kept entries, than features, than a vector has lanes, and fewer."""

    n: int
    p: int
    q: int
    k: int
    r: int


CASES = [
    Case(1, 3, 1, 1, 1),
    Case(20, 5, 5, 1, 2),
    Case(17, 9, 4, 3, 2),
    Case(35, 12, 3, 5, 9),
    Case(10, 40, 30, 2, 13),
    Case(40, 20, 10, 20, 3),
    Case(33, 30, 12, 2, 16),
    Case(16, 50, 20, 2, 33),
    Case(31, 7, 7, 1, 6),
    Case(1500, 3, 2, 2, 1),  # several shards
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


def rows_and_mixture(case: Case, dtype: str = "float64", seed: int = 0) -> tuple[Block, LowRankMixture]:
    n, p, q, k, r = case
    rng = np.random.default_rng([seed, *case])
    kept = np.sort(rng.permuted(np.tile(np.arange(p), (n, 1)), axis=1)[:, :q], axis=1)
    block = Block.of((1.5 * rng.normal(size=(n, q)) + 0.5).astype(dtype), kept.astype(np.uint16))
    factors, noise = rng.normal(size=(k, p, r)) / np.sqrt(r), rng.uniform(0.3, 2, k)
    prior = np.array([np.diag(rng.uniform(0.5, 2, r)) for _ in range(k)])
    return block, LowRankMixture(rng.dirichlet(np.full(k, 5.0)), rng.normal(size=(p, k)), factors, noise, prior)


def covariances(mixture: LowRankMixture) -> Array:
    identity = np.eye(len(mixture.means))
    return np.array([w @ w.T + s * identity for w, s in zip(mixture.factors, mixture.noise, strict=True)])


def joint(block: Block, mixture: LowRankMixture) -> Array:
    return reference.full_joint_log_density(
        block.values.astype(float), block.indices, mixture.weights, mixture.means.T, covariances(mixture)
    )


def expected_latent(block: Block, mixture: LowRankMixture) -> tuple[Array, Array]:
    """E[z] (n, K, r) and Cov z (n, K, r, r)."""
    both = [
        [
            reference.latent_moments(x, kept, mixture.means[:, k], mixture.factors[k], mixture.noise[k])
            for k in range(len(mixture.weights))
        ]
        for x, kept in zip(block.values.astype(float), block.indices, strict=True)
    ]
    return np.array([[m for m, _ in row] for row in both]), np.array([[c for _, c in row] for row in both])


def expected_statistics(block: Block, mixture: LowRankMixture, weight: Array) -> LowRankStatistics:
    densities = joint(block, mixture)
    resp = reference.responsibilities(densities) * weight[:, None]
    mean, spread = expected_latent(block, mixture)
    k, p, r = mixture.factors.shape
    second, cross, energy = np.zeros((k, p, r + 1, r + 1)), np.zeros((k, p, r + 1)), np.zeros(k)
    for i, (x, kept) in enumerate(zip(block.values.astype(float), block.indices, strict=True)):
        for c in range(k):
            z = np.append(mean[i, c], 1.0)
            both = np.outer(z, z)
            both[:r, :r] += spread[i, c]
            for value, at in zip(x, kept, strict=True):
                d = value - mixture.means[at, c]
                second[c, at] += resp[i, c] * both
                cross[c, at] += resp[i, c] * d * z
                energy[c] += resp[i, c] * d**2
    rows, columns = np.tril_indices(r + 1)
    log_likelihood = float(weight @ reference.log_likelihood(densities))
    return LowRankStatistics(log_likelihood, resp.sum(axis=0), second[:, :, rows, columns], cross, energy)


def assert_statistics(got: LowRankStatistics, expected: LowRankStatistics, rtol: float) -> None:
    assert_allclose(got.log_likelihood, expected.log_likelihood, rtol)
    for name in ("size", "second", "cross", "energy"):
        ours, theirs = getattr(got, name), getattr(expected, name)
        assert_allclose(ours, theirs, rtol, rtol * np.abs(theirs).max(initial=1), err_msg=name)


# -- densities and statistics -----------------------------------------------------------------------------


@EVERY
def test_densities_and_coordinates_are_those_of_dense_matrices(case: Case) -> None:
    block, mixture = rows_and_mixture(case)
    family = LowRank(case.r)
    density, latent = family.posterior(block, mixture)
    assert_allclose(density, joint(block, mixture), 1e-10, 1e-10)
    assert_allclose(latent, expected_latent(block, mixture)[0], 1e-9, 1e-9)
    assert_array_equal(family.log_density(block, mixture), density)


@EVERY
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_the_reference(case: Case, weighted: bool) -> None:
    block, mixture = rows_and_mixture(case)
    weight = np.random.default_rng(1).integers(0, 3, case.n) * 0.7 if weighted else None
    got = LowRank(case.r).statistics(block, mixture, weight)
    assert_statistics(
        got, expected_statistics(block, mixture, np.ones(case.n) if weight is None else weight), 1e-9
    )


@EVERY
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_kernels_in_float32(case: Case, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    block, mixture = rows_and_mixture(case, dtype)
    family = LowRank(case.r)
    assert_allclose(family.log_density(block, mixture), joint(block, mixture), 1e-4, 1e-4)
    expected = expected_statistics(block, mixture, np.ones(case.n))
    assert_statistics(family.statistics(block, mixture, None), expected, 1e-4)


@pytest.mark.parametrize("k", [1, 3])
def test_no_rows_add_up_to_nothing(k: int) -> None:
    block, mixture = rows_and_mixture(Case(3, 6, 2, k, 2))
    nothing = Block.of(block.values[:0], block.indices[:0])
    got = LowRank(2).statistics(nothing, mixture, None)
    assert got.log_likelihood == 0
    for total in (got.size, got.second, got.cross, got.energy):
        assert not total.any()
    assert LowRank(2).log_density(nothing, mixture).shape == (0, k)


def test_the_sums_of_blocks_add_up_to_those_of_the_whole() -> None:
    block, mixture = rows_and_mixture(Case(50, 9, 4, 3, 2))
    cuts = [(0, 1), (1, 30), (30, 30), (30, 50)]
    parts = [
        LowRank(2).statistics(Block.of(block.values[a:b], block.indices[a:b]), mixture, None) for a, b in cuts
    ]
    whole = LowRank(2).statistics(block, mixture, None)
    assert_statistics(parts[0] + parts[1] + parts[2] + parts[3], whole, 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_for_any_number_of_threads(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "SMALL_PROBLEM", 0)
    block, mixture = rows_and_mixture(Case(5001, 11, 5, 3, 4), dtype)
    assert 5001 / moments.rows_of_shard(5, 11) > 8

    def results(n: int) -> list[Array]:
        with threadpool_limits(n, user_api="openmp"):
            got = LowRank(4).statistics(block, mixture, None)
            return [np.array(got.log_likelihood), got.size, got.second, got.cross, got.energy]

    for n in (2, 3):
        for a, b in zip(results(1), results(n), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 17])
def test_small_systems_are_solved(n: int) -> None:
    rng = np.random.default_rng(n)
    roots = rng.normal(size=(13, n, n + 2))
    matrices = roots @ roots.swapaxes(1, 2)
    matrices[5] = 0
    right = rng.normal(size=(13, n))
    right[5] = 0
    rows, columns = np.tril_indices(n)
    out = np.full((13, n), np.nan)
    _core.solve_each(np.ascontiguousarray(matrices[:, rows, columns]), right, out)
    sound = np.arange(13) != 5
    assert_allclose(out[sound], np.linalg.solve(matrices[sound], right[sound][:, :, None])[:, :, 0], 1e-8)
    assert_array_equal(out[5], 0)


def test_a_singular_system_has_a_solution_all_the_same() -> None:
    # Two equations that say x + y = 2: y is taken for zero.
    out = np.empty((1, 2))
    _core.solve_each(np.array([[1.0, 1.0, 1.0]]), np.array([[2.0, 2.0]]), out)
    assert_allclose(out, [[2, 0]])


def level_results() -> Iterator[tuple[str, Array]]:
    for number, case in enumerate(CASES):
        for dtype in ("float32", "float64"):
            block, mixture = rows_and_mixture(case, dtype)
            moments.SMALL_PROBLEM = 0
            got = LowRank(case.r).statistics(block, mixture, None)
            yield f"{number} {dtype} density", LowRank(case.r).log_density(block, mixture)
            yield f"{number} {dtype} second", got.second
            yield f"{number} {dtype} cross", got.cross


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(level: str, tmp_path: Path) -> None:
    path = tmp_path / "results.npz"
    command = [sys.executable, "-W", "error", "-m", "tests.test_low_rank", str(path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"SKETCHMIX_CPU": level}, check=True, timeout=300)
    with np.load(path) as arrays:
        results = dict(arrays)
    if results["level"] != level:
        pytest.skip(f"this machine lacks {level} (it chose {results['level']})")
    for number, case in enumerate(CASES):
        for dtype, rtol in (("float32", 1e-4), ("float64", 1e-9)):
            block, mixture = rows_and_mixture(case, dtype)
            expected = expected_statistics(block, mixture, np.ones(case.n))
            assert_allclose(results[f"{number} {dtype} density"], joint(block, mixture), rtol, rtol)
            for name in ("second", "cross"):
                theirs = getattr(expected, name)
                atol = rtol * np.abs(theirs).max()
                assert_allclose(results[f"{number} {dtype} {name}"], theirs, rtol, atol)


# -- the M-step and the loop ------------------------------------------------------------------------------


def problem_of(case: Case, seed: int = 0) -> tuple[em.Problem, LowRankMixture]:
    rng = np.random.default_rng([seed, *case])
    y = rng.integers(case.k, size=case.n)
    factors = rng.normal(size=(case.k, case.p, case.r))
    X = 2 * rng.normal(size=(case.k, case.p))[y] + np.einsum(
        "npr,nr->np", factors[y], rng.normal(size=(case.n, case.r))
    )
    X += 0.5 * rng.normal(size=X.shape)
    sketch = Sketcher(case.q, transform="none", dtype="float64", random_state=seed).fit_transform(X)
    problem = em.Problem.of(LowRank(case.r), sketch, None, case.k, 0.0)
    means = rng.normal(size=(case.p, case.k))
    return problem, problem.begin(problem.seeding.start(means))


def log_posterior(problem: em.Problem, mixture: LowRankMixture) -> float:
    """Log-likelihood plus log prior, by dense matrices and a loop."""
    total = reference.log_likelihood(joint(problem.sketch.kept.whole(), mixture)).sum()
    for factors, prior in zip(mixture.factors, mixture.prior, strict=True):
        for row in factors:
            total -= 0.5 * row @ prior @ row
    return float(total)


HARD = pytest.mark.parametrize(
    "case", [Case(200, 8, 3, 2, 2), Case(150, 10, 2, 3, 1), Case(300, 6, 6, 2, 3), Case(60, 20, 5, 2, 6)]
)


@HARD
def test_the_likelihood_never_falls(case: Case) -> None:
    problem, parameters = problem_of(case)
    last = -np.inf
    for _ in range(100):
        statistics = problem.statistics(parameters)
        bound = (statistics.log_likelihood + problem.family.log_prior(parameters)) / case.n
        assert bound >= last - 1e-10 * abs(bound)
        last, parameters = bound, problem.maximise(statistics, parameters)


@HARD
def test_the_likelihood_never_falls_when_accelerated(case: Case) -> None:
    problem, start = problem_of(case)
    fitted = em.fit(problem, start, tol=-np.inf, max_iter=100)
    assert (np.diff(fitted.lower_bounds) >= -1e-12 * np.abs(fitted.lower_bounds[-1])).all()
    # What is returned is at least as likely as what was last evaluated.
    assert log_posterior(problem, fitted.parameters) / case.n >= fitted.lower_bounds[-1] - 1e-12


def test_extrapolation_is_worth_its_iterations() -> None:
    problem, start = problem_of(Case(400, 12, 3, 1, 2))
    accelerated = em.fit(problem, start, tol=-np.inf, max_iter=60).lower_bounds[-1]
    plain = start
    for _ in range(200):
        plain = problem.maximise(problem.statistics(plain), plain)
    assert accelerated >= log_posterior(problem, plain) / 400


def test_the_gradient_of_the_likelihood_vanishes_at_convergence() -> None:
    problem, start = problem_of(Case(200, 5, 3, 2, 1))
    fitted = em.fit(problem, start, tol=1e-15, max_iter=5000).parameters

    def likelihood(weights: Array, means: Array, factors: Array, noise: Array) -> float:
        mixture = LowRankMixture(weights / weights.sum(), means, factors, noise, fitted.prior)
        return log_posterior(problem, mixture) / 200

    at = [fitted.weights, fitted.means, fitted.factors, fitted.noise]
    assert fitted.weights.min() > 0.05
    for which, value in enumerate(at):
        for index in np.ndindex(value.shape):
            slopes = []
            for step in (1e-5, -1e-5):
                moved = [part.copy() for part in at]
                moved[which][index] += step
                slopes.append(likelihood(*moved))
            assert abs(slopes[0] - slopes[1]) / 2e-5 < 2e-5


def test_a_coordinate_that_no_row_kept_keeps_its_mean_and_has_no_factors() -> None:
    _, mixture = rows_and_mixture(Case(30, 6, 3, 2, 2))
    some = np.random.default_rng(0).normal(size=(30, 3))
    block = Block.of(some, np.tile(np.array([0, 2, 4], np.uint16), (30, 1)))
    statistics = LowRank(2).statistics(block, mixture, None)
    moved = LowRank(2).maximise(statistics, mixture, Limits(0.0, np.zeros(2), 2.0))
    hidden = [1, 3, 5]
    assert_array_equal(moved.factors[:, hidden], 0)
    assert_array_equal(moved.means[hidden], mixture.means[hidden])
    assert (moved.factors[:, [0, 2, 4]] != 0).all()


def test_the_prior_of_factors_is_that_of_the_first_and_nothing_for_all_entries() -> None:
    problem, start = problem_of(Case(200, 8, 3, 2, 2))
    for factors, prior in zip(start.factors, start.prior, strict=True):
        assert_allclose(prior, np.diag((1 - 3 / 8) / (factors**2).mean(axis=0)))
    _, of_all = problem_of(Case(300, 6, 6, 2, 3))
    assert_array_equal(of_all.prior, 0)
    assert_allclose(
        problem.family.log_prior(start), log_posterior(problem, start) - log_likelihood_of(problem, start)
    )


def log_likelihood_of(problem: em.Problem, mixture: LowRankMixture) -> float:
    return float(reference.log_likelihood(joint(problem.sketch.kept.whole(), mixture)).sum())


def test_a_ridge_by_hand() -> None:
    triangle = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]])
    ridge = np.array([[[10.0, 20.0], [20.0, 30.0]]])
    assert_array_equal(with_ridge(triangle, ridge), [[[11, 22, 33, 4, 5, 6]]])


def test_factors_turn_into_principal_ones() -> None:
    w = np.array([[0.0, -3.0], [-5.0, 0.0], [0.0, 0.0]])
    for given in (w, w @ np.array([[0.6, 0.8], [-0.8, 0.6]])):
        assert_allclose(given @ principal_turn(given), [[0, 3], [5, 0], [0, 0]], atol=1e-12)


def test_the_canonical_form_is_the_same_mixture() -> None:
    _, mixture = rows_and_mixture(Case(1, 9, 4, 3, 2))
    same = LowRank(2).canonical(mixture)
    assert_allclose(covariances(same), covariances(mixture), 1e-10, 1e-12)
    assert_allclose(LowRank(2).log_prior(same), LowRank(2).log_prior(mixture), 1e-10)


# -- the estimator ----------------------------------------------------------------------------------------


def factor_data(n: int = 4000, p: int = 48, r: int = 2, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Two clusters that overlap but for the directions in which they spread: rows, clusters, means, factors."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    means, factors = 0.5 * rng.normal(size=(2, p)), rng.normal(size=(2, p, r))
    X = means[y] + np.einsum("npr,nr->np", factors[y], rng.normal(size=(n, r))) + 0.5 * rng.normal(size=(n, p))
    return X, y, means, factors


def low_rank(rank: int | str = 2, k: int = 2, **parameters: Any) -> GaussianMixture:
    chosen: dict[str, Any] = {"covariance_type": "low_rank", "rank": rank, "random_state": 0} | parameters
    return GaussianMixture(k, **chosen)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_known_mixture_is_recovered(transform: str) -> None:
    X, y, means, factors = factor_data()
    gm = low_rank(sketch_size=12, transform=transform, n_init=5, tol=1e-5, max_iter=500).fit(X)
    assert reference.accuracy(y, gm.labels_) > 0.97
    order = [int(np.argmax(np.bincount(gm.labels_[y == c]))) for c in range(2)]
    assert gm.factors_.shape == (2, 48, 2)
    assert_allclose(gm.noise_variances_, 0.25, rtol=0.1)
    assert not hasattr(gm, "rotated_variances_")
    for c, k in enumerate(order):
        truth = factors[c] @ factors[c].T + 0.25 * np.eye(48)
        assert np.linalg.norm(gm.covariance(k) - truth) < 0.12 * np.linalg.norm(truth)
        # A mean rests on 500 rows at each coordinate, whose deviations share two factors.
        assert np.abs(gm.means_[k] - means[c]).max() < 6 * np.sqrt(np.diag(truth).max() / 500)
        gram = gm.factors_[k].T @ gm.factors_[k]
        assert gram[0, 0] > gram[1, 1]
        assert abs(gram[0, 1]) < 1e-9 * gram[0, 0]
        assert_allclose(gm.covariance(k), gm.factors_[k] @ gm.factors_[k].T + gm.noise_variances_[k] * np.eye(48))
        assert_allclose(np.diag(gm.covariance(k)), gm.variances_[k], 1e-9)


def test_one_component_of_all_entries_is_probabilistic_pca() -> None:
    X, *_ = factor_data(500, 10, 3)
    gm = low_rank(3, 1, sketch_size=1.0, dtype="float64", reg_covar=0, tol=1e-13, max_iter=5000).fit(X)
    theirs = PCA(3).fit(X)
    # Maximum likelihood divides by n, scikit-learn by n - 1.
    assert_allclose(gm.covariance(0), theirs.get_covariance() * 499 / 500, rtol=0, atol=1e-4)
    assert_allclose(gm.means_[0], X.mean(axis=0), atol=1e-8)
    assert_allclose(gm.score(X), theirs.score(X), 1e-4)


def test_predictions_are_those_of_the_dense_covariances() -> None:
    X, *_ = factor_data(300, 16)
    gm = low_rank(sketch_size=6, dtype="float64").fit(X)
    columns = [multivariate_normal(gm.means_[k], gm.covariance(k)).logpdf(X) for k in range(2)]
    densities = np.log(gm.weights_) + np.transpose(columns)
    assert_allclose(gm.predict_proba(X), reference.responsibilities(densities), 1e-6, 1e-9)
    assert_allclose(gm.score_samples(X), reference.log_likelihood(densities), 1e-9)
    axes = gm.sketcher_.rotate(np.eye(16)).T
    sketch = gm.sketcher_.transform(X)
    rotated = np.array([axes @ gm.covariance(k) @ axes.T for k in range(2)])
    of_kept = reference.full_joint_log_density(
        sketch.values, sketch.indices, gm.weights_, gm.means_ @ axes.T, rotated
    )
    assert_allclose(gm.score_samples(sketch), reference.log_likelihood(of_kept), 1e-9)


def test_latent_coordinates_and_reconstructions() -> None:
    X, y, means, _ = factor_data()
    gm = low_rank(sketch_size=12, n_init=5, tol=1e-5, max_iter=500).fit(X)
    sketch = gm.sketcher_.transform(X)
    labels, latent = gm.predict(sketch), gm.latent(sketch)
    assert latent.shape == (4000, 2)
    for k in range(2):
        z, _ = expected_latent(
            dense_block(X[labels == k][:5]),
            LowRankMixture(
                np.ones(1),
                gm.means_[k][:, None],
                gm.factors_[k][None],
                gm.noise_variances_[[k]],
                np.zeros((1, 2, 2)),
            ),
        )
        dense = gm.latent(X[labels == k][:5])
        same = gm.predict(X[labels == k][:5]) == k
        assert_allclose(np.abs(dense[same]), np.abs(z[same, 0]), 1e-3, 1e-3)
    # From a quarter of the entries, most of what rows are beyond their cluster's mean, and all its features.
    rebuilt = gm.reconstruct(sketch)
    assert rebuilt.shape == X.shape
    of_means = ((X - means[y]) ** 2).mean()
    assert ((rebuilt - X) ** 2).mean() < 0.35 * of_means
    assert ((gm.reconstruct(X) - X) ** 2).mean() < 0.25  # less than the noise, some of which it fits


def test_samples_have_the_covariance() -> None:
    X, *_ = factor_data(1000, 8)
    gm = low_rank(sketch_size=6).fit(X)
    drawn, y = gm.sample(20_000)
    for k in range(2):
        rows, covariance = drawn[y == k], gm.covariance(k)
        variance = np.diag(covariance)
        error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(rows))
        assert (np.abs(np.cov(rows.T) - covariance) < 6 * error).all()
        assert (np.abs(rows.mean(axis=0) - gm.means_[k]) < 5.5 * np.sqrt(variance / len(rows))).all()


@pytest.mark.filterwarnings("ignore:EM did not converge")
def test_refine_raises_the_likelihood_of_the_rows() -> None:
    X, *_ = factor_data(1000, 16)
    gm = low_rank(sketch_size=4, max_iter=5).fit(X)
    before = gm.score(X)
    gm.refine(X)
    assert gm.score(X) > before


def test_the_rank_that_the_rows_speak_for() -> None:
    X, *_ = factor_data(6000, 32, 3)
    gm = low_rank("auto", sketch_size=16, n_init=3).fit(X)
    assert gm.factors_.shape[2] in (3, 4)


def test_bic_counts_every_parameter() -> None:
    X, *_ = factor_data(200, 8)
    gm = low_rank(3).fit(X)
    # 1 free weight; for each component 8 means, 8 x 3 factors less 3 rotations among them, 1 noise.
    assert_allclose(gm.bic(X), -2 * gm.score_samples(X).sum() + np.log(200) * (1 + 2 * (8 + 24 - 3 + 1)))


def test_without_dense_rows_it_starts_from_random_directions() -> None:
    X, y, *_ = factor_data()
    sketch = Sketcher(16, random_state=0).fit_transform(X)
    bare = Sketch(sketch.values, sketch.indices, sketch.sketcher)
    gm = low_rank(n_init=5, tol=1e-5, max_iter=1000).fit(bare)
    assert gm.converged_
    assert np.isfinite(gm.factors_).all()
    assert reference.accuracy(y, gm.labels_) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n", [1, 2, 9])
def test_few_rows_and_equal_rows(n: int) -> None:
    rows = np.random.default_rng(0).normal(size=(n, 8))
    for X in (rows, np.ones((20, 8)), np.repeat(rows, 5, axis=0)):
        gm = low_rank(3, min(2, len(X)), sketch_size=4).fit(X)
        for name in ("weights_", "means_", "factors_", "noise_variances_", "variances_", "lower_bounds_"):
            assert np.isfinite(getattr(gm, name)).all(), name
        assert np.isfinite(gm.predict_proba(X)).all()


@pytest.mark.parametrize("scale", [1e-5, 1e5])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_unit_and_the_origin_of_the_data_do_not_matter(scale: float, offset: float) -> None:
    X, y, *_ = factor_data(2000, 24)
    gm = low_rank(sketch_size=12, reg_covar=0, n_init=3).fit(scale * (X + offset))
    assert reference.accuracy(y, gm.labels_) > 0.9
    assert_allclose(gm.noise_variances_ / scale**2, 0.25, rtol=0.15)


def test_real_digits(digits_039: tuple[Array, Array]) -> None:
    X, y = digits_039
    gm = low_rank(10, 3, sketch_size=30, n_init=3, tol=1e-4).fit(X)
    assert reference.accuracy(y, gm.labels_) >= 0.92
    gm = low_rank(10, 3, sketch_size=78, n_init=3).fit(X)
    assert reference.accuracy(y, gm.labels_) >= 0.96


# -- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "error", "message"),
    [
        (8, ValueError, "rank=8 must be less than n_features=8; lower it, or take 'full'"),
        (0, ValueError, "rank must be at least 1; got 0"),
        (2.0, TypeError, "rank must be an integer; got 2.0"),
        ("best", ValueError, "rank must be an integer or 'auto'; got 'best'"),
    ],
)
def test_bad_ranks(rank: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        low_rank(rank).fit(np.random.default_rng(0).normal(size=(30, 8)))


@pytest.mark.parametrize("method", ["latent", "reconstruct"])
def test_other_families_have_no_latent_coordinates(method: str) -> None:
    X, *_ = factor_data(100, 8)
    gm = GaussianMixture(2, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"only covariance_type='low_rank' has latent coordinates.*'diag'"):
        getattr(gm, method)(X)


@pytest.mark.filterwarnings("ignore:EM did not converge")
def test_a_warm_start_goes_on_with_the_same_rank_only() -> None:
    X, *_ = factor_data(500, 12)
    gm = low_rank(2, sketch_size=6, max_iter=4, warm_start=True, tol=0).fit(X)
    reached = gm.lower_bound_
    assert gm.fit(X).lower_bounds_[0] >= reached
    with pytest.raises(ValueError, match=r"rank=2, but now it is .*rank=3; set warm_start=False"):
        gm.set_params(rank=3).fit(X)


def test_a_warm_start_goes_on_with_the_rank_that_the_rows_chose() -> None:
    X, *_ = factor_data(1000, 16)
    gm = low_rank("auto", sketch_size=8, warm_start=True).fit(X)
    rank = gm.factors_.shape[2]
    assert gm.fit(X).factors_.shape[2] == rank


@pytest.mark.parametrize("kept", [0, 1])
def test_rows_of_no_weight_have_no_say_in_the_rank(kept: int) -> None:
    X, *_ = factor_data(3000, 24)
    weight = (np.arange(3000) % 5 == 0).astype(float) if kept else (np.arange(3000) % 5 > 0).astype(float)
    sketch = Sketcher(12, random_state=0).fit_transform(X)
    weighted = low_rank("auto").fit(sketch, sample_weight=weight)
    assert weighted.factors_.shape == low_rank("auto").fit(sketch[weight > 0]).factors_.shape


@pytest.mark.parametrize("unit", [1 / 2000, 1e-12, 1e6])
def test_the_unit_of_the_weights_does_not_matter(unit: float) -> None:
    X, *_ = factor_data(2000, 24)
    weight = np.random.default_rng(0).uniform(0.5, 2, 2000)
    same: dict[str, Any] = {"sketch_size": 8, "n_init": 2}
    plain, scaled = (low_rank(**same).fit(X, sample_weight=w) for w in (weight, unit * weight))
    assert_allclose(scaled.means_, plain.means_, 1e-3, 1e-3)
    assert_allclose(scaled.noise_variances_, plain.noise_variances_, 1e-3)
    assert_allclose(scaled.factors_, plain.factors_, 1e-2, 1e-2)


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
def test_float32_where_factors_explain_nearly_everything(noise: float) -> None:
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(128, 3)))[0].T
    X = (rng.normal(size=(5000, 3)) * [8, 5, 3]) @ directions + noise * rng.normal(size=(5000, 128))
    gm = low_rank(3, 1, sketch_size=64, reg_covar=0).fit(X.astype(np.float32))
    assert gm.converged_
    assert (np.diff(gm.lower_bounds_) > -1e-4).all()
    assert_allclose(gm.noise_variances_, noise**2, rtol=0.05)


def test_a_fit_of_another_family_leaves_nothing_of_the_last() -> None:
    X, *_ = factor_data(300, 8)
    gm = low_rank(2).fit(X)
    gm.set_params(covariance_type="diag").fit(X)
    assert not hasattr(gm, "factors_")
    assert hasattr(gm, "rotated_variances_")


def test_a_collapse_is_reported_by_component() -> None:
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(60, 6)), 5 + rng.normal(size=(60, 1)) * np.ones(6)])
    with pytest.warns(ConvergenceWarning, match="component . has collapsed"):
        low_rank(1, sketch_size=1.0, n_init=5, reg_covar=1e-9, max_iter=1000).fit(X)


if __name__ == "__main__":
    everything: dict[str, Any] = {"level": np.array(_core.level), **dict(level_results())}
    np.savez(sys.argv[1], **everything)
