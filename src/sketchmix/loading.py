"""`load`: models that were saved, as they were."""

from __future__ import annotations

import os
from pathlib import Path

from sketchmix import persistence
from sketchmix.kmeans import KMeans
from sketchmix.mixture import GaussianMixture
from sketchmix.pca import PCA
from sketchmix.validation import check_choice

ESTIMATORS: dict[str, type[GaussianMixture | KMeans | PCA]] = {
    kind.__name__: kind for kind in (GaussianMixture, KMeans, PCA)
}


def load(path: str | os.PathLike[str]) -> GaussianMixture | KMeans | PCA:
    """Load a model that was saved with its `save` method.

    Nothing in a file is run, so that it may come from anybody, and all that it says is checked. Needs the package
    safetensors: ``pip install "sketchmix[models]"``.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    GaussianMixture, KMeans or PCA
        The model, with all its attributes but `labels_`, which are not saved. On the CPU on which it was saved it
        gives the same results bit by bit; on another one to rounding.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> X = np.random.default_rng(0).normal(size=(1000, 64))
    >>> gm = sm.GaussianMixture(2, sketch_size=16, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gm.save(f"{folder}/model.safetensors")
    ...     again = sm.load(f"{folder}/model.safetensors")
    >>> bool((again.predict(X) == gm.predict(X)).all())
    True
    """
    try:
        contents = persistence.read(Path(path))
        kind = ESTIMATORS[check_choice("estimator", contents.estimator, ESTIMATORS)]
        return kind._of_contents(contents)
    except (ValueError, TypeError, OverflowError) as error:
        cure = "Save the model again, or upgrade sketchmix if the file is newer."
        raise ValueError(f"{os.fspath(path)} cannot be loaded: {str(error).rstrip('.')}. {cure}") from error
