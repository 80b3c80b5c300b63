"""Streams: sums carried from one mixture to another, how rows are forgotten, and the estimators' partial_fit."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.integrate import quad
from sklearn.base import clone

from sketchmix import PCA, GaussianMixture, KMeans, Sketcher
from sketchmix.families import AXIS_ALIGNED, UNRESTRICTED, Limits, LowRank
from sketchmix.families.full import FullMixture
from sketchmix.families.low_rank import LowRankMixture
from sketchmix.moments import Block, Parameters, unit_spheres
from sketchmix.online import Averages, Schedule, State, scaled
from tests import reference

Array = NDArray[Any]
Make = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TYPES = ["diag", "spherical", "low_rank", "full", "tied"]
EVERY_TYPE = pytest.mark.parametrize("name", TYPES)
# n, P, Q, K: one of everything, all of everything, and nothing that is a whole number of vectors.
SIZES = pytest.mark.parametrize(
    ("n", "p", "q", "k"), [(1, 3, 1, 1), (40, 5, 5, 1), (23, 9, 4, 3), (30, 7, 1, 2), (50, 17, 11, 5)]
)
SHARE = 0.4


def random_block(n: int, p: int, q: int, seed: int = 0, dtype: str = "float64") -> Block:
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.permuted(np.tile(np.arange(p), (n, 1)), axis=1)[:, :q], axis=1)
    return Block.of((1.5 * rng.normal(size=(n, q)) + 0.5).astype(dtype), kept.astype(np.uint16))


def random_model(name: str, p: int, k: int, seed: int = 1) -> tuple[Any, Any]:
    """A family, and one of its mixtures."""
    rng = np.random.default_rng(seed)
    weights, means = rng.dirichlet(np.full(k, 5.0)), rng.normal(size=(p, k))
    if name in AXIS_ALIGNED:
        return AXIS_ALIGNED[name], Parameters(weights, means, rng.uniform(0.3, 3, (p, k) if name == "diag" else k))
    if name == "low_rank":
        prior = np.array([np.diag(rng.uniform(0.5, 2, 2)) for _ in range(k)])
        factors, noise = rng.normal(size=(k, p, 2)), rng.uniform(0.3, 2, k)
        return LowRank(2), LowRankMixture(weights, means, factors, noise, prior)
    roots = rng.normal(size=(k if name == "full" else 1, p, p + 2))
    covariances = roots @ roots.transpose(0, 2, 1) / p + 0.3 * np.eye(p)
    return UNRESTRICTED[name], FullMixture(weights, means, covariances)


def limits(family: Any, p: int, k: int, reg_covar: float = 0.0) -> Limits:
    return Limits(reg_covar, np.zeros_like(family.shared_variances(np.ones(p), k)), 2.0, SHARE)


def assert_same(got: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    """That two values of one type agree in all that they hold."""
    assert type(got) is type(expected)
    for field in fields(expected):
        assert_allclose(getattr(got, field.name), getattr(expected, field.name), rtol, atol, err_msg=field.name)


# -- sums carried to other parameters ---------------------------------------------------------------------


@pytest.mark.parametrize("name", AXIS_ALIGNED)
@SIZES
def test_moments_are_carried_as_the_rows_would_be(name: str, n: int, p: int, q: int, k: int) -> None:
    block = random_block(n, p, q)
    (family, before), (_, after) = random_model(name, p, k), random_model(name, p, k, seed=2)
    variances = before.variances.T if name == "diag" else np.tile(before.variances[:, None], p)
    densities = reference.joint_log_density(block.values, block.indices, before.weights, before.means.T, variances)
    r = reference.responsibilities(densities)
    count, first, second = reference.weighted_moments(block.values, block.indices, r, after.means.T)
    carried = family.carried(family.statistics(block, before, None), before, after)
    assert_allclose(carried.size, r.sum(axis=0))
    assert_allclose(carried.count, count.T, atol=1e-12)
    assert_allclose(carried.first, first.T, atol=1e-10)
    assert_allclose(carried.second, second.T if name == "diag" else second.sum(axis=1), 1e-9, 1e-9)


@SIZES
def test_low_rank_sums_are_carried_as_the_rows_would_be(n: int, p: int, q: int, k: int) -> None:
    """The coordinates z stay those that were expected; deviations are from the new means."""
    block = random_block(n, p, q)
    (family, before), (_, after) = random_model("low_rank", p, k), random_model("low_rank", p, k, seed=2)
    covariances = [w @ w.T + s * np.eye(p) for w, s in zip(before.factors, before.noise, strict=True)]
    r = reference.responsibilities(
        reference.full_joint_log_density(
            block.values, block.indices, before.weights, before.means.T, np.array(covariances)
        )
    )
    cross, energy = np.zeros((k, p, 3)), np.zeros(k)
    for x, kept, ri in zip(block.values, block.indices, r, strict=True):
        for c in range(k):
            mean, _ = reference.latent_moments(
                x, kept, before.means[:, c], before.factors[c], float(before.noise[c])
            )
            for value, at in zip(x, kept, strict=True):
                d = value - after.means[at, c]
                cross[c, at] += ri[c] * d * np.append(mean, 1.0)
                energy[c] += ri[c] * d**2
    statistics = family.statistics(block, before, None)
    carried = family.carried(statistics, before, after)
    assert_array_equal(carried.second, statistics.second)
    assert_allclose(carried.cross, cross, 1e-8, 1e-9)
    assert_allclose(carried.energy, energy, 1e-9)


@pytest.mark.parametrize("name", UNRESTRICTED)
@SIZES
def test_derivatives_are_carried_as_completed_rows_would_be(name: str, n: int, p: int, q: int, k: int) -> None:
    """Rows are completed under the mixture before; the derivatives are of their density under the one after."""
    block = random_block(n, p, q)
    (family, before), (_, after) = random_model(name, p, k), random_model(name, p, k, seed=2)
    of_components = np.array([before.covariance(c) for c in range(k)])
    densities = reference.full_joint_log_density(
        block.values, block.indices, before.weights, before.means.T, of_components
    )
    r = reference.responsibilities(densities)
    gradient, curvature = np.zeros((p, k)), np.zeros_like(before.covariances)
    for x, kept, ri in zip(block.values, block.indices, r, strict=True):
        for c in range(k):
            S, precision = before.covariance(c), np.linalg.inv(after.covariance(c))
            regression = S[:, kept] @ np.linalg.inv(S[np.ix_(kept, kept)])
            d = before.means[:, c] + regression @ (x - before.means[kept, c]) - after.means[:, c]
            square = np.outer(d, d) + S - regression @ S[kept]
            gradient[:, c] += ri[c] * precision @ d
            curvature[c % len(curvature)] += ri[c] * (precision @ square @ precision - precision)
    carried = family.carried(family.statistics(block, before, None), before, after)
    assert_allclose(carried.size, r.sum(axis=0), 1e-9)
    assert_allclose(carried.gradient, gradient, 1e-7, 1e-9 * np.abs(gradient).max())
    assert_allclose(carried.curvature, curvature, 1e-7, 1e-9 * np.abs(curvature).max())


@EVERY_TYPE
@SIZES
def test_carried_nowhere_sums_are_what_they_were(name: str, n: int, p: int, q: int, k: int) -> None:
    family, mixture = random_model(name, p, k)
    statistics = family.statistics(random_block(n, p, q), mixture, None)
    assert_same(family.carried(statistics, mixture, mixture), statistics, 1e-7, 1e-8)


@EVERY_TYPE
def test_after_its_own_m_step_a_sum_has_no_more_to_say(name: str) -> None:
    family, before = random_model(name, 7, 2)
    if name == "low_rank":  # whose prior is weighed by the noise, which the step changes
        before = family.canonical(LowRankMixture(**{**vars(before), "prior": np.zeros((2, 2, 2))}))
    bounds, statistics = limits(family, 7, 2), family.statistics(random_block(300, 7, 4), before, None)
    after = family.maximise(statistics, before, bounds)
    assert_same(family.maximise(family.carried(statistics, before, after), after, bounds), after)


@EVERY_TYPE
@pytest.mark.parametrize("reg_covar", [0.0, 0.1])
def test_what_is_remembered_leads_to_the_mixture(name: str, reg_covar: float) -> None:
    family, mixture = random_model(name, 7, 3)
    bounds = limits(family, 7, 3, reg_covar)
    remembered = family.remembered(mixture, 1000.0, bounds)
    assert_allclose(remembered.size, 1000 * mixture.weights)
    assert_same(family.maximise(remembered, mixture, bounds), mixture)


def test_what_is_remembered_is_what_rows_of_the_mixture_add_up_to() -> None:
    """Of many rows drawn from a mixture of one component, to within a few standard errors."""
    rng, n, p, q = np.random.default_rng(0), 20000, 6, 3
    family, mixture = random_model("diag", p, 1)
    block = random_block(n, p, q)
    rows = mixture.means[:, 0] + rng.normal(size=(n, p)) * np.sqrt(mixture.variances[:, 0])
    drawn = Block.of(np.take_along_axis(rows, block.indices.astype(int), 1), block.indices)
    got = family.statistics(drawn, mixture, None)
    expected = family.remembered(mixture, float(n), Limits(0.0, np.zeros((p, 1)), 2.0, q / p))
    assert_allclose(got.count, expected.count, rtol=0.05)
    assert_allclose(got.second, expected.second, rtol=0.1)


# -- how rows are forgotten -------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(("seen", "new"), [(3.0, 5.0), (50.0, 200.0), (400.0, 1.0), (1e5, 3e4)])
def test_forgetting_is_the_integral_of_the_rate(decay: float, seen: float, new: float) -> None:
    """The rate is 1 / m for the first 100 rows, and (m / 100)^-decay / 100 from then on."""
    schedule = Schedule(100.0, decay)

    def rate(m: float) -> float:
        return 1 / m if m < 100 else (m / 100) ** -decay / 100

    expected = sum(
        quad(rate, a, b)[0] for a, b in ((seen, min(seen + new, 100)), (max(seen, 100), seen + new)) if a < b
    )
    assert_allclose(schedule.forgetting(seen, new), expected, 1e-7)


def test_without_forgetting_rows_before_keep_their_share_of_all() -> None:
    assert_allclose(np.exp(-Schedule(10.0, 1.0).forgetting(300, 100)), 300 / 400)
    assert_allclose(np.exp(-Schedule(10.0, 0.0).forgetting(300, 100)), np.exp(-10))
    assert Schedule(10.0, 0.5).forgetting(0, 5) == np.inf


def test_the_lightest_batch_is_forgotten_in_proportion() -> None:
    for decay in (0.0, 0.5, 1.0):
        schedule = Schedule(100.0, decay)
        assert_allclose(schedule.forgetting(1e4, 1e-20), 1e-20 * 100**-decay / 100)
        assert_allclose(schedule.forgetting(10, 1e-20), 1e-21)
    X = rows_of_three(900)
    model = stream(mixture("spherical"), X[:800], [600, 200])
    before = model.means_
    assert_allclose(model.partial_fit(X[800:], sample_weight=1e-25).means_, before)


@dataclass
class Still:
    """The task of rows whose parameters stay as they are."""

    family: Any
    block: Block
    weight: Array | None = None

    def statistics(self, parameters: Any) -> Any:
        return self.family.statistics(self.block, parameters, self.weight)

    def maximise(self, statistics: Any, parameters: Any) -> Any:
        return parameters

    def carried(self, statistics: Any, before: Any, after: Any) -> Any:
        return self.family.carried(statistics, before, after)


def parts(block: Block, sizes: Sequence[int]) -> Iterator[Block]:
    first = 0
    for size in sizes:
        yield Block.of(block.values[first : first + size], block.indices[first : first + size])
        first += size


@EVERY_TYPE
@pytest.mark.parametrize("sizes", [[60, 60], [1, 20, 99], [30, 30, 30, 30]])
def test_without_forgetting_batches_add_up_to_the_whole(name: str, sizes: list[int]) -> None:
    block, schedule = random_block(120, 9, 4), Schedule(20.0, 1.0)
    family, mixture = random_model(name, 9, 3)
    first, *others = parts(block, sizes)
    state, seen = State.of(Still(family, first), mixture), len(first.values)
    for part in others:
        state = state.after(Still(family, part), schedule.forgetting(seen, len(part.values)))
        seen += len(part.values)
    whole = scaled(family.statistics(block, mixture, None), 1.0)
    assert_same(state.statistics, whole, 1e-7, 1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_the_share_of_early_rows_does_not_depend_on_later_batches(decay: float) -> None:
    """Early rows lie at 0, later ones at 1: the mean of all tells what the early ones still count."""

    def share(sizes: list[int]) -> float:
        rows = np.zeros((100, 1))
        state, seen, schedule = None, 0, Schedule(80.0, decay)
        for size, value in [(100, 0.0), *((size, 1.0) for size in sizes)]:
            rows = np.full((size, 1), value)
            family = AXIS_ALIGNED["spherical"]
            task = Still(family, Block.of(rows, np.zeros((size, 1), np.uint16)))
            one = unit_spheres(np.zeros((1, 1)))
            state = state.after(task, schedule.forgetting(seen, size)) if state else State.of(task, one)
            seen += size
        assert state is not None
        return 1 - float(state.statistics.first[0, 0] / state.statistics.size[0])

    whole = share([600])
    assert_allclose(whole, np.exp(-Schedule(80.0, decay).forgetting(100, 600)))
    assert_allclose([share([300, 300]), share([1, 599]), share([100] * 6)], whole)


def test_averages_move_to_the_rows_that_are_nearest() -> None:
    X = np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 1.0]])
    sketch = Sketcher(2, transform="none", dtype="float64").fit_transform(X)
    task, centers = Averages(sketch, None), unit_spheres(np.array([[1.0, 9.0], [1.0, 1.0]]))
    moved = task.maximise(task.statistics(centers), centers)
    assert_allclose(moved.means.T, [[1, 0], [10, 1]])
    assert_array_equal(moved.weights, [1, 1])


# -- estimators -------------------------------------------------------------------------------------------


def mixture(name: str, **options: Any) -> GaussianMixture:
    chosen: dict[str, Any] = {
        "n_components": 3,
        "covariance_type": name,
        "rank": 2,
        "sketch_size": 8,
        "random_state": 0,
    }
    return GaussianMixture(**(chosen | options))


MAKERS: dict[str, Make] = {
    **{name: lambda name=name, **options: mixture(name, **options) for name in TYPES},
    "kmeans": lambda **options: KMeans(**({"n_clusters": 3, "sketch_size": 8, "random_state": 0} | options)),
    "pca": lambda **options: PCA(**({"n_components": 2, "sketch_size": 8, "random_state": 0} | options)),
}
EVERY = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def rows_of_three(n: int, seed: int = 0, p: int = 16) -> Array:
    """Three round clusters, well apart."""
    rng = np.random.default_rng(seed)
    centers = 4 * np.random.default_rng(99).normal(size=(3, p))
    return centers[rng.integers(3, size=n)] + rng.normal(size=(n, p))


def stream(model: Any, X: Array, sizes: Sequence[int], **options: Any) -> Any:
    """The model after batches of these sizes, again and again."""
    first = i = 0
    while first < len(X):
        size = sizes[i % len(sizes)]
        model.partial_fit(X[first : first + size], **options)
        first, i = first + size, i + 1
    return model


def fitted(model: Any) -> list[Array]:
    """What a model says of the data."""
    if isinstance(model, KMeans):
        return [model.cluster_centers_]
    if isinstance(model, PCA):
        return [model.components_, model.mean_, model.explained_variance_]
    return [model.weights_, model.means_, model.variances_]


def assert_models_agree(one: Any, other: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    for got, expected in zip(fitted(one), fitted(other), strict=True):
        assert_allclose(got, expected, rtol, atol)


@EVERY
def test_the_first_batch_is_fitted_as_by_fit(make: Make) -> None:
    X = rows_of_three(150)
    assert_models_agree(make(max_iter=10).partial_fit(X), make(max_iter=10).fit(X))


@EVERY
@pytest.mark.parametrize("sizes", [[75], [50, 100]])
def test_rows_that_are_held_are_fitted_as_well_as_by_fit(make: Make, sizes: list[int]) -> None:
    """The last of these batches doubles the rows; what there was before it may lead to something better."""
    X = rows_of_three(150)
    online, together = stream(make(max_iter=10), X, sizes), make(max_iter=10).fit(X)
    sketch = together.sketcher_.transform(X)
    assert online.score(sketch) > together.score(sketch) - 1e-3 * abs(together.score(sketch))


@EVERY
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_a_stream_leaves(make: Make, dtype: str) -> None:
    X = rows_of_three(2600)
    model = make(dtype=dtype)
    assert model.partial_fit(X[:1500]) is model
    stream(model, X[1500:], [500])
    assert (model.n_samples_seen_, model.n_iter_) == (2600, 4)
    assert model._stream.held == ()
    if not isinstance(model, PCA):
        assert_array_equal(model.labels_, model.predict(model.sketcher_.transform(X[2500:], first_row=2500)))
    if isinstance(model, GaussianMixture):
        assert model.lower_bounds_ == [model.lower_bound_]
        assert_allclose(model.lower_bound_, model.fit(X).lower_bound_, rtol=0.2)


@EVERY
def test_a_stream_comes_close_to_the_fit(make: Make) -> None:
    X = rows_of_three(6000)
    together = make().fit(X)
    for sizes in ([80], [700], [20, 1000, 3]):
        model = stream(make(), X, sizes)
        assert abs(model.score(X) / together.score(X) - 1) < 0.02


@pytest.mark.parametrize("name", ["diag", "full", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_gaussian_of_whole_rows_has_the_running_mean_and_variance(name: str, dtype: str) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 5)) * [1, 2, 3, 4, 5] + 10
    model = mixture(name, n_components=1, sketch_size=5, learning_decay=1, dtype=dtype, reg_covar=0.25)
    first = 0
    for size in (37, 300, 1, 150):
        model.partial_fit(X[first : first + size])
        first += size
        assert_allclose(model.means_[0], X[:first].mean(axis=0), 1e-5)
        assert_allclose(model.variances_[0], X[:first].var(axis=0) + 0.25, 1e-4)


@EVERY_TYPE
def test_reg_covar_does_not_add_up(name: str) -> None:
    """Of many batches that say the same, what is added stays what it is for one."""
    X, make = rows_of_three(1500), MAKERS[name]
    for q in (8, 16):
        once = make(reg_covar=0.5, sketch_size=q).fit(X)
        often = make(reg_covar=0.5, sketch_size=q).fit(X)
        for _ in range(30):
            often.partial_fit(X)
        assert_allclose(often.variances_.mean(), once.variances_.mean(), rtol=0.03)


@pytest.mark.parametrize("name", ["spherical", "kmeans", "full", "tied"])
def test_a_weight_of_two_is_the_row_twice(name: str) -> None:
    """In every batch, of those that are held and of those that are not, and in the schedule."""
    X, make = rows_of_three(1800), MAKERS[name]
    sketch = Sketcher(8, dtype="float64", random_state=0).fit_transform(X)
    weighted, repeated = make(), make()
    for first in range(0, 1800, 300):
        batch = sketch[first : first + 300]
        weight = np.where(np.arange(300) % 3 == 0, 2.0, 1.0)
        weighted.partial_fit(batch, sample_weight=weight)
        repeated.partial_fit(batch[np.repeat(np.arange(300), weight.astype(int))])
        assert weighted._stream.weight == repeated._stream.weight
    assert_models_agree(weighted, repeated, 1e-5, 1e-5)


@EVERY
def test_a_weight_of_zero_is_the_absence_of_a_row(make: Make) -> None:
    X = rows_of_three(1800)
    sketch = Sketcher(8, dtype="float64", random_state=0).fit_transform(X)
    weighted, without = make(), make()
    for first in range(0, 1800, 300):
        weight = np.where(np.arange(300) % 3 == 0, 0.0, 1.0)
        weighted.partial_fit(sketch[first : first + 300], sample_weight=weight)
        without.partial_fit(sketch[first : first + 300][weight > 0])
    assert (weighted._stream.weight, weighted.n_samples_seen_) == (1200, 1800)
    assert_models_agree(weighted, without, 1e-5, 1e-5)


@EVERY
def test_a_batch_may_be_a_sketch(make: Make) -> None:
    """Rows are numbered on from batch to batch."""
    X = rows_of_three(900)
    of_rows, of_sketches = stream(make(), X, [300]), make().partial_fit(X[:300])
    for first in (300, 600):
        of_sketches.partial_fit(of_sketches.sketcher_.transform(X[first : first + 300], first_row=first))
    assert_models_agree(of_rows, of_sketches, 0, 0)


@EVERY
def test_a_stream_goes_on_from_a_fit(make: Make) -> None:
    X = rows_of_three(6000)
    model = make().fit(X[:3000])
    before, frame = model.score(X), model.sketcher_
    stream(model, X[3000:], [200])
    assert frame.is_same_operator(model.sketcher_)
    assert (model.n_samples_seen_, model.n_iter_) == (6000, 15)
    assert model.score(X) > before - 0.002 * abs(before)
    assert_models_agree(model, make().fit(X), 0.2, 0.3)


@EVERY
def test_a_fit_after_a_stream_starts_anew(make: Make) -> None:
    X = rows_of_three(900)
    model = stream(make(), X[::-1], [300]).fit(X)
    assert_models_agree(model, make().fit(X), 0, 0)
    assert model.n_samples_seen_ == 900


@EVERY
def test_a_stream_survives_a_pickle(make: Make) -> None:
    X = rows_of_three(4000)
    for n in (200, 3000):  # while rows are held, and later
        model = stream(make(), X[:n], [200])
        copied = pickle.loads(pickle.dumps(model))
        assert_models_agree(stream(copied, X[n:], [250]), stream(model, X[n:], [250]), 0, 0)
    assert not hasattr(clone(model), "_stream")


@EVERY
def test_a_refused_batch_leaves_a_stream_as_it_was(make: Make) -> None:
    X = rows_of_three(900)
    untouched, model = stream(make(), X[:600], [300]), stream(make(), X[:600], [300])
    bad = X[600:].copy()
    bad[7] = np.nan
    for batch, weight in ((bad, None), (X[600:, :5], None), (X[:0], None), (X[600:], np.zeros(300))):
        with pytest.raises(ValueError, match=r"NaN|features|0 sample|zero for every row"):
            model.partial_fit(batch, sample_weight=weight)
    assert_models_agree(model.partial_fit(X[600:]), untouched.partial_fit(X[600:]), 0, 0)


@EVERY
def test_memory_is_bounded(make: Make) -> None:
    X = rows_of_three(8000)
    model = stream(make(), X[:4000], [400])
    bytes_before = len(pickle.dumps(model._stream))
    assert len(pickle.dumps(stream(model, X[4000:], [400])._stream)) < bytes_before + 100


@EVERY
@pytest.mark.parametrize("weight", [1e-6, 1e-300])
def test_memory_is_bounded_for_light_rows_too(make: Make, weight: float) -> None:
    model = make()
    for first in range(0, 8000, 400):
        X = rows_of_three(400, seed=first)
        model.partial_fit(X, sample_weight=np.full(400, weight))
    assert model._stream.held == ()
    assert_allclose(model._stream.weight, 8000 * weight)


@EVERY
def test_a_first_batch_of_too_few_rows_is_refused_with_the_cure(make: Make) -> None:
    X, model = rows_of_three(300), make()
    with pytest.raises(
        ValueError, match=r"the first batch has 1 rows, fewer than .*; begin with a batch of at least"
    ):
        model.partial_fit(X[:1])
    assert_models_agree(model.partial_fit(X), make().partial_fit(X), 0, 0)


@EVERY
def test_a_sketch_of_another_sketcher_is_refused(make: Make) -> None:
    X = rows_of_three(300)
    model = make().partial_fit(X)
    with pytest.raises(ValueError, match="another sketcher than that of the batches before; make it with"):
        model.partial_fit(Sketcher(8, random_state=5).fit_transform(X))


@EVERY
def test_a_stream_keeps_to_one_kind_of_model(make: Make) -> None:
    X = rows_of_three(300)
    model = make().partial_fit(X)
    name = "n_clusters" if isinstance(model, KMeans) else "n_components"
    model.set_params(**{name: 4})
    with pytest.raises(ValueError, match=rf"partial_fit goes on from a fit with {name}=.*{name}=4.*call fit"):
        model.partial_fit(X)


@EVERY
@pytest.mark.parametrize("value", [-0.1, 1.5, "fast", True])
def test_learning_decay_is_checked(make: Make, value: Any) -> None:
    for method in ("fit", "partial_fit"):
        with pytest.raises((ValueError, TypeError), match=r"learning_decay must be (in \[0, 1\]|a number|finite)"):
            getattr(make(learning_decay=value), method)(rows_of_three(30))


def test_a_refined_model_is_what_a_stream_goes_on_from() -> None:
    X = rows_of_three(900)
    for model in (mixture("diag"), MAKERS["kmeans"]()):
        stream(model, X, [300]).refine(X)
        refined = fitted(model)[-1]
        model.partial_fit(X[:3])
        assert 0 < np.abs(fitted(model)[-1] - refined).max() < 0.2


def test_the_rank_may_be_left_to_the_rows_that_are_held() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 1, 2)) @ rng.normal(size=(2, 16)) * 2 + rng.normal(size=(3000, 1, 16))
    model = stream(mixture("low_rank", n_components=1, rank="auto"), X[:, 0], [500])
    of_fit = mixture("low_rank", n_components=1, rank="auto").fit(X[:500, 0])
    assert model.factors_.shape == of_fit.factors_.shape


@pytest.mark.parametrize("name", ["diag", "spherical", "low_rank", "kmeans"])
def test_a_stream_follows_means_that_move(name: str) -> None:
    """They move by 0.25 standard deviations a batch; a stream that forgets nothing ends halfway behind."""
    rng, make = np.random.default_rng(0), MAKERS[name]
    start, step = 8 * rng.normal(size=(3, 16)), 0.25 * rng.normal(size=(3, 16))
    models = {decay: make(learning_decay=decay, sketch_size=8) for decay in (0.0, 0.7, 1.0)}
    for t in range(60):
        y = rng.integers(3, size=200)
        batch = start[y] + t * step[y] + rng.normal(size=(200, 16))
        for model in models.values():
            model.partial_fit(batch)
    now = start + 59 * step

    def behind(model: Any) -> float:
        centers = fitted(model)[0 if name == "kmeans" else 1]
        gaps = ((now[:, None] - centers) ** 2).sum(axis=2).min(axis=1)
        return float(np.sqrt(gaps / (step**2).sum(axis=1)).mean())

    lags = {decay: behind(model) for decay, model in models.items()}  # in batches
    assert lags[0.0] < 6
    assert lags[0.0] < lags[0.7] < lags[1.0]
    assert lags[1.0] > 20


def test_one_pass_over_digits_comes_close_to_the_fit(digits_039: tuple[Array, Array]) -> None:
    """In the units of the pixels, 0 to 255."""
    X = np.random.default_rng(0).permutation(digits_039[0]).astype(np.float32)
    for name in ("diag", "spherical"):
        together = mixture(name, sketch_size=30).fit(X)
        online = stream(mixture(name, sketch_size=30), X, [500])
        sketch = together.sketcher_.transform(X)
        assert abs(online.score(sketch) / together.score(sketch) - 1) < 0.01
        assert abs(online.score(X) / together.score(X) - 1) < 0.01
