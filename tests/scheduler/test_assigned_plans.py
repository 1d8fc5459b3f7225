"""Plans in which each unit has its worker: what they are made from, when they hold, what starts, when one is chosen."""

from __future__ import annotations

from collections import deque

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner.assigned import TrialWork
from hopfleet.planner.balance import installed
from hopfleet.scheduler.policies import replicated
from hopfleet.scheduler.policies.assigned import Assigned, _free, _task, _units, possible
from hopfleet.scheduler.policies.replicated import Replicated
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import trial
from tests.helpers.shop_floor import RNG, begin, decide, end, shop_floor

pytestmark = pytest.mark.skipif(not installed(), reason="needs SciPy")

READS = {"slow": (0, 1), "fast": (1,)}


class TestTasks:
    def test_each_partition_has_its_readers(self):
        schedule = shop_floor("slow", "fast", trials=1, reads=READS)
        seconds = [{0: 8.0}, {0: 8.0, 1: 2.0}]
        assert _task(schedule, schedule.trials["t1"], ["slow", "fast"]) == TrialWork(seconds, frozenset({0, 1}), 1)
        assert _task(schedule, schedule.trials["t1"], ["fast"]).seconds == [{}, {0: 2.0}]

    def test_a_running_unit_is_no_part_of_a_task_and_delays_it(self):
        schedule = shop_floor("slow", "fast", trials=2)
        begin(schedule, "fast", "t1", 1)
        schedule.now = 100.5
        task = _task(schedule, schedule.trials["t1"], ["slow", "fast"])
        assert (task.todo, task.laps, task.ready) == (frozenset({0}), 1, 1.5)
        assert _units(schedule.trials["t1"]) == 3 and _units(schedule.trials["t2"]) == 4

    def test_the_last_unit_of_an_epoch_leaves_the_epochs_after_it(self):
        schedule = shop_floor("slow", "fast", trials=1, epochs=3)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 2.0)
        begin(schedule, "fast", "t1", 1)
        task = _task(schedule, schedule.trials["t1"], ["slow", "fast"])
        assert (task.todo, task.laps) == (frozenset(), 2)


class TestFree:
    def test_a_worker_is_free_when_all_that_it_was_told_has_ended(self):
        schedule = shop_floor("slow", "fast", partitions=3)
        assert _free(schedule, "fast") == 0.0
        begin(schedule, "fast", "t1")
        begin(schedule, "fast", "t2", lookahead=True)
        schedule.now = 101.0
        assert _free(schedule, "fast") == 2.0 + 4.0 - 1.0

    def test_what_is_late_ends_now(self):
        schedule = shop_floor("slow", "fast")
        begin(schedule, "fast", "t1")
        schedule.now = 150.0
        assert _free(schedule, "fast") == 0.0

    def test_an_evaluation_may_end_at_any_moment(self):
        schedule = shop_floor("fast", trials=1, epochs=1, partitions=1)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 2.0)
        schedule.start("fast", Unit("t1", 1, 0, Work.EVALUATE), 1)
        assert _free(schedule, "fast") == 0.0


class TestPossible:
    def test_a_plan_needs_units_and_a_worker_for_each_partition(self):
        assert possible(shop_floor("slow", "fast", reads=READS)) is True
        assert not possible(shop_floor("slow", "fast", trials=0))
        assert not possible(shop_floor("fast", reads=READS))

    def test_nothing_else_chooses_the_visits(self):
        schedule = shop_floor("slow", "fast")
        schedule.sticky = True
        assert not possible(schedule)
        schedule = shop_floor("slow", "fast")
        schedule.add(trial(3), order=(1, 0, 1, 0))
        assert not possible(schedule)

    def test_a_trial_that_is_about_to_end_has_units_that_nobody_will_run(self):
        schedule = shop_floor("slow", "fast")
        schedule.settle("t1", Outcome(TrialState.STOPPED))
        assert not possible(schedule)


