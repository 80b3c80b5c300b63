"""Who is told of the iterations of a fit: scikit-learn's callbacks, and the terminal."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Protocol


class Result(Protocol):
    """Where a fit is after an iteration."""

    @property
    def n_iter(self) -> int:
        """Iterations so far."""

    @property
    def summary(self) -> str:
        """What to say of the last one, in a few words."""


class Watch:
    """Nobody: a fit that is part of another goes unseen."""

    def begin(self) -> None:
        """An iteration begins."""

    def end(self, result: Result) -> bool:  # noqa: ARG002
        """An iteration has ended; whether somebody asks that it be the last."""
        return False


UNSEEN = Watch()


def announced(estimator: Any) -> Any:
    """scikit-learn's context of a fit that begins; callbacks are told of it."""
    context = estimator._init_callback_context(max_subtasks=estimator.max_iter)
    return context.call_on_fit_task_begin(estimator=estimator)


class Audience(Watch):
    """The callbacks of an estimator, and the terminal if the estimator is `verbose`.

    Callbacks are shown the sketch as X: it is all that is left of the rows. A model as it would be after an
    iteration is made only if a callback asks for one.
    """

    def __init__(self, estimator: Any, context: Any, task: Any, y: object) -> None:
        self._estimator, self._context = estimator, context
        self._task = task  # has a `sketch`; and the estimator can set its results
        self._shown = {"estimator": estimator, "X": task.sketch, "y": y}

    def begin(self) -> None:
        """An iteration begins."""
        self._iteration = self._context.subcontext("iteration")
        self._iteration.call_on_fit_task_begin(**self._shown)

    def end(self, result: Result) -> bool:
        """An iteration has ended; whether a callback asks that it be the last."""
        if self._estimator.verbose:
            print(f"iteration {result.n_iter}: {result.summary}")
        after = partial(self._attributes_after, result)
        return bool(self._iteration.call_on_fit_task_end(**self._shown, reconstruction_attributes=after))

    def leave(self) -> None:
        """The fit has ended, and the estimator has its attributes."""
        self._context.call_on_fit_task_end(**self._shown, reconstruction_attributes={})

    def _attributes_after(self, result: Result) -> dict[str, Any]:
        model = copy(self._estimator)
        model._set_result(result, self._task)
        return dict(vars(model))
