"""`KMeans`: the scikit-learn estimator. The same loop as the mixture's, with hard assignments."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import sklearn.cluster
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from sketchmix import em, export, validation
from sketchmix.base import fitting, one_blas_thread
from sketchmix.families.axis_aligned import mean_of
from sketchmix.moments import Block, Moments, Parameters, add_up, dense_block, squared_distances, unit_spheres
from sketchmix.online import Averages, Batch, State, Stream, StreamEstimator, rows_to_hold
from sketchmix.parameters import HasTransformParameter
from sketchmix.persistence import LARGEST_COUNT, Reader
from sketchmix.progress import UNSEEN, Audience, Watch, announced
from sketchmix.seeding import Candidates
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.sources import Source

Array = NDArray[Any]

INIT = ("k-means++", "random")
# Of the variance: how far rounding moves a coordinate of a center that stays where it is, squared.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Lloyd:
    """Rows and their weights, and where to find new centers for clusters that lost all their rows."""

    sketch: Sketch
    sample_weight: Array | None
    candidates: Candidates

    def run(self, centers: Array, *, tol: float, max_iter: int, watch: Watch = UNSEEN) -> Solution:
        """Assign and average, until the centers (P x K) move by no more than `tol` in total square."""
        for iteration in range(1, max_iter + 1):
            watch.begin()
            moments = assign(self.sketch, centers, self.sample_weight)
            inertia = moments.second.sum() * self.sketch.scale
            moved = self._relocate(centers + mean_of(moments.first, moments.count, 0.0), moments.size)
            shift, centers = ((moved - centers) ** 2).sum(), moved
            solution = Solution(centers, moments.size, inertia, iteration, bool(shift <= tol))
            stopped = watch.end(solution)
            if stopped or solution.converged:
                break
        return replace(solution, stopped=stopped)

    def _relocate(self, centers: Array, size: Array) -> Array:
        """Move the centers without rows to the dense points that are farthest from all centers."""
        empty = np.flatnonzero(size == 0)
        if len(empty):
            far = self.candidates.farthest(centers.T, len(empty))
            centers[:, empty[: len(far)]] = far.T
        return centers

    def thinned(self, n_rows: int) -> Lloyd:
        """The same on evenly spaced rows, about `n_rows` of them."""
        sketch, weight = em.thinned(self.sketch, self.sample_weight, n_rows)
        return Lloyd(sketch, weight, self.candidates)


@dataclass(frozen=True)
class Solution:
    """What Lloyd's loop ends with."""

    centers: Array
    size: Array  # (K,): the weight of the rows of each cluster
    inertia: float
    n_iter: int
    converged: bool
    stopped: bool = False  # whether a watcher asked for its end

    @property
    def summary(self) -> str:
        """What to say of the last iteration."""
        return f"inertia {self.inertia:.6g}"


def assign(sketch: Sketch, centers: Array, sample_weight: Array | None) -> Moments:
    """Sums over the rows nearest to each center, around that center."""
    return add_up(sketch.kept, unit_spheres(centers), sample_weight, hard=True)


