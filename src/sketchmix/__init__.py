"""Gaussian mixtures and k-means for high-dimensional data seen once, fitted on sketches of it."""

from typing import TYPE_CHECKING

__all__ = ["PCA", "GaussianMixture", "KMeans", "Selection", "Sketch", "Sketcher", "concatenate", "load", "select"]

if TYPE_CHECKING:
    from sketchmix import sources as sources
    from sketchmix.kmeans import KMeans
    from sketchmix.loading import load
    from sketchmix.mixture import GaussianMixture
    from sketchmix.pca import PCA
    from sketchmix.selection import Selection, select
    from sketchmix.sketch import Sketch, Sketcher, concatenate
else:
    # A room is entered when something in it is asked for: `sketchmix --help` need not wait for scikit-learn.
    ROOMS = {
        "PCA": "pca",
        "GaussianMixture": "mixture",
        "KMeans": "kmeans",
        "Selection": "selection",
        "Sketch": "sketch",
        "Sketcher": "sketch",
        "concatenate": "sketch",
        "load": "loading",
        "select": "selection",
    }

    def __getattr__(name):
        """A public name, or the package of sources."""
        from importlib import import_module  # noqa: PLC0415 - so that it is no name of this package

        if name == "sources":
            return import_module("sketchmix.sources")
        if name not in ROOMS:
            raise AttributeError(f"module 'sketchmix' has no attribute {name!r}")
        globals()[name] = thing = getattr(import_module(f"sketchmix.{ROOMS[name]}"), name)
        return thing

    def __dir__():
        """With the names that nobody has asked for yet."""
        return sorted({*globals(), *__all__})
