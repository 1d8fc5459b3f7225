"""Keras callbacks that act at the ends of epochs, kept from unit to unit and from worker to worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import keras

from hopfleet.errors import TaskError
from hopfleet.frameworks.keras.belongings import MISSING, plain_value
from hopfleet.frameworks.state.tree import Tree
from hopfleet.phrases import listed, shown

REMEDIES = {
    "ModelCheckpoint": "leave it out: Hopfleet keeps the model of the best epoch",
    "BackupAndRestore": "leave it out: Hopfleet resumes experiments by itself",
    "TensorBoard": "leave it out: results.plot() draws learning curves",
    "CSVLogger": "leave it out: results.dataframe() has all metrics",
    "TerminateOnNaN": "leave it out: a loss that is not finite ends the trial",
}
"""What to do instead of callbacks that see a whole training or write files."""

MEMORY = ("best", "wait", "cooldown_counter")
"""What ReduceLROnPlateau remembers from epoch to epoch."""

CALLED = ("on_epoch_begin", "on_epoch_end", "on_train_begin")
"""The hooks of callbacks that are called."""

UNITS = "a trial trains in units, on one worker after another"

Callback = Any


class EpochCallbacks:
    """The callbacks of one trial, which act once an epoch, and what they know of the epoch at hand."""

    def __init__(self, given: object, model: Any) -> None:
        if not isinstance(given, Sequence):
            raise TaskError(f"callbacks() returned {shown(given)}: must be a list of Keras callbacks")
        self._all: Sequence[Callback] = given
        #: The metric of the experiment, as logs name it.
        self._goal = "val_loss"
        #: Sums of the training metrics of the epoch at hand, and their rows.
        self._sums: dict[str, list[float]] = {}
        for each in given:
            _check(each)
            each.set_model(model)
            each.on_train_begin()
        #: What users' own callbacks have in their attributes at first, and cannot hop.
        self._fixed = [{name: id(value) for name, value in _attributes(each, plain=False)} for each in self._own]

    @property
    def _plateaus(self) -> list[Callback]:
        return [each for each in self._all if isinstance(each, keras.callbacks.ReduceLROnPlateau)]

    @property
    def _own(self) -> list[Callback]:
        """The callbacks that users have written."""
        return [
            each for each in self._all if _maker(each) in (keras.callbacks.Callback, keras.callbacks.LambdaCallback)
        ]

    def check_goal(self, metric: str, mode: str) -> None:
        """Set the mode of callbacks that leave it open. Raise TaskError if one contradicts the experiment."""
        self._goal = metric.removeprefix("train_") if metric.startswith("train_") else f"val_{metric}"
        for each in self._plateaus:
            if each.mode not in ("auto", mode):
                better = "larger" if mode == "max" else "smaller"
                raise TaskError(
                    f"ReduceLROnPlateau(mode={each.mode!r}): the metric {metric!r} is better if it is {better}; "
                    f"set mode={mode!r}"
                )
            each.mode = mode

    def begin_epoch(self, epoch: int) -> None:
        """Call the callbacks before the first unit of an epoch; epochs count from 0, as in Keras."""
        self._sums = {}
        for each in self._all:
            each.on_epoch_begin(epoch)

    def add(self, metrics: Mapping[str, float], rows: int) -> None:
        """Add the training metrics of a unit, given as means over its rows."""
        for name, mean in metrics.items():
            total, count = self._sums.get(name, [0.0, 0])
            self._sums[name] = [total + mean * rows, count + rows]

    def observe(self, epoch: int, metric: float) -> None:
        """Call the callbacks after an epoch. Plateaus follow the experiment's metric, whatever they are to monitor."""
        logs = Logs({name: total / count for name, (total, count) in self._sums.items()} | {self._goal: metric})
        for each in self._all:
            if isinstance(each, keras.callbacks.ReduceLROnPlateau):
                each.on_epoch_end(epoch, {each.monitor: metric})
            elif each in self._own:
                each.on_epoch_end(epoch, logs)

    def state(self) -> Tree:
        for each, fixed in zip(self._own, self._fixed, strict=True):
            for name, value in _attributes(each, plain=False):
                if fixed.get(name) != id(value):
                    raise TaskError(
                        f"callbacks: {type(each).__name__}.{name} was set to {shown(value)}, which cannot hop with the "
                        "trial; keep numbers, texts and arrays in attributes"
                    )
        return {
            "plateaus": [{name: getattr(each, name) for name in MEMORY} for each in self._plateaus],
            "own": [dict(_attributes(each, plain=True)) for each in self._own],
            "sums": self._sums,
        }

    def restore(self, state: Tree) -> None:
        if isinstance(state, list):  # release 0.1 had plateaus alone
            state = {"plateaus": state, "own": [], "sums": {}}
        for each, values in zip(self._plateaus, state["plateaus"], strict=True):
            vars(each).update(values)
        for each, values in zip(self._own, state["own"], strict=False):
            vars(each).update(values)
        self._sums = {name: list(values) for name, values in state["sums"].items()}


class Logs(dict[str, float]):
    """The metrics of an epoch."""

    def __missing__(self, name: str) -> NoReturn:
        raise TaskError(
            f"callbacks: logs[{name!r}] is not known at the end of an epoch; there are {listed(name, list(self))}"
        )


def _attributes(callback: Callback, *, plain: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a user's own callback that have plain values, or the others, by their names."""
    usual = vars(keras.callbacks.Callback())
    for name, value in vars(callback).items():
        if name not in usual and (plain_value(value) is not MISSING) == plain:
            yield name, plain_value(value) if plain else value


def _maker(callback: Callback) -> type | None:
    """Return the class of Keras that a callback is of, or derived from."""
    return next((kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == "keras"), None)


def _check(callback: Callback) -> None:
    """Raise TaskError for a callback that cannot do in units what it does in a whole training."""
    known = keras.callbacks
    maker = _maker(callback)
    if maker is None:
        raise TaskError(f"callbacks() returned {shown(callback)}: must be a list of Keras callbacks")
    if maker not in (known.LearningRateScheduler, known.ReduceLROnPlateau, known.LambdaCallback, known.Callback):
        raise TaskError(
            f"callbacks: {type(callback).__name__} cannot be kept while a trial hops between workers; "
            f"{_remedy(callback, maker)}"
        )
    for name in dir(known.Callback):
        own = name in vars(callback) or getattr(type(callback), name) is not getattr(known.Callback, name)
        if name.startswith("on_") and own and name not in CALLED:
            remedy = "override train_step() in the task" if "batch" in name else "use on_epoch_end"
            raise TaskError(f"callbacks: {type(callback).__name__}.{name} would not be called, since {UNITS}; {remedy}")


def _remedy(callback: Callback, maker: type) -> str:
    """Return what to do instead of a callback."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        rule = f"hop.Patience({max(1, callback.patience)}, min_delta={abs(callback.min_delta):g})"
        return f"pass stop={rule} to the experiment, which stops trials by its metric"
    return REMEDIES.get(maker.__name__, "write a hop.Callback, or override train() in the task")
