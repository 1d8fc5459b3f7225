"""A session: one Keras model, trained batch by batch.

The state is the values of all variables by their position: their names depend on what the process built before. Metrics
are left out, since they start anew with each unit. ``model.fit`` is not used: it takes a unit for an epoch, and the
first one of a fresh model takes a batch more from its iterator.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from hopfleet.domain.batching import Batching
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import Config
from hopfleet.errors import NotFinite, TaskError
from hopfleet.frameworks.base import Batch, Batches
from hopfleet.frameworks.example import GivesExamples, example_of
from hopfleet.frameworks.host import HostSession, Streams
from hopfleet.frameworks.keras import backend
from hopfleet.frameworks.keras.belongings import Belongings
from hopfleet.frameworks.keras.callbacks import EpochCallbacks
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.whole_set import States, collected
from hopfleet.phrases import shown

Model = Any
"""A compiled Keras model."""


ENDS = ("alpha", "end_learning_rate")
"""Attributes of Keras' CosineDecay and PolynomialDecay that tell the learning rate after the last step."""


class Hooks(GivesExamples, Protocol):
    """The hooks of a task that a session calls."""

    @property
    def batching(self) -> Batching | None: ...
    def for_config(self, config: Config) -> Hooks: ...
    def build(self, config: Config) -> Model: ...
    def callbacks(self, config: Config) -> Any: ...
    def train(self, model: Model, batches: Batches, config: Config) -> Mapping[str, Any] | None: ...


