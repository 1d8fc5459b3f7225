"""Keras callbacks that act at the ends of epochs, kept from unit to unit and from worker to worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hopfleet.errors import TaskError
from hopfleet.frameworks.state.tree import Tree

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

Callback = Any


class EpochCallbacks:
    """The callbacks of one trial: those that set the learning rate by epoch or by the metric of the experiment."""

    def __init__(self, given: object, model: Any) -> None:
        if not isinstance(given, Sequence):
            raise TaskError(f"callbacks() returned {given!r}: must be a list of Keras callbacks")
        self._all: Sequence[Callback] = given
        for each in given:
            if not isinstance(each, keras.callbacks.LearningRateScheduler | keras.callbacks.ReduceLROnPlateau):
                name = type(each).__name__
                raise TaskError(f"callbacks: {name} cannot be kept while a trial hops between workers; {_remedy(each)}")
            each.set_model(model)
            each.on_train_begin()

    @property
    def _plateaus(self) -> list[Callback]:
        return [each for each in self._all if isinstance(each, keras.callbacks.ReduceLROnPlateau)]

    def check_goal(self, metric: str, mode: str) -> None:
        """Set the mode of callbacks that leave it open. Raise TaskError if one contradicts the experiment."""
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
        for each in self._all:
            each.on_epoch_begin(epoch)

    def observe(self, epoch: int, metric: float) -> None:
        """Call the callbacks after an epoch with the metric of the experiment, whatever they are told to monitor."""
        for each in self._plateaus:
            each.on_epoch_end(epoch, {each.monitor: metric})

    def state(self) -> Tree:
        return [{name: getattr(each, name) for name in MEMORY} for each in self._plateaus]

    def restore(self, state: Tree) -> None:
        for each, values in zip(self._plateaus, state, strict=True):
            vars(each).update(values)


def _remedy(callback: Callback) -> str:
    """Return what to do instead of a callback."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        rule = f"hop.Patience({max(1, callback.patience)}, min_delta={abs(callback.min_delta):g})"
        return f"pass stop={rule} to the experiment, which stops trials by its metric"
    return REMEDIES.get(type(callback).__name__, "write a hop.Callback, or override train() in the task")
