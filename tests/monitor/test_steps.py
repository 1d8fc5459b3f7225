"""The fold over values of single steps: which points count after which messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopfleet.domain.messages import (
    Message,
    RunStarted,
    TrialRolledBack,
    WorkerJoined,
)
from hopfleet.domain.step_values import StepValues
from hopfleet.errors import UsageError
from hopfleet.monitor.charts.charts import chart_data
from hopfleet.monitor.frame import steps_frame
from hopfleet.monitor.history import History
from hopfleet.monitor.steps import LoggedSteps
from tests.helpers.logged_steps import DEFINITION, FIRST, added, unit, values


def fold(*messages: Message) -> History:
    beginning: list[Message] = [RunStarted("1", definition=DEFINITION), WorkerJoined("w0")]
    records = [(100.0, message) for message in [*beginning, *messages]]
    return History.of(records, metric="loss", mode="min", partitions=2, name="test")


def points(history: History, name: str = "x") -> list[tuple[int, float]]:
    return list(zip(*history.logged(history.trials["t1"])[name], strict=True))


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