class KerasSession(HostSession):
    """A trial in Keras, on the CPU."""

    kind = "hopfleet-keras-1"

    def __init__(self, task: Hooks, config: Config, *, seed: int, threads: int) -> None:
        super().__init__(config, seed=seed, threads=threads)
        self.hooks = task.for_config(config)
        with self.environment(), backend.fresh_names():
            self.model: Model = checked(self.hooks.build(self.config))
            self._callbacks = EpochCallbacks(self.hooks.callbacks(self.config), self.model)
            self._belongings = Belongings(self.model, self.hooks)
        self.check_config(config)
        #: The shapes and types of the inputs if the model was built for the first batch; None before.
        self._shape: Any = None
        self._dtype: Any = None
        #: Whether the next unit begins an epoch.
        self._fresh = True
        if self.model.built:
            self.model.optimizer.build(self.model.trainable_variables)

    # ---------------------------------------------------------------------------------------------- the work

    def check_goal(self, metric: str, mode: str) -> None:
        self._callbacks.check_goal(metric, mode)

    def check_schedules(self) -> Iterator[str]:
        batching = self.hooks.batching
        schedule: Any = getattr(self.model.optimizer, "_learning_rate", None)
        ends_at_0 = next((getattr(schedule, name) == 0 for name in ENDS if hasattr(schedule, name)), False)
        if batching is None or not ends_at_0 or getattr(schedule, "cycle", False):
            return
        steps, planned = schedule.decay_steps + (getattr(schedule, "warmup_steps", 0) or 0), batching.total_steps()
        if steps < planned - 1:
            yield (
                f"{type(schedule).__name__}(decay_steps={schedule.decay_steps}): must end after {planned} steps, those "
                f"until the end of epoch {batching.epochs}, got {steps}, so that the learning rate would be 0 from "
                "then on; use self.total_steps"
            )

    def observe(self, metric: float) -> None:
        with self.environment():
            self._callbacks.observe(self.counters["epochs"] - 1, metric)

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        with self.environment():
            if self._fresh:
                self._callbacks.begin_epoch(self.counters["epochs"])
            self.model.reset_metrics()
            built = _Built(batches, self)
            try:
                result = self.hooks.train(self.model, built, self.config) or {}
            except Exception as error:
                built.explain(error)
                raise
            if not isinstance(result, Mapping):
                raise TaskError(f"train() returned {shown(result)}: must be a dict of names to numbers")
            self.model.reset_metrics()
        found = {
            f"train_{each}": number if isinstance(number, RowSum) else RowSum.of(number, batches.rows)
            for name, value in result.items()
            for each, number in _numbers(name, value).items()
        }
        loss = found.get("train_loss")
        if loss is not None and not math.isfinite(loss.mean):
            raise NotFinite(f"the loss is {loss.mean} after {len(batches)} batches", batch=len(batches))
        self._callbacks.add({name.removeprefix("train_"): each.mean for name, each in found.items()}, batches.rows)
        self._fresh = last
        self.end_unit(last=last)
        return found

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        with self.environment(seed), self._unchanged():
            found = add([self._measured(batch, first=not number) for number, batch in enumerate(batches)])
            self.model.reset_metrics()
            return found

    def _measured(self, batch: Batch, *, first: bool) -> dict[str, RowSum]:
        x, y, weight = example_of(self.hooks, batch)
        self.ensure_built(x)
        self.model.reset_metrics()
        found = self.model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
        rows, whole = len(keras.tree.flatten(x)[0]), self._whole_names()
        means = {
            each: RowSum.of(number, rows)
            for name, value in found.items()
            if name not in whole
            for each, number in _numbers(name, value).items()
        }
        state = {str(number): value(each) for number, each in enumerate(self.model.metrics_variables)} if whole else {}
        if first and whole:
            self._check_sums(lambda: self.model.test_on_batch(x, y, sample_weight=weight))
        parts = {
            each: States(_Merged(self.model, name, place), state)
            for name in found
            if name in whole
            for place, each in enumerate(_numbers(name, found[name]))
        }
        return means | collected(parts)

    def _check_sums(self, repeat: Callable[[], object]) -> None:
        """Raise TaskError if the state of a metric of the user's own does not double when a batch is repeated.

        States of batches and partitions are added: any other state, such as a maximum, would make a wrong score.
        """
        own = [each for each in self._whole_metrics() if not type(each).update_state.__module__.startswith("keras.")]
        before = [[value(one) for one in each.variables] for each in own]
        if own:
            self.model.__dict__["reset_metrics"] = lambda: None
            try:
                repeat()
            finally:
                del self.model.__dict__["reset_metrics"]
        for each, states in zip(own, before, strict=True):
            for variable, once in zip(each.variables, states, strict=True):
                if not np.allclose(value(variable), 2 * once.astype("float64"), rtol=1e-3):
                    raise TaskError(
                        f"metric {each.name!r}: the variables of {type(each).__name__} must be sums over rows, got "
                        f"{variable.name!r}, which {_brief(once)} after a batch and {_brief(value(variable))} after "
                        "the same batch again: let update_state() add to its variables, and result() compute the "
                        "score from them, as keras.metrics.AUC does"
                    )

    def _whole_metrics(self) -> list[Any]:
        """Return the metrics whose values are not means over rows, such as AUC or F1Score."""
        nested = [getattr(each, "metrics", None) or [each] for each in self.model.metrics]
        return [each for some in nested for each in some if type(each).result is not keras.metrics.Mean.result]

    def _whole_names(self) -> set[str]:
        """Return the names of values that are not means over rows."""
        others = [each.name for each in self._whole_metrics()]
        found = self.model.get_metrics_result() if others else {}
        # The name of an output, or a number, may be part of a value's name.
        return {name for name in found if any(each in name for each in others)}

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore statistics and seeds that a layer changes even in evaluation."""
        before = [(each, value(each)) for each in self.model.non_trainable_variables]
        yield
        for each, kept in before:
            if value(each).tobytes() != kept.tobytes():
                each.assign(kept)

    def ensure_built(self, x: Any) -> None:
        """Build a model that does not know the shape of its inputs yet, and its optimizer."""
        if not self.model.built:
            shape = keras.tree.map_structure(lambda each: [None, *np.shape(each)[1:]], x)
            self._build(shape, keras.tree.map_structure(lambda each: str(np.asarray(each).dtype), x))

    def _build(self, shape: Any, dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        # A model class without a build() of its own calls itself built, whatever its layers are.
        self.model(_symbolic(shape, dtype), training=False)
        self.model.optimizer.build(self.model.trainable_variables)

    # ------------------------------------------------------------------------------------------------- state

    @property
    def parameters(self) -> int:
        return sum(math.prod(each.shape) for each in self.model.trainable_variables)

    @property
    def _variables(self) -> list[Any]:
        metrics = set(map(id, self.model.metrics_variables)) if self.model.built else set()
        mine = [each for each in self.model.variables if id(each) not in metrics]
        return [*mine, *self.model.optimizer.variables] if self.model.built else []

    def state(self) -> Tree:
        return {
            "shape": self._shape,
            "dtype": self._dtype,
            "fresh": self._fresh,
            "variables": [value(each) for each in self._variables],
            "callbacks": self._callbacks.state(),
            "belongings": self._belongings.state(),
        }

    def restore(self, state: Tree) -> None:
        if state["shape"] is not None and not self.model.built:
            with self.environment(0):
                self._build(state["shape"], state.get("dtype"))
        mine, saved = self._variables, state["variables"]
        if [tuple(each.shape) for each in mine] != [each.shape for each in saved]:
            raise TaskError(
                f"build() returned a different model for the same configuration: it has {len(mine)} variables, the "
                f"saved version has {len(saved)}, or their shapes differ"
            )
        with self.environment(0):
            for each, kept in zip(mine, saved, strict=True):
                each.assign(kept)
            if "belongings" in state:  # release 0.1 had none
                self._belongings.restore(state["belongings"])
        self._shape, self._dtype, self._fresh = state["shape"], state.get("dtype"), state["fresh"]
        self._callbacks.restore(state["callbacks"])

    def finish(self) -> None:
        """Give the model the values that it has when training is over, as ``model.fit`` does at its end."""
        with self.environment(0):
            self._belongings.finish()

    # -------------------------------------------------------------------------------------------- environment

    def seeded(self, seed: int) -> Streams:
        return super().seeded(seed) | backend.seeded(seed)

    def streams(self) -> Streams:
        return super().streams() | backend.streams()

    def put_streams(self, streams: Streams) -> None:
        backend.put_streams(streams)  # this may draw from a stream of Python
        super().put_streams(streams)

    @contextlib.contextmanager
    def environment(self, seed: int | None = None) -> Iterator[None]:
        with backend.numeric_threads(self.threads), keras.device("cpu"), super().environment(seed):
            yield


class _Built:
    """The batches of a unit; the model is built before the first one is passed on."""

    def __init__(self, batches: Batches, session: KerasSession) -> None:
        self._batches, self._session = batches, session
        self.rows = batches.rows
        #: The first batch, while the model trains on it.
        self._first: Batch | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._batches):
            self._first = None if number else batch
            if not self._session.model.built:
                self._session.ensure_built(example_of(self._session.hooks, batch).x)
            yield batch
        self._first = None

    def explain(self, error: Exception) -> None:
        """Note the shapes of the data and of the model in an error that the first batch caused."""
        model = self._session.model
        if self._first is None or isinstance(error, TaskError):
            return
        with contextlib.suppress(Exception):  # of example()
            x, y, _ = example_of(self._session.hooks, self._first)
            shapes = [keras.tree.map_structure(np.shape, each) for each in (x, y)]
            note = f"x of the first batch has the shape {shapes[0]}, y the shape {shapes[1]}"
            if (taken := getattr(model, "input_shape", None)) is not None:
                note += f"; the model takes {taken} and returns {model.output_shape}"
            error.add_note(f"{note}; example(batch) and build(config) choose them")


class _Merged:
    """Makes the value of a metric from its states after each batch, which add up, as on several devices in Keras."""

    def __init__(self, model: Model, name: str, place: int) -> None:
        self._model, self._name, self._place = model, name, place

    def __call__(self, states: Sequence[Mapping[str, Any]]) -> Any:
        with keras.device("cpu"):
            for number, variable in enumerate(self._model.metrics_variables):
                variable.assign(sum(state[str(number)] for state in states))
            found = keras.ops.convert_to_numpy(self._model.get_metrics_result()[self._name])
            self._model.reset_metrics()
        return found.reshape(-1)[self._place]


def _brief(state: np.ndarray[Any, Any]) -> str:
    """Return the value of a variable in a message."""
    return f"was {state.item():g}" if state.size == 1 else f"had the sum {state.sum():g}"


def _numbers(name: str, value: Any) -> dict[str, Any]:
    """Return a value as a number, or one with several, such as the F1 score of each class, as numbers by name."""
    if isinstance(value, RowSum) or np.ndim(value) == 0:
        return {name: value if isinstance(value, RowSum) else float(value)}
    numbers = np.asarray(keras.ops.convert_to_numpy(value)).reshape(-1)
    return {f"{name}_{place}": float(number) for place, number in enumerate(numbers)}


def value(variable: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a copy of the value of a variable."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def _symbolic(shape: Any, dtype: Any) -> Any:
    """Return inputs without values; several inputs stay in their dict or list. Older versions have no types."""
    if isinstance(shape, Mapping):
        return {name: _symbolic(each, dtype and dtype[name]) for name, each in shape.items()}
    if all(each is None or isinstance(each, int) for each in shape):
        return keras.KerasTensor(tuple(shape), dtype=dtype or "float32")
    return [_symbolic(each, dtype and dtype[place]) for place, each in enumerate(shape)]


def checked(model: object) -> Model:
    """Return a model that is ready to train. Raise TaskError for any other."""
    if not isinstance(model, keras.Model):
        what = f"the class {model.__name__}" if isinstance(model, type) else shown(model)
        raise TaskError(f"build() returned {what}: return a compiled keras.Model")
    if not model.compiled:
        raise TaskError(
            "build() returned a model that is not compiled: call model.compile(optimizer=..., loss=...) before "
            "returning it"
        )
    return model
