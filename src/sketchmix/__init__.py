"""Gaussian mixtures and k-means for high-dimensional data seen once, fitted on sketches of it."""

from sketchmix.kmeans import KMeans
from sketchmix.loading import load
from sketchmix.mixture import GaussianMixture
from sketchmix.pca import PCA
from sketchmix.selection import Selection, select
from sketchmix.sketch import Sketch, Sketcher, concatenate

__all__ = ["PCA", "GaussianMixture", "KMeans", "Selection", "Sketch", "Sketcher", "concatenate", "load", "select"]
