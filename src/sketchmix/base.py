"""What the estimators share: a sketch of their own, and reading rows block by block afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils import assert_all_finite
from threadpoolctl import threadpool_limits

from sketchmix import persistence, validation
from sketchmix.moments import Block, dense_block
from sketchmix.persistence import Contents, Reader
from sketchmix.portable import member, sketcher_of_json, sketcher_to_json
from sketchmix.sketch import Sketch, Sketcher, workers
from sketchmix.sources import Rows, Source, prefetched
from sketchmix.sources.rows import is_of_dask

Array = NDArray[Any]

SKETCHER_PARAMETERS = ("sketch_size", "transform", "n_shared", "dtype", "random_state")
# Rows that are rotated, or whose densities are held, at a time.
ROWS_AT_A_TIME = 16384


Method = TypeVar("Method", bound=Callable[..., Any])


def one_blas_thread(method: Method) -> Method:
    """Keep BLAS to one thread: its others spin for a while after a product, where the core's want to work."""
    limited: Method = threadpool_limits.wrap(limits=1, user_api="blas")(method)
    return limited


def fitting(method: Method) -> Method:
    """What is around a `fit`: BLAS is kept to one thread, and callbacks hear of the end even if it is an error."""
    managed: Method = with_callbacks(one_blas_thread(method))
    return managed


class SketchEstimator(CallbackSupportMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that fits a Sketch: one that it is given, or the one that it makes of the rows."""

    sketcher_: Sketcher

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted model as a safetensors file, for :func:`load`.

        Needs the package safetensors: ``pip install "sketchmix[models]"``. `labels_` are not saved, nor are
        callbacks, nor a `random_state` that is a generator: None takes its place.

        Parameters
        ----------
        path : str or path
            The file. One that is there already is replaced, once the new one is whole.

        Returns
        -------
        None
            Nothing.
        """
        validation.check_fitted(self, "sketcher_")
        validation.check_own_class(type(self))
        contents = self._contents()
        self._of_contents(contents)  # refuses now what `load` would refuse
        persistence.write(Path(path), contents)

    def _contents(self) -> Contents:
        """All that makes this model."""
        parameters, arrays = persistence.parameters_of(self.get_params())
        state, tensors = self._fitted()
        state |= {"parameters": parameters, "sketcher": sketcher_to_json(self.sketcher_)}
        return Contents(type(self).__name__, state, arrays | tensors)

    @classmethod
    @one_blas_thread
    def _of_contents(cls, contents: Contents) -> Self:
        """The model that has these contents; a ValueError if none can."""
        read = Reader(contents)
        model = cls(**read.parameters(set(cls().get_params())))
        model._check_parameters()
        model.sketcher_ = sketcher_of_json(member(contents.state, "sketcher"))
        model._adopt_features(model.sketcher_)
        with np.errstate(over="ignore", invalid="ignore"):
            model._set_fitted(read)
        read.finish(model)
        return model

    def _check_parameters(self) -> None:
        """Refuse parameters that no fit can have."""
        raise NotImplementedError

    def _fitted(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What a fit found: what JSON can hold, and arrays."""
        raise NotImplementedError

    def _set_fitted(self, read: Reader) -> None:
        """What `_fitted` said, back from a file."""
        raise NotImplementedError

    def _sketch_of(
        self, X: ArrayLike | Source | Sketch, sketcher: Sketcher | None = None, first_row: int = 0
    ) -> Sketch:
        """The sketch to fit, made by `sketcher` or by a new one; sets what scikit-learn asks of the features."""
        if isinstance(X, Source):
            X = (sketcher or self._new_sketcher()).sketch(X, first_row=first_row)
        if isinstance(X, Sketch):
            validation.check_readable(X, least=1)
            self._adopt_features(X.sketcher)
            return X
        if is_of_dask(X):
            return self._sketch_in_workers(X, sketcher, first_row)
        rows = Rows(self, X, reset=sketcher is None)
        sketcher = sketcher or self._new_sketcher().fit_rows(rows)
        if hasattr(self, "feature_names_in_"):
            sketcher.feature_names_in_ = self.feature_names_in_
        return sketcher.transform_rows(rows, first_row)

    def _sketch_in_workers(self, X: Any, sketcher: Sketcher | None, first_row: int) -> Sketch:
        """The same of rows in a Dask collection."""
        found = workers().blocks_of(X)
        rows = Rows(self, found.head, reset=sketcher is None, least=0)
        sketcher = sketcher or self._new_sketcher().fit_rows(rows)
        if hasattr(self, "feature_names_in_"):
            sketcher.feature_names_in_ = self.feature_names_in_
        sketch: Sketch = workers().sketched(sketcher, found, first_row)
        validation.check_readable(sketch, least=1)
        return sketch

    def _new_sketcher(self) -> Sketcher:
        parameters = self.get_params(deep=False)
        return Sketcher(**{name: parameters[name] for name in SKETCHER_PARAMETERS})

    def _adopt_features(self, sketcher: Sketcher) -> None:
        self.n_features_in_ = sketcher.n_features_in_
        if hasattr(sketcher, "feature_names_in_"):
            self.feature_names_in_ = sketcher.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _of_rows(self, X: ArrayLike | Source | Sketch, function: Callable[[Block], Array]) -> Array:
        """What a function gives for each row to predict; a Dask array, of rows that lie with Dask.

        It must be one of a module, or a `partial` of one, so that it can be sent to where the rows are.
        """
        if isinstance(X, Sketch):
            self._check_own(X)
            return X.kept.mapped(function, ROWS_AT_A_TIME)
        if is_of_dask(X):
            mapped: Array = workers().mapped(function, X, self.sketcher_, ROWS_AT_A_TIME)
            return mapped
        return np.concatenate([function(block) for block in self._blocks(X)])

    def _check_own(self, sketch: Sketch) -> None:
        validation.check_same_frame(sketch, self.sketcher_)
        validation.check_readable(sketch, least=1)

    def _blocks(self, Z: ArrayLike | Source | Sketch) -> Iterator[Block]:
        """Rows to predict, a block at a time: the kept entries of a sketch, or all entries of raw rows."""
        if isinstance(Z, Sketch):
            self._check_own(Z)
            yield from Z.kept.blocks(ROWS_AT_A_TIME, exactly=True)
            return
        for rotated in self._rotated(Z):
            yield dense_block(rotated)

    def _rotated(self, X: ArrayLike | Source) -> Iterator[Array]:
        """All entries of raw rows in the rotated frame, a block at a time."""
        for rows in self._raw(X):
            for _, block in rows.blocks(rows.float_dtype):
                for first in range(0, len(block), ROWS_AT_A_TIME):
                    part = block[first : first + ROWS_AT_A_TIME]
                    assert_all_finite(part, input_name="X")
                    yield self.sketcher_.rotation_.forward(part)

    def _raw(self, X: ArrayLike | Source) -> Iterator[Rows]:
        """Raw rows: those of an array at once, those of a source batch by batch."""
        if not isinstance(X, Source):
            yield Rows(self, X, reset=False)
            return
        n_rows = 0
        with closing(prefetched(X.batches())) as batches:
            for batch in batches:
                rows = Rows(self, batch, reset=False)
                n_rows += rows.n_samples
                yield rows
        validation.check_rows_were_read(n_rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
