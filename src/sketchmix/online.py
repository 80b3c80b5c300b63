"""A stream of batches: blocks -> statistics -> carried and added to those before -> maximise.

Rows of a batch are met once, under the present parameters. What they add up to is added to what all rows before
added up to, expressed around the same parameters, and this counts the less the more rows came after it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import boxcox1p

from sketchmix import em, validation
from sketchmix.base import SketchEstimator
from sketchmix.families.axis_aligned import mean_of
from sketchmix.moments import Moments, Parameters, add_up
from sketchmix.persistence import Reader
from sketchmix.sketch import Sketch, concatenate

Array = NDArray[Any]

# Rows are held until each component and coordinate has so many, and each parameter so many kept entries. Steps
# that meet a row once do not leave a bad optimum: what the first rows lead to decides how a stream goes on.
ROWS_HELD_PER_COORDINATE = 100
ENTRIES_HELD_PER_PARAMETER = 20


class Task(Protocol):
    """What some rows ask of a model: `em.Problem`, for one."""

    def statistics(self, parameters: Any) -> Any:
        """The sums over the rows, around the parameters."""

    def maximise(self, statistics: Any, parameters: Any) -> Any:
        """The parameters that follow from sums around these."""

    def carried(self, statistics: Any, before: Any, after: Any) -> Any:
        """Sums around some parameters, as the same rows' around others."""


@dataclass(frozen=True)
class Averages:
    """The task of k-means: centers become the averages of the rows nearest to them."""

    sketch: Sketch
    sample_weight: Array | None
    exact: bool = False

    def statistics(self, parameters: Parameters) -> Moments:
        """Sums over the rows nearest to each center."""
        return add_up(self.sketch.kept, parameters, self.sample_weight, hard=True, exact=self.exact)

    def maximise(self, statistics: Moments, parameters: Parameters) -> Parameters:
        """The centers moved to the averages."""
        return replace(parameters, means=parameters.means + mean_of(statistics.first, statistics.count, 0.0))

    def carried(self, statistics: Moments, before: Parameters, after: Parameters) -> Moments:
        """The sums around other centers."""
        return statistics.around(after.means - before.means)


@dataclass(frozen=True)
class State:
    """Parameters, and what the rows add up to around them."""

    parameters: Any
    statistics: Any
    log_likelihood: float = np.nan  # of a row of the last batch, under the parameters that it met

    @classmethod
    def of(cls, task: Task, parameters: Any) -> State:
        """Parameters that were fitted to rows, and these rows' sums."""
        statistics = task.statistics(parameters)
        return cls(parameters, statistics, of_a_row(statistics))

    def after(self, task: Task, forgetting: float) -> State:
        """One step of EM, from the rows of a task and all before, whose share falls by ``exp(-forgetting)``."""
        new = task.statistics(self.parameters)
        odds = np.exp(-forgetting) / -np.expm1(-forgetting)
        total = scaled(self.statistics, odds * new.size.sum() / self.statistics.size.sum()) + new
        parameters = task.maximise(total, self.parameters)
        return State(parameters, task.carried(total, self.parameters, parameters), of_a_row(new))


def of_a_row(statistics: Any) -> float:
    """The mean log-likelihood."""
    return float(statistics.log_likelihood / statistics.size.sum())


def scaled(statistics: Any, factor: float) -> Any:
    """Sums over rows, as those over rows of `factor` times the weight."""
    return type(statistics)(*(factor * getattr(statistics, field.name) for field in fields(statistics)))


@dataclass(frozen=True)
class Schedule:
    """How fast rows are forgotten: by how many came after them, in whatever batches.

    After m rows, the share of all before falls at the rate g(m) a row: 1 / m for the first U rows, so that all of
    them count alike, then (m / U)^-decay / U. About 1 / g(m) rows are remembered.
    """

    n_alike: float  # U
    decay: float

    def forgetting(self, seen: float, new: float) -> float:
        """The integral of g over `new` rows after those `seen`: what adds up from batch to batch."""
        if seen == 0:
            return np.inf
        alike = min(new, max(0.0, self.n_alike - seen))
        first, later, power = seen + alike, new - alike, 1 - self.decay
        # In this form a batch may be as light as it likes beside all rows before.
        return float(np.log1p(alike / seen) + (first / self.n_alike) ** power * boxcox1p(later / first, power))


def rows_to_hold(n_means: int, n_parameters: int, sketch: Sketch) -> float:
    """How many rows lead to a fit from which a stream can go on."""
    by_coordinate = ROWS_HELD_PER_COORDINATE * n_means * sketch.scale
    return max(by_coordinate, ENTRIES_HELD_PER_PARAMETER * n_parameters / sketch.sketch_size)


@dataclass(frozen=True)
class Batch:
    """Rows, and their weights as the user gave them."""

    sketch: Sketch
    sample_weight: Array | None

    @property
    def weight(self) -> float:
        """Of all rows together."""
        return float(len(self.sketch) if self.sample_weight is None else self.sample_weight.sum())

    @property
    def weights(self) -> Array:
        """Of each row."""
        return np.ones(len(self.sketch)) if self.sample_weight is None else self.sample_weight

    def of_some_weight(self) -> Batch:
        """Without the rows that count for nothing."""
        if self.sample_weight is None or self.sample_weight.all():
            return self
        some = self.sample_weight > 0
        return Batch(self.sketch[some], self.sample_weight[some])