class KMeans(
    HasTransformParameter,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    StreamEstimator,
):
    """k-means in one pass over the rows.

    Each row is rotated, a few of its entries are kept, and the row is never looked at again. Lloyd's algorithm
    runs on what was kept, and estimates centers in all features.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    sketch_size : int, float or "auto", default="auto"
        Entries kept of each row; see :class:`Sketcher`.
    transform : {"auto", "hadamard", "dct", "fourier", "none"}, default="auto"
        How rows are mixed; see :class:`Sketcher`.
    n_shared : int, default=0
        How many of the kept entries are the same in every row.
    init : {"k-means++", "random"} or array-like of shape (n_clusters, n_features), default="k-means++"
        How the initial centers are chosen among the few rows that a sketch holds in full, or what they are.
        Those of "k-means++" are moved by some steps of k-means on these rows, where there are many for what was
        kept.
    n_init : int or "auto", default="auto"
        Number of starts. They are compared after a few iterations on a part of the rows, and the best goes on.
        "auto" is 1 for "k-means++" and for given centers, and 10 for "random".
    max_iter : int, default=300
        Most iterations.
    tol : float, default=1e-4
        Iterations end when the centers move by no more than this, in total square, as a share of the mean
        variance of a coordinate.
    learning_decay : float, default=0.7
        How fast `partial_fit` forgets, in [0, 1]. The first U rows, 100 for each cluster and coordinate, count
        alike; after m rows, about U (m / U)^learning_decay are remembered: U of them for 0, and all for 1.
    dtype : {"float16", "float32", "float64"}, default="float32"
        What the sketch stores.
    random_state : int, RandomState instance or None, default=None
        Draws the rotation, the kept entries and the starts.
    verbose : int, default=0
        Print the inertia of every iteration if positive.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centers, in the user's space.
    labels_ : ndarray of shape (n_samples,)
        The nearest center of each row that was fitted (by `partial_fit`: of the last batch), by its kept entries.
    inertia_ : float
        Sum of these rows' squared distances to their centers; estimated from the kept entries, scaled by P/Q.
    n_iter_ : int
        Iterations run; after `partial_fit`, the number of batches.
    n_samples_seen_ : int
        Rows that were fitted, in all batches.
    sketcher_ : Sketcher
        What sketched the rows.
    n_features_in_ : int
        Features of a row.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had any.

    See Also
    --------
    GaussianMixture : Soft assignments, and clusters of different sizes and spreads.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.normal(size=(3, 512))
    >>> y = rng.integers(3, size=3000)
    >>> X = centers[y] + rng.normal(size=(3000, 512))
    >>> km = sm.KMeans(n_clusters=3, sketch_size=32, random_state=0).fit(X)
    >>> km.cluster_centers_.shape, sorted(np.unique(km.predict(X), return_counts=True)[1].tolist())
    ((3, 512), [950, 1025, 1025])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        sketch_size: int | float | str = "auto",
        transform: str = "auto",
        n_shared: int = 0,
        init: str | ArrayLike = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        learning_decay: float = 0.7,
        dtype: DTypeLike = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.sketch_size = sketch_size
        self.transform = transform  # type: ignore[assignment, method-assign]
        self.n_shared = n_shared
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.learning_decay = learning_decay
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    @fitting
    def fit(
        self, X: ArrayLike | Source | Sketch, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Find the clusters.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Rows, which are sketched and not looked at again; or a sketch of them.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row: 2 counts as the row twice, 0 as its absence.

        Returns
        -------
        KMeans
            This estimator.
        """
        self._check_parameters()
        context = announced(self)
        sketch = self._sketch_of(X)
        validation.check_enough_rows("n_clusters", self.n_clusters, sketch.n_samples)
        rows = Batch(sketch, validation.check_sample_weight(sample_weight, sketch.n_samples))
        lloyd = self._lloyd(sketch, validation.in_unit(rows.sample_weight))
        audience = Audience(self, context, lloyd, y)
        solution = self._run(lloyd, self._best_start(lloyd), audience)
        self._set_result(solution, lloyd)
        self._set_labels(rows)
        self._set_stream(Stream.after_fit(rows))
        self._warn(solution)
        audience.leave()
        return self

    @one_blas_thread
    def partial_fit(
        self,
        X: ArrayLike | Sketch,
        y: object = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Go on with a batch of rows: centers become averages of theirs and of what is remembered of those before.

        The first batch draws the rotation, or it goes on from a model that was fitted. The first rows, 100 for
        each cluster and coordinate, are held as a sketch and fitted anew whenever they have doubled; until then
        clusters may change places.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), or Sketch
            Rows, the first of at least `n_clusters`; or a sketch of them, made by `sketcher_`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row: 2 counts as the row twice, 0 as its absence.

        Returns
        -------
        KMeans
            This estimator.
        """
        self._check_parameters()
        batch, _, state = self._take_in(X, sample_weight)
        self._shares = state.statistics.size / state.statistics.size.sum()
        self._set_centers(state.parameters.means, batch.sketch.sketcher)
        self._set_labels(batch)
        return self

    def fit_predict(
        self, X: ArrayLike | Source | Sketch, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Array:
        """Fit, and label the rows from their kept entries.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Rows, which are sketched and not looked at again; or a sketch of them.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row.

        Returns
        -------
        ndarray of shape (n_samples,)
            `labels_`.
        """
        return self.fit(X, y, sample_weight).labels_

    @one_blas_thread
    def refine(self, X: ArrayLike | Source) -> Self:
        """Assign and average once over all entries of the rows: an optional second pass.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), or Source
            Raw rows.

        Returns
        -------
        KMeans
            This estimator, with dense centers, and with the labels and the inertia that all entries give.
        """
        validation.check_fitted(self, "cluster_centers_")
        centers = self._centers
        size, total = np.zeros(centers.shape[1]), np.zeros_like(centers)
        labels, inertia = [], 0.0
        for rotated in self._rotated(X):
            distances = squared_distances(dense_block(rotated), centers)
            nearest = distances.argmin(axis=1)
            np.add.at(size, nearest, 1)
            np.add.at(total.T, nearest, rotated - centers.T[nearest])
            labels.append(nearest.astype(np.int32))
            inertia += distances.min(axis=1).sum()
        shift = mean_of(total, size, 0.0)
        self._set_centers(centers + shift, self.sketcher_)
        self._stream = self._stream.without_statistics()
        self.labels_ = np.concatenate(labels)
        # Around the means of the rows, and no longer around the old centers.
        self.inertia_ = float(inertia - (size * shift**2).sum())
        return self

    def predict(self, X: ArrayLike | Source | Sketch) -> Array:
        """The nearest center of each row.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, of which all entries are used, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels.
        """
        return self._nearest(X)[0]

    def transform(self, X: ArrayLike | Source | Sketch) -> Array:
        """Distances of rows to the centers.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, of which all entries are used, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
            Euclidean distances; of a sketch, estimates scaled by P/Q.
        """
        validation.check_fitted(self, "cluster_centers_")
        distances: Array = np.sqrt(self._of_rows(X, partial(estimated_squares, centers=self._centers)))
        return distances

    def score(
        self,
        X: ArrayLike | Source | Sketch,
        y: object = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Minus the sum of the rows' squared distances to their centers.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row.

        Returns
        -------
        float
            The score; higher is better.
        """
        _, nearest = self._nearest(X)
        weight = validation.check_sample_weight(sample_weight, len(nearest))
        return -float(nearest.sum() if weight is None else weight @ nearest)

    def to_sklearn(self) -> sklearn.cluster.KMeans:
        """The model as scikit-learn's own: for what knows those only, or where sketchmix is not installed.

        Where a Hadamard transform is padded, distances here are between padded rows, and there between rows: a row
        that is about as far from two centers may come out in the other cluster. scikit-learn takes rows of its
        centers' type only, which is float64.

        Returns
        -------
        sklearn.cluster.KMeans
            A fitted k-means with the same centers.
        """
        validation.check_fitted(self, "cluster_centers_")
        exported: sklearn.cluster.KMeans = export.clusters(self)
        return exported

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def _check_parameters(self) -> None:
        validation.check_integer("n_clusters", self.n_clusters, least=1)
        if isinstance(self.init, str):
            validation.check_choice("init", self.init, INIT)
        if isinstance(self.n_init, str):
            validation.check_choice("n_init", self.n_init, ["auto"])
        else:
            validation.check_integer("n_init", self.n_init, least=1)
        validation.check_integer("max_iter", self.max_iter, least=1)
        validation.check_real("tol", self.tol)
        validation.check_learning_decay(self.learning_decay)
        validation.check_verbose(self.verbose)

    def _lloyd(self, sketch: Sketch, sample_weight: Array | None) -> Lloyd:
        return Lloyd(sketch, sample_weight, Candidates.of(sketch, sample_weight, self.n_clusters))

    def _best_start(self, lloyd: Lloyd) -> Array:
        rows_of_coordinate = em.rows_of_coordinate(lloyd.sketch, lloyd.sample_weight, self.n_clusters)
        return best_start(lloyd, list(self._starts(lloyd, rows_of_coordinate)))

    def _run(self, lloyd: Lloyd, start: Array, watch: Watch = UNSEEN) -> Solution:
        return lloyd.run(start, tol=self._squared_tolerance(lloyd), max_iter=self.max_iter, watch=watch)

    def _kinds(self, sketch: Sketch) -> tuple[dict[str, object], dict[str, object]]:  # noqa: ARG002
        return {"n_clusters": self.n_clusters}, {"n_clusters": len(self.cluster_centers_)}

    def _rows_to_hold(self, sketch: Sketch) -> float:
        return rows_to_hold(self.n_clusters, self.n_clusters * sketch.n_features, sketch)

    def _fit_anew(self, batch: Batch, present: Parameters | None) -> tuple[Averages, Parameters]:
        validation.check_first_batch("n_clusters", self.n_clusters, len(batch.sketch))
        lloyd = self._lloyd(batch.sketch, batch.in_unit)
        solution = self._run(lloyd, self._best_start(lloyd))
        if present is not None:
            on = self._run(lloyd, present.means)
            is_better = solution.inertia < (1 - self.tol) * on.inertia
            solution = solution if is_better else on
        return Averages(batch.sketch, batch.in_unit), unit_spheres(solution.centers)

    def _task(self, batch: Batch, variances: Array) -> Averages:  # noqa: ARG002
        return Averages(batch.sketch, batch.in_unit)

    def _state_of_fit(self, task: Averages, weight: float) -> State:
        size = weight * self._shares
        count = np.tile(size / task.sketch.scale, (len(self._centers), 1))
        nothing = np.zeros_like(count)
        return State(unit_spheres(self._centers), Moments(0.0, size, count, nothing, np.zeros_like(size)))

    def _squared_tolerance(self, lloyd: Lloyd) -> float:
        """How far the centers may move in the last iteration; at the least, as far as rounding moves them."""
        variances = em.pooled_variances(lloyd.sketch, lloyd.sample_weight)
        return max(self.tol * float(variances.mean()), ROUNDING * self.n_clusters * float(variances.sum()))

    def _starts(self, lloyd: Lloyd, rows_of_coordinate: float) -> Iterator[Array]:
        """Initial centers in the rotated frame, P x K."""
        if not isinstance(self.init, str):
            shape = (self.n_clusters, lloyd.sketch.n_features)
            centers = validation.check_rows_by_feature("init", self.init, shape)
            yield np.ascontiguousarray(lloyd.sketch.sketcher.rotation_.forward(centers).T)
            return
        n_init = self.n_init
        if isinstance(n_init, str):
            n_init = 1 if self.init == "k-means++" else 10
        rng = check_random_state(self.random_state)
        candidates = lloyd.candidates
        for _ in range(n_init):
            if self.init == "k-means++":
                centers = candidates.start(self.n_clusters, rows_of_coordinate, rng)
            else:
                centers = candidates.at_random(self.n_clusters, rng)
            yield np.ascontiguousarray(centers.T)

    def _set_result(self, solution: Solution, lloyd: Lloyd) -> None:
        self._shares = solution.size / solution.size.sum()
        self._set_centers(solution.centers, lloyd.sketch.sketcher)
        self.n_iter_ = solution.n_iter

    def _set_centers(self, centers: Array, sketcher: Sketcher) -> None:
        self._centers, self.sketcher_ = centers, sketcher
        self.cluster_centers_ = sketcher.rotation_.inverse(centers.T)

    def _set_labels(self, rows: Batch) -> None:
        self.labels_, nearest = self._nearest(rows.sketch)
        self.inertia_ = float(nearest.sum() if rows.sample_weight is None else rows.sample_weight @ nearest)

    def _fitted(self) -> tuple[dict[str, Any], dict[str, Array]]:
        state = {"inertia": self.inertia_, "n_iter": self.n_iter_, **self._seen()}
        return state, {"centers": self._centers, "weights": self._shares}

    def _set_fitted(self, read: Reader) -> None:
        self._set_centers(read.centers(self.sketcher_.n_rotated_), self.sketcher_)
        self._shares = read.weights((self._centers.shape[1],))
        self.inertia_, self.n_iter_ = read.real("inertia"), read.count("n_iter", 1, LARGEST_COUNT)
        self._set_seen(read)

    def _nearest(self, X: ArrayLike | Source | Sketch) -> tuple[Array, Array]:
        """The nearest center of each row, and the squared distance to it."""
        validation.check_fitted(self, "cluster_centers_")
        both = self._of_rows(X, partial(nearest_center, centers=self._centers))
        return both[:, 0].astype(np.int32), both[:, 1]

    def _warn(self, solution: Solution) -> None:
        if not (solution.converged or solution.stopped):
            warnings.warn(
                f"k-means did not converge in {solution.n_iter} iterations. Increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=5,
            )
        found = len(np.asarray(np.unique(self.labels_)))
        if found < self.n_clusters:
            warnings.warn(
                f"only {found} of the {self.n_clusters} clusters have rows; lower n_clusters, "
                "or look for duplicate rows.",
                ConvergenceWarning,
                stacklevel=5,
            )


def estimated_squares(block: Block, *, centers: Array) -> Array:
    """Squared distances of rows to the centers, (n, K), scaled by P/Q."""
    return squared_distances(block, centers) * (len(centers) / block.sketch_size)


def nearest_center(block: Block, *, centers: Array) -> Array:
    """The number of each row's nearest center, and the squared distance to it, (n, 2)."""
    squares = estimated_squares(block, centers=centers)
    return np.stack([squares.argmin(axis=1), squares.min(axis=1)], axis=1)


def best_start(lloyd: Lloyd, starts: list[Array]) -> Array:
    """Of several starts, what the one with the lowest inertia after a few iterations became."""
    if len(starts) == 1:
        return starts[0]
    small = lloyd.thinned(em.trial_rows(lloyd.sketch, starts[0].shape[1]))
    trials = [small.run(start, tol=0.0, max_iter=em.TRIAL_ITERATIONS) for start in starts]
    return min(trials, key=lambda trial: trial.inertia).centers
