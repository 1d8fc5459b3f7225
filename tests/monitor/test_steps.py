"""The fold over values of single steps: which points count after which messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hopfleet.domain.messages import (
    EpochEnded,
    Message,
    RunStarted,
    TrialAdded,
    TrialRolledBack,
    UnitFinished,
    WorkerJoined,
)
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.unit import Unit
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import chart_data
from hopfleet.monitor.frame import steps_frame
from hopfleet.monitor.history import History
from hopfleet.monitor.steps import Curves, LoggedSteps
from hopfleet.runtime.callbacks import Callback, CallbackObserver, ExperimentInfo, TrialInfo

DEFINITION = {
    "train": {"rows": 25, "partitions": 2},
    "partition_rows": [20, 5],
    "batch_size": 5,
    "drop_last": False,
    "search": {"max_epochs": 2},
}
"""Four steps in partition 0 and one in partition 1."""


def values(*points: tuple[int, float], pace: int = 1) -> StepValues:
    return StepValues({"x": (tuple(step for step, _ in points), tuple(value for _, value in points))}, pace)


def unit(version: int, partition: int, logged: StepValues | None, trial: str = "t1") -> UnitFinished:
    epoch = (version + 1) // 2
    return UnitFinished("w0", Unit(trial, epoch, partition), version, version, 0.0, 1.0, logged=logged)


def added(config: dict[str, Any] | None = None, visits: tuple[int, ...] = ()) -> TrialAdded:
    return TrialAdded("t1", 1, config or {}, seed=1, epochs=2, visits=visits)


def fold(*messages: Message) -> History:
    beginning: list[Message] = [RunStarted("1", definition=DEFINITION), WorkerJoined("w0")]
    records = [(100.0, message) for message in [*beginning, *messages]]
    return History.of(records, metric="loss", mode="min", partitions=2, name="test")


def points(history: History, name: str = "x") -> list[tuple[int, float]]:
    return list(zip(*history.logged(history.trials["t1"])[name], strict=True))


FIRST = [unit(1, 1, values((0, 1.0))), unit(2, 0, values((0, 2.0), (3, 3.0))), unit(3, 0, values((1, 4.0)))]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([added(), *FIRST], [(0, 1.0), (1, 2.0), (4, 3.0), (6, 4.0)]),
        # The first two units are steps 0 to 4: a clone goes on where its parent's model was.
        ([added(visits=(0, 1)), unit(3, 1, values((0, 7.0)))], [(5, 7.0)]),
        # A batch size of its own: two steps in partition 0 and one in partition 1.
        ([added({"batch_size": 10}), *FIRST], [(0, 1.0), (1, 2.0), (4, 3.0), (4, 4.0)]),
        # Steps of two batches: two in partition 0 and one in partition 1.
        ([added(), unit(1, 0, None), unit(2, 1, None), unit(3, 0, values((1, 9.0), pace=2))], [(4, 9.0)]),
        ([added(), *FIRST, TrialRolledBack("t1", 1)], [(0, 1.0)]),
        ([added(), *FIRST, TrialRolledBack("t1", 0), FIRST[0]], [(0, 1.0)]),
        # Trained again, the same units have the same points, and one that logs nothing any more has none.
        ([added(), *FIRST, TrialRolledBack("t1", 1), *FIRST[1:]], [(0, 1.0), (1, 2.0), (4, 3.0), (6, 4.0)]),
        ([added(), *FIRST, unit(3, 0, None)], [(0, 1.0), (1, 2.0), (4, 3.0)]),
        # After a rollback, the order of visits may be another one.
        ([added(), *FIRST, TrialRolledBack("t1", 2), unit(3, 1, None), unit(4, 0, values((0, 5.0)))],
         [(0, 1.0), (1, 2.0), (4, 3.0), (6, 5.0)]),
    ],
)  # fmt: skip
def test_points_of_the_attempt_that_counts(messages: list[Message], expected: list[tuple[int, float]]) -> None:
    assert points(fold(*messages)) == expected


def test_nothing_logged_needs_no_definition() -> None:
    logged = LoggedSteps()
    logged.add(1, 0, None)
    assert logged.curves({}, {}) == {}
    assert logged.names == set()


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


def test_tables_and_charts() -> None:
    history = fold(added(), *FIRST, unit(4, 1, StepValues({"y": ((0,), (float("nan"),))})))
    frame = steps_frame(history)
    assert list(frame.columns) == ["trial", "name", "step", "value"] and len(frame) == 5
    assert chart_data(history, "steps") == {
        "metric": "x",
        "curves": [{"trial": "t1", "steps": [0, 1, 4, 6], "values": [1.0, 2.0, 3.0, 4.0]}],
    }
    assert chart_data(history, "steps", metric="y")["curves"] == []


@pytest.mark.parametrize(
    ("history", "metric", "message"),
    [
        (lambda: fold(added()), None, r"no trial has logged a value; call self.log\(name, value\) in loss\(\)"),
        (lambda: fold(added(), *FIRST), "lr", "metric='lr': no trial has logged it; choose one of x"),
    ],
)
def test_what_was_not_logged_cannot_be_drawn(history: Callable[[], History], metric: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chart_data(history(), "steps", metric=metric)