def lanes(schedule: Schedule, trials: dict[str, list[str]], **workers: list[tuple[str, int]]) -> Assigned:
    """Return a plan with these units of each worker, and these workers of each trial, in turn."""
    made = Assigned(schedule)
    made._workers = {worker: deque(units) for worker, units in workers.items()}
    made._trials = {name: deque(turns) for name, turns in trials.items()}
    return made


class TestPlans:
    def test_all_units_are_in_it_and_it_ends_when_they_do(self):
        schedule = shop_floor("fast", trials=2, epochs=1)
        begin(schedule, "fast", "t1")
        schedule.now = 101.0
        plan = Assigned(schedule)
        assert plan.end == 100.0 + 2 * 2.0 + 2 * 4.0
        assert sorted(plan._workers["fast"]) == [("t1", 1), ("t2", 0), ("t2", 1)]
        assert plan._trials == {"t1": deque(["fast"]), "t2": deque(["fast", "fast"])}

    def test_a_worker_that_is_about_to_leave_and_a_trial_without_units_are_left_out(self):
        schedule = shop_floor("slow", "fast", epochs=1, partitions=1)
        begin(schedule, "slow", "t1")
        schedule.retire("slow")
        plan = Assigned(schedule)
        assert plan._workers.keys() == {"fast"} and plan._trials.keys() == {"t2"}

    def test_it_fits_as_long_as_its_units_are_those_that_are_owed(self):
        schedule = shop_floor("slow", "fast", epochs=1)
        plan, running = Assigned(schedule), []
        for _ in range(4):
            running += decide(plan, schedule)
            assert plan.fits(schedule)
            name, worker = running.pop(0)
            end(schedule, worker, 1.0)
            schedule.saved(VersionRef(name, schedule.trials[name].version, 1), durable=False)
            assert plan.fits(schedule)
        assert not schedule.ready

    def test_it_does_not_fit_a_unit_that_was_lost_or_a_trial_that_came(self):
        schedule = shop_floor("slow", "fast")
        plan = Assigned(schedule)
        ((name, worker), *_) = decide(plan, schedule)
        assert plan.fits(schedule)
        schedule.abandon(worker, name)
        assert not plan.fits(schedule)
        schedule = shop_floor("slow", "fast")
        plan = Assigned(schedule)
        schedule.add(trial(3))
        assert not plan.fits(schedule)


class TestWhatStarts:
    def test_units_of_a_worker_start_in_turn(self):
        schedule = shop_floor("fast", epochs=1)
        plan = lanes(schedule, {"t1": ["fast"], "t2": ["fast"]}, fast=[("t2", 1), ("t1", 0)])
        assert decide(plan, schedule) == [("t2", "fast")]
        assert schedule.slots["fast"].unit == Unit("t2", 1, 1)
        end(schedule, "fast", 4.0)
        assert decide(plan, schedule) == [("t1", "fast")]
        end(schedule, "fast", 2.0)
        assert plan(schedule, RNG) is None

    def test_a_worker_without_units_leaves_the_others_theirs(self):
        schedule = shop_floor("slow", "quick", "fast")
        plan = lanes(schedule, {"t1": ["fast"]}, quick=[], fast=[("t1", 0)])
        assert decide(plan, schedule) == [("t1", "fast")]

    def test_a_worker_waits_for_a_trial_that_runs_elsewhere(self):
        schedule = shop_floor("slow", "fast", "quick")
        begin(schedule, "slow", "t1")
        plan = lanes(schedule, {"t1": ["fast"], "t2": ["quick"]}, fast=[("t1", 1)], quick=[("t2", 0)])
        assert decide(plan, schedule) == [("t2", "quick")]

    def test_a_worker_waits_for_a_trial_that_another_one_has_first(self):
        schedule = shop_floor("fast", "quick", trials=1)
        plan = lanes(schedule, {"t1": ["quick", "fast"]}, fast=[("t1", 1)], quick=[("t1", 0)])
        assert decide(plan, schedule) == [("t1", "quick")]

    def test_a_worker_waits_for_a_model_that_is_being_saved(self):
        schedule = shop_floor("slow", "fast", "quick")
        begin(schedule, "slow", "t1")
        end(schedule, "slow", 8.0)
        plan = lanes(schedule, {"t1": ["fast"], "t2": ["quick"]}, fast=[("t1", 1)], quick=[("t2", 0)])
        assert decide(plan, schedule) == [("t2", "quick")]


