"""Tasks whose models want inputs and targets: the hook that takes both out of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Task
from hopfleet.frameworks.views import ModelT
from hopfleet.phrases import listed, shown


class Example(NamedTuple):
    """The inputs of a batch, its targets, and the weights of its rows if there are any."""

    x: Any
    y: Any
    sample_weight: Any = None


class GivesExamples(Protocol):
    """A task, or its view for one trial, that takes inputs and targets out of a batch."""

    def example(self, batch: Batch) -> tuple[Any, ...]: ...


class ExampleTask(Task[ModelT]):
    """A task whose model wants inputs and targets."""

    def example(self, batch: Batch) -> tuple[Any, ...]:
        """Return the inputs and the targets of a batch, and sample weights if there are any: x, y[, sample_weight].

        Default: the columns ``x`` and ``y``.
        """
        missing = [name for name in ("x", "y") if name not in batch]
        if missing:
            raise TaskError(
                f"the batch has no column {missing[0]!r}, only {listed(missing[0], batch)}: override "
                "example(self, batch) and return x, y"
            )
        return batch["x"], batch["y"]

    def predict(self, model: Any, batch: Batch) -> Any:
        """Return a trained model's predictions for a batch, whose targets may be absent. Default: ``model.predict``."""
        return model.predict(inputs_of(self, batch))


def inputs_of(task: ExampleTask, batch: Batch) -> Any:
    """Return the inputs of a batch, whose targets may be absent."""
    if type(task).example is ExampleTask.example and "x" in batch:
        return batch["x"]
    try:
        return example_of(task, batch).x
    except KeyError as error:
        raise TaskError(
            f"example() takes the column {error} out of a batch that has {', '.join(batch)}; rows to predict may lack "
            f"targets: define predict(self, model, batch) on {type(task).__name__}"
        ) from error


def example_of(task: GivesExamples, batch: Batch) -> Example:
    """Return what ``task.example`` makes of a batch. Raise TaskError if that is not x, y[, sample_weight]."""
    found = task.example(batch)
    if not isinstance(found, tuple | list) or not 2 <= len(found) <= 3:
        raise TaskError(f"example() returned {shown(found)}: must be x, y or x, y, sample_weight")
    return Example(*found)
