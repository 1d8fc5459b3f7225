"""A run that ends because its first trials fail in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from tests.helpers.controller_desk import Desk


def fail(desk: Desk, worker: str, error: str = "ValueError: no", place: str = "task.py:3") -> list[Any]:
    slot = desk.controller.schedule.slots[worker]
    return desk.tell(m.UnitFailed(worker, slot.unit, slot.attempt, 0.0, 1.0, error, "trace", place))


def ends(follow: list[Any]) -> list[m.Finish]:
    return [message for message in follow if isinstance(message, m.Finish)]


@pytest.mark.parametrize("errors", [["ValueError: no"] * 3, ["ValueError: (3, 1)", "ValueError: (4, 1)", "ValueError"]])
def test_three_failures_alike_end_the_run(errors: list[str]) -> None:
    desk = Desk("w1", trials=9, fail_fast=True)
    for error in errors[:-1]:
        assert ends(fail(desk, "w1", error)) == []
    (finish,) = ends(fail(desk, "w1", errors[-1]))
    assert not finish.complete
    reason = f"3 trials failed in the same way before any had finished a unit: {errors[-1]}"
    assert finish.reason == reason
    assert desk.controller.failing


@pytest.mark.parametrize(
    ("others", "fail_fast"),
    [
        ([("KeyError: 'x'", "task.py:3")], True),
        ([("ValueError: no", "task.py:4")], True),
        ([("ValueError: no", "")], True),
        ([("ValueError: no", "task.py:3")], False),
    ],
)
def test_other_failures_do_not_count(others: list[tuple[str, str]], fail_fast: bool) -> None:
    desk = Desk("w1", trials=9, fail_fast=fail_fast)
    fail(desk, "w1")
    fail(desk, "w1")
    for error, place in others:
        assert ends(fail(desk, "w1", error, place)) == []
    assert not desk.controller.failing


def test_failures_without_a_place_are_alike_if_their_text_is() -> None:
    desk = Desk("w1", trials=9, fail_fast=True)
    for batch in (1, 2, 3):
        assert ends(fail(desk, "w1", f"TaskError: the loss is nan in batch {batch}", "")) == []
    fail(desk, "w1", "TaskError: the loss is nan in batch 1", "")
    (finish,) = ends(fail(desk, "w1", "TaskError: the loss is nan in batch 1", ""))
    assert "nan in batch 1" in finish.reason


def test_a_unit_that_ended_well_proves_the_task() -> None:
    desk = Desk("w1", trials=9, fail_fast=True)
    desk.finished()
    assert all(ends(fail(desk, "w1")) == [] for _ in range(5))
    assert not desk.controller.failing


def test_a_running_unit_may_still_prove_the_task() -> None:
    desk = Desk("w1", "w2", trials=9, fail_fast=True)
    for _ in range(3):
        assert ends(fail(desk, "w1")) == []  # the other worker still runs a unit
    assert desk.controller.failing
    assert desk.controller.schedule.slots["w1"].unit is None
    follow = desk.finished("w2")
    assert not desk.controller.failing
    assert any(isinstance(message, m.RunUnit) and message.worker == "w1" for message in follow)


def test_counting_starts_anew_with_each_run() -> None:
    desk = Desk("w1", trials=9, fail_fast=True)
    for _ in range(3):
        fail(desk, "w1")
    desk.tell(m.RunStarted("test"))
    desk.tell(m.WorkerJoined("w1"))
    assert ends(fail(desk, "w1")) == []
    assert not desk.controller.failing


def test_the_last_trials_end_the_run_as_usual() -> None:
    desk = Desk("w1", trials=2, fail_fast=True)
    fail(desk, "w1")
    follow = fail(desk, "w1")
    assert ends(follow) == [m.Finish(complete=True)]
    assert [message.state for message in follow if isinstance(message, m.TrialEnded)] == [TrialState.FAILED]
