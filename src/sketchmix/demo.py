"""The main job, end to end: ``python -m sketchmix.demo``.

Handwritten digits, sketched in one pass and clustered from 4% of their pixels, beside scikit-learn's mixture on
all of them.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import zoom
from scipy.optimize import linear_sum_assignment
from sklearn import mixture
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm

Array = NDArray[Any]

DIGITS = (0, 3, 4, 6)
SIDE = 28
N_IMAGES = 20_000
SKETCH_SIZE = 30


def images() -> tuple[Array, Array]:
    """20,000 images of 28 x 28: the digits that scikit-learn carries, enlarged, shifted and made noisy."""
    rng = np.random.default_rng(0)
    digits = load_digits()
    small, labels = (part[np.isin(digits.target, DIGITS)] for part in (digits.images, digits.target))
    large = zoom(small, (1, 2.5, 2.5), order=1)
    which = rng.integers(len(large), size=N_IMAGES)
    shifts = rng.integers(7, 10, size=(N_IMAGES, 2))
    canvas = np.zeros((N_IMAGES, 36, 36), np.float32)
    for image, source, (down, right) in zip(canvas, which, shifts, strict=True):
        image[down : down + 20, right : right + 20] = large[source]
    pixels = canvas[:, 4 : 4 + SIDE, 4 : 4 + SIDE].reshape(N_IMAGES, -1)
    pixels += rng.normal(scale=1.0, size=pixels.shape).astype(np.float32)
    return pixels, labels[which]


def accuracy(labels: Array, truth: Array) -> float:
    """Share of rows whose cluster is that of their digit, for the best matching of clusters to digits."""
    counts = np.array([[np.sum(labels[truth == digit] == k) for k in range(len(DIGITS))] for digit in DIGITS])
    return float(counts[linear_sum_assignment(-counts)].sum() / len(truth))


def timed(model: Any, X: Array) -> tuple[Array, float]:
    """Labels, and the seconds it took to get them."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: Array = model.fit_predict(X)
    return labels, time.perf_counter() - started


def pyplot() -> Any:
    """What draws pictures, or a sentence that says how to get it."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - the only part that needs it
    except ImportError as error:
        raise ImportError('matplotlib is needed to draw: pip install "sketchmix[demo]".') from error

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt


def draw(plt: Any, path: Path, ours: Array, theirs: Array) -> None:
    """The means that each model found, as images."""
    figure, axes = plt.subplots(2, len(DIGITS), figsize=(1.7 * len(DIGITS), 3.9))
    titles = (f"sketchmix, {SKETCH_SIZE} of {SIDE**2} entries of each row", "scikit-learn, all entries")
    for row, means, title in zip(axes, (ours, theirs), titles, strict=True):
        row[0].set_title(title, loc="left", fontsize=10)
        for axis, mean in zip(row, means, strict=True):
            axis.imshow(mean.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=14)
            axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


@dataclass(frozen=True)
class Outcome:
    """How well a model does, and what it takes."""

    model: str
    accuracy: float
    seconds: float
    bytes: int


def compare(X: Array, truth: Array, picture: Path | None) -> tuple[Outcome, Outcome]:
    """Cluster images with one pass, and with scikit-learn; draw what both found, if that is wanted."""
    plt = pyplot() if picture else None
    K = len(DIGITS)
    ours = sm.GaussianMixture(K, sketch_size=SKETCH_SIZE, n_init=3, random_state=0)
    theirs = mixture.GaussianMixture(K, covariance_type="diag", n_init=3, random_state=0)
    (our_labels, our_seconds), (their_labels, their_seconds) = timed(ours, X), timed(theirs, X)
    if picture:
        order = [int(np.argmin(((theirs.means_ - mean) ** 2).sum(axis=1))) for mean in ours.means_]
        draw(plt, picture, ours.means_, theirs.means_[order])
    n_bytes = ours.sketcher_.transform(X).nbytes
    return (
        Outcome("sketchmix, one pass", accuracy(our_labels, truth), our_seconds, n_bytes),
        Outcome("scikit-learn, all entries", accuracy(their_labels, truth), their_seconds, X.nbytes),
    )


def main(picture: str = "demo.png") -> None:
    """Run the demo and write its picture."""
    X, truth = images()
    digits = ", ".join(map(str, DIGITS))
    print(f"{len(X):,} images of digits {digits}: {X.shape[1]} features, {X.nbytes / 1e6:.0f} MB")
    print("sketchmix from 4% of their entries, then scikit-learn from all, which takes a while longer", flush=True)
    ours, theirs = compare(X, truth, Path(picture))
    print()
    print(f"{'':28}{'accuracy':>10}{'seconds':>10}{'data held':>12}")
    for outcome in (ours, theirs):
        held = f"{outcome.bytes / 1e6:.1f} MB"
        print(f"{outcome.model:28}{outcome.accuracy:>10.3f}{outcome.seconds:>10.2f}{held:>12}")
    print()
    print(
        f"Every row was seen once, {SKETCH_SIZE} of its {X.shape[1]} rotated entries were kept "
        f"({SKETCH_SIZE / X.shape[1]:.1%}), {theirs.bytes / ours.bytes:.0f} times less to hold; "
        f"{theirs.seconds / ours.seconds:.0f} times faster."
    )
    print(f"The means of both: {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:])
