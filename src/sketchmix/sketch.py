"""The `Sketcher`, which rotates rows and keeps some entries of each, and the `Sketch`, the value it makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, check_random_state

from sketchmix import _core, reservoir, validation
from sketchmix.moments import Block, Parameters, add_up, squared_distances, sums_by_coordinate
from sketchmix.parameters import HasTransformParameter
from sketchmix.pieces import Pieces
from sketchmix.reservoir import Reservoir
from sketchmix.rotation import ROTATIONS, best_transform, copy_tables
from sketchmix.sources import Rows, source_of
from sketchmix.sources.rows import is_of_dask

Array = NDArray[Any]

TRANSFORMS = ("auto", *ROTATIONS)
# Rows brought back to the user's space at a time, and rows whose distances to dense points are computed.
UNROTATED_ROWS = 1024
COMPARED_ROWS = 16384


class Sketcher(HasTransformParameter, BaseEstimator):  # type: ignore[misc]
    """Rotate rows by a random orthonormal system and keep a few random entries of each.

    Parameters
    ----------
    sketch_size : int, float or "auto", default="auto"
        Entries kept of each row: a number, or a share of the features in (0, 1]. "auto" keeps a tenth, but at
        least 64 (all of them where there are fewer).
    transform : {"auto", "hadamard", "dct", "fourier", "none"}, default="auto"
        The orthonormal matrix H that mixes a row before its entries are drawn. "auto" takes the fastest,
        "hadamard", and none where every entry is kept.
    n_shared : int, default=0
        How many of the kept entries are the same in every row.
    dtype : {"float16", "float32", "float64"}, default="float32"
        What the sketch stores.
    random_state : int, RandomState instance or None, default=None
        Draws the signs, the shared entries, and the seed of the kept entries.

    Attributes
    ----------
    n_features_in_ : int
        Features of a row.
    signs_ : ndarray of shape (n_features_in_,)
        The random signs D, +1 or -1.
    transform_ : str
        The transform that "auto" stands for.
    sketch_size_ : int
        Entries kept of each row.
    shared_indices_ : ndarray of shape (n_shared,)
        The entries that every row keeps.
    n_rotated_ : int
        Entries of a rotated row: `n_features_in_`, or a few more where a Hadamard transform is padded.
    rotation_ : Rotation
        The rotation itself.
    seed_ : int
        Which entries row i keeps is a function of (seed_, i) alone.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> X = np.random.default_rng(0).normal(size=(1000, 256))
    >>> sketch = sm.Sketcher(sketch_size=16, random_state=0).fit_transform(X)
    >>> sketch.values.shape, sketch.nbytes
    ((1000, 16), 96000)
    """

    def __init__(
        self,
        sketch_size: int | float | str = "auto",
        transform: str = "auto",
        n_shared: int = 0,
        dtype: DTypeLike = "float32",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.sketch_size = sketch_size
        self.transform = transform  # type: ignore[assignment, method-assign]
        self.n_shared = n_shared
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002
        """Draw the rotation for rows as wide as those of X; nothing else of X is used.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        Sketcher
            This sketcher.
        """
        if is_of_dask(X):
            return self.fit_rows(Rows(self, workers().blocks_of(X).head, reset=True, least=0))
        return self.fit_rows(Rows(self, X, reset=True))

    def transform(self, X: ArrayLike, *, first_row: int = 0) -> Sketch:
        """Sketch rows.

        Rows of a Dask collection are sketched by Dask's workers, and their sketch stays there: see docs/dask.md.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
            Rows; or a Dask array, a Dask data frame, or a list of delayed blocks.
        first_row : int, default=0
            The number of the first row in the whole data set. Rows that are numbered on from batch to batch
            give the same sketch as all of them at once.

        Returns
        -------
        Sketch
            The kept entries and where they lie.
        """
        validation.check_fitted(self, "signs_")
        first_row = validation.check_first_row(first_row)
        if is_of_dask(X):
            found = workers().blocks_of(X)
            Rows(self, found.head, reset=False, least=0)
            sketch: Sketch = workers().sketched(self, found, first_row)
            return sketch
        return self.transform_rows(Rows(self, X, reset=False, least=0), first_row)

    def fit_transform(self, X: ArrayLike, y: object = None) -> Sketch:  # noqa: ARG002
        """Draw the rotation, then sketch the same rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        Sketch
            The kept entries and where they lie.
        """
        if is_of_dask(X):
            return self.fit(X).transform(X)
        rows = Rows(self, X, reset=True)
        return self.fit_rows(rows).transform_rows(rows, 0)

    def sketch(
        self,
        source: object,
        *,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        rows: tuple[int, int] | None = None,
        first_row: int = 0,
        rows_per_shard: int | None = None,
        progress: Callable[[int], None] | None = None,
        verbose: int = 0,
    ) -> Sketch:
        """Sketch rows that come in batches, in memory or into a folder.

        Rows are numbered as they come: the sketch is the same, bit by bit, however they are cut into batches. If
        this sketcher is not fitted, the first batch does that.

        Parameters
        ----------
        source : Source, path, array-like or iterable of batches
            Where rows come from; see :func:`sketchmix.sources.source_of`. An iterator is read one batch ahead: it
            must not write into a batch that it gave away.
        out : path-like, optional
            A folder for the sketch, which is then read from there when it is used. Without it, the sketch stays in
            memory.
        resume : bool, default=False
            Whether to go on with what is in the folder, if somebody began it and was stopped. The source must give
            the same rows again.
        rows : tuple of (int, int), optional
            The first row of the source to sketch, and the first one not to. Others are skipped, but counted: parts
            of a data set that were sketched so, on whatever machines, can be opened together.
        first_row : int, default=0
            The number of the source's first row in the whole data set, where the source is a part of it.
        rows_per_shard : int, optional
            How many rows a file has; by default, about 32 MB of them.
        progress : callable, optional
            Called now and then with the number of rows that are sketched.
        verbose : int, default=0
            Print every few seconds how many rows were sketched, if positive.

        Returns
        -------
        Sketch
            The kept entries and where they lie.

        Examples
        --------
        >>> import numpy as np
        >>> import sketchmix as sm
        >>> batches = (np.random.default_rng(i).normal(size=(100, 256)) for i in range(10))
        >>> sm.Sketcher(sketch_size=16, random_state=0).sketch(batches)
        Sketch(1000 rows, 16 of 256 entries kept, transform='hadamard', dtype='float32', 96000 bytes)
        """
        from sketchmix import store, stream  # noqa: PLC0415 - rooms that are made of this one

        first, after = validation.check_span(rows)
        first_row = validation.check_first_row(first_row)
        if rows_per_shard is not None:
            rows_per_shard = validation.check_integer("rows_per_shard", rows_per_shard, least=1)
        n_rows = None if after is None else after - first
        if validation.check_verbose(verbose) and progress is None:
            progress = stream.printer(n_rows)
        job = stream.Job(source_of(source), first, n_rows, first_row + first, progress)
        if out is None:
            return stream.sketch_in_memory(self, job, rows_per_shard)
        return store.sketch_into(Path(out), self, job, rows_per_shard, resume=resume)

    def rotate(self, X: ArrayLike) -> Array:
        """Rotate rows without dropping anything.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_rotated_)
            H D x for each row x, in the rows' own floating type.
        """
        validation.check_fitted(self, "signs_")
        rows = Rows(self, X, reset=False, least=0)
        out = np.empty((rows.n_samples, self.n_rotated_), rows.float_dtype)
        for first, block in rows.blocks(rows.float_dtype):
            assert_all_finite(block, input_name="X")
            out[first : first + len(block)] = self.rotation_.forward(block)
        return out

    def unrotate(self, Y: ArrayLike) -> Array:
        """Bring rotated rows back to the user's space.

        Parameters
        ----------
        Y : array-like of shape (n_samples, n_rotated_)
            Rotated rows.

        Returns
        -------
        ndarray of shape (n_samples, n_features_in_)
            The rows x with H D x = y (for padded transforms: the nearest).
        """
        validation.check_fitted(self, "signs_")
        rotated = validation.check_rotated(Y, self.n_rotated_)
        return self.rotation_.inverse(rotated)

    @property
    def n_rotated_(self) -> int:
        """Entries of a rotated row."""
        return self.rotation_.n_rotated

    def has_same_frame(self, other: Sketcher) -> bool:
        """Whether both rotate rows in the same way.

        Parameters
        ----------
        other : Sketcher
            A fitted sketcher.

        Returns
        -------
        bool
            Whether rotated rows of both can be compared.
        """
        return self.transform_ == other.transform_ and np.array_equal(self.signs_, other.signs_)

    def is_same_operator(self, other: Sketcher) -> bool:
        """Whether both rotate rows in the same way and keep the same entries of them.

        Parameters
        ----------
        other : Sketcher
            A fitted sketcher.

        Returns
        -------
        bool
            Whether sketches of both can be joined.
        """
        return (
            self.has_same_frame(other)
            and self.sketch_size_ == other.sketch_size_
            and self.seed_ == other.seed_
            and np.array_equal(self.shared_indices_, other.shared_indices_)
        )

    def fit_rows(self, rows: Rows) -> Self:
        """`fit`, for rows that were validated already.

        Parameters
        ----------
        rows : Rows
            Rows.

        Returns
        -------
        Sketcher
            This sketcher.
        """
        transform = validation.check_choice("transform", vars(self)["transform"], TRANSFORMS)
        validation.check_dtype(self.dtype)
        size = validation.check_sketch_size(self.sketch_size, rows.n_features)
        n_shared = validation.check_n_shared(self.n_shared, size)
        rng = check_random_state(self.random_state)
        self.n_features_in_ = rows.n_features
        self.sketch_size_ = size
        self.transform_ = best_transform(rows.n_features, size) if transform == "auto" else transform
        self.seed_ = int(rng.randint(0, np.iinfo(np.int64).max, dtype=np.int64))
        signs = rng.choice(np.array([-1, 1], np.int8), rows.n_features)
        self.rotation_ = ROTATIONS[self.transform_](rows.n_features, signs)
        self.signs_ = self.rotation_.signs
        self.shared_indices_ = np.sort(rng.permutation(self.n_rotated_)[:n_shared]).astype(np.uint32)
        return self

    def transform_rows(self, rows: Rows, first_row: int) -> Sketch:
        """`transform`, for rows that were validated already.

        Parameters
        ----------
        rows : Rows
            Rows.
        first_row : int
            The number of the first of them.

        Returns
        -------
        Sketch
            The kept entries and where they lie.
        """
        values, indices = self.empty(rows.n_samples)
        largest, held = self.sketch_into(rows, first_row, values, indices)
        return Sketch._trusted(Pieces.of(Block(values, indices, largest)), copy(self), held)

    def empty(self, n_rows: int) -> tuple[Array, Array]:
        """Arrays for the kept entries of so many rows, and for where they lie.

        Parameters
        ----------
        n_rows : int
            How many rows.

        Returns
        -------
        values, indices : ndarray of shape (n_rows, sketch_size_)
            To be filled.
        """
        shape = n_rows, self.sketch_size_
        index_dtype = np.uint16 if self.n_rotated_ <= 2**16 else np.uint32
        return np.empty(shape, validation.check_dtype(self.dtype)), np.empty(shape, index_dtype)

    def sketch_into(self, rows: Rows, first_row: int, values: Array, indices: Array) -> tuple[float, Reservoir]:
        """Sketch rows that were validated already into arrays.

        Parameters
        ----------
        rows : Rows
            Rows.
        first_row : int
            The number of the first of them.
        values : ndarray of shape (n_samples, sketch_size_)
            For the kept entries: what `empty` makes, or a part of it.
        indices : ndarray of shape (n_samples, sketch_size_)
            For where they lie; likewise.

        Returns
        -------
        largest : float
            The largest magnitude that was kept.
        held : Reservoir
            The dense rows that a reservoir of all rows up to these may hold: fewer, the later they come.
        """
        dtype = values.dtype
        float_dtype = np.result_type(rows.float_dtype, np.float64 if dtype == np.float64 else np.float32)
        is_free = np.ones(self.n_rotated_, bool)
        is_free[self.shared_indices_] = False
        free = np.flatnonzero(is_free).astype(np.uint32)
        tables = self.rotation_.tables(self.sketch_size_)
        largest = 0.0
        for first, block in rows.blocks(float_dtype):
            part = slice(first, first + len(block))
            # Unmixed rows show a NaN only where it was kept; mixed ones show it everywhere.
            if self.transform_ == "none":
                assert_all_finite(block, input_name="X")
            entries = block if tables else self.rotation_.forward(block)
            largest_of_block = _core.sketch(
                entries,
                tables or copy_tables(self.n_rotated_),
                self.seed_,
                first_row + first,
                self.shared_indices_,
                free,
                values[part],
                indices[part],
            )
            validation.check_finite(largest_of_block, block, dtype)
            largest = max(largest, largest_of_block)
        return largest, self._reservoir(rows, first_row, float_dtype)

    def _reservoir(self, rows: Rows, first_row: int, dtype: np.dtype[Any]) -> Reservoir:
        threshold = reservoir.largest_key(self.n_rotated_, dtype, first_row + rows.n_samples)
        positions = reservoir.rows_with_keys_up_to(threshold, self.seed_, first_row, rows.n_samples)
        dense = self.rotation_.forward(rows.take(positions, dtype))
        return Reservoir(dense, positions, reservoir.row_keys(self.seed_, first_row + positions), threshold)


def workers() -> ModuleType:
    """The room of Dask, which is optional."""
    return import_module("sketchmix.workers")


class Inclusion(NamedTuple):
    """How probable it is that a row keeps an entry, and two entries."""

    is_shared: Array  # (n_rotated,): what every row keeps
    single: float  # any other entry, a free one
    pair: float  # any two free entries

    @classmethod
    def of(cls, n_rotated: int, sketch_size: int, shared: Array) -> Inclusion:
        """The probabilities for rows that keep `sketch_size` entries, the shared ones among them."""
        is_shared = np.zeros(n_rotated, bool)
        is_shared[shared] = True
        free, kept = n_rotated - len(shared), sketch_size - len(shared)
        single = kept / free if free else 1.0
        return cls(is_shared, single, single * (kept - 1) / (free - 1) if free > 1 else 1.0)

    @property
    def singles(self) -> Array:
        """The probability of each entry, (n_rotated,)."""
        return np.where(self.is_shared, 1.0, self.single)

    @property
    def correction_of_pairs(self) -> float:
        """What makes a product of two free entries, each divided by `single`, unbiased; NaN if none is seen."""
        return self.single**2 / self.pair if self.pair else np.nan

    @property
    def corrections(self) -> Array:
        """The same for every two entries, (n_rotated, n_rotated)."""
        both_free = np.logical_and.outer(~self.is_shared, ~self.is_shared)
        factors = np.where(both_free, self.correction_of_pairs, 1.0)
        np.fill_diagonal(factors, self.singles)
        return factors


def around_mean(squared_sums: Array, squares: Array, full_squares: Array, n: int) -> Array:
    """Squares around the mean, for a row; unbiased, as the squared mean is taken from pairs of different rows."""
    return full_squares / n - (squared_sums - squares + full_squares) / n**2


class Sketch:
    """The kept entries of rotated rows: a value, used by estimators and never changed by them.

    Parameters
    ----------
    values : ndarray of shape (n_samples, sketch_size)
        Kept entries, of type float16, float32 or float64.
    indices : ndarray of shape (n_samples, sketch_size)
        Where they lie in the rotated row, increasing in each row; of type uint16 or uint32.
    sketcher : Sketcher
        The fitted sketcher that made them.

    See Also
    --------
    Sketcher.transform : Makes sketches.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> X = np.random.default_rng(0).normal(size=(1000, 256))
    >>> sketch = sm.Sketcher(sketch_size=16, random_state=0).fit_transform(X)
    >>> len(sketch[:100]), sketch.n_features, sketch.sketch_size
    (100, 256, 16)
    >>> bool(abs(sketch.variance().mean() - X.var()) < 0.05)
    True
    """

    def __init__(self, values: Array, indices: Array, sketcher: Sketcher) -> None:
        validation.check_fitted(sketcher, "signs_")
        values, indices = as_kernels_read(values), as_kernels_read(indices)
        validation.check_sketch_arrays(values, indices, sketcher)
        self._set(Pieces.of(Block.of(values, indices)), copy(sketcher), None)

    @classmethod
    def _trusted(cls, kept: Pieces, sketcher: Sketcher, held: Reservoir | None) -> Self:
        sketch = cls.__new__(cls)
        sketch._set(kept, sketcher, held)
        return sketch

    def _set(self, kept: Pieces, sketcher: Sketcher, held: Reservoir | None) -> None:
        self._kept, self._sketcher, self._reservoir = kept.read_only(), sketcher, held

    def __reduce__(self) -> tuple[Any, ...]:
        return self._trusted, (self._kept, self._sketcher, self._reservoir)

    @property
    def values(self) -> Array:
        """Kept entries, (n_samples, sketch_size); read-only. A copy, of a sketch that lies in several pieces."""
        return self._kept.whole().values

    @property
    def indices(self) -> Array:
        """Where the kept entries lie in the rotated row, (n_samples, sketch_size); like `values`."""
        return self._kept.whole().indices

    @property
    def kept(self) -> Pieces:
        """What the statistics are computed from."""
        return self._kept

    @property
    def sketcher(self) -> Sketcher:
        """The sketcher that made this sketch."""
        return self._sketcher

    @property
    def reservoir(self) -> Reservoir | None:
        """Some dense rotated rows, for seeding; None for a sketch made from bare arrays."""
        return self._reservoir

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self._kept.n_rows

    @property
    def n_features(self) -> int:
        """Features of a raw row."""
        return int(self._sketcher.n_features_in_)

    @property
    def sketch_size(self) -> int:
        """Entries kept of each row."""
        return self._kept.sketch_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the kept entries."""
        return self._kept.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of values and indices."""
        return self.n_samples * self.sketch_size * (self.dtype.itemsize + self._kept.index_dtype.itemsize)

    @property
    def scale(self) -> float:
        """P/Q: what makes a sum over the kept entries an estimate of the sum over all."""
        return self._sketcher.n_rotated_ / self.sketch_size

    def __len__(self) -> int:
        return self.n_samples

    def __repr__(self) -> str:
        return (
            f"Sketch({self.n_samples} rows, {self.sketch_size} of {self._sketcher.n_rotated_} entries kept, "
            f"transform={self._sketcher.transform_!r}, dtype={self.dtype.name!r}, {self.nbytes} bytes)"
        )

    def __getitem__(self, rows: slice | ArrayLike) -> Sketch:
        """Some of the rows, by a slice, a mask or an array of positions."""
        if isinstance(rows, slice):
            which = np.arange(*rows.indices(self.n_samples))
        else:
            rows = validation.check_positions(rows)
            which = np.arange(self.n_samples)[rows]
        return self._trusted(self._kept.take(rows), self._sketcher, self._reservoir_of(which))

    def _reservoir_of(self, which: Array) -> Reservoir | None:
        """The dense rows among some rows, as often as these have them."""
        if self._reservoir is None:
            return None
        held = np.flatnonzero(np.isin(which, self._reservoir.positions))
        rows = self._reservoir.take(np.searchsorted(self._reservoir.positions, which[held]))
        return rows._replace(positions=held)

    def save(self, folder: str | os.PathLike[str]) -> Sketch:
        """Write the sketch into a folder, as plain .npy files and a manifest.

        Parameters
        ----------
        folder : path-like
            A new folder, or an empty one.

        Returns
        -------
        Sketch
            The same rows, read from the folder.
        """
        from sketchmix import store  # noqa: PLC0415 - a room that is made of this one

        store.save(Path(folder), self)
        return self.open(folder)

    @classmethod
    def open(cls, *folders: str | os.PathLike[str], allow_incomplete: bool = False) -> Sketch:
        """The sketch in a folder, or in several that hold parts of one data set.

        Rows are mapped into memory when they are used, a file at a time, and checked against their checksums when
        they are used first.

        Parameters
        ----------
        *folders : path-like
            What `save` or `Sketcher.sketch` wrote. Parts may come in any order, but must follow each other.
        allow_incomplete : bool, default=False
            Whether to take the rows that are there where sketching was not finished.

        Returns
        -------
        Sketch
            All rows, in the order of their numbers.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import sketchmix as sm
        >>> X = np.random.default_rng(0).normal(size=(1000, 256))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = sm.Sketcher(sketch_size=16, random_state=0).sketch(X, out=folder)
        ...     sketch = sm.Sketch.open(folder)
        ...     mixture = sm.GaussianMixture(2, random_state=0).fit(sketch)
        >>> mixture.means_.shape
        (2, 256)
        """
        from sketchmix import stored  # noqa: PLC0415 - a room that is made of this one

        parts = [Path(folder) for folder in folders]
        return concatenate(stored.opened_parts(parts, allow_incomplete=allow_incomplete))

    def distribute(self) -> Sketch:
        """Hand the rows to the workers of Dask, so that fits are made there.

        Needs Dask (``pip install "sketchmix[dask]"``) and a client. Of a sketch in folders only the names of files
        travel: workers read them, and so must find them under the same paths. Rows in memory are sent.

        Returns
        -------
        Sketch
            The same rows, in the workers.

        Examples
        --------
        >>> import numpy as np
        >>> import sketchmix as sm
        >>> from dask.distributed import Client
        >>> X = np.random.default_rng(0).normal(size=(1000, 256))
        >>> with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None):
        ...     sketch = sm.Sketcher(sketch_size=16, random_state=0).fit_transform(X).distribute()
        ...     mixture = sm.GaussianMixture(2, random_state=0).fit(sketch)
        ...     labels = mixture.labels_.compute()
        >>> labels.shape
        (1000,)
        """
        distributed: Sketch = workers().into_workers(self)
        return distributed

    def to_csr(self) -> scipy.sparse.csr_array:
        """The kept entries as a sparse matrix.

        Returns
        -------
        csr_array of shape (n_samples, n_rotated)
            In the rotated frame; entries that were not kept are absent, not zero.
        """
        validation.check_readable(self)
        n, q, block = self.n_samples, self.sketch_size, self._kept.whole()
        values = block.values if block.dtype != np.float16 else block.values.astype(np.float32)
        pointers = np.arange(0, n * q + 1, q)
        shape = (n, self._sketcher.n_rotated_)
        return scipy.sparse.csr_array((values.ravel(), block.indices.astype(np.int32).ravel(), pointers), shape)

    def mean(self, *, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of the rows, in the user's space.

        Each rotated coordinate is averaged over the rows that kept it, which is unbiased over the draw of the
        kept entries whatever the rows are; the result is rotated back.

        Parameters
        ----------
        return_std : bool, default=False
            Also return the standard error, of each feature, that comes from seeing some entries only.

        Returns
        -------
        mean : ndarray of shape (n_features,)
            Estimate of ``X.mean(axis=0)``.
        std : ndarray of shape (n_features,)
            Its standard error; only if `return_std`.
        """
        validation.check_readable(self, least=1)
        count, total = sums_by_coordinate(self._kept, self._sketcher.n_rotated_)
        rotated = total / np.maximum(count, 1)
        mean: Array = self._sketcher.rotation_.inverse(rotated[None])[0]
        if not return_std:
            return mean
        return mean, self._standard_error(rotated, count)

    def _standard_error(self, mean: Array, count: Array) -> Array:
        """Of the mean, over the draw of the kept entries; NaN where less than two rows speak of a feature."""
        rotation, n = self._sketcher.rotation_, self.n_samples
        few = count < min(2, n)
        error: Array
        if rotation.name == "none":
            # A mean of `count` of n rows, drawn without replacement.
            around = Parameters(np.ones(1), mean[:, None], np.ones((len(mean), 1)))
            squares = add_up(self._kept, around, None, exact=True).second[:, 0]
            of_few = np.where(few, np.nan, np.maximum(count, 2))
            error = np.sqrt(squares / (of_few - 1) / of_few * (1 - count / n))
            return error
        if few.any() or not validation.has_pairs(self):
            return np.full(rotation.n_features, np.nan)
        _, squares, full_squares = self._second_moments(mean)
        error = np.sqrt(np.maximum(squares - full_squares, 0)) / n
        return error

    def variance(self) -> Array:
        """The variance of each feature over the rows, in the user's space.

        Unbiased over the draw of the kept entries: its expectation is ``X.var(axis=0)``. Where rows are mixed,
        this needs the products of *pairs* of kept entries, and so ``sketch_size - n_shared >= 2``.

        Returns
        -------
        ndarray of shape (n_features,)
            Estimate of ``X.var(axis=0)``. It may be negative where the sketch is far too small.
        """
        validation.check_readable(self, least=1)
        validation.check_pairs(self)
        sums, squares, full_squares = self._second_moments(self._centre())
        return around_mean(sums**2, squares, full_squares, self.n_samples)

    def covariance(self) -> Array:
        """The covariance matrix of the rows, in the user's space.

        Unbiased over the draw of the kept entries: its expectation is ``np.cov(X.T, bias=True)``, and its diagonal
        is `variance`. It rests on the products of pairs of kept entries, and so needs
        ``sketch_size - n_shared >= 2`` (or every entry), of rows that are not mixed as well.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Estimate of the covariance; symmetric, but not positive semi-definite where the sketch is small, as
            pairs of entries are seen less often than single ones.

        Notes
        -----
        Takes memory for a few matrices of n_rotated x n_rotated numbers, and time for n_samples of their products.
        """
        validation.check_readable(self, least=1)
        validation.check_pairs_of_every_kind(self)
        sums, products = self._sums_and_products(self._centre())
        full_products = products * self._inclusion().corrections
        rotated = around_mean(np.outer(sums, sums), products, full_products, self.n_samples)
        inverse = self._sketcher.rotation_.inverse
        covariance: Array = inverse(inverse(rotated).T)
        return (covariance + covariance.T) / 2

    def _centre(self) -> Array:
        """Near the mean; any centre that does not depend on which entries were kept leaves estimates unbiased."""
        if self._reservoir is None or not len(self._reservoir.rows):
            return np.zeros(self._sketcher.n_rotated_)
        centre: Array = self._reservoir.rows.mean(axis=0, dtype=float)
        return centre

    def _inclusion(self) -> Inclusion:
        sketcher = self._sketcher
        return Inclusion.of(sketcher.n_rotated_, self.sketch_size, sketcher.shared_indices_)

    def _weighted(self, centre: Array) -> Iterator[Array]:
        """Dense unbiased estimates of x - c in the rotated frame, a block of rows at a time.

        Kept entries are weighted by 1 / (probability of being kept), the others are zero.
        """
        inclusion = self._inclusion()
        for block in self._kept.blocks(UNROTATED_ROWS, exactly=True):
            indices = block.indices.astype(np.intp)
            weighted = (block.values - centre[indices]) / inclusion.singles[indices]
            dense = np.zeros((len(indices), len(centre)))
            np.put_along_axis(dense, indices, weighted, axis=1)
            yield dense

    def _sums_and_products(self, centre: Array) -> tuple[Array, Array]:
        """Over the rows, in the rotated frame: sums of u and of u u^T, with u as in `_weighted`."""
        sums = np.zeros(len(centre))
        products = np.zeros((len(centre), len(centre)))
        for dense in self._weighted(centre):
            sums += dense.sum(axis=0)
            products += dense.T @ dense
        return sums, products

    def _second_moments(self, centre: Array) -> tuple[Array, Array, Array]:
        """Over the rows, in the user's space: sums of u and of u^2, and an estimate of the sum of (x - c)^2.

        u is the unrotated row of `_weighted`: an unbiased estimate of x - c. Its square overcounts what products
        of an entry with itself, and of pairs of free entries, have in their probabilities; the estimate takes both
        back, and needs no matrix for it.
        """
        rotation, inclusion = self._sketcher.rotation_, self._inclusion()
        is_shared, single = inclusion.is_shared, inclusion.single
        sums, squares, free_squares = np.zeros((3, rotation.n_features))
        diagonal = np.zeros(rotation.n_rotated)
        for dense in self._weighted(centre):
            u = rotation.inverse(dense)
            sums += u.sum(axis=0)
            squares += (u**2).sum(axis=0)
            dense[:, is_shared] = 0
            diagonal += (dense**2).sum(axis=0)
            free_squares += (rotation.inverse(dense) ** 2).sum(axis=0) if is_shared.any() else (u**2).sum(axis=0)
        own = rotation.variances(diagonal[None])[0]
        pairs = 0 if rotation.name == "none" else (free_squares - own) * inclusion.correction_of_pairs
        return sums, squares, squares - free_squares + pairs + single * own

    def distances(self, centers: ArrayLike | None = None) -> Array:
        """Squared distances, estimated from the kept entries.

        Parameters
        ----------
        centers : array-like of shape (n_centers, n_features), optional
            Dense points in the user's space. Without them, distances between the rows of the sketch, each from
            the entries that both rows kept.

        Returns
        -------
        ndarray of shape (n_samples, n_centers) or (n_samples, n_samples)
            Sums over the kept entries, scaled by P/Q (between rows: by P over the size of the overlap, and NaN
            where two rows have no entry in common).
        """
        validation.check_readable(self)
        if centers is None:
            return self._distances_between_rows()
        unnamed = copy(self._sketcher)
        if not hasattr(centers, "columns"):
            unnamed.__dict__.pop("feature_names_in_", None)
        points = unnamed.rotate(centers).astype(float)
        columns = np.ascontiguousarray(points.T)
        blocks = self._kept.blocks(COMPARED_ROWS, exactly=True)
        return np.concatenate([squared_distances(block, columns) * self.scale for block in blocks])

    def _distances_between_rows(self) -> Array:
        rows = self.to_csr().astype(float)
        kept = rows.copy()
        kept.data = np.ones_like(kept.data)
        squares = rows.power(2) @ kept.T
        overlap = (kept @ kept.T).toarray()
        sums = (squares + squares.T - 2 * (rows @ rows.T)).toarray()
        with np.errstate(invalid="ignore", divide="ignore"):
            between: Array = np.maximum(sums, 0) * self._sketcher.n_rotated_ / np.where(overlap, overlap, np.nan)
        return between


def concatenate(sketches: Sequence[Sketch]) -> Sketch:
    """Join sketches made by the same sketcher, one after the other.

    Parameters
    ----------
    sketches : sequence of Sketch
        At least one.

    Returns
    -------
    Sketch
        All their rows.

    Examples
    --------
    >>> import numpy as np
    >>> import sketchmix as sm
    >>> X = np.random.default_rng(0).normal(size=(1000, 256))
    >>> sketcher = sm.Sketcher(sketch_size=16, random_state=0).fit(X)
    >>> parts = [sketcher.transform(X[:300]), sketcher.transform(X[300:], first_row=300)]
    >>> len(sm.concatenate(parts))
    1000
    """
    sketches = list(sketches)
    validation.check_joinable(sketches)
    first = sketches[0]
    pieces = [piece for sketch in sketches for piece in sketch.kept.pieces if piece.n_rows]
    kept = replace(first.kept, pieces=tuple(pieces) or first.kept.pieces)
    held = reservoir.joined([(len(sketch), sketch.reservoir) for sketch in sketches])
    return Sketch._trusted(kept, first.sketcher, held)


def as_kernels_read(array: ArrayLike) -> Array:
    """An array in this machine's byte order whose rows are contiguous."""
    array = np.asarray(array)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
