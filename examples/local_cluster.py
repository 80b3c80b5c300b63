"""A mixture fitted by several processes of one machine: what changes on a real cluster is the client alone.

Run with ``python examples/local_cluster.py``; needs ``pip install "sketchmix[dask]"``.
"""

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster

import sketchmix as sm

N_ROWS, N_FEATURES, N_CLUSTERS = 200_000, 256, 5


def rows_of_chunk(block_info=None):
    """Rows of some clusters: they are made in the worker that asks for them, as if read from a file there."""
    number, (height, width) = block_info[None]["chunk-location"][0], block_info[None]["chunk-shape"]
    centers = np.random.default_rng(0).normal(size=(N_CLUSTERS, width))
    rng = np.random.default_rng([1, number])
    return centers[rng.integers(N_CLUSTERS, size=height)] + rng.normal(size=(height, width))


def main() -> None:
    """Sketch, fit and predict."""
    # One process for each two cores, say: in a fit, a process works on all threads that Dask gives it.
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        chunks = ((20_000,) * 10, (N_FEATURES,))
        X = da.map_blocks(rows_of_chunk, chunks=chunks, dtype=float, meta=np.empty((0, 0)))

        sketch = sm.Sketcher(sketch_size=32, random_state=0).fit_transform(
            X
        )  # rows are made, sketched and dropped
        print(sketch)

        mixture = sm.GaussianMixture(n_components=N_CLUSTERS, random_state=0).fit(sketch)
        print(f"{mixture.n_iter_} iterations; weights", np.sort(mixture.weights_).round(3))

        labels = mixture.labels_  # a Dask array, in the workers until somebody asks
        print(labels.chunks[0], np.asarray(da.bincount(labels, minlength=N_CLUSTERS)))
        print("accuracy of raw rows beside sketched ones:", float((mixture.predict(X) == labels).mean().compute()))


if __name__ == "__main__":
    main()
