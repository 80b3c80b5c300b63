"""Initial means: k-means++ on a few dense rotated rows, and some steps of Lloyd's algorithm there.

Two sketched rows overlap in about Q^2/P entries, so that their distance says almost nothing; a small uniform
reservoir of rows that were not thinned out says a lot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from sketchmix.moments import sums_by_coordinate
from sketchmix.sketch import Sketch

Array = NDArray[Any]

# Where a sketch has no more than so many rows for each mean and coordinate, so many steps on the dense rows.
ENOUGH_ROWS = 50
LLOYD_STEPS = 10


class Candidates:
    """Distinct dense points in the rotated frame, and the weights of the rows that lie there.

    Equal rows are one point of their total weight, and points are in an order that depends on them alone: a row of
    weight 2 is chosen as two equal rows would be, wherever they stand.
    """

    def __init__(self, points: Array, weights: Array) -> None:
        _, first, which = np.unique(sort_keys(points), return_index=True, return_inverse=True)
        self.points = points[first]
        self.weights = np.bincount(which, weights)

    @classmethod
    def of(cls, sketch: Sketch, sample_weight: Array | None, least: int) -> Candidates:
        """Rows of positive weight from the sketch's reservoir; where it has fewer than `least`, sketched rows too.

        A sketched row is completed by the mean of the rows at the coordinates that it did not keep.
        """
        weights_of = weights_at(sample_weight)
        points = np.empty((0, sketch.sketcher.n_rotated_))
        positions = np.empty(0, int)
        if sketch.reservoir is not None:
            useful = weights_of(sketch.reservoir.positions) > 0
            points, positions = (
                sketch.reservoir.rows[useful].astype(float),
                sketch.reservoir.positions[useful],
            )
        if len(points) < least:
            every = np.arange(sketch.n_samples)
            others = np.setdiff1d(every[weights_of(every) > 0], positions)
            others = others[:: max(1, len(others) // (4 * least))]
            points = np.concatenate([points, completed_rows(sketch, others, sample_weight)])
            positions = np.concatenate([positions, others])
        return cls(points, weights_of(positions))

    def k_means_plus_plus(self, n: int, rng: np.random.RandomState) -> Array:
        """Pick n points, each with probability proportional to its squared distance from those picked before.

        Of a few such draws the one that leaves the smallest total is taken (the greedy form of Arthur and
        Vassilvitskii's method).
        """
        centred = self.points - self.points.mean(axis=0)
        norms = np.einsum("ij,ij->i", centred, centred)
        n_trials = 2 + int(np.log(n))
        picked = [self._draw(self.weights, rng.random_sample(1))[0]]
        nearest = squared_distances_to(centred, norms, picked)[:, 0]
        for _ in range(1, n):
            trials = self._draw(self.weights * nearest, rng.random_sample(n_trials))
            after = np.minimum(nearest[:, None], squared_distances_to(centred, norms, trials))
            best = int(np.argmin(self.weights @ after))
            picked.append(trials[best])
            nearest = after[:, best]
        return self.points[picked]

    def start(self, n: int, rows_of_coordinate: float, rng: np.random.RandomState) -> Array:
        """Means by k-means++; settled, where few rows of the sketch speak of each and its coordinates."""
        picked = self.k_means_plus_plus(n, rng)
        return picked if rows_of_coordinate > ENOUGH_ROWS else self.settled(picked)

    def settled(self, means: Array) -> Array:
        """Where a few steps of Lloyd's algorithm lead from `means` on the points, which are dense and say much."""
        offset, n, k = self.points.mean(axis=0), len(self.points), len(means)
        centred, moved = self.points - offset, means - offset
        nearest = np.full(n, k)
        for _ in range(LLOYD_STEPS):
            before, nearest = nearest, nearest_of(moved, centred)
            if (before == nearest).all():
                break
            size = np.bincount(nearest, self.weights, k)
            # Shares before products: a mean of one point is the point to the last bit.
            shares = scipy.sparse.csr_array((self.weights / size[nearest], (nearest, np.arange(n))), (k, n))
            moved = np.where(size[:, None] > 0, shares @ centred, moved)
        settled: Array = moved + offset
        return settled

    def at_random(self, n: int, rng: np.random.RandomState) -> Array:
        """Pick n points, with probability proportional to their weights; distinct ones while there are any."""
        left = self.weights.copy()
        picked = []
        for u in rng.random_sample((n, 1)):
            picked.append(self._draw(left, u)[0])
            left[picked[-1]] = 0
        return self.points[picked]

    def farthest(self, centers: Array, n: int) -> Array:
        """Up to n points, those farthest from their nearest center; none that lies at a center."""
        offset = self.points.mean(axis=0)
        centred, moved = self.points - offset, centers - offset
        squares = (centred**2).sum(axis=1)
        nearest = (squares[:, None] - 2 * centred @ moved.T + (moved**2).sum(axis=1)).min(axis=1)
        away = np.flatnonzero(nearest > 1e-10 * squares.max())
        return self.points[away[np.argsort(-nearest[away], kind="stable")[:n]]]

    def _draw(self, mass: Array, u: Array) -> Array:
        """Positions drawn with probability proportional to `mass` (to the weights where there is none left)."""
        cumulative = np.cumsum(mass if mass.any() else self.weights)
        drawn: Array = np.searchsorted(cumulative, u * cumulative[-1], side="right")
        return drawn.clip(max=len(mass) - 1)


def weights_at(sample_weight: Array | None) -> Callable[[Array], Array]:
    """What gives the weights of the rows at some positions."""
    return (lambda at: np.ones(len(at))) if sample_weight is None else (lambda at: sample_weight[at])


def sort_keys(points: Array) -> Array:
    """For each row of float64, bytes that are in the order of its entries, the first of which counts most."""
    keys = (points + 0.0).view(np.int64)  # one zero only
    flips = keys >> 63
    flips |= np.iinfo(np.int64).min
    keys ^= flips  # of negative numbers, all bits change
    if sys.byteorder == "little":
        keys.byteswap(inplace=True)
    return keys.view(np.dtype((np.void, keys.itemsize * points.shape[1])))[:, 0]


def nearest_of(means: Array, points: Array) -> Array:
    """Which of the means is nearest to each point, both around an origin among them."""
    nearest: Array = ((means**2).sum(axis=1) - 2 * points @ means.T).argmin(axis=1)
    return nearest


def squared_distances_to(centred: Array, norms: Array, picked: Any) -> Array:
    """Squared distances from every point to the picked ones, (n_points, n_picked)."""
    products = centred @ centred[picked].T
    distances: Array = np.maximum(norms[:, None] - 2 * products + norms[picked], 0)
    # What rounding leaves of the distance to itself must not be drawn.
    distances[distances <= 1e-12 * (norms[:, None] + norms[picked])] = 0
    return distances


def completed_rows(sketch: Sketch, which: Array, sample_weight: Array | None = None) -> Array:
    """Sketched rows with the mean of all rows in place of the entries that were not kept."""
    count, total = sums_by_coordinate(sketch.kept, sketch.sketcher.n_rotated_, sample_weight)
    rows = np.tile(total / np.where(count > 0, count, 1), (len(which), 1))
    some = sketch[which].kept.whole()
    np.put_along_axis(rows, some.indices.astype(np.intp), some.values.astype(float), axis=1)
    return rows