class TestWhenPlansAreChosen:
    @pytest.fixture
    def laps(self, monkeypatch):
        """The epochs that each rehearsal was to cover."""
        asked = []
        monkeypatch.setattr(replicated, "rehearse", lambda *_, laps: asked.append(laps) or 1.0)
        monkeypatch.setattr(replicated, "UNITS", 8)
        return asked

    @pytest.mark.parametrize(("epochs", "covered"), [((2, 2), 2), ((1, 3), 3), ((2, 3), 1)])
    def test_rehearsals_cover_all_epochs_where_a_plan_would(self, laps, epochs, covered):
        """Up to eight units here, two of each trial and epoch."""
        schedule = shop_floor("slow", "fast", trials=0)
        for number, each in enumerate(epochs, 1):
            schedule.add(trial(number, each))
        Replicated()._choice(schedule)
        assert laps == [covered] * 3

    def test_without_trials_there_is_one_epoch(self, laps):
        Replicated()._choice(shop_floor("slow", "fast", trials=0))
        assert laps == [1] * 3

    @pytest.mark.parametrize(("seconds", "planned"), [(24.0, False), (25.0, True)])
    def test_a_plan_must_end_before_the_best_rehearsal(self, monkeypatch, seconds, planned):
        monkeypatch.setattr(replicated, "rehearse", lambda *_, laps: seconds)
        schedule = shop_floor("fast", trials=2, epochs=2)  # four units of 2 s, and four of 4 s
        assert isinstance(Replicated()._choice(schedule), Assigned) is planned

    def test_as_many_units_as_a_rehearsal_may_have_and_slight_noise_are_planned(self, monkeypatch):
        monkeypatch.setattr(replicated, "rehearse", lambda *_, laps: 1e9)
        for limit, slight, planned in ((8, 0.5, True), (7, 0.5, False), (8, 0.25, False)):
            monkeypatch.setattr(replicated, "UNITS", 8)
            monkeypatch.setattr(replicated, "SLIGHT", slight)
            monkeypatch.setattr(replicated, "LOOSE", 1.0)
            schedule = shop_floor("slow", "fast", trials=2, epochs=2)
            schedule.estimates._squares = 0.25, 1  # a noise of 0.5
            if limit < 8:
                schedule.owed[0] += 1
            assert isinstance(Replicated()._choice(schedule), Assigned) is planned

    @pytest.mark.parametrize(
        ("noise", "lost", "again"), [(0.0, False, False), (0.5, False, False), (0.75, False, True), (0.0, True, True)]
    )
    def test_a_plan_is_followed_until_units_take_another_time_or_it_no_longer_fits(
        self, monkeypatch, noise, lost, again
    ):
        chosen = []
        monkeypatch.setattr(replicated, "rehearse", lambda *_, laps: 1e9)
        monkeypatch.setattr(replicated, "SLIGHT", 0.5)
        monkeypatch.setattr(replicated, "LOOSE", 1.0)
        policy, schedule = Replicated(), shop_floor("slow", "fast", trials=2, epochs=9)
        choose = policy._choice
        monkeypatch.setattr(policy, "_choice", lambda schedule: chosen.append(1) or choose(schedule))
        found = policy(schedule, RNG)
        assert found is not None and len(chosen) == 1
        begin(schedule, found.worker, found.unit.trial, found.unit.partition)
        schedule.estimates._squares = noise**2, 1
        if lost:
            schedule.abandon(found.worker, found.unit.trial)
        assert policy(schedule, RNG) is not None
        assert len(chosen) == 1 + again
