"""What policies may ask a schedule: one question at a time."""

from __future__ import annotations

import pytest

from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Save
from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import Desk
from tests.helpers.shop_floor import begin, end, shop_floor


def test_a_new_schedule_expects_nothing() -> None:
    schedule = Schedule(2, 1)
    assert (schedule.now, schedule.ends, schedule.forming, schedule.layouts) == (0.0, 0, 0, 0)
    assert (schedule.more_to_come, schedule.suggestions_left) == (False, 0)
    assert (schedule.sticky, schedule.chained, schedule.gathers, schedule.allocated) == (False, False, False, False)


def test_the_longest_trial_that_a_worker_holds_among_those_with_its_devices() -> None:
    desk = Desk(None, trials=3, epochs=4)
    desk.schedule.allocated = True
    for name, last in (("t1", 2), ("t2", 4), ("t3", 4)):
        desk.schedule.allocations.grant(desk[name], 1, last)
    slot = desk.schedule.slots["w1"]
    assert desk.schedule.longest_held(slot) is None
    desk["t1"].holder = desk["t2"].holder = "w1"
    assert desk.schedule.longest_held(slot) is desk["t2"]


def test_the_worker_with_the_model_evaluates_what_it_can_read() -> None:
    desk = Desk(None, None, partitions=1, valid=2)
    schedule, progress = desk.schedule, desk["t1"]
    desk.train("w1", "t1", 0)
    other = schedule.slots["w2"]
    assert [*schedule.evaluations(progress, other)] == []
    assert [*schedule.evaluations(progress, other, elsewhere=True)] == [0, 1]
    schedule.slots["w1"].valid = frozenset({0})
    assert [*schedule.evaluations(progress, other)] == [1]


def test_a_trial_that_nothing_is_known_of_takes_as_long_as_the_mean_unit() -> None:
    desk = Desk(None, trials=2)
    assert desk.schedule.unit_seconds(desk["t2"]) == 1.0
    desk.train("w1", "t1", 0, seconds=2.0)
    desk.train("w1", "t1", 1, seconds=4.0)
    assert desk.schedule.unit_seconds(desk["t2"]) == 3.0


def test_classes_are_found_again_when_workers_or_times_change(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, asked = shop_floor("slow", "fast"), list[list[str]]()
    find = schedule.estimates.classes
    monkeypatch.setattr(
        schedule.estimates, "classes", lambda workers, trials: asked.append(workers) or find(workers, trials)
    )
    for _ in range(2):
        assert schedule.classes == (("fast",), ("slow",))
    assert asked == [["slow", "fast"]]
    schedule.join("quick", None)
    assert schedule.classes == (("fast", "quick"), ("slow",))
    schedule.retire("fast")
    assert schedule.classes == (("quick",), ("slow",))
    begin(schedule, "quick", "t1")
    end(schedule, "quick", 2.0)
    assert schedule.classes == (("quick",), ("slow",))
    assert asked[1:] == [["slow", "fast", "quick"], ["slow", "quick"], ["slow", "quick"]]


class TestUnderWay:
    def test_a_team_that_forms_of_workers_that_start(self) -> None:
        schedule = Schedule(2, 1)
        assert not schedule.under_way
        schedule.forming = 1
        assert not schedule.under_way, "its workers are lost"
        schedule.starting = 1
        assert schedule.under_way
        schedule.forming = 0
        assert not schedule.under_way, "a worker that starts may never come"
        schedule.regrouping = 1
        assert schedule.under_way

    def test_a_save_that_neither_waits_in_memory_nor_for_a_storage(self) -> None:
        desk = Desk(None, None)
        schedule = desk.schedule
        desk.train("w1", "t1", 0)
        schedule.save("t1", 1, Save(1, True, "w1", waits=True))
        assert not schedule.under_way
        schedule.save("t1", 1, Save(1, True, "w1"))
        assert schedule.under_way
        schedule.delay(VersionRef("t1", 1, 1), on_node=True)
        assert not schedule.under_way
        schedule.save("t1", 2, Save(1, False, "w1"))
        assert schedule.under_way


def test_what_a_worker_reads_and_what_it_was_told() -> None:
    desk = Desk((0, 1), trials=2, partitions=2, valid=3)
    slot = desk.schedule.slots["w1"]
    slot.valid = frozenset({2})
    assert slot.readable(valid=True) == {2} and slot.readable(valid=False) == {0, 1}
    desk.start("w1", "t1", 0)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    assert slot.trains("t1") is slot.trains("t2") is True and slot.trains("t3") is False
    desk.schedule.finish("w1", Unit("t1", 1, 0), 1.0, {})
    assert slot.trains("t1") is False
