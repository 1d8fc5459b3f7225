"""What the controller tells workers ahead, where hops cost network: who hears it, when, and what is saved for it."""

from __future__ import annotations

import math

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.unit import Work
from hopfleet.scheduler.invariants import validate
from tests.helpers.virtual.settings import Setting, controller_of


class Bench:
    """A worker for each of two partitions, trials of two epochs, and short hands for reports."""

    def __init__(self, **options: object) -> None:
        setting = Setting(**{"trials": 4, "sticky": True, "lookahead": True, **options})
        self.controller = controller_of(setting)
        self.clock = 0.0
        self.tell(m.RunStarted("test", setting.partitions))
        self.tell(
            *(m.WorkerJoined(f"w{number + 1}", Placement.on("fake"), (number,)) for number in range(setting.partitions))
        )

    def tell(self, *events: m.Event) -> list[m.Message]:
        follow = self.controller.take(events)
        validate(self.controller.schedule)
        return follow[len(events) :]

    def ended(self, worker: str) -> m.Event:
        """Return the report that the running unit of a worker has ended, without telling the controller."""
        slot = self.controller.schedule.slots[worker]
        unit, attempt = slot.unit, slot.attempt
        started, self.clock = self.clock, self.clock + 1.0
        version = self.controller.schedule.trials[unit.trial].version + unit.trains
        sums = {"train_loss" if unit.trains else "loss": RowSum.of(1.0, 1)}
        return m.UnitFinished(worker, unit, attempt, version, started, self.clock, sums=sums)

    def look(self, **ages: float) -> list[m.Message]:
        follow = self.controller.look_ahead(ages)
        validate(self.controller.schedule)
        return follow

    def unit(self, worker: str) -> str:
        return self.controller.schedule.slots[worker].unit.trial


def saved(told: m.SaveVersion) -> m.VersionSaved:
    return m.VersionSaved(told.ref, told.durable, "", 1)


def test_nothing_is_told_ahead_before_anything_is_known():
    bench = Bench()
    assert bench.look(w1=math.inf, w2=math.inf) == []
    assert bench.controller.next_look({}) == math.inf


def test_a_worker_hears_of_the_next_unit_when_half_of_this_one_is_over():
    bench = Bench()
    first = bench.unit("w1")
    bench.tell(bench.ended("w1"))  # it took a second
    second = bench.unit("w1")
    assert bench.controller.next_look({"w1": 0.2, "w2": 0.9}) == pytest.approx(0.3)
    assert bench.look(w1=0.4) == []
    save, start = bench.look(w1=0.6)
    assert (save.worker, save.trial, save.ref.version, save.durable) == ("w1", second, 1, False)
    assert (start.worker, start.unit.partition, start.lookahead, start.flotilla) == ("w1", 0, True, 0)
    assert start.trial not in (first, second, bench.unit("w2"))
    assert bench.look(w1=0.7) == [], "once is enough"
    assert bench.controller.next_look({"w1": 0.7, "w2": 0.9}) == math.inf
    follow = bench.tell(bench.ended("w1"))
    assert [type(x) for x in follow] == [], "it is saved already, and the worker goes on"
    assert bench.unit("w1") == start.trial
    assert bench.tell(saved(save)) == [], "w2 is busy"
    progress = bench.controller.schedule.trials[second]
    assert progress.loadable and progress.version == 1


def test_where_all_is_as_usual_nothing_is_told_ahead():
    bench = Bench(lookahead=False)
    bench.tell(bench.ended("w1"))
    assert bench.look(w1=math.inf) == [] and bench.controller.next_look({}) == math.inf


def test_nobody_is_told_to_wait_for_somebody():
    bench = Bench(trials=2)
    bench.tell(bench.ended("w1"))
    assert bench.controller.schedule.slots["w1"].unit is None
    assert bench.look(w2=math.inf) == [], "the one who could come is being saved"


def test_several_are_told_at_once_and_none_gets_what_another_has():
    bench = Bench(trials=8, together=2)
    bench.tell(bench.ended("w1"), bench.ended("w2"))
    starts = [x for x in bench.look(w1=9.0, w2=9.0) if isinstance(x, m.RunUnit)]
    assert {x.worker for x in starts} == {"w1", "w2"}
    assert len({x.trial for x in starts}) == len(starts) == 4
    assert all(x.lookahead and x.flotilla for x in starts)


def test_after_an_evaluation_there_is_nothing_to_save():
    bench = Bench(trials=3, partitions=1, epochs=1)
    bench.tell(bench.ended("w1"))
    assert bench.look(w1=9.0) == [], "how long an evaluation takes is not known yet"
    for _ in range(2):
        bench.tell(bench.ended("w1"))
    assert bench.controller.schedule.slots["w1"].unit.work is Work.EVALUATE
    (start,) = bench.look(w1=9.0)
    assert isinstance(start, m.RunUnit) and start.lookahead


@pytest.mark.parametrize("name", ["pause", "drain"])
def test_nothing_is_told_ahead_that_should_not_start(name):
    bench = Bench()
    bench.tell(bench.ended("w1"))
    bench.tell(m.RequestMade(name))
    assert bench.look(w1=9.0) == []


def test_a_lost_worker_is_not_blamed_on_what_it_had_not_begun():
    bench = Bench()
    bench.tell(bench.ended("w1"))
    _, start = bench.look(w1=9.0)
    running = bench.unit("w1")
    bench.tell(m.WorkerLost("w1", "killed", replaced=True))
    trials = bench.controller.schedule.trials
    assert (len(trials[running].losses), trials[start.trial].losses) == (1, [])
    assert {running, start.trial} <= set(bench.controller.schedule.ready)


def test_to_stop_at_once_what_has_not_begun_costs_nobody_a_unit():
    bench = Bench()
    bench.tell(bench.ended("w1"))
    _, start = bench.look(w1=9.0)
    stop = m.RequestMade("stop", {"trial": start.trial, "now": True})
    follow = bench.tell(stop)
    assert [type(x) for x in follow] == [m.RequestAnswered, m.TrialStopped]
    assert follow[0].text == f"{start.trial} stops after what it is about to do: its worker runs another one"
    bench.tell(bench.ended("w1"))
    assert bench.unit("w1") == start.trial
    follow = bench.tell(stop)
    assert [x.attempt for x in follow if isinstance(x, m.StopUnit)] == [start.attempt], "now it costs no other unit"


def test_a_save_that_overtook_its_unit_is_made_again():
    bench = Bench()
    bench.tell(bench.ended("w1"))
    save, _ = bench.look(w1=9.0)
    assert bench.tell(saved(save)) == []
    follow = bench.tell(bench.ended("w1"))
    (again,) = [x for x in follow if isinstance(x, m.SaveVersion)]
    assert again.ref[:2] == save.ref[:2] and again.ref.attempt != save.ref.attempt
    assert m.DropVersion(save.ref) in follow
