"""Fitted models as scikit-learn's own: where sketchmix is not installed, or for what converts those."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn.cluster
import sklearn.decomposition
import sklearn.mixture
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from sketchmix.families.full import root
from sketchmix.moments import finite_log

if TYPE_CHECKING:
    from sketchmix.kmeans import KMeans
    from sketchmix.mixture import GaussianMixture
    from sketchmix.pca import PCA

Array = NDArray[Any]


def mixture(model: GaussianMixture) -> Any:
    """The mixture, under the narrowest of scikit-learn's covariance types that it has after unrotating."""
    name = covariance_type_of(model)
    is_padded = model.sketcher_.n_rotated_ > model.n_features_in_
    weights, means, covariances = given_no_padding(model) if is_padded else in_users_space(model)
    exported = sklearn.mixture.GaussianMixture(len(weights), covariance_type=name, random_state=model.random_state)
    exported.weights_, exported.means_ = weights, means
    if name in ("spherical", "diag"):
        variances = model.rotated_variances_
        spread = variances, 1 / np.sqrt(variances), 1 / variances
    else:
        spread = of_matrices(covariances, tied=name == "tied")
    exported.covariances_, exported.precisions_cholesky_, exported.precisions_ = spread
    return with_attributes(exported, model, "converged_", "n_iter_", "lower_bound_", "lower_bounds_")


def covariance_type_of(model: GaussianMixture) -> str:
    """What scikit-learn calls the covariances of the features."""
    name = model._family.name
    if name in ("spherical", "tied") or (name == "diag" and model.sketcher_.transform_ == "none"):
        return name
    return "full"


def in_users_space(model: GaussianMixture) -> tuple[Array, Array, Iterable[Array]]:
    """Weights, means and covariances."""
    weights = np.exp(finite_log(model.weights_))  # whose logarithms scikit-learn takes
    return weights, model.means_, map(model.covariance, range(len(weights)))


def given_no_padding(model: GaussianMixture) -> tuple[Array, Array, Iterable[Array]]:
    """The same of a padded mixture, on condition that a row is a rotated one: these are not all that there are."""
    mixture, rotation = model._parameters, model.sketcher_.rotation_
    axes, every = rotation.forward(np.eye(rotation.n_features)), np.eye(rotation.n_rotated)
    slices = [
        slice_of(mean, model._family.covariance(mixture, k, every), axes) for k, mean in enumerate(mixture.means.T)
    ]
    means, covariances, log_shares = zip(*slices, strict=True)
    return softmax(finite_log(mixture.weights) + log_shares), np.array(means), covariances


def slice_of(mean: Array, S: Array, axes: Array) -> tuple[Array, Array, float]:
    """A Gaussian of x `axes` as one of x, and the logarithm of what is left of it (but for a power of 2 pi).

    With S = L L^T, Z = L^-1 axes^T and d = L^-1 mean: |Z x - d|^2 is least at the solution of least squares.
    """
    L = root(S)
    Z, d = solve_triangular(L, axes.T, lower=True), solve_triangular(L, mean, lower=True)
    covariance = np.linalg.inv(Z.T @ Z)
    at = covariance @ (Z.T @ d)
    roots = np.log(np.diagonal(root(covariance))).sum() - np.log(np.diagonal(L)).sum()
    return at, covariance, float(roots - 0.5 * ((Z @ at - d) ** 2).sum())


def of_matrices(covariances: Iterable[Array], *, tied: bool) -> tuple[Array, Array, Array]:
    """Covariances, the triangular roots of their inverses, and these; only the first where all are the same."""
    matrices = [next(iter(covariances))] if tied else list(covariances)
    roots = [solve_triangular(root(S), np.eye(len(S)), lower=True).T for S in matrices]
    stacked = np.array(matrices), np.array(roots), np.array([U @ U.T for U in roots])
    return (stacked[0][0], stacked[1][0], stacked[2][0]) if tied else stacked


def clusters(model: KMeans) -> Any:
    """The centers. A fit to them alone sets what else scikit-learn's k-means wants for predictions."""
    centers = model.cluster_centers_
    exported = sklearn.cluster.KMeans(
        len(centers), init=centers, n_init=1, max_iter=1, random_state=model.random_state
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of clusters at the same place
        exported.fit(centers)
    del exported.labels_  # of the centers
    # As they are: a fit moves them by rounding.
    exported.cluster_centers_ = centers.copy()
    return with_attributes(exported, model, "inertia_", "n_iter_", "labels_")


def components(model: PCA) -> Any:
    """The principal components."""
    exported = sklearn.decomposition.PCA(len(model.components_), random_state=model.random_state)
    exported.n_components_ = len(model.components_)
    found = ("components_", "explained_variance_", "explained_variance_ratio_", "mean_", "noise_variance_")
    return with_attributes(exported, model, *found)


def with_attributes(exported: Any, model: Any, *names: str) -> Any:
    """Those of the names that the model has, and what it knows of its features."""
    for name in (*names, "n_features_in_", "feature_names_in_"):
        if hasattr(model, name):
            setattr(exported, name, getattr(model, name))
    return exported
