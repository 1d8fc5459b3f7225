"""The shop state of a live schedule: what it follows step by step is what a look at every trial finds."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_view import PartitionLayout, ShopView, layout
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk, trial


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        (((0,), (1,)), PartitionLayout.PINNED),
        (((0,),), PartitionLayout.PINNED),
        ((None,), PartitionLayout.PINNED),
        (((0,), (0, 1)), PartitionLayout.REPLICATED),
        ((None, (0,)), PartitionLayout.REPLICATED),
        ((None, None), PartitionLayout.EVERYWHERE),
        (((0, 1), None), PartitionLayout.EVERYWHERE),
    ],
)
def test_layouts(workers, found):
    assert layout(Desk(*workers).schedule) is found


def test_a_retired_worker_is_none_of_the_layout():
    desk = Desk(None, None, None)
    desk.schedule.retire("w2")
    assert layout(desk.schedule) is PartitionLayout.EVERYWHERE
    desk.schedule.retire("w1")
    assert layout(desk.schedule) is PartitionLayout.PINNED


# ------------------------------------------------------------------------------------------- step by step


def seconds(number: int, worker: str, partition: int) -> float:
    return number + 0.1 * partition + 0.3


class Walk:
    """A schedule in which workers take what they can, trials come and fail, and units take as long as expected."""

    def __init__(self, seed: int, partitions: int = 3) -> None:
        self.rng, self.schedule = random.Random(seed), Schedule(partitions, 0, Estimates([1] * partitions, seconds))
        self.view, self.attempts, self.trials = ShopView(), 0, 0
        self.schedule.join("w1", (0, 1))
        self.schedule.join("w2", tuple(range(2, partitions)))

    def step(self) -> None:
        self.schedule.now += 0.25
        idle = [slot for slot in self.schedule.slots.values() if slot.unit is None]
        busy = [slot for slot in self.schedule.slots.values() if slot.unit is not None]
        turn = self.rng.randrange(10)
        if turn == 0 or not self.schedule.trials:
            self.trials += 1
            self.schedule.add(trial(self.trials, self.rng.randrange(1, 4)))
        elif turn == 1:
            self.fail(self.rng.choice(list(self.schedule.trials)))
        elif turn < 6 and idle:
            self.start(self.rng.choice(idle))
        elif busy:
            self.finish(self.rng.choice(busy))

    def fail(self, name: str) -> None:
        worker = self.schedule.trials[name].trains_on
        if worker is not None:
            self.schedule.abandon(worker, name)
        self.schedule.park(name, TrialState.FAILED)

    def start(self, slot) -> None:
        for progress in self.schedule.able(slot):
            self.attempts += 1
            partition = self.rng.choice(sorted(self.schedule.options(progress, slot)))
            self.schedule.start(slot.worker, Unit(progress.trial.id, progress.epoch, partition), self.attempts)
            return

    def finish(self, slot) -> None:
        unit = slot.unit
        progress = self.schedule.trials[unit.trial]
        self.schedule.finish(slot.worker, unit, seconds(progress.trial.number, slot.worker, unit.partition), {})
        self.schedule.saved(VersionRef(unit.trial, progress.version, 0), durable=False)
        if progress.awaits_evaluation:
            self.schedule.end_epoch(unit.trial)
        if not progress.units_left:
            self.schedule.park(unit.trial, TrialState.COMPLETED)

    def check(self) -> None:
        """Compare what the view says with a look at every trial."""
        schedule, state = self.schedule, self.view.look(self.schedule)
        rows = {progress.trial.id: row for row, progress in enumerate(self.view._trials)}
        assert rows.keys() >= schedule.trials.keys()
        workers, units = [0.0] * len(schedule.slots), 0
        for name, row in rows.items():
            progress = schedule.trials.get(name)
            if progress is None:
                assert (state.todo[row], state.laps[row], state.trial_left[row]) == ({}, 0, 0.0)
                continue
            running = None if progress.trains_on is None else schedule.slots[progress.trains_on].unit.partition
            owed = [j for j in progress.todo if j != running]
            laps = progress.trial.epochs - progress.epoch
            assert (state.epoch[row], state.laps[row]) == (progress.epoch, laps)
            assert sorted(j for at in state.todo[row].values() for j in at) == sorted(owed)
            assert all(state.home[j] == worker for worker, at in state.todo[row].items() for j in at)
            assert all(row in state.wanted[worker] for worker in state.todo[row])
            left = 0.0
            for j in range(schedule.partitions):
                times = laps + (j in owed)
                left += times * seconds(progress.trial.number, "", j)
                workers[state.home[j]] += times * seconds(progress.trial.number, "", j)
                units += times
            assert state.trial_left[row] == pytest.approx(left)
        assert state.worker_left == pytest.approx(workers)
        assert state.units == units
        assert sum(map(len, state.wanted)) == sum(map(len, state.todo))
        assert state.idle_trials == {rows[name] for name in schedule.ready}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_state_is_that_of_all_trials(seed):
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
        walk.check()


def test_a_trial_that_fails_in_the_last_unit_of_an_epoch_owes_nothing_more():
    """Nothing of that epoch is left to start, but further epochs are."""
    walk = Walk(0, partitions=4)
    walk.schedule.add(trial(1, 2))
    walk.schedule.add(trial(2, 2))
    for worker, partition in (("w1", 0), ("w1", 1), ("w2", 2), ("w2", 3)):
        walk.schedule.start(worker, Unit("t1", 1, partition), 1)
        walk.check()
        if partition < 3:
            walk.finish(walk.schedule.slots[worker])
    news = walk.view.news
    walk.fail("t1")
    walk.check()
    assert walk.view.news == news + 1


def test_sums_are_those_of_a_first_look_whenever_times_are_refreshed():
    """Bit by bit: rounding errors do not add up."""
    walk = Walk(3)
    for number in range(1, 5):
        walk.schedule.add(trial(number, 3))
    walk.trials = 4
    refreshed = 0
    for _ in range(120):
        walk.step()
        due = walk.view._next_refresh
        state = walk.view.look(walk.schedule)
        if walk.view._next_refresh != due:
            refreshed += 1
            assert state.worker_left == ShopView().look(walk.schedule).worker_left
    assert refreshed > 4


@pytest.mark.parametrize(("trials", "kept"), [(21, 19), (22, 20)])
def test_ended_trials_do_not_crowd_the_state(trials, kept):
    """Their rows go when they are more than those of live trials and 16 more."""
    desk, view = Desk((0,), (1,), trials=trials, valid=0), ShopView()
    rows = [len(view.look(desk.schedule).todo)]
    for number in range(1, trials + 1):
        desk.schedule.park(f"t{number}", TrialState.FAILED)
        rows.append(len(view.look(desk.schedule).todo))
    assert rows == [trials] * kept + [2, 2, 2]
    assert not ShopView().look(desk.schedule).todo


# -------------------------------------------------------------------------------------------------- homes


@pytest.mark.parametrize("retired", ["w1", "w2"])
def test_a_partition_is_at_home_with_the_worker_that_stays(retired):
    desk = Desk((0,), (0,), (1,))
    desk.schedule.retire(retired)
    assert ShopView().look(desk.schedule).home == [1 if retired == "w1" else 0, 2]


def test_a_partition_without_a_worker_takes_no_time_and_lets_no_epoch_end():
    desk = Desk((0,), partitions=2, trials=2, epochs=3, valid=0)
    view = ShopView()
    state = view.look(desk.schedule)
    assert (state.home, state.seconds, state.laps) == ([0, -1], [[1.0, 0.0]] * 2, [0, 0])
    assert (state.todo, state.units, state.worker_left) == ([{0: [0]}] * 2, 2, [2.0])
    desk.train("w1", "t1", 0, seconds=1.5)
    state = view.look(desk.schedule)
    assert (state.seconds[0], state.units) == ([1.5, 0.0], 1)


def test_a_trial_that_ends_owes_only_what_was_lost():
    desk = Desk((0,), (1,), epochs=3, valid=0)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    desk.schedule.end_epoch("t1")
    view = ShopView()
    assert view.look(desk.schedule).laps == [1]
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    state = view.look(desk.schedule)
    assert (state.todo, state.laps, state.units) == ([{}], [0], 0)
    desk.schedule.roll_back("t1", 1)
    state = view.look(desk.schedule)
    assert (state.todo, state.laps, state.units, state.forced) == ([{1: [1]}], [0], 1, {0: 1})


def test_nobody_is_free_later_than_now_without_a_unit():
    desk = Desk((0,), (1,), trials=2, valid=0)
    view = ShopView()
    desk.start("w1", "t1", 0)
    state = view.look(desk.schedule)
    assert (state.trial_free, state.worker_free) == ([1.0, 0.0], [1.0, 0.0])
    desk.schedule.now = 1.0
    desk.schedule.abandon("w1", "t1")
    desk.schedule.now = 2.0
    state = view.look(desk.schedule)
    assert (state.trial_free, state.worker_free) == ([2.0, 2.0], [2.0, 2.0])


def test_an_evaluation_takes_no_time_and_what_comes_after_it_does():
    desk = Desk((0,), (1,), trials=2, epochs=1)
    for worker, partition in (("w1", 0), ("w2", 1)):
        desk.train(worker, "t1", partition)
        desk.schedule.saved(VersionRef("t1", partition + 1, 0), durable=False)
    desk.start("w2", "t1", 0, evaluate=True)
    desk.schedule.now = 3.0
    assert ShopView().look(desk.schedule).worker_free == [3.0, 3.0]
    desk.schedule.start("w2", Unit("t2", 1, 1), 2, lookahead=True)
    state = ShopView().look(desk.schedule)
    assert (state.worker_free, state.trial_free) == ([3.0, 4.0], [3.0, 4.0])


def test_a_fixed_order_is_followed_and_forgotten():
    desk, view = Desk((0,), (1,), trials=0, valid=0), ShopView()
    desk.schedule.add(trial(1), (1, 0))
    assert view.look(desk.schedule).forced == {0: 1}
    desk.start("w2", "t1", 1)
    assert view.look(desk.schedule).forced == {}
    desk.schedule.finish("w2", Unit("t1", 1, 1), 1.0, {})
    assert view.look(desk.schedule).forced == {0: 0}


# --------------------------------------------------------------------------------------------------- news


def test_what_outdates_plans_is_news():
    desk, view = Desk((0,), (1,), trials=2, valid=0), ShopView()
    assert view.news == 0
    found = []

    def look() -> None:
        before = view.news
        view.look(desk.schedule)
        found.append(view.news - before)

    look()
    assert found.pop() == 3  # workers, and two trials
    look()
    desk.start("w1", "t1", 0)
    look()
    assert found == [0, 0]  # a unit starts as planned
    desk.schedule.add(trial(3))
    look()
    assert found.pop() == 1
    desk.schedule.park("t3", TrialState.FAILED)
    look()
    look()
    assert found[2:] == [1, 0]
    desk.schedule.join("w3", ())
    look()
    assert found.pop() == 3  # all rows are new


def test_a_trial_that_ends_as_planned_is_no_news():
    desk, view = Desk((0,), (1,), epochs=1, valid=0), ShopView()
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    view.look(desk.schedule)
    news = view.news
    desk.schedule.end_epoch("t1")
    desk.schedule.park("t1", TrialState.COMPLETED)
    view.look(desk.schedule)
    assert view.news == news


class Counted(Estimates):
    """Times that the test sets, by trial; counts how often they are asked for."""

    def __init__(self, *times: float) -> None:
        super().__init__([1, 1])
        self.times, self.asked = list(times), 0

    def row(self, trial, number, workers):
        self.asked += 1
        return [self.times[number - 1]] * len(workers)

    def measured(self, trial, number, worker, partition, seconds):
        pass


def test_times_are_refreshed_ever_more_rarely_but_once_for_every_trial():
    """When 1, 2 and 4 units were measured, and from then on after one more unit per trial."""
    estimates = Counted(1.0, 1.0, 1.0)
    desk, view = Desk((0,), (1,), trials=3, epochs=9, valid=0), ShopView()
    desk.schedule.estimates = estimates
    view.look(desk.schedule)
    refreshed, asked = [], estimates.asked
    for _ in range(17):
        desk.schedule.measured += 1
        view.look(desk.schedule)
        if estimates.asked > asked:
            refreshed.append(desk.schedule.measured)
        asked = estimates.asked
    assert refreshed == [1, 2, 4, 7, 10, 13, 16]


@pytest.mark.parametrize(
    ("noise", "times", "news"),
    [
        (0.0, (2.0, 2.0), 0),
        (0.0, (6.0, 6.0), 0),  # a common factor changes no decision
        (0.0, (2.0, 2.1), 0),
        (0.0, (2.0, 3.0), 1),
        (0.5, (2.0, 3.0), 0),  # no more than chance
        (0.5, (2.0, 20.0), 1),
    ],
)
def test_expected_times_that_change_relative_to_each_other_are_news(noise, times, news):
    estimates = Counted(2.0, 2.0)
    desk, view = Desk((0,), (1,), trials=2, epochs=9, valid=0), ShopView()
    desk.schedule.estimates = estimates
    view.look(desk.schedule)
    before = view.news
    estimates.times, estimates._squares = list(times), (noise**2, 1)
    desk.schedule.measured = 1
    state = view.look(desk.schedule)
    assert [row[0] for row in state.seconds] == list(times)
    assert view.news - before == news


# ------------------------------------------------------------------------------------------ one look at a time


def test_a_start_becomes_an_assignment_once_the_model_is_there():
    desk, view = Desk((0,), (1,), trials=2, valid=0), ShopView()
    desk.train("w1", "t2", 0)
    view.look(desk.schedule)
    assert view.assignment(desk.schedule, (1, 1)) is None
    assert view.assignment(desk.schedule, (0, 1)) == Assignment("w2", Unit("t1", 1, 1))
    desk.schedule.saved(VersionRef("t2", 1, 1), durable=False)
    assert view.assignment(desk.schedule, (1, 1)) == Assignment("w2", Unit("t2", 1, 1))


def test_a_trial_that_goes_on_after_it_owed_nothing_is_news():
    desk, view = Desk((0, 1), trials=2, epochs=1, valid=0), ShopView()
    desk.train("w1", "t1", 0, 1)
    view.look(desk.schedule)
    before = view.news
    view.look(desk.schedule)
    assert view.news == before
    desk.schedule.end_epoch("t1")
    desk.schedule.resume("t1", 2)
    assert view.look(desk.schedule).owes(0)
    assert view.news == before + 1


def test_who_is_idle_and_what_runs():
    desk, view = Desk((0,), (1,), partitions=2, trials=2, valid=1, epochs=1), ShopView()
    state = view.look(desk.schedule)
    assert (state.idle_workers, state.runs) == ({0, 1}, {})
    desk.start("w1", "t2", 0)
    state = view.look(desk.schedule)
    assert (state.idle_workers, state.idle_trials, state.runs) == ({1}, {0}, {0: 1})
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 1.0, {})
    desk.schedule.saved(VersionRef("t2", 1, 1), durable=False)
    desk.train("w2", "t2", 1)
    desk.start("w2", "t2", 0, evaluate=True)
    state = view.look(desk.schedule)
    assert (state.idle_workers, state.idle_trials, state.runs) == ({0}, {0}, {1: -1})
