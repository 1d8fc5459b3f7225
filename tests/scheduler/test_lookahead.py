"""What workers are told ahead, where hops cost network: who, when, what is saved for it, and what comes of it."""

from __future__ import annotations

import math
import random

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.dispatch import foreseen
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Outcome, Save
from hopfleet.scheduler.shop_state import initial_state
from hopfleet.scheduler.shop_view import ShopView
from tests.helpers.schedule_desk import Desk
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import Fault, Setting, controller_of

# --------------------------------------------------------------------------------------------- the state machine


def finish(desk: Desk, trial: str, seconds: float) -> None:
    """The unit of a trial on w1 ends well."""
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit_of(trial), seconds, {})


def test_what_comes_next_begins_when_all_is_done():
    desk = Desk(None, trials=3, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1, 1)
    desk.schedule.start("w1", Unit("t2", 1, 0), 2, 1)
    desk.schedule.start("w1", Unit("t3", 1, 1), 3, lookahead=True)
    validate(desk.schedule)
    slot = desk.schedule.slots["w1"]
    assert (slot.unit, slot.told[Unit("t3", 1, 1)], slot.unit_of("t3"), slot.warm) == (
        Unit("t1", 1, 0),
        3,
        Unit("t3", 1, 1),
        0,
    )
    assert desk["t3"].trains_on == "w1" and "t3" not in desk.schedule.ready
    assert desk.schedule.accepts("w1", Unit("t3", 1, 1), 3) and desk.schedule.runs("w1", 3)
    finish(desk, "t2", 1.0)
    assert list(slot.units) == [Unit("t1", 1, 0)]
    desk.schedule.now = 5.0
    finish(desk, "t1", 1.0)
    validate(desk.schedule)
    assert (slot.units, slot.lookahead, slot.started, slot.warm) == ({Unit("t3", 1, 1): 3}, {}, 5.0, 1)
    assert not desk.schedule.idle
    finish(desk, "t3", 1.0)
    assert list(desk.schedule.idle) == ["w1"] and desk["t3"].visits == [1]


