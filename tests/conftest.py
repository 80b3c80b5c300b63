"""Data that several tests share."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]

DATA = Path(os.environ.get("SKETCHMIX_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))


def load(name: str) -> dict[str, Array]:
    """One of the real data sets, or a skip that says how to get it."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {DATA}; set SKETCHMIX_DATA to the folder that holds it")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def digits_039() -> tuple[Array, Array]:
    """The 18,003 training images of 0, 3 and 9 in MNIST, and their digits."""
    mnist = load("mnist.npz")
    chosen = mnist["train"] & np.isin(mnist["y"], [0, 3, 9])
    return mnist["X"][chosen], mnist["y"][chosen]


@pytest.fixture
def blobs() -> tuple[Array, Array]:
    """2,000 rows of 64 features in 4 well-separated round clusters, and their clusters."""
    rng = np.random.default_rng(0)
    centers = 4 * rng.normal(size=(4, 64))
    y = rng.integers(4, size=2000)
    return centers[y] + rng.normal(size=(2000, 64)), y
