"""`GaussianMixture`: the scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, Self

import numpy as np
import sklearn.mixture
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.special import entr, logsumexp
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import ClassifierTags, check_random_state

from sketchmix import em, export, validation
from sketchmix.base import fitting, one_blas_thread
from sketchmix.families import COVARIANCE_TYPES, Family, LowRank, Statistics, family_of
from sketchmix.moments import Block, Parameters, dense_block
from sketchmix.online import Batch, State, Stream, StreamEstimator, rows_to_hold
from sketchmix.parameters import HasTransformParameter
from sketchmix.persistence import LARGEST_COUNT, Reader
from sketchmix.progress import UNSEEN, Audience, Watch, announced
from sketchmix.ranks import best_rank
from sketchmix.seeding import Candidates
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.sources import Source

Array = NDArray[Any]

INIT_PARAMS = ("k-means++", "random_from_data")


class GaussianMixture(HasTransformParameter, DensityMixin, StreamEstimator):  # type: ignore[misc]
    """A Gaussian mixture fitted in one pass over the rows.

    Each row is rotated, a few of its entries are kept, and the row is never looked at again. EM runs on what
    was kept, and estimates means and variances of all features.

    Parameters
    ----------
    n_components : int, default=1
        Number of Gaussians.
    covariance_type : {"diag", "spherical", "low_rank", "full", "tied"}, default="diag"
        One variance for each component and rotated coordinate; one for each component; `rank` directions in which
        a component spreads, and one variance in all others; any covariance for each component; or any one
        covariance for all. For the last two an iteration costs Q^3 for a row that keeps Q entries. All but the
        first two are started from a simpler fit.
    rank : int or "auto", default=10
        How many directions, for ``covariance_type="low_rank"``. "auto" takes the number at which a fifth of the
        rows, left out of a short fit, is most likely.
    sketch_size : int, float or "auto", default="auto"
        Entries kept of each row; see :class:`Sketcher`.
    transform : {"auto", "hadamard", "dct", "fourier", "none"}, default="auto"
        How rows are mixed; see :class:`Sketcher`.
    n_shared : int, default=0
        How many of the kept entries are the same in every row.
    tol : float, default=1e-3
        EM ends when an iteration raises the mean log-likelihood of a row by less.
    reg_covar : float, default=1e-6
        Added to every variance.
    max_iter : int, default=100
        Most iterations of EM.
    n_init : int, default=1
        Number of starts. They are compared after a few iterations on a part of the rows, and the best goes on.
    init_params : {"k-means++", "random_from_data"}, default="k-means++"
        How the initial means are chosen among the few rows that a sketch holds in full; those of "k-means++" are
        moved by some steps of k-means on these rows, where there are many for what was kept.
    weights_init : array-like of shape (n_components,), optional
        Initial weights.
    means_init : array-like of shape (n_components, n_features), optional
        Initial means.
    learning_decay : float, default=0.7
        How fast `partial_fit` forgets, in [0, 1]. The first U rows, 100 for each component and coordinate, count
        alike; after m rows, about U (m / U)^learning_decay are remembered: U of them for 0, and all for 1.
    dtype : {"float16", "float32", "float64"}, default="float32"
        What the sketch stores.
    random_state : int, RandomState instance or None, default=None
        Draws the rotation, the kept entries and the starts.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit's solution (and, for raw rows, with its rotation).
    verbose : int, default=0
        Print the log-likelihood of every iteration if positive.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights.
    means_ : ndarray of shape (n_components, n_features)
        Means, in the user's space.
    variances_ : ndarray of shape (n_components, n_features)
        Variances of the features (the diagonals of the covariances), in the user's space.
    rotated_variances_ : ndarray of shape (n_components, n_rotated) or (n_components,)
        The variances as the model has them: in the rotated frame. For "diag" and "spherical" only.
    factors_ : ndarray of shape (n_components, n_features, rank)
        The directions, in the user's space, each as long as its standard deviation beyond the noise's; the
        longest first. For "low_rank" only.
    noise_variances_ : ndarray of shape (n_components,)
        The variances in all other directions. For "low_rank" only.
    covariances_ : ndarray of shape (n_components, n_features, n_features) or (n_features, n_features)
        The covariances, in the user's space. For "full" and "tied" only.
    labels_ : ndarray of shape (n_samples,)
        The most likely component of each row that was fitted (by `partial_fit`: of the last batch), from its kept
        entries.
    converged_ : bool
        Whether the last iteration gained less than `tol`; False after `partial_fit`.
    n_iter_ : int
        Iterations of EM; after `partial_fit`, the number of batches.
    lower_bound_ : float
        Mean log-likelihood of a row's kept entries at the last iteration (for "low_rank", with the logarithm of
        the prior of its factors). After `partial_fit`, of the rows of the last batch, before the model learned
        from them.
    lower_bounds_ : list of float
        The same at every iteration; after `partial_fit`, `lower_bound_` alone.
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
    KMeans : The same loop with hard assignments.

    Notes
    -----
    Parameters are those of ``fit(X)``; ``fit(sketch)`` takes the sketch as it is and ignores `sketch_size`,
    `transform`, `n_shared` and `dtype`.

    Where no row of a component kept a coordinate, its mean and variance there stay what the start gave them: the
    seed's mean, and the variance of all rows. Where less than two did (and others did not), the variance does.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.normal(size=(3, 512))
    >>> y = rng.integers(3, size=3000)
    >>> X = centers[y] + rng.normal(size=(3000, 512))
    >>> gm = sm.GaussianMixture(n_components=3, sketch_size=32, random_state=0).fit(X)
    >>> gm.means_.shape, sorted(np.unique(gm.predict(X), return_counts=True)[1].tolist())
    ((3, 512), [950, 1025, 1025])
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "diag",
        rank: int | str = 10,
        sketch_size: int | float | str = "auto",
        transform: str = "auto",
        n_shared: int = 0,
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "k-means++",
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        learning_decay: float = 0.7,
        dtype: DTypeLike = "float32",
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.rank = rank
        self.sketch_size = sketch_size
        self.transform = transform
        self.n_shared = n_shared
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.learning_decay = learning_decay
        self.dtype = dtype
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    @fitting
    def fit(
        self, X: ArrayLike | Source | Sketch, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the mixture.

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
        GaussianMixture
            This estimator.
        """
        self._check_parameters()
        context = announced(self)
        sketch = self._sketch_of(X, self._warm_sketcher())
        validation.check_enough_rows("n_components", self.n_components, sketch.n_samples)
        rows = Batch(sketch, validation.check_sample_weight(sample_weight, sketch.n_samples))
        problem = self._problem(sketch, validation.in_unit(rows.sample_weight))
        problem, start = self._warm_parameters(problem) or self._first_parameters(problem)
        audience = Audience(self, context, problem, y)
        result = self._run(problem, start, audience)
        self._set_result(result, problem)
        for trouble in em.troubles(result, problem):
            warnings.warn(trouble, ConvergenceWarning, stacklevel=4)
        self.labels_ = self.predict(sketch)
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
        each component and coordinate, are held as a sketch and fitted anew whenever they have doubled; until then
        components may change places.

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
        GaussianMixture
            This estimator.
        """
        self._check_parameters()
        batch, problem, state = self._take_in(X, sample_weight)
        self._set_model(problem, state.parameters)
        self.converged_, self.lower_bound_ = False, state.log_likelihood
        self.lower_bounds_ = [self.lower_bound_]
        self.labels_ = self.predict(batch.sketch)
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
        """One step of EM over all entries of the rows: an optional second pass.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), or Source
            Raw rows.

        Returns
        -------
        GaussianMixture
            This estimator, with dense means and variances, and with the labels that all entries give the rows.
        """
        validation.check_fitted(self, "weights_")
        labels: list[Array] = []

        def statistics_of_blocks() -> Iterator[Statistics]:
            for rotated in self._rotated(X):
                block = dense_block(rotated)
                labels.append(self._family.log_density(block, self._parameters).argmax(axis=1).astype(np.int32))
                yield self._family.statistics(block, self._parameters, None)

        total = reduce(add, statistics_of_blocks())
        limits = replace(self._limits, support=2.0, share=1.0)  # rows of weight 1, and all that they have
        self._set_parameters(self._family.refined(total, self._parameters, limits))
        self._stream = self._stream.without_statistics()
        self.labels_ = np.concatenate(labels)
        return self

    def predict(self, X: ArrayLike | Source | Sketch) -> Array:
        """The most likely component of each row.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, of which all entries are used, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels.
        """
        return self._of_joint_log_densities(X, likeliest)

    def predict_proba(self, X: ArrayLike | Source | Sketch) -> Array:
        """The probability of each component given each row.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, of which all entries are used, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Responsibilities.
        """
        return self._of_joint_log_densities(X, responsibilities)

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
        return self._of_joint_log_densities(X, log_likelihoods)

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

    def bic(self, X: ArrayLike | Source | Sketch) -> float:
        """The Bayesian information criterion on the rows; lower is better.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.

        Returns
        -------
        float
            BIC.
        """
        scores = self.score_samples(X)
        return float(-2 * scores.sum() + self._n_parameters() * np.log(len(scores)))

    def aic(self, X: ArrayLike | Source | Sketch) -> float:
        """The Akaike information criterion on the rows; lower is better.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.

        Returns
        -------
        float
            AIC.
        """
        return float(-2 * self.score_samples(X).sum() + 2 * self._n_parameters())

    def icl(self, X: ArrayLike | Source | Sketch) -> float:
        """The integrated completed likelihood criterion on the rows; lower is better.

        BIC plus twice the entropy of the responsibilities (Biernacki, Celeux and Govaert, 2000): it counts the
        clusters that can be told apart, where BIC counts the Gaussians that it takes to describe the rows. Rows of
        a sketch are told apart by their kept entries alone: there, it asks for clearer clusters.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.

        Returns
        -------
        float
            ICL.
        """
        return self.bic(X) + 2 * float(self._of_joint_log_densities(X, entropies).sum())

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw rows from the mixture.

        Parameters
        ----------
        n_samples : int, default=1
            How many.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Rows, in the order of their components.
        y : ndarray of shape (n_samples,)
            Their components.
        """
        validation.check_fitted(self, "weights_")
        validation.check_integer("n_samples", n_samples, least=1)
        rng = check_random_state(self.random_state)
        y = np.repeat(np.arange(len(self.weights_)), rng.multinomial(n_samples, self.weights_))
        rotated = self._parameters.means.T[y] + self._family.deviations(self._parameters, y, rng)
        return self.sketcher_.rotation_.inverse(rotated), y

    def latent(self, X: ArrayLike | Source | Sketch) -> Array:
        """The expected coordinates of rows along the factors of their most likely component.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples, rank)
            Coordinates, of which those of a component have mean 0 and variance 1.
        """
        parts = []
        for joint, latent in self._posteriors(X):
            parts.append(latent[np.arange(len(latent)), joint.argmax(axis=1)])
        return np.concatenate(parts)

    def reconstruct(self, X: ArrayLike | Source | Sketch) -> Array:
        """Rows without their noise, in all features: what the model expects, given the entries that it sees.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features), Source or Sketch
            Raw rows, or a sketch made by `sketcher_`.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Rows in the user's space.
        """
        parts = []
        for joint, latent in self._posteriors(X):
            r = responsibilities(joint)
            rotated = r @ self._parameters.means.T
            for k, factors in enumerate(self._parameters.factors):
                rotated += (r[:, k : k + 1] * latent[:, k]) @ factors.T
            parts.append(self.sketcher_.rotation_.inverse(rotated))
        return np.concatenate(parts)

    def covariance(self, k: int) -> Array:
        """The covariance matrix of a component, in the user's space.

        Parameters
        ----------
        k : int
            Which component.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Its covariance.
        """
        validation.check_fitted(self, "weights_")
        validation.check_component(k, len(self.weights_))
        axes = self.sketcher_.rotation_.forward(np.eye(self.n_features_in_))
        matrix: Array = self._family.covariance(self._parameters, k, axes)
        return matrix

    def to_sklearn(self) -> sklearn.mixture.GaussianMixture:
        """The model as scikit-learn's own: for what knows those only, or where sketchmix is not installed.

        Spherical and tied covariances stay so; diagonal ones are diagonal for features that were not mixed. All
        others are "full", of n_features x n_features numbers for each component. Where a Hadamard transform is
        padded, the mixture is that of rows given their padding, whose log-likelihoods differ from those of this
        model by one constant.

        Returns
        -------
        sklearn.mixture.GaussianMixture
            A fitted mixture that gives raw rows the same labels and probabilities.
        """
        validation.check_fitted(self, "weights_")
        exported: sklearn.mixture.GaussianMixture = export.mixture(self)
        return exported

    def _check_parameters(self) -> None:
        validation.check_integer("n_components", self.n_components, least=1)
        validation.check_choice("covariance_type", self.covariance_type, COVARIANCE_TYPES)
        validation.check_real("tol", self.tol)
        validation.check_real("reg_covar", self.reg_covar)
        validation.check_integer("max_iter", self.max_iter, least=1)
        validation.check_integer("n_init", self.n_init, least=1)
        validation.check_choice("init_params", self.init_params, INIT_PARAMS)
        validation.check_learning_decay(self.learning_decay)
        validation.check_verbose(self.verbose)

    def _wanted_family(self, sketch: Sketch) -> Family[Any, Any]:
        if self.covariance_type == LowRank.name:
            validation.check_rank(self.rank, sketch.n_features)
        return family_of(self.covariance_type, 1 if isinstance(self.rank, str) else self.rank)

    def _problem(self, sketch: Sketch, sample_weight: Array | None) -> em.Problem:
        family = self._wanted_family(sketch)
        return em.Problem.of(family, sketch, sample_weight, self.n_components, self.reg_covar)

    def _run(self, problem: em.Problem, start: Any, watch: Watch = UNSEEN) -> em.Fit:
        return em.fit(problem, start, tol=self.tol, max_iter=self.max_iter, watch=watch)

    def _first_parameters(self, problem: em.Problem) -> tuple[em.Problem, Any]:
        """Where EM starts: at the best of several starts, which a richer family takes from a simpler one's fit."""
        seeding = problem.seeding
        start = em.best_start(seeding, list(self._starts(seeding)))
        if seeding is not problem and self.means_init is None:
            start = em.fit(seeding, start, tol=self.tol, max_iter=self.max_iter).parameters
        if self.covariance_type == LowRank.name and self.rank == "auto":
            problem = problem.under(LowRank(best_rank(problem, start)))
        return problem, problem.begin(start)

    def _starts(self, problem: em.Problem) -> Iterator[Parameters]:
        """Parameters to start from: one where the means are given, else `n_init`."""
        for means in self._initial_means(problem):
            start = problem.start(np.ascontiguousarray(means.T))
            if self.weights_init is not None:
                weights = validation.check_weights_init(self.weights_init, self.n_components)
                start = Parameters(weights, start.means, start.variances)
            yield start

    def _initial_means(self, problem: em.Problem) -> Iterator[Array]:
        if self.means_init is not None:
            shape = (self.n_components, problem.sketch.n_features)
            means = validation.check_rows_by_feature("means_init", self.means_init, shape)
            yield problem.sketch.sketcher.rotation_.forward(means)
            return
        rng = check_random_state(self.random_state)
        sketch, weight = problem.sketch, problem.sample_weight
        candidates = Candidates.of(sketch, weight, self.n_components)
        rows_of_coordinate = em.rows_of_coordinate(sketch, weight, self.n_components)
        for _ in range(self.n_init):
            if self.init_params == "k-means++":
                yield candidates.start(self.n_components, rows_of_coordinate, rng)
            else:
                yield candidates.at_random(self.n_components, rng)

    def _warm_sketcher(self) -> Sketcher | None:
        """The sketcher of the last fit, if this fit is to go on from it."""
        return self.sketcher_ if self.warm_start and hasattr(self, "weights_") else None

    def _warm_parameters(self, problem: em.Problem) -> tuple[em.Problem, Any] | None:
        """The solution of the last fit, if this fit is to go on from it."""
        if not (self.warm_start and hasattr(self, "weights_")):
            return None
        validation.check_same_frame(problem.sketch, self.sketcher_)
        validation.check_warm_start(*self._kinds(problem.sketch))
        return problem.under(self._family), self._parameters

    def _kinds(self, sketch: Sketch) -> tuple[dict[str, object], dict[str, object]]:
        family = self._wanted_family(sketch)
        wanted: dict[str, object] = {"n_components": self.n_components, "covariance_type": family.name}
        fitted: dict[str, object] = {"n_components": len(self.weights_), "covariance_type": self._family.name}
        if isinstance(family, LowRank) and isinstance(self._family, LowRank) and self.rank != "auto":
            wanted["rank"], fitted["rank"] = self.rank, self._family.rank
        return wanted, fitted

    def _rows_to_hold(self, sketch: Sketch) -> float:
        n_parameters = self._wanted_family(sketch).n_parameters(self.n_components, sketch.n_features)
        return rows_to_hold(self.n_components, n_parameters, sketch)

    def _fit_anew(self, batch: Batch, present: Any | None) -> tuple[em.Problem, Any]:
        validation.check_first_batch("n_components", self.n_components, len(batch.sketch))
        problem, start = self._first_parameters(self._problem(batch.sketch, batch.in_unit))
        anew = self._run(problem, start)
        # A rank that is left to the rows may have changed.
        if present is None or vars(problem.family) != vars(self._family):
            return problem, anew.parameters
        on = self._run(problem, present)
        is_better = anew.lower_bounds[-1] > on.lower_bounds[-1] + self.tol
        return problem, (anew if is_better else on).parameters

    def _task(self, batch: Batch, variances: Array) -> em.Problem:
        return em.Problem(self._family, batch.sketch, batch.in_unit, self.n_components, self.reg_covar, variances)

    def _state_of_fit(self, task: em.Problem, weight: float) -> State:
        return State(self._parameters, task.remembered(self._parameters, weight))

    def _set_result(self, result: em.Fit, problem: em.Problem) -> None:
        self._set_model(problem, result.parameters)
        self.converged_ = result.converged
        self.n_iter_ = result.n_iter
        self.lower_bounds_ = result.lower_bounds
        self.lower_bound_ = result.lower_bounds[-1]

    def _set_model(self, problem: em.Problem, parameters: Any) -> None:
        self.sketcher_, self._family, self._limits = problem.sketch.sketcher, problem.family, problem.limits
        self._set_parameters(parameters)

    def _set_parameters(self, parameters: Any) -> None:
        self._set_canonical(self._family.canonical(parameters))

    def _set_canonical(self, parameters: Any) -> None:
        rotation = self.sketcher_.rotation_
        self._parameters = parameters
        self.weights_ = parameters.weights
        self.means_ = rotation.inverse(parameters.means.T)
        self.variances_ = self._family.variances(parameters, rotation)
        for name in vars(self).get("_attributes_of_family", ()):
            delattr(self, name)  # which may be those of another family
        attributes = self._family.attributes(parameters, rotation)
        self._attributes_of_family = tuple(attributes)
        for name, value in attributes.items():
            setattr(self, name, value)

    def _fitted(self) -> tuple[dict[str, Any], dict[str, Array]]:
        family, limits = self._family, self._limits
        state = {
            "family": family.name,
            "rank": family.rank if isinstance(family, LowRank) else None,
            "reg_covar": float(limits.reg_covar),
            "support": limits.support,
            "share": limits.share,
            "converged": self.converged_,
            "n_iter": self.n_iter_,
            **self._seen(),
        }
        return state, vars(self._parameters) | {
            "floor": limits.floor,
            "lower_bounds": np.array(self.lower_bounds_),
        }

    def _set_fitted(self, read: Reader) -> None:
        self._family = read.family(self.n_features_in_)
        mixture = read.mixture(self._family, self.sketcher_.n_rotated_)
        self._limits = read.limits(self._family, mixture)
        self._set_canonical(mixture)
        self.converged_, self.n_iter_ = read.flag("converged"), read.count("n_iter", 1, LARGEST_COUNT)
        self.lower_bounds_ = read.lower_bounds(self.n_iter_)
        self.lower_bound_ = self.lower_bounds_[-1]
        self._set_seen(read)

    def _of_joint_log_densities(self, X: ArrayLike | Source | Sketch, function: Callable[[Array], Array]) -> Array:
        """A function of rows' log weight plus log density under each component."""
        validation.check_fitted(self, "weights_")
        of_block = partial(of_joint, function=function, family=self._family, parameters=self._parameters)
        return self._of_rows(X, of_block)

    def _posteriors(self, X: ArrayLike | Source | Sketch) -> Iterator[tuple[Array, Array]]:
        """Joint log densities, and coordinates in each component, a block of rows at a time."""
        validation.check_fitted(self, "weights_")
        family = validation.check_low_rank(self._family)
        for block in self._blocks(X):
            yield family.posterior(block, self._parameters)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Not a classifier; but scikit-learn's check of sparse input asks here how many columns to expect of
        # `predict_proba`.
        tags.classifier_tags = ClassifierTags(multi_class=True)
        return tags

    def _n_parameters(self) -> int:
        return self._family.n_parameters(len(self.weights_), self.n_features_in_)


def of_joint(
    block: Block, *, function: Callable[[Array], Array], family: Family[Any, Any], parameters: Any
) -> Array:
    """A function of the log weights plus log densities of a block's rows."""
    return function(family.log_density(block, parameters))


def likeliest(joint: Array) -> Array:
    """The component of each row, of log weights plus log densities, (n, K)."""
    components: Array = joint.argmax(axis=1).astype(np.int32)
    return components


def log_likelihoods(joint: Array) -> Array:
    """Of each row, of log weights plus log densities, (n, K)."""
    total: Array = logsumexp(joint, axis=1)
    return total


def entropies(joint: Array) -> Array:
    """Of each row's responsibilities, of log weights plus log densities, (n, K)."""
    entropy: Array = entr(responsibilities(joint)).sum(axis=1)
    return entropy


def responsibilities(joint: Array) -> Array:
    """The probability of each component given each row, of log weights plus log densities, (n, K)."""
    shares: Array = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    return shares