@dataclass(frozen=True)
class Stream:
    """What is kept from batch to batch: the model, its statistics, and the first rows while they are few."""

    n_rows: int = 0
    weight: float = 0.0  # of these rows
    n_batches: int = 0
    state: State | None = None  # None after a fit, which leaves parameters alone
    pooled: State | None = None  # all rows as one component: the scale of the limits of variances
    held: tuple[Batch, ...] = ()  # the first rows, until they are enough
    fitted: float = 0.0  # the weight of those that were fitted last

    @classmethod
    def after_fit(cls, batch: Batch) -> Stream:
        """Where a stream goes on from a fit."""
        return cls(len(batch.sketch), batch.weight)

    def without_statistics(self) -> Stream:
        """Where it goes on from parameters that came from elsewhere."""
        return replace(self, state=None, held=())

    def taking(self, batch: Batch, pooled: State) -> Stream:
        """The stream with the rows of a batch, but not yet with what they say to the model."""
        return replace(
            self,
            n_rows=self.n_rows + len(batch.sketch),
            weight=self.weight + batch.weight,
            n_batches=self.n_batches + 1,
            pooled=pooled,
            held=(*self.held, batch.of_some_weight()) if self.held or self.n_rows == 0 else (),
        )

    def pooled_with(self, batch: Batch, forgetting: float) -> State:
        """All rows together and those of a batch, as one component."""
        task = Averages(batch.sketch, batch.sample_weight, exact=True)
        if self.pooled is None:
            return State.of(task, em.centre_of(batch.sketch, batch.sample_weight))
        return self.pooled.after(task, forgetting)

    def is_due(self, schedule: Schedule) -> bool:
        """Whether to fit the held rows anew: at first, when they have doubled, and when they are enough."""
        return bool(self.held) and (self.weight >= 2 * self.fitted or self.has_enough(schedule))

    def has_enough(self, schedule: Schedule) -> bool:
        """Whether no more rows are to be held: light ones take as much memory as others."""
        return max(self.weight, sum(len(batch.sketch) for batch in self.held)) >= schedule.n_alike

    def fitted_anew(self, state: State, schedule: Schedule) -> Stream:
        """The stream with the fit to all rows that it holds."""
        held = () if self.has_enough(schedule) else self.held
        return replace(self, state=state, held=held, fitted=self.weight)


class StreamEstimator(SketchEstimator):
    """An estimator that can be fitted batch by batch."""

    learning_decay: float
    _stream: Stream

    @abstractmethod
    def _rows_to_hold(self, sketch: Sketch) -> float:
        """How many rows lead to a fit from which a stream can go on."""

    @abstractmethod
    def _kinds(self, sketch: Sketch) -> tuple[dict[str, object], dict[str, object]]:
        """What model is wanted, and what was fitted: a stream keeps to one."""

    @abstractmethod
    def _fit_anew(self, batch: Batch, present: Any | None) -> tuple[Task, Any]:
        """What `fit` finds in some rows, or what it makes of the present parameters, whichever is better."""

    @abstractmethod
    def _task(self, batch: Batch, variances: Array) -> Task:
        """What a batch asks of the present model; `variances` are those of all rows together."""

    @abstractmethod
    def _state_of_fit(self, task: Any, weight: float) -> State:
        """Where a stream goes on from a fit to rows of some weight."""

    def _take_in(self, X: ArrayLike | Sketch, sample_weight: ArrayLike | None) -> tuple[Batch, Any, State]:
        """A batch, what it asked of the model, and what became of that."""
        before = getattr(self, "_stream", Stream())
        batch = self._next_batch(X, sample_weight, before.n_rows)
        schedule = Schedule(self._rows_to_hold(batch.sketch), self.learning_decay)
        forgetting = schedule.forgetting(before.weight, batch.weight)
        pooled = before.pooled_with(batch, forgetting)
        after = before.taking(batch, pooled)
        if after.is_due(schedule):
            task, parameters = self._fit_anew(joined(after.held), before.state and before.state.parameters)
            state = State.of(task, parameters)
            after = after.fitted_anew(state, schedule)
        else:
            task = self._task(batch, variances_of(pooled))
            state = (before.state or self._state_of_fit(task, before.weight)).after(task, forgetting)
            after = replace(after, state=state)
        self._set_stream(after)
        self.n_iter_ = after.n_batches
        return batch, task, state

    def _set_stream(self, stream: Stream) -> None:
        self._stream, self.n_samples_seen_ = stream, stream.n_rows

    def _seen(self) -> dict[str, Any]:
        """What a model in a file says of the rows so far."""
        return {"n_samples_seen": self._stream.n_rows, "weight_seen": self._stream.weight}

    def _set_seen(self, read: Reader) -> None:
        """What `_seen` said: a stream goes on from a loaded model as from one that was fitted."""
        n_rows = read.count("n_samples_seen", 1, validation.LARGEST_ROW)
        self._set_stream(Stream(n_rows, read.real("weight_seen")))

    def _next_batch(self, X: ArrayLike | Sketch, sample_weight: ArrayLike | None, n_rows: int) -> Batch:
        """The sketch of rows that follow `n_rows` others."""
        sketcher = self.sketcher_ if n_rows else None
        if sketcher is not None and isinstance(X, Sketch):
            validation.check_same_sketcher(X, sketcher)
        sketch = self._sketch_of(X, sketcher, n_rows)
        if n_rows:
            validation.check_stream(*self._kinds(sketch))
        return Batch(sketch, validation.check_sample_weight(sample_weight, len(sketch)))


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of all of them."""
    sketch = concatenate([batch.sketch for batch in batches])
    if all(batch.sample_weight is None for batch in batches):
        return Batch(sketch, None)
    return Batch(sketch, np.concatenate([batch.weights for batch in batches]))


def variances_of(pooled: State) -> Array:
    """The variance of each coordinate over all rows."""
    return em.variances_of(pooled.statistics, pooled.parameters.means, em.support_of(None))
