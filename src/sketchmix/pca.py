"""`PCA`: the scikit-learn estimator. A mixture of one low-rank Gaussian."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Self

import numpy as np
import sklearn.decomposition
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning

from sketchmix import em, export, validation
from sketchmix.base import fitting, one_blas_thread
from sketchmix.families import LowRank
from sketchmix.families.axis_aligned import mean_of
from sketchmix.families.low_rank import LowRankMixture
from sketchmix.moments import Block, sums_by_coordinate
from sketchmix.online import Batch, State, Stream, StreamEstimator, rows_to_hold
from sketchmix.parameters import HasTransformParameter
from sketchmix.persistence import LARGEST_COUNT, Reader
from sketchmix.progress import UNSEEN, Audience, Watch, announced
from sketchmix.sketch import Sketch
from sketchmix.sources import Source

Array = NDArray[Any]

# Kept entries, times components, that are looked at together.
SCORED_ENTRIES = 2**20


class PCA(
    HasTransformParameter,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    StreamEstimator,
):
    """Principal components in one pass over the rows.

    Each row is rotated, a few of its entries are kept, and the row is never looked at again. Probabilistic PCA
    (one Gaussian whose covariance is W W^T + s I) is fitted to what was kept, by EM.

    Parameters
    ----------
    n_components : int, default=2
        Number of components; less than the number of features.
    sketch_size : int, float or "auto", default="auto"
        Entries kept of each row; see :class:`Sketcher`.
    transform : {"auto", "hadamard", "dct", "fourier", "none"}, default="auto"
        How rows are mixed; see :class:`Sketcher`.
    n_shared : int, default=0
        How many of the kept entries are the same in every row.
    tol : float, default=1e-4
        Iterations end when one raises the mean log-likelihood of a row by less.
    max_iter : int, default=500
        Most iterations.
    learning_decay : float, default=0.7
        How fast `partial_fit` forgets, in [0, 1]. The first U rows, 100 for each component and coordinate, count
        alike; after m rows, about U (m / U)^learning_decay are remembered: U of them for 0, and all for 1.
    dtype : {"float16", "float32", "float64"}, default="float32"
        What the sketch stores.
    random_state : int, RandomState instance or None, default=None
        Draws the rotation and the kept entries.
    verbose : int, default=0
        Print the log-likelihood of every iteration if positive.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Directions of most variance, in the user's space: of length 1, at right angles, the most variance first.
    explained_variance_ : ndarray of shape (n_components,)
        The variance along each of them (of n rows, divided by n).
    explained_variance_ratio_ : ndarray of shape (n_components,)
        The same as a share of the variance in all directions.
    mean_ : ndarray of shape (n_features,)
        Mean of the rows.
    noise_variance_ : float
        The mean variance in all other directions.
    converged_ : bool
        Whether the last iteration gained less than `tol`; False after `partial_fit`.
    n_iter_ : int
        Iterations run; after `partial_fit`, the number of batches.
    lower_bounds_ : list of float
        Mean log-likelihood of a row's kept entries, with the log prior of the factors, at every iteration. After
        `partial_fit`, that of the rows of the last batch, before the model learned from them.
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
    GaussianMixture : With ``covariance_type="low_rank"``, a PCA for each of several clusters.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> rng = np.random.default_rng(0)
    >>> directions = np.linalg.qr(rng.normal(size=(256, 2)))[0].T
    >>> X = (rng.normal(size=(5000, 2)) * [8, 5]) @ directions + rng.normal(size=(5000, 256))
    >>> pca = sm.PCA(n_components=2, sketch_size=32, random_state=0).fit(X)
    >>> bool((abs(np.diag(pca.components_ @ directions.T)) > 0.95).all())
    True
    >>> pca.transform(X).shape
    (5000, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        sketch_size: int | float | str = "auto",
        transform: str = "auto",
        n_shared: int = 0,
        tol: float = 1e-4,
        max_iter: int = 500,
        learning_decay: float = 0.7,
        dtype: DTypeLike = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.sketch_size = sketch_size
        self.transform = transform  # type: ignore[assignment, method-assign]
        self.n_shared = n_shared
        self.tol = tol
        self.max_iter = max_iter
        self.learning_decay = learning_decay
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    @fitting
    def fit(
        self, X: ArrayLike | Source | Sketch, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Find the components.

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
        PCA
            This estimator.
        """
        self._check_parameters()
        context = announced(self)
        sketch = self._sketch_of(X)
        validation.check_n_directions(self.n_components, sketch.n_features)
        validation.check_enough_rows("n_components", self.n_components, sketch.n_samples)
        rows = Batch(sketch, validation.check_sample_weight(sample_weight, sketch.n_samples))
        problem, start = self._begun(sketch, validation.in_unit(rows.sample_weight))
        audience = Audience(self, context, problem, y)
        result = self._run(problem, start, audience)
        self._set_result(result, problem)
        if not (result.converged or result.stopped):
            warnings.warn(em.not_converged(result), ConvergenceWarning, stacklevel=4)
        self._set_stream(Stream.after_fit(rows))
        audience.leave()
        return self

    @one_blas_thread
    def partial_fit(
        self,
        X: ArrayLike | Sketch,
        y: object = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Go on with a batch of rows: one step of EM, on them and on what is remembered of those before.

        The first batch draws the rotation, or it goes on from a model that was fitted. The first rows, 100 for
        each component and coordinate, are held as a sketch and fitted anew whenever they have doubled.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), or Sketch
            Rows, the first of at least `n_components`; or a sketch of them, made by `sketcher_`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row: 2 counts as the row twice, 0 as its absence.

        Returns
        -------
        PCA
            This estimator.
        """
        self._check_parameters()
        batch, problem, state = self._take_in(X, sample_weight)
        self.sketcher_ = batch.sketch.sketcher
        self._set_mixture(problem.family.canonical(state.parameters))
        self.converged_, self.lower_bounds_ = False, [state.log_likelihood]
        return self

    def transform(self, X: ArrayLike | Source | Sketch) -> Array:
        """The coordinates of rows along the components.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, which are projected; or a sketch made by `sketcher_`, of whose rows the expected projection
            is given, as the entries that it kept tell.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Coordinates.
        """
        validation.check_fitted(self, "components_")
        function = expected_coordinates if isinstance(X, Sketch) else projected
        return self._of_rows(X, partial(function, mixture=self._mixture, directions=self._rotated_components()))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Rows of all features from their coordinates.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Coordinates along the components.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Rows in the user's space.
        """
        validation.check_fitted(self, "components_")
        coordinates = validation.check_coordinates(X, len(self.components_))
        rows: Array = coordinates @ self.components_ + self.mean_
        return rows

    def score_samples(self, X: ArrayLike | Source | Sketch) -> Array:
        """The log-likelihood of each row.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`: then the likelihood is that of the kept entries.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log-likelihoods.
        """
        validation.check_fitted(self, "components_")
        return self._of_rows(X, partial(log_likelihoods, mixture=self._mixture))

    def score(self, X: ArrayLike | Source | Sketch, y: object = None) -> float:  # noqa: ARG002
        """The mean log-likelihood of the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.
        y : None
            Ignored.

        Returns
        -------
        float
            Mean of `score_samples`.
        """
        return float(self.score_samples(X).mean())

    def get_covariance(self) -> Array:
        """The covariance matrix of the model, in the user's space.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            W W^T + s I.
        """
        validation.check_fitted(self, "components_")
        beyond_noise = self.explained_variance_ - self.noise_variance_
        covariance: Array = (self.components_.T * beyond_noise) @ self.components_
        covariance += self.noise_variance_ * np.eye(self.n_features_in_)
        return covariance

    def to_sklearn(self) -> sklearn.decomposition.PCA:
        """The model as scikit-learn's own: for what knows those only, or where sketchmix is not installed.

        It has no `n_samples_` and no `singular_values_`, as the model does not know how many rows there were.

        Returns
        -------
        sklearn.decomposition.PCA
            A fitted PCA with the same components.
        """
        validation.check_fitted(self, "components_")
        exported: sklearn.decomposition.PCA = export.components(self)
        return exported

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _check_parameters(self) -> None:
        validation.check_integer("n_components", self.n_components, least=1)
        validation.check_real("tol", self.tol)
        validation.check_integer("max_iter", self.max_iter, least=1)
        validation.check_learning_decay(self.learning_decay)
        validation.check_verbose(self.verbose)

    def _begun(self, sketch: Sketch, sample_weight: Array | None) -> tuple[em.Problem, LowRankMixture]:
        """The problem, and where EM starts."""
        problem = em.Problem.of(LowRank(self.n_components), sketch, sample_weight, 1, 0.0)
        return problem, problem.begin(problem.seeding.start(mean_of_rows(sketch, sample_weight)))

    def _run(self, problem: em.Problem, start: LowRankMixture, watch: Watch = UNSEEN) -> em.Fit:
        return em.fit(problem, start, tol=self.tol, max_iter=self.max_iter, watch=watch)

    def _kinds(self, sketch: Sketch) -> tuple[dict[str, object], dict[str, object]]:  # noqa: ARG002
        return {"n_components": self.n_components}, {"n_components": len(self.components_)}

    def _rows_to_hold(self, sketch: Sketch) -> float:
        validation.check_n_directions(self.n_components, sketch.n_features)
        return rows_to_hold(1, LowRank(self.n_components).n_parameters(1, sketch.n_features), sketch)

    def _fit_anew(self, batch: Batch, present: object) -> tuple[em.Problem, LowRankMixture]:  # noqa: ARG002
        validation.check_first_batch("n_components", self.n_components, len(batch.sketch))
        problem, start = self._begun(batch.sketch, batch.in_unit)
        return problem, self._run(problem, start).parameters

    def _task(self, batch: Batch, variances: Array) -> em.Problem:
        return em.Problem(self._family, batch.sketch, batch.in_unit, 1, 0.0, variances)

    def _state_of_fit(self, task: em.Problem, weight: float) -> State:
        return State(self._mixture, task.remembered(self._mixture, weight))

    def _set_result(self, result: em.Fit, problem: em.Problem) -> None:
        self.sketcher_ = problem.sketch.sketcher
        self._set_mixture(problem.family.canonical(result.parameters))
        self.converged_, self.n_iter_, self.lower_bounds_ = result.converged, result.n_iter, result.lower_bounds

    def _set_mixture(self, mixture: LowRankMixture) -> None:
        self._family, self._mixture = family_of(mixture), mixture
        rotation, noise = self.sketcher_.rotation_, float(self._mixture.noise[0])
        factors = self._family.attributes(self._mixture, rotation)["factors_"][0]
        # Orthonormal even where a factor has no length, and explains no more than the noise.
        directions, lengths, _ = np.linalg.svd(factors, full_matrices=False)
        signs = np.where((directions * factors).sum(axis=0) < 0, -1, 1)
        self.components_ = np.ascontiguousarray((directions * signs).T)
        self.explained_variance_ = lengths**2 + noise
        total = (lengths**2).sum() + noise * self.n_features_in_
        self.explained_variance_ratio_ = self.explained_variance_ / total
        self.mean_ = rotation.inverse(self._mixture.means.T)[0]
        self.noise_variance_ = noise

    def _fitted(self) -> tuple[dict[str, Any], dict[str, Array]]:
        state = {"rank": self._family.rank, "converged": self.converged_, "n_iter": self.n_iter_}
        return state | self._seen(), vars(self._mixture) | {"lower_bounds": np.array(self.lower_bounds_)}

    def _set_fitted(self, read: Reader) -> None:
        rank = read.count("rank", 1, self.n_features_in_ - 1)
        self._set_mixture(read.gaussian(rank, self.sketcher_.n_rotated_))
        self.converged_, self.n_iter_ = read.flag("converged"), read.count("n_iter", 1, LARGEST_COUNT)
        self.lower_bounds_ = read.lower_bounds(self.n_iter_)
        self._set_seen(read)

    def _rotated_components(self) -> Array:
        """Components in the rotated frame, (n_rotated, n_components)."""
        rotated: Array = self.sketcher_.rotation_.forward(self.components_).T
        return rotated


def family_of(mixture: LowRankMixture) -> LowRank:
    """The family of a mixture."""
    return LowRank(mixture.factors.shape[2])


def log_likelihoods(block: Block, *, mixture: LowRankMixture) -> Array:
    """Of each row."""
    return family_of(mixture).log_density(block, mixture)[:, 0]


def projected(block: Block, *, mixture: LowRankMixture, directions: Array) -> Array:
    """Coordinates of rows that keep all entries."""
    coordinates: Array = (block.values - mixture.means[:, 0]) @ directions
    return coordinates


def expected_coordinates(block: Block, *, mixture: LowRankMixture, directions: Array) -> Array:
    """Coordinates of sketched rows, a few at a time."""
    n_rows = max(1, SCORED_ENTRIES // (block.sketch_size * directions.shape[1]))
    parts = block.blocks(n_rows, exactly=True)
    return np.concatenate([coordinates_of(part, mixture, directions) for part in parts])


def coordinates_of(block: Block, mixture: LowRankMixture, directions: Array) -> Array:
    """What is expected of u^T (x - mean): of W z, and of the noise, which is known where an entry was kept."""
    latent = family_of(mixture).posterior(block, mixture)[1][:, 0]
    means, factors = mixture.means[:, 0], mixture.factors[0]
    kept = block.indices.astype(np.intp)
    noise = block.values - means[kept] - np.einsum("nqr,nr->nq", factors[kept], latent)
    coordinates: Array = latent @ (factors.T @ directions) + np.einsum("nq,nqr->nr", noise, directions[kept])
    return coordinates


def mean_of_rows(sketch: Sketch, sample_weight: Array | None) -> Array:
    """The mean of what rows kept at each rotated coordinate, (n_rotated, 1)."""
    count, total = sums_by_coordinate(sketch.kept, sketch.sketcher.n_rotated_, sample_weight)
    return mean_of(total, count, 0.0)[:, None]