def test_reports_may_overtake_each_other():
    desk = Desk(None, trials=2, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    finish(desk, "t2", 1.0)
    validate(desk.schedule)
    assert not desk.schedule.idle and desk["t2"].visits == [1]
    finish(desk, "t1", 1.0)
    assert list(desk.schedule.idle) == ["w1"]


def test_several_come_next_together():
    desk = Desk(None, trials=3, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, 2, lookahead=True)
    desk.schedule.start("w1", Unit("t3", 1, 1), 3, 2, lookahead=True)
    validate(desk.schedule)
    finish(desk, "t1", 1.0)
    slot = desk.schedule.slots["w1"]
    assert (list(slot.units), slot.flotilla, slot.lookahead_flotilla) == ([Unit("t2", 1, 1), Unit("t3", 1, 1)], 2, 0)


def test_one_thing_comes_next_and_only_after_another():
    desk = Desk(None, trials=3, valid=0)
    with pytest.raises(InvariantBroken, match="exclusive access: w1 runs nothing that t1 trains on partition 0"):
        desk.schedule.start("w1", Unit("t1", 1, 0), 1, lookahead=True)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    with pytest.raises(InvariantBroken, match="exclusive access: w1 already runs: t2 trains on partition 1"):
        desk.schedule.start("w1", Unit("t3", 1, 1), 3, lookahead=True)


def test_what_a_lost_worker_was_to_do_next_waits_for_others():
    desk = Desk(None, trials=2, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    assert desk.schedule.leave("w1") == {Unit("t1", 1, 0): 1}
    validate(desk.schedule)
    assert sorted(desk.schedule.ready) == ["t1", "t2"] and not desk.schedule.idle


def test_a_save_that_overtook_its_unit_counts_for_nothing():
    desk = Desk(None, valid=0)
    desk.start("w1", "t1", 0)
    desk.schedule.save("t1", 7, Save(1, False, "w1"))
    desk.schedule.premature(VersionRef("t1", 1, 7))
    validate(desk.schedule)
    assert (desk["t1"].saved, desk["t1"].saves, desk["t1"].stale) == ({}, {}, [(1, 7)])


# ------------------------------------------------------------------------------------------- who may look ahead


def test_a_trial_goes_on_where_it_owes_something_else():
    desk = Desk((0, 1), (2,), partitions=3, epochs=2)
    progress = desk["t1"]
    assert progress.goes_on(frozenset({0, 1}), 0) and progress.goes_on(None, 0)
    assert not progress.goes_on(frozenset({0}), 0)
    progress.forced.extend([0, 2, 1])
    assert progress.goes_on(frozenset({2}), 0) and not progress.goes_on(frozenset({1}), 0)


def test_the_end_of_an_epoch_is_waited_for():
    desk = Desk((0,), (1,), epochs=2)
    desk.train("w1", "t1", 0)
    progress = desk["t1"]
    assert progress.goes_on(frozenset({1}), 1), "it is evaluated there"
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    assert progress.goes_on(frozenset({1}), None), "the next epoch begins there"
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    assert progress.goes_on(frozenset({0}), None), "it is saved there"


def test_after_the_last_evaluation_a_worker_is_free():
    desk = Desk(None, partitions=1, epochs=1)
    desk.train("w1", "t1", 0)
    slot = desk.schedule.slots["w1"]
    assert desk.schedule.keeps(slot), "nobody evaluates it yet"
    desk.start("w1", "t1", 0, evaluate=True)
    assert not desk["t1"].goes_on(None, None) and not desk.schedule.keeps(slot)


def test_what_is_urgent_or_here_comes_before_what_a_policy_would_choose():
    desk = Desk((0,), (1,), trials=4, valid=0)
    desk.train("w1", "t3", 0)
    desk.schedule.saved(VersionRef("t3", 1, 0), durable=False)
    desk.start("w2", "t1", 1)
    slots = {"w2": desk.schedule.slots["w2"]}

    def next_up() -> str:
        found = foreseen(desk.schedule, longest_remaining, random.Random(0), slots)
        assert found is not None and found.worker == "w2"
        return found.unit.trial

    assert next_up() == "t2"
    desk.schedule.prioritise("t4", 1)
    assert next_up() == "t4"
    assert list(desk.schedule.idle) == ["w1"]
    desk.schedule.prioritise("t4", 0)
    for trial in ("t2", "t3", "t4"):
        desk.schedule.settle(trial, Outcome(TrialState.FAILED))
    assert foreseen(desk.schedule, longest_remaining, random.Random(0), slots) is None


# ----------------------------------------------------------------------------------------- what policies see


def test_the_shop_state_of_workers_that_are_told_ahead():
    desk = Desk((0,), (1,), trials=3, valid=1, epochs=1)
    desk.start("w1", "t1", 0)
    desk.schedule.start("w1", Unit("t2", 1, 0), 2, lookahead=True)
    shop_view = ShopView()
    state = shop_view.look(desk.schedule)
    assert (state.runs, state.idle_workers, state.idle_trials) == ({0: 0}, {1}, {2})
    assert (state.worker_free, state.trial_free) == ([2.0, 0.0], [1.0, 2.0, 0.0])
    assert state.todo[1] == {1: [1]}
    with desk.schedule.supposing({"w1": desk.schedule.slots["w1"]}):
        state = shop_view.look(desk.schedule)
        assert (state.runs, state.idle_workers, state.worker_free) == ({}, {0}, [0.0, 0.0])


def test_an_evaluation_takes_no_time_in_the_shop_state_and_what_follows_does():
    desk = Desk((0,), (1,), trials=2, epochs=1)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    desk.start("w2", "t1", 0, evaluate=True)
    desk.schedule.start("w2", Unit("t2", 1, 1), 2, lookahead=True)
    desk.schedule.now = 3.0
    state = ShopView().look(desk.schedule)
    assert state.runs == {1: -1}
    assert state.worker_free[1] == state.trial_free[1] > 3.0


def test_replicas_are_shared_out_ahead_too():
    desk = Desk((0, 1), (1, 2), (0, 2), partitions=3, trials=6, valid=0)
    policy = Balanced()
    desk.train("w1", "t1", 0)
    for worker, trial, partition in (("w1", "t2", 0), ("w2", "t3", 1), ("w3", "t4", 2)):
        desk.start(worker, trial, partition)
    assert policy(desk.schedule, random.Random(0)) is None
    slots = dict(desk.schedule.slots)
    with desk.schedule.supposing(slots):
        chosen = policy(desk.schedule, random.Random(0))
    assert chosen is not None and chosen.unit.trial in desk.schedule.ready
    desk.schedule.start(chosen.worker, chosen.unit, 9, lookahead=True)
    validate(desk.schedule)
    del slots[chosen.worker]
    with desk.schedule.supposing(slots):
        other = policy(desk.schedule, random.Random(0))
    assert other is not None and other.unit.trial in desk.schedule.ready


def test_no_plan_is_made_where_trials_stay():
    state = initial_state([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0]])
    policy = Auto()
    for sticky in (True, False):
        state.sticky = sticky
        policy._choose(state, random.Random(0))
        assert (policy._news == -1) is sticky
    desk = Desk((0,), (1,), trials=2)
    desk.schedule.sticky = True
    assert ShopView().look(desk.schedule).sticky


def test_enough_groups_are_left_for_everybody():
    desk = Desk((0,), (1,), trials=16)
    fusion = Fusion(lambda config: None, most=99)
    slot, unit = desk.schedule.slots["w1"], Unit("t1", 1, 0)
    assert [len(companions(desk.schedule, slot, unit, fusion, 0, groups)) + 1 for groups in (1, 2, 4, 8)] == [
        8,
        4,
        2,
        1,
    ]


# ------------------------------------------------------------------------------------------- the controller


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
        """The report of what runs on a worker, of which nothing is told."""
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
    assert [x.attempt for x in follow if isinstance(x, m.StopUnit)] == [start.attempt], "now it costs nobody"


def test_a_save_that_overtook_its_unit_is_made_again():
    bench = Bench()
    bench.tell(bench.ended("w1"))
    save, _ = bench.look(w1=9.0)
    assert bench.tell(saved(save)) == []
    follow = bench.tell(bench.ended("w1"))
    (again,) = [x for x in follow if isinstance(x, m.SaveVersion)]
    assert again.ref[:2] == save.ref[:2] and again.ref.attempt != save.ref.attempt
    assert m.DropVersion(save.ref) in follow


# ---------------------------------------------------------------------------------------- whole experiments


PINNED = ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize("policy", ["auto", "match-reserve", "longest-remaining", "random"])
def test_whole_experiments(policy):
    setting = Setting(workers=PINNED, partitions=4, trials=8, epochs=3, sticky=True, lookahead=True, policy=policy)
    driver = Driver(setting).run()
    starts = [x for x in driver.messages if isinstance(x, m.RunUnit) and x.unit.trains]
    assert sum(x.lookahead for x in starts) > len(starts) / 3
    assert all(x.state is TrialState.COMPLETED for x in driver.ended.values())


@pytest.mark.parametrize("kind", ["lose", "zombie", "late", "raise", "deaf", "partial", "crash", "vanish", "pause"])
def test_whatever_goes_wrong(kind):
    faults = tuple(Fault(step, kind, 3 * step) for step in range(6, 60, 9))
    setting = Setting(
        workers=PINNED, partitions=4, trials=8, epochs=2, sticky=True, lookahead=True, steady=False, save_seconds=0.5,
        faults=faults, together=2,
    )  # fmt: skip
    driver = Driver(setting).run()
    assert kind in driver.happened
    assert any(isinstance(x, m.RunUnit) and x.lookahead for x in driver.messages)
