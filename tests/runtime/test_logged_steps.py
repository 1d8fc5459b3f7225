"""Callbacks that hear of the values of single steps: of each epoch once, whatever happens to a run."""

from __future__ import annotations

from typing import Any

from hopfleet.domain.messages import EpochEnded, RunStarted, TrialRolledBack
from hopfleet.monitor.steps import Curves
from hopfleet.runtime.callbacks import Callback, CallbackObserver, ExperimentInfo, TrialInfo
from tests.helpers.logged_steps import DEFINITION, FIRST, added, unit, values


class Heard(Callback):
    def __init__(self) -> None:
        self.found: list[tuple[int, Curves]] = []

    def on_steps_logged(self, trial: TrialInfo, epoch: int, curves: Curves) -> None:
        self.found.append((epoch, curves))


def test_callbacks_hear_of_each_epoch_once(tmp_path: Any) -> None:
    heard = Heard()
    observer = CallbackObserver([heard], ExperimentInfo("test", tmp_path, "loss", "min"))
    third = unit(3, 0, values((1, 4.0)))
    for message in (
        *(RunStarted("1", definition=DEFINITION), added(), *FIRST[:2]),
        EpochEnded("t1", 1, 2, {"loss": 1.0}, best=True),
        # The epoch is trained again, ends again, and is not told again.
        *(TrialRolledBack("t1", 0), *FIRST[:2], EpochEnded("t1", 1, 2, {"loss": 1.0}, best=True)),
        *(TrialRolledBack("t0", 0), third, unit(4, 1, None), EpochEnded("t1", 2, 4, {"loss": 1.0}, best=True)),
    ):
        observer.update(0.0, message)
    assert heard.found == [(1, {"x": ([0, 1, 4], [1.0, 2.0, 3.0])}), (2, {"x": ([6], [4.0])})]


def test_runs_that_continue_tell_only_of_new_epochs(tmp_path: Any) -> None:
    heard = Heard()
    observer = CallbackObserver([heard], ExperimentInfo("test", tmp_path, "loss", "min", resumed=True))
    for message in (RunStarted("1", definition=DEFINITION), added(), *FIRST[:2]):
        observer.recall(0.0, message)
    observer.recall(0.0, EpochEnded("t1", 1, 2, {"loss": 1.0}, best=True))
    for message in (RunStarted("1"), FIRST[2], unit(4, 1, None), EpochEnded("t1", 2, 4, {"loss": 1.0}, best=True)):
        observer.update(0.0, message)
    assert heard.found == [(2, {"x": ([6], [4.0])})]
