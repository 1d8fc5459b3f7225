"""Trials that were given numbers of devices, and the workers with as many."""

from __future__ import annotations

import random

from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import trial


def allocated(*devices: int, trials: int = 4, epochs: int = 3) -> Schedule:
    """Return a schedule with a worker w1, w2, ... for each number of devices, and trials without any."""
    schedule = Schedule(2, 0)
    schedule.allocated = True
    for number, count in enumerate(devices, 1):
        schedule.join(f"w{number}", None, count)
    for number in range(1, trials + 1):
        schedule.add(trial(number, epochs))
    return schedule


def test_a_worker_takes_the_longest_of_the_trials_with_as_many_devices() -> None:
    """How long a trial is depends on the epochs for which it has the devices."""
    schedule = allocated(1, 2)
    one, two = schedule.slots["w1"], schedule.slots["w2"]
    assert schedule.longest(one) is schedule.longest(two) is schedule.longest_held(two) is None
    assert schedule.draw(one, random.Random(0)) is None
    schedule.allocate((1, 2), {"t1": 2, "t2": 1, "t3": 2}, {"t1": 1, "t2": 1, "t3": 3})
    trials = schedule.trials
    assert [schedule.allocations.devices(each) for each in trials.values()] == [2, 1, 2, 0]
    assert [schedule.remaining(each) for each in trials.values()] == [2.0, 2.0, 6.0, 0.0]
    assert schedule.allocations.teams == (1, 2)
    assert schedule.longest(one) is trials["t2"] and schedule.longest(two) is trials["t3"]
    drawn = [schedule.draw(two, random.Random(seed)) for seed in range(20)]
    assert {each.trial.id for each in drawn if each} == {"t1", "t3"}
    for name in ("t1", "t2"):
        trials[name].holder = "w2"
    assert schedule.longest_held(two) is trials["t1"] and schedule.longest_held(one) is None


def test_of_trials_that_are_as_long_the_one_at_home_comes_first() -> None:
    schedule = allocated(2)
    schedule.allocate((2,), dict.fromkeys(schedule.trials, 2), dict.fromkeys(schedule.trials, 1))
    schedule.trials["t3"].holder = "w1"
    assert schedule.longest(schedule.slots["w1"]) is schedule.trials["t3"]


def test_a_later_grant_holds_and_one_that_is_over_does_not() -> None:
    schedule = allocated(1, trials=1, epochs=9)
    progress = schedule.trials["t1"]
    devices = schedule.allocations.devices
    schedule.allocate((4,), {"t1": 4}, {"t1": 1})
    schedule.allocate((2,), {"t1": 2}, {"t1": 1})
    assert devices(progress) == 2 and schedule.suits(progress, schedule.slots["w1"]) is False
    progress.visits += [0, 1]
    assert devices(progress) == schedule.allocations.units_left(progress) == 0
    schedule.allocate((1,), {"t1": 1}, {"t1": 3})
    assert devices(progress) == 1 and schedule.suits(progress, schedule.slots["w1"])
    assert schedule.allocations.units_left(progress) == 3 * 2 - 2
    progress.visits.clear()
    assert devices(progress) == 2, "an epoch that runs again has as many as before"
