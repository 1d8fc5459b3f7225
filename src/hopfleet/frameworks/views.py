"""Views of a task: objects that share its attributes and know of one trial, or of the trials of one experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import typing_extensions

from hopfleet.domain.batching import Batching
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError

Viewed = TypeVar("Viewed")

ModelT = typing_extensions.TypeVar("ModelT", default=Any)
"""The class of the models that ``best.model()`` returns; ``class Net(hop.TorchTask[MyModule])`` names it."""


class CountsSteps(Protocol):
    """A task, or its view for one trial, as step counts read it."""

    @property
    def batching(self) -> Batching | None: ...
    @property
    def batches_per_step(self) -> int: ...


class StepCount:
    """An attribute of a task that counts the steps of the trial at hand. A task may have its own of the same name."""

    def __init__(self, count: Callable[[Batching, int], int]) -> None:
        self._count = count

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, task: CountsSteps | None, owner: type) -> Any:
        if task is None:
            return self
        if task.batching is None:
            raise TaskError(
                f"self.{self._name}: must be read while a trial is trained or loaded, got a task without a trial; "
                "read it in build(self, config) or in another hook"
            )
        return self._count(task.batching, task.batches_per_step)


def view_of(task: Viewed) -> Viewed:
    """Return an object with the attributes of a task. Only its slots are its own."""
    view = object.__new__(type(task))
    object.__setattr__(view, "__dict__", vars(task))
    for name in _slots(type(task)):
        if hasattr(task, name):
            object.__setattr__(view, name, getattr(task, name))
    return view


def _slots(kind: type) -> list[str]:
    """Return the slots that a task class declares, as ``dataclass(slots=True)`` does."""
    declared = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for some in declared for name in ([some] if isinstance(some, str) else some)]
    return [name for name in names if not name.startswith("__")]


def call_model_fn(model_fn: Callable[..., Any], config: Config, task: CountsSteps) -> Any:
    """Call a function that makes the model of a configuration, with the task if it has an argument of that name."""
    try:
        wants = "task" in inspect.signature(model_fn).parameters
    except (TypeError, ValueError):  # a built-in function
        wants = False
    return model_fn(config, task=task) if wants else model_fn(config)


def lacks_predict(task: object) -> str:
    """Say what a task needs for predictions."""
    name = type(task).__name__
    return (
        f"{name} has no predict hook: add one, which sees rows without labels, too, e.g. def predict(self, model, "
        "batch): return model(torch.as_tensor(batch['x'])).softmax(1); a trained model needs no new training: pass "
        f"task={name}() of the new code"
    )
