"""The tasks that users write for Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, Batches
from hopfleet.frameworks.example import ExampleTask, example_of, inputs_of

try:
    import keras
except ImportError as error:
    raise MissingExtra("Keras", "keras") from error

from hopfleet.frameworks.keras import steps
from hopfleet.frameworks.keras.framework import KerasFramework
from hopfleet.frameworks.keras.session import Model
from hopfleet.frameworks.views import ModelT, call_model_fn


class KerasTask(ExampleTask[ModelT]):
    """A training task in Keras 3, on any of its backends. Override ``build``; the other hooks have defaults."""

    preload: Sequence[str] = ("hopfleet.frameworks.keras.task",)

    def build(self, config: Config) -> Model:
        """Return a compiled model."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return a compiled keras.Model")

    def callbacks(self, config: Config) -> Sequence[Any]:
        """Return callbacks of Keras that act once an epoch: those that set the learning rate, and your own.

        ReduceLROnPlateau follows the metric of the experiment. What they keep in their attributes hops with the trial.
        """
        return ()

    def train_step(self, model: Model, x: Any, y: Any, sample_weight: Any) -> Mapping[str, float]:
        """Train on one batch; return its metrics, which are averaged over rows. Default: ``model.train_on_batch``."""
        found: Mapping[str, float] = model.train_on_batch(x, y, sample_weight=sample_weight, return_dict=True)
        return found

    def train(self, model: Model, batches: Batches, config: Config) -> Mapping[str, Any] | None:
        """Train one sub-epoch. Override this to own the loop; the values returned are recorded as ``train_<name>``."""
        examples = (example_of(self, batch) for batch in batches)
        first = next(examples, None)
        if first is None:
            raise TaskError("the unit has no batches: the partition is empty, or smaller than a batch with drop_last")
        own = type(self).train_step is not KerasTask.train_step
        if own or type(model).train_on_batch is not keras.Model.train_on_batch:
            return steps.train_by_batch(self.train_step, model, first, examples)
        return steps.train(model, first, examples)

    def predict(self, model: Model, batch: Batch) -> Any:
        """Return a trained model's outputs for a batch, whose targets may be absent; several are in a dict."""
        made = model.predict_on_batch(inputs_of(self, batch))
        return {f"output_{number}": each for number, each in enumerate(made)} if isinstance(made, list) else made

    @property
    def framework(self) -> KerasFramework:
        return KerasFramework(self)


class KerasFunctionTask(KerasTask):
    """The Cerebro paper's three functions as a task in Keras.

    ``input_fn(batch)`` turns a batch of the data into x, y[, sample_weight]; ``model_fn(config)`` returns a compiled
    model (``model_fn(config, task)`` may read ``task.total_steps`` and ``task.steps_per_epoch``);
    ``train_fn(model, examples, config)`` runs one sub-epoch and returns a dict of metrics. Evaluation is the model's
    own.
    """

    def __init__(
        self,
        input_fn: Callable[[Batch], tuple[Any, ...]],
        model_fn: Callable[[Config], Model],
        train_fn: Callable[[Model, Iterable[Any], Config], Mapping[str, float] | None],
    ) -> None:
        for name, function in (("input_fn", input_fn), ("model_fn", model_fn), ("train_fn", train_fn)):
            if not callable(function):
                raise TaskError(f"{name}={function!r}: must be a function")
        self.input_fn, self.model_fn, self.train_fn = input_fn, model_fn, train_fn

    def build(self, config: Config) -> Model:
        return call_model_fn(self.model_fn, config, self)

    def example(self, batch: Batch) -> tuple[Any, ...]:
        return self.input_fn(batch)

    def train(self, model: Model, batches: Batches, config: Config) -> Mapping[str, float] | None:
        return self.train_fn(model, map(self.input_fn, batches), config)
