"""A sketch in Dask's workers is the sketch of one machine, and so are its fits."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pandas as pd
import pytest
from dask import dataframe as dd
from dask.sizeof import sizeof
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import sketchmix as sm
from sketchmix import _core, em, workers
from sketchmix.moments import Kept, add_up

Array = NDArray[Any]

CHUNKS = (300, 1, 900, 0, 799)
ROWS = sum(CHUNKS)


@contextmanager
def cluster(n_workers: int, *, threads: int = 1, processes: bool = False) -> Iterator[Client]:
    """A cluster on this machine."""
    kind = {"n_workers": n_workers, "threads_per_worker": threads, "processes": processes}
    with Client(**kind, dashboard_address=":0", set_as_default=False) as client, client.as_current():
        yield client


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[int, Client]]:
    """Clusters of 1, 2 and 4 workers, for all tests that do them no harm."""
    with ExitStack() as stack:
        yield {n: stack.enter_context(cluster(n)) for n in (1, 2, 4)}


@pytest.fixture(params=[1, 2, 4])
def client(request: pytest.FixtureRequest, clients: dict[int, Client]) -> Iterator[Client]:
    client = clients[request.param]
    with client.as_current():
        yield client


@pytest.fixture
def two_workers(clients: dict[int, Client]) -> Iterator[Client]:
    with clients[2].as_current():
        yield clients[2]


@pytest.fixture
def X(blobs: tuple[Array, Array]) -> Array:
    return blobs[0]


def computed(answer: Any) -> Array:
    """A Dask array, here."""
    assert isinstance(answer, da.Array)
    return answer.compute()


def in_chunks(X: Array) -> Any:
    """Rows as a Dask array with uneven chunks, one of them empty."""
    return da.from_array(X, chunks=(CHUNKS, X.shape[1]))


def sketches(X: Array, dtype: str = "float64", **parameters: Any) -> tuple[sm.Sketch, sm.Sketch]:
    """The same rows in workers, and here."""
    sketcher = sm.Sketcher(dtype=dtype, random_state=0, **{"sketch_size": 16, **parameters}).fit(X)
    return sketcher.transform(in_chunks(X)), sketcher.transform(X)


# -- the sketch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 17, 64])
def test_every_bit_of_the_sketch_is_that_of_one_machine(client: Client, X: Array, dtype: str, size: int) -> None:
    there, here = sketches(X[:ROWS], dtype, sketch_size=size)
    assert len(there.kept.pieces) == min(len(client.nthreads()), 3)
    assert (len(there), there.dtype, there.nbytes) == (len(here), here.dtype, here.nbytes)
    assert there.values.tobytes() == here.values.tobytes()
    assert there.indices.tobytes() == here.indices.tobytes()
    assert there.reservoir is not None
    assert here.reservoir is not None
    for part, whole in zip(there.reservoir, here.reservoir, strict=True):
        assert_array_equal(part, whole)
    assert there.kept.largest == here.kept.largest


def test_rows_are_numbered_from_the_first(two_workers: Client, X: Array) -> None:
    sketcher = sm.Sketcher(16, random_state=0).fit(X)
    there = sketcher.transform(in_chunks(X[:ROWS]), first_row=10**12)
    assert_array_equal(there.indices, sketcher.transform(X[:ROWS], first_row=10**12).indices)


def test_delayed_blocks_and_data_frames_are_counted(two_workers: Client, X: Array) -> None:
    blocks = [dask.delayed(part) for part in np.split(X, [100, 700])]
    here = sm.Sketcher(16, random_state=0).fit_transform(X)
    assert_array_equal(sm.Sketcher(16, random_state=0).fit_transform(blocks).values, here.values)

    frame = pd.DataFrame(X, columns=[f"feature {i}" for i in range(64)])
    there = sm.Sketcher(16, random_state=0).fit_transform(dd.from_pandas(frame, npartitions=3))
    assert_array_equal(there.values, here.values)
    assert list(there.sketcher.feature_names_in_) == list(frame.columns)

    model = sm.KMeans(4, sketch_size=16, random_state=0).fit(dd.from_pandas(frame, npartitions=3))
    labels = model.predict(dd.from_pandas(frame, npartitions=2))
    assert_array_equal(computed(labels), model.predict(frame))
    assert list(model.feature_names_in_) == list(frame.columns)


def test_some_rows_stay_in_their_workers(client: Client, X: Array) -> None:
    there, here = sketches(X[:ROWS])
    rng = np.random.default_rng(0)
    for rows in (slice(5, 1500, 7), rng.random(ROWS) < 0.1, np.arange(1990, 2000)):
        assert isinstance(there[rows].kept, workers.Spread)
        assert_array_equal(there[rows].values, here[rows].values)
        assert_allclose(there[rows].mean(), here[rows].mean(), atol=1e-12)
    assert_array_equal(there[[7, 3, 1900, 3]].values, here[[7, 3, 1900, 3]].values)
    assert_array_equal(sm.concatenate([there[:900], there[900:]]).values, here.values)
    assert_allclose(there.variance(), here.variance(), rtol=1e-10)


def test_store_in_parts_is_read_by_workers(two_workers: Client, X: Array, tmp_path: Path) -> None:
    for i, rows in enumerate([(0, 700), (700, 2000)]):
        sketcher = sm.Sketcher(16, dtype="float64", random_state=0)
        sketcher.sketch(X, out=tmp_path / f"part-{i}", rows=rows, rows_per_shard=250)
    here = sm.Sketch.open(tmp_path / "part-0", tmp_path / "part-1")
    there = here.distribute()
    assert len(there.kept.pieces) == 2
    assert there.distribute() is there
    assert_array_equal(there.values, here.values)
    fits = [sm.GaussianMixture(4, random_state=0).fit(sketch) for sketch in (there, here)]
    assert_allclose(fits[0].means_, fits[1].means_, rtol=1e-10)
    labels: Any = fits[0].labels_
    assert labels.chunks == ((250, 250, 200, 250, 250, 250, 250, 250, 50),)
    assert_array_equal(fits[0].labels_, fits[1].labels_)
    saved = there.save(tmp_path / "again")
    assert_array_equal(saved.values, here.values)


def test_rows_in_memory_are_cut_between_workers(client: Client, X: Array) -> None:
    here = sm.Sketcher(16, random_state=0).fit_transform(X)
    there = here.distribute()
    assert [piece.n_rows for piece in there.kept.pieces] == [2000 // len(client.nthreads())] * len(
        client.nthreads()
    )
    assert_array_equal(there.values, here.values)


# -- fits -------------------------------------------------------------------------------------------------

MODELS = [
    sm.GaussianMixture(4, covariance_type="diag", random_state=0),
    sm.GaussianMixture(4, covariance_type="spherical", random_state=0, n_init=2),
    sm.GaussianMixture(2, covariance_type="full", random_state=0, max_iter=4),
    sm.GaussianMixture(2, covariance_type="tied", random_state=0, max_iter=4),
    sm.GaussianMixture(4, covariance_type="low_rank", rank=2, random_state=0, max_iter=8),
    sm.GaussianMixture(4, covariance_type="low_rank", rank="auto", random_state=0, max_iter=4),
    sm.KMeans(4, random_state=0),
    sm.KMeans(4, random_state=0, init="random", n_init=1),
    sm.PCA(3, random_state=0),
]
ATTRIBUTES = (
    "weights_", "means_", "variances_", "lower_bounds_", "cluster_centers_", "inertia_", "components_", "mean_",
    "explained_variance_",
)  # fmt: skip


def attributes(model: Any) -> dict[str, Array]:
    """What a model found, by name."""
    return {name: np.asarray(getattr(model, name)) for name in ATTRIBUTES if hasattr(model, name)}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("model", "size"), [*((model, 16) for model in MODELS), *((m, 64) for m in MODELS[2:5])])
def test_fits_are_those_of_one_process(client: Client, X: Array, model: Any, size: int) -> None:
    there, here = sketches(X[:ROWS], sketch_size=size)
    rtol = 0 if len(there.kept.pieces) == 1 else 1e-10
    found = attributes(clone(model).fit(there))
    for name, expected in attributes(clone(model).fit(here)).items():
        # Dask adds up the distances of each chunk first.
        tolerance = 1e-14 if name == "inertia_" and not rtol else rtol
        assert_allclose(found[name], expected, rtol=tolerance, atol=rtol, err_msg=name)


@pytest.mark.parametrize("weights", [np.asarray, lambda w: da.from_array(w, chunks=(CHUNKS,))])
def test_weights_lie_beside_their_rows(client: Client, X: Array, weights: Any) -> None:
    there, here = sketches(X[:ROWS])
    w = np.random.default_rng(0).integers(0, 3, ROWS).astype(float)
    for model in (sm.GaussianMixture(4, random_state=0), sm.KMeans(4, random_state=0), sm.PCA(2)):
        found = attributes(clone(model).fit(there, sample_weight=weights(w)))
        for name, expected in attributes(clone(model).fit(here, sample_weight=w)).items():
            assert_allclose(found[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)


def test_float32_sums_are_those_of_the_parts(two_workers: Client, X: Array) -> None:
    """In float32 a shard is summed in that precision, and parts have shards of their own."""
    there, here = sketches(X[:ROWS], "float32")
    fits = [sm.GaussianMixture(40, random_state=0, max_iter=2, tol=1e9).fit(sketch) for sketch in (there, here)]
    assert_allclose(fits[0].means_, fits[1].means_, atol=1e-4)
    assert fits[0].lower_bound_ == pytest.approx(fits[1].lower_bound_, rel=1e-6)


def test_predictions_are_dask_arrays_in_the_chunks_of_the_rows(client: Client, X: Array) -> None:
    there, here = sketches(X[:ROWS])
    model = sm.GaussianMixture(4, random_state=0).fit(there)
    for predict in (model.predict, model.predict_proba, model.score_samples):
        for rows, same in ((there, here), (in_chunks(X[:ROWS]), X[:ROWS])):
            answer = predict(rows)
            assert isinstance(answer, da.Array)
            assert (answer.dtype, answer.shape) == (predict(same).dtype, predict(same).shape)
            assert [n for n in answer.chunks[0] if n] == [n for n in CHUNKS if n]
            assert_allclose(computed(answer), predict(same), rtol=1e-12, atol=1e-12)
    assert_array_equal(model.labels_, model.predict(here))
    assert model.score(there) == pytest.approx(model.score(here), rel=1e-12)
    assert model.bic(there) == pytest.approx(model.bic(here), rel=1e-12)
    assert model.icl(there) == pytest.approx(model.icl(here), rel=1e-12)


def test_other_models_answer_in_dask_arrays(two_workers: Client, X: Array) -> None:
    there, here = sketches(X[:ROWS])
    k_means, pca = sm.KMeans(4, random_state=0).fit(there), sm.PCA(2).fit(there)
    for answer in (k_means.predict, k_means.transform, pca.transform, pca.score_samples):
        for rows, same in ((there, here), (in_chunks(X[:ROWS]), X[:ROWS])):
            assert_allclose(computed(answer(rows)), answer(same), rtol=1e-10, atol=1e-10)
    assert k_means.score(there) == pytest.approx(k_means.score(here), rel=1e-12)


def test_estimators_sketch_dask_arrays(two_workers: Client, X: Array) -> None:
    there = sm.GaussianMixture(4, sketch_size=16, random_state=0, dtype="float64").fit(in_chunks(X[:ROWS]))
    here = sm.GaussianMixture(4, sketch_size=16, random_state=0, dtype="float64").fit(X[:ROWS])
    assert_allclose(there.means_, here.means_, rtol=1e-10)
    assert there.n_samples_seen_ == ROWS


def test_streams_take_batches_in_workers(two_workers: Client, X: Array) -> None:
    there, here = (sm.KMeans(4, sketch_size=16, random_state=0, dtype="float64") for _ in range(2))
    for first in (0, 1000):
        batch = X[first : first + 1000]
        there.partial_fit(da.from_array(batch, chunks=(300, 64)))
        here.partial_fit(batch)
    assert_allclose(there.cluster_centers_, here.cluster_centers_, rtol=1e-10)


# -- what it takes ----------------------------------------------------------------------------------------


class Counter(SchedulerPlugin):  # type: ignore[misc]
    """Counts the tasks that are computed."""

    name = "counter"

    def __init__(self) -> None:
        self.computed: list[str] = []

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if start == "processing" and finish == "memory":
            self.computed.append(str(key))


def test_tasks_of_an_iteration_are_few(client: Client, X: Array) -> None:
    there, _ = sketches(X)
    n_parts, counter, parameters = len(there.kept.pieces), Counter(), em.centre_of(there, None)
    client.cluster.scheduler.add_plugin(counter)
    moments = add_up(there.kept, parameters, None)
    client.cluster.scheduler.remove_plugin(counter.name)
    assert moments.size.sum() == pytest.approx(len(X))
    assert len(counter.computed) == 2 * n_parts <= len(CHUNKS) + len(client.nthreads())


def count_threads(kept: Kept, weight: Array | None) -> Array:
    return np.array([_core.max_threads()])


def test_workers_use_their_threads(X: Array) -> None:
    with cluster(2, threads=3):
        there, _ = sketches(X[:ROWS])
        assert len(there.kept.pieces) == 2
        assert there.kept.summed(count_threads, None) == 6


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_blocks_arrive_as_kernels_read_them(X: Array, offset: int) -> None:
    block = sm.Sketcher(16, random_state=0).fit_transform(X).kept.whole()
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(block, 5, buffer_callback=buffers.append)
    moved = [memoryview(bytes(offset) + buffer.raw())[offset:] for buffer in buffers]
    arrived = pickle.loads(message, buffers=moved)
    assert arrived.values.flags.aligned
    assert arrived.indices.flags.aligned
    assert_array_equal(arrived.values, block.values)
    assert_array_equal(arrived.indices, block.indices)


def test_dask_knows_how_large_parts_are(X: Array) -> None:
    sketch = sm.Sketcher(16, random_state=0).fit_transform(X)
    assert sketch.reservoir is not None
    assert sizeof(sketch) == sketch.nbytes + sketch.reservoir.rows.nbytes


# -- faults -----------------------------------------------------------------------------------------------


@pytest.fixture
def processes() -> Iterator[Client]:
    with cluster(2, processes=True) as client:
        yield client


def kill_one(client: Client) -> None:
    pid = next(iter(client.run(os.getpid).values()))
    os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_worker_changes_no_bit(processes: Client, X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = sketches(X[:ROWS])
    model = sm.GaussianMixture(4, random_state=0, tol=0, max_iter=6)
    with pytest.warns(ConvergenceWarning):
        expected = attributes(model.fit(there))
    iterate, met = em.Climb.iterate, []

    def dying(climb: em.Climb) -> None:
        met.append(climb)
        if len(met) == 3:
            kill_one(processes)
        iterate(climb)

    monkeypatch.setattr(em.Climb, "iterate", dying)
    with pytest.warns(ConvergenceWarning):
        found = attributes(model.fit(there))
    assert len(met) == 6
    for name in expected:
        assert_array_equal(found[name], expected[name])
    assert computed(model.labels_).shape == (ROWS,)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_rows_that_nobody_can_make_again_end_the_fit(X: Array) -> None:
    with cluster(1, processes=True) as client:
        rows = client.scatter(X)
        block = dask.delayed(rows)
        there = sm.Sketcher(16, random_state=0).fit_transform(da.from_delayed(block, X.shape, X.dtype))
        kill_one(client)
        with pytest.raises(RuntimeError, match=r"could not make them again.*files"):
            sm.GaussianMixture(4, random_state=0).fit(there)


# -- errors -----------------------------------------------------------------------------------------------


def test_chunks_must_be_known_and_of_whole_rows(two_workers: Client, X: Array) -> None:
    sketcher, rows = sm.Sketcher(16, random_state=0), da.from_array(X, chunks=(500, 64))
    unknown = rows[rows[:, 0] > 0]
    with pytest.raises(ValueError, match=r"unknown sizes.*X\.compute_chunk_sizes\(\)"):
        sketcher.fit_transform(unknown)
    assert len(sketcher.fit_transform(unknown.compute_chunk_sizes())) == (X[:, 0] > 0).sum()
    with pytest.raises(ValueError, match=r"4 chunks along its features.*rechunk\(\{1: -1\}\)"):
        sketcher.fit_transform(rows.rechunk((500, 16)))
    with pytest.raises(ValueError, match=r"expected \(n_samples, n_features\)"):
        sketcher.fit_transform(rows[:, 0])
    with pytest.raises(ValueError, match="64 features"):
        sketcher.fit(X).transform(rows[:, :63])


def test_blocks_must_be_what_was_announced(two_workers: Client, X: Array) -> None:
    wrong = da.from_delayed(dask.delayed(X), (1999, 64), X.dtype)
    with pytest.raises(ValueError, match="has 2000 rows, but 1999 were announced"):
        sm.Sketcher(16).fit_transform(wrong)


def test_errors_of_rows_come_from_the_workers(two_workers: Client, X: Array) -> None:
    X[7, 3] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        sm.GaussianMixture(2, sketch_size=16).fit(da.from_array(X, chunks=(500, 64)))


def test_there_must_be_a_client(X: Array) -> None:
    with pytest.raises(ValueError, match=r"no Dask client.*dask\.distributed\.Client\(\)"):
        copy_context().run(without_client, X)


def without_client(X: Array) -> None:
    distributed.client._current_client.set(None)
    sm.Sketcher(16).fit_transform(in_chunks(X[:ROWS]))


def test_there_must_be_workers(X: Array) -> None:
    rows = in_chunks(X[:ROWS])
    with cluster(0), pytest.raises(ValueError, match=r"has no workers.*wait_for_workers\(1\)"):
        sm.Sketcher(16).fit_transform(rows)


def test_what_cannot_be_distributed_says_so(two_workers: Client, X: Array) -> None:
    there, here = sketches(X[:ROWS])
    with pytest.raises(ValueError, match=r"sketch 1 and sketch 0 lie in different places.*distribute"):
        sm.concatenate([there, here])
    with pytest.raises(TypeError, match=r"rows in memory are expected here; got a Dask collection \(Array\)"):
        sm.KMeans(2).fit(here).refine(in_chunks(X[:ROWS]))
    with pytest.raises(ValueError, match="at least 1 is needed"):
        sm.KMeans(2).fit(da.from_array(X[:0], chunks=(1, 64)))


def test_without_dask_the_extra_is_named(X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sketchmix.workers")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r'pip install "sketchmix\[dask\]"'):
        sm.Sketcher(16).fit_transform(X).distribute()


def test_sketchmix_alone_imports_no_dask() -> None:
    code = "import sys, sketchmix; sketchmix.GaussianMixture(); assert 'dask' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
