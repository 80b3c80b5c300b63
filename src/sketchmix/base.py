"""What the estimators share: a sketch of their own, and reading rows block by block afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from threadpoolctl import threadpool_limits

from sketchmix import validation
from sketchmix.moments import Block, dense_block
from sketchmix.sketch import Sketch, Sketcher
from sketchmix.sources import Rows

Array = NDArray[Any]

SKETCHER_PARAMETERS = ("sketch_size", "transform", "n_shared", "dtype", "random_state")
# Rows that are rotated, or whose densities are held, at a time.
ROWS_AT_A_TIME = 16384


Method = TypeVar("Method", bound=Callable[..., Any])


def one_blas_thread(method: Method) -> Method:
    """Keep BLAS to one thread: its others spin for a while after a product, where the core's want to work."""
    limited: Method = threadpool_limits.wrap(limits=1, user_api="blas")(method)
    return limited


class SketchEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that fits a Sketch: one that it is given, or the one that it makes of the rows."""

    sketcher_: Sketcher

    def _sketch_of(self, X: ArrayLike | Sketch, sketcher: Sketcher | None = None, first_row: int = 0) -> Sketch:
        """The sketch to fit, made by `sketcher` or by a new one; sets what scikit-learn asks of the features."""
        if isinstance(X, Sketch):
            validation.check_readable(X, least=1)
            self._adopt_features(X.sketcher)
            return X
        rows = Rows(self, X, reset=sketcher is None)
        if sketcher is None:
            params = self.get_params(deep=False)
            sketcher = Sketcher(**{name: params[name] for name in SKETCHER_PARAMETERS}).fit_rows(rows)
        if hasattr(self, "feature_names_in_"):
            sketcher.feature_names_in_ = self.feature_names_in_
        return sketcher.transform_rows(rows, first_row)

    def _adopt_features(self, sketcher: Sketcher) -> None:
        self.n_features_in_ = sketcher.n_features_in_
        if hasattr(sketcher, "feature_names_in_"):
            self.feature_names_in_ = sketcher.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _blocks(self, Z: ArrayLike | Sketch) -> Iterator[Block]:
        """Rows to predict, a block at a time: the kept entries of a sketch, or all entries of raw rows."""
        if isinstance(Z, Sketch):
            validation.check_same_frame(Z, self.sketcher_)
            validation.check_readable(Z, least=1)
            for first in range(0, len(Z), ROWS_AT_A_TIME):
                yield Z[first : first + ROWS_AT_A_TIME].block
            return
        for rotated in self._rotated(Rows(self, Z, reset=False)):
            yield dense_block(rotated)

    def _rotated(self, rows: Rows) -> Iterator[Array]:
        """All entries of raw rows in the rotated frame, a block at a time."""
        for _, block in rows.blocks(rows.float_dtype):
            for first in range(0, len(block), ROWS_AT_A_TIME):
                part = block[first : first + ROWS_AT_A_TIME]
                assert_all_finite(part, input_name="X")
                yield self.sketcher_.rotation_.forward(part)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
