"""Initial means: k-means++ and its candidates, by hand and by frequencies."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import chisquare
from sklearn.utils import check_random_state

from sketchmix import GaussianMixture, KMeans, Sketch, Sketcher, concatenate
from sketchmix.seeding import Candidates, completed_rows, squared_distances_to
from tests import reference

Array = NDArray[Any]

METHODS = pytest.mark.parametrize("method", ["k_means_plus_plus", "at_random"])


def pick(candidates: Candidates, method: str, n: int, seed: int) -> Array:
    picked: Array = getattr(candidates, method)(n, check_random_state(seed))
    return picked


def rows_of(points: Array) -> list[tuple[float, ...]]:
    return [tuple(point) for point in points]


def bare(sketch: Sketch) -> Sketch:
    """The same kept entries, without dense rows beside them."""
    return Sketch(sketch.values, sketch.indices, sketch.sketcher)


# -- picking ----------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("n", [1, 3, 20])
def test_what_is_picked_are_candidates(method: str, n: int) -> None:
    points = np.random.default_rng(0).normal(size=(20, 3))
    picked = pick(Candidates(points, np.ones(20)), method, n, 0)
    assert picked.shape == (n, 3)
    assert set(rows_of(picked)) <= set(rows_of(points))
    assert len(set(rows_of(picked))) == n


@METHODS
def test_distinct_points_among_duplicates(method: str) -> None:
    for seed in range(10):
        distinct = np.random.default_rng(seed).normal(size=(4, 5)) + 100
        points = np.repeat(distinct, [1, 50, 3, 200], axis=0)
        picked = pick(Candidates(points, np.ones(254)), method, 4, seed)
        assert sorted(rows_of(picked)) == sorted(rows_of(distinct))


@METHODS
def test_more_picks_than_distinct_points(method: str) -> None:
    points = np.repeat([[1.0, 2.0], [3.0, 4.0]], 5, axis=0)
    picked = pick(Candidates(points, np.ones(10)), method, 6, 0)
    assert picked.shape == (6, 2)
    assert set(rows_of(picked)) == {(1.0, 2.0), (3.0, 4.0)}


@METHODS
def test_rows_of_no_weight_are_never_picked(method: str) -> None:
    points = np.arange(12.0)[:, None] ** 3
    weights = np.zeros(12)
    weights[[2, 5, 7]] = 1e-9, 1, 5
    for seed in range(30):
        picked = pick(Candidates(points, weights), method, 3, seed)
        assert set(picked.ravel()) == {8.0, 125.0, 343.0}


@METHODS
def test_rows_of_no_weight_are_not_picked_even_when_no_others_are_left(method: str) -> None:
    weights = np.array([0.0, 1.0, 0.0])
    picked = pick(Candidates(np.array([[1.0], [2.0], [3.0]]), weights), method, 3, 0)
    assert_array_equal(picked, [[2], [2], [2]])


@METHODS
@pytest.mark.parametrize("constant", [0, 1, 16])
def test_the_order_of_the_rows_does_not_matter(method: str, constant: int) -> None:
    rng = np.random.default_rng(0)
    points = np.hstack([np.full((50, constant), 7.0), rng.normal(size=(50, 4))])
    weights = rng.uniform(0.5, 2, 50)
    order = rng.permutation(50)
    for seed in range(5):
        expected = pick(Candidates(points, weights), method, 6, seed)
        assert_array_equal(pick(Candidates(points[order], weights[order]), method, 6, seed), expected)


@METHODS
@pytest.mark.parametrize("constant", [0, 16])
def test_weight_two_is_the_point_twice(method: str, constant: int) -> None:
    rng = np.random.default_rng(0)
    points = np.hstack([np.zeros((30, constant)), rng.normal(size=(30, 4))])
    times = rng.integers(1, 5, 30)
    twice = np.repeat(points, times, axis=0)[rng.permutation(times.sum())]
    for seed in range(10):
        expected = pick(Candidates(twice, np.ones(len(twice))), method, 5, seed)
        assert_array_equal(pick(Candidates(points, times.astype(float)), method, 5, seed), expected)


def test_the_unit_of_the_weights_does_not_matter() -> None:
    points = np.random.default_rng(0).normal(size=(30, 4))
    weights = np.random.default_rng(1).uniform(size=30)
    for unit in (1e-100, 2.0**20):
        expected = pick(Candidates(points, weights), "k_means_plus_plus", 5, 0)
        assert_array_equal(pick(Candidates(points, unit * weights), "k_means_plus_plus", 5, 0), expected)


def test_a_settled_mean_is_that_of_its_points() -> None:
    points = np.array([[0.0], [1.0], [4.0], [9.0], [10.0]])
    candidates = Candidates(points, np.array([1.0, 3.0, 1.0, 1.0, 1.0]))
    # {0, 1, 4 | 9, 10}, then the first group's mean is (3 + 4) / 5; 4 stays on its side.
    assert_allclose(candidates.settled(np.array([[1.0], [9.0]])), [[1.4], [9.5]])
    # A mean that has no points, and one on its only point, stay exactly where they are.
    lonely = np.array([[100.0], [0.1], [7.0]])
    assert_array_equal(Candidates(points + 0.1, np.ones(5)).settled(lonely)[0], [100])
    alone = Candidates(np.array([[0.1, 0.7]]), np.array([3.0]))
    assert_array_equal(alone.settled(np.array([[0.1, 0.7], [0.1, 0.7]])), [[0.1, 0.7], [0.1, 0.7]])


def test_settling_lowers_the_total_of_squares() -> None:
    points = np.random.default_rng(0).normal(size=(300, 5))
    candidates = Candidates(points, np.ones(300))
    means = points[:12]

    def total(means: Array) -> float:
        return float(((points[:, None] - means) ** 2).sum(axis=2).min(axis=1).sum())

    assert total(candidates.settled(means)) < 0.8 * total(means)


def test_far_groups_are_all_found() -> None:
    rng = np.random.default_rng(0)
    groups = 1000 * rng.normal(size=(9, 6))
    points = groups[np.repeat(np.arange(9), [500, 1, 1, 1, 1, 1, 1, 1, 1])]
    points = points + rng.normal(size=points.shape)
    for seed in range(20):
        picked = pick(Candidates(points, np.ones(len(points))), "k_means_plus_plus", 9, seed)
        nearest = ((picked[:, None] - groups) ** 2).sum(axis=2).argmin(axis=1)
        assert sorted(nearest) == list(range(9))


# -- probabilities ----------------------------------------------------------------------------------------


def test_draws_by_hand() -> None:
    candidates = Candidates(np.arange(5.0)[:, None], np.ones(5))
    mass = np.array([0.0, 2.0, 0.0, 6.0, 0.0])
    u = np.array([0.0, 0.2499, 0.25, 0.9, np.nextafter(1, 0)])
    assert_array_equal(candidates._draw(mass, u), [1, 1, 3, 3, 3])
    # Where no mass is left, the weights decide.
    assert_array_equal(candidates._draw(np.zeros(5), np.array([0.0, 0.3, 0.99])), [0, 1, 4])


def test_draws_are_proportional_to_the_mass() -> None:
    mass = np.array([1.0, 0.0, 2.0, 0.5, 10.0, 3.5])
    candidates = Candidates(np.arange(6.0)[:, None], np.ones(6))
    n = 40_000
    drawn = np.bincount(candidates._draw(mass, np.random.default_rng(0).random(n)), minlength=6)
    assert drawn[1] == 0
    seen = mass > 0
    assert chisquare(drawn[seen], n * mass[seen] / mass.sum()).pvalue > 1e-4


@METHODS
def test_the_first_pick_is_proportional_to_the_weights(method: str) -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    candidates = Candidates(np.arange(4.0)[:, None], weights)
    rng = check_random_state(0)
    n = 4000
    first = np.bincount([int(getattr(candidates, method)(1, rng)[0, 0]) for _ in range(n)], minlength=4)
    assert chisquare(first, n * weights / 10).pvalue > 1e-4


def test_the_second_pick_is_the_best_of_two_draws_by_squared_distance() -> None:
    x = np.array([0.0, 1.0, 3.0, 7.0])
    weights = np.array([3.0, 1.0, 1.0, 2.0])
    squared = (x[:, None] - x) ** 2
    # Two trials when two are picked (2 + log 2 rounded down): the one that leaves less is taken.
    expected = np.zeros((4, 4))
    for first in range(4):
        mass = weights * squared[first] / (weights @ squared[first])
        left = weights @ np.minimum(squared[first][:, None], squared)
        for a in range(4):
            for b in range(4):
                better = a if left[a] <= left[b] else b
                expected[first, better] += weights[first] / 7 * mass[a] * mass[b]
    rng, n, counts = check_random_state(0), 6000, np.zeros((4, 4))
    candidates = Candidates(x[:, None], weights)
    for _ in range(n):
        picked = candidates.k_means_plus_plus(2, rng).ravel()
        counts[int(np.flatnonzero(x == picked[0])[0]), int(np.flatnonzero(x == picked[1])[0])] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], n * expected[possible]).pvalue > 1e-4


def test_squared_distances_to_some() -> None:
    points = np.random.default_rng(0).normal(size=(12, 5))
    points[7] = points[2]
    got = squared_distances_to(points, (points**2).sum(axis=1), [2, 9])
    assert_allclose(got, ((points[:, None] - points[[2, 9]]) ** 2).sum(axis=2), 1e-12, 1e-12)
    assert got[2, 0] == got[7, 0] == got[9, 1] == 0


# -- the farthest -----------------------------------------------------------------------------------------


def test_farthest_by_hand() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [0.0, 7.0], [3.0, 0.0]])
    candidates = Candidates(points, np.ones(5))
    centers = np.array([[0.0, 0.0], [9.0, 0.0]])  # squared distances 0, 1, 1, 49, 9
    assert_array_equal(candidates.farthest(centers, 2), [[0, 7], [3, 0]])
    assert_array_equal(candidates.farthest(centers[:1], 1), [[10, 0]])
    assert candidates.farthest(centers, 9).shape == (4, 2)  # no center moves to where one lies


def test_farthest_with_a_large_offset() -> None:
    points = np.random.default_rng(0).normal(size=(50, 4))
    centers = points[:3] + 0.1
    plain = Candidates(points, np.ones(50)).farthest(centers, 5)
    moved = Candidates(points + 1e6, np.ones(50)).farthest(centers + 1e6, 5)
    assert_allclose(moved - 1e6, plain, atol=1e-8)


# -- candidates of a sketch -------------------------------------------------------------------------------


def hand_made() -> Sketch:
    """Three rows that keep two of four entries each: coordinate 3 is kept by none."""
    sketcher = Sketcher(2, transform="none", dtype="float64", random_state=0).fit(np.zeros((1, 4)))
    values = np.array([[1.0, 2.0], [3.0, 6.0], [4.0, 8.0]])
    indices = np.array([[0, 1], [0, 2], [1, 2]], np.uint16)
    return Sketch(values, indices, sketcher)


def test_completed_rows_by_hand() -> None:
    # Means of what was kept: (1 + 3)/2, (2 + 4)/2, (6 + 8)/2 and, of nothing, zero.
    expected = [[1, 2, 7, 0], [3, 3, 6, 0], [2, 4, 8, 0]]
    assert_array_equal(completed_rows(hand_made(), np.arange(3)), expected)
    assert_array_equal(completed_rows(hand_made(), np.array([2, 0])), [expected[2], expected[0]])


def test_without_dense_rows_sketched_ones_are_completed() -> None:
    candidates = Candidates.of(hand_made(), None, 2)
    assert_array_equal(
        candidates.points[np.argsort(candidates.points[:, 0])], [[1, 2, 7, 0], [2, 4, 8, 0], [3, 3, 6, 0]]
    )
    assert_array_equal(candidates.weights, 1)


def test_rows_of_no_weight_do_not_complete_others() -> None:
    # Without row 2, coordinate 1 has mean 2 and coordinate 2 mean 6.
    candidates = Candidates.of(hand_made(), np.array([1.0, 1.0, 0.0]), 2)
    assert_array_equal(candidates.points[np.argsort(candidates.points[:, 0])], [[1, 2, 6, 0], [3, 2, 6, 0]])


def test_the_reservoir_is_what_candidates_are() -> None:
    X = np.random.default_rng(0).normal(size=(100, 16))
    sketch = Sketcher(4, random_state=0).fit_transform(X)
    weight = np.random.default_rng(1).uniform(size=100)
    weight[::3] = 0
    candidates = Candidates.of(sketch, weight, 5)
    useful = weight > 0
    assert candidates.points.dtype == float
    dense = sketch.sketcher.rotate(X)[useful]
    ours, theirs = np.lexsort(candidates.points.T), np.lexsort(dense.T)
    assert_allclose(candidates.points[ours], dense[theirs], 1e-6)
    assert_array_equal(candidates.weights[ours], weight[useful][theirs])


def test_a_part_of_a_sketch_has_candidates_of_its_own() -> None:
    X = np.random.default_rng(0).normal(size=(100, 16))
    sketch = Sketcher(4, random_state=0).fit_transform(X)
    part = sketch[np.array([70, 3, 12])]
    candidates = Candidates.of(part, np.array([1.0, 2.0, 3.0]), 1)
    expected = sketch.sketcher.rotate(X[[70, 3, 12]])
    order, ours = np.argsort(expected[:, 0]), np.argsort(candidates.points[:, 0])
    assert_allclose(candidates.points[ours], expected[order], 1e-6)
    assert_array_equal(candidates.weights[ours], np.array([1.0, 2.0, 3.0])[order])


def test_joined_parts_start_as_the_whole_does() -> None:
    X = np.random.default_rng(0).normal(size=(300, 16))
    sketcher = Sketcher(4, random_state=0).fit(X)
    whole = sketcher.transform(X)
    parts = concatenate([sketcher.transform(X[:120]), sketcher.transform(X[120:], first_row=120)])
    seeds = [pick(Candidates.of(each, None, 5), "k_means_plus_plus", 5, 0) for each in (whole, parts)]
    assert_allclose(seeds[0], seeds[1], 1e-6)


@pytest.mark.parametrize("least", [1, 30, 90])
def test_there_are_enough_candidates_while_there_are_rows(least: int) -> None:
    X = np.random.default_rng(0).normal(size=(90, 16))
    sketch = Sketcher(4, random_state=0).fit_transform(X)
    few = Sketch._trusted(sketch.kept, sketch.sketcher, sketch[:7].reservoir)
    for each in (sketch, bare(sketch), few):
        assert len(Candidates.of(each, None, least).points) >= least
    weight = np.where(np.arange(90) % 2, 1.0, 0.0)
    assert len(Candidates.of(bare(sketch), weight, least).points) >= min(least, 45)


def test_candidates_of_sorted_rows_are_from_all_over() -> None:
    y = np.repeat(np.arange(4), 250)
    X = 100.0 * y[:, None] + np.random.default_rng(0).normal(size=(1000, 12))
    sketch = bare(Sketcher(12, transform="none", random_state=0).fit_transform(X))
    points = Candidates.of(sketch, None, 4).points
    assert set(np.round(points[:, 0] / 100)) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(3))
def test_bare_sketches_still_seed(blobs: tuple[Array, Array], seed: int) -> None:
    X, y = blobs
    sketch = bare(Sketcher(32, random_state=0).fit_transform(X))
    assert sketch.reservoir is None
    km = KMeans(4, n_init=5, random_state=seed).fit(sketch)
    assert reference.accuracy(y, km.labels_) > 0.99
    gm = GaussianMixture(4, n_init=5, random_state=seed).fit(sketch)
    assert reference.accuracy(y, gm.labels_) > 0.99
