"""How fast workers are: what tells it, what does not, and when a change is noticed."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies.longest_remaining import by_load
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.speeds import ALIKE, EQUAL, ROUNDING, SUDDEN, Speeds, classes
from tests.helpers.schedule_desk import trial


def test_a_trial_tells_nothing_on_one_worker() -> None:
    speeds = Speeds(costs_known=False)
    for _ in range(3):
        speeds.measured("a", "w1", 2.0)
    assert not speeds.tells("w1")
    assert speeds.slowness("w1") == 0.0
    assert speeds.cost("a") == 2.0
    assert speeds.cost("b") is None


def test_a_trial_on_two_workers_compares_them() -> None:
    """Other trials that stayed where they were say nothing against it."""
    speeds = Speeds(costs_known=False)
    for _ in range(5):
        speeds.measured("a", "w1", math.log(4))
        speeds.measured("b", "w2", 0.0)
    speeds.measured("a", "w2", 0.0)
    assert speeds.slowness("w2") - speeds.slowness("w1") == pytest.approx(-math.log(4))
    assert speeds.tells("w1") and speeds.tells("w2")
    # The other trial is now known to be as long as this one.
    assert speeds.cost("b") == pytest.approx(speeds.cost("a"))


def test_with_known_costs_the_first_unit_tells() -> None:
    speeds = Speeds(costs_known=True)
    assert speeds.cost("a") == 0.0
    speeds.measured("a", "w1", math.log(4))
    assert speeds.slowness("w1") == pytest.approx(math.log(4))


def test_one_odd_unit_changes_nothing_and_two_in_a_row_do() -> None:
    speeds = Speeds(costs_known=True)
    for _ in range(5):
        speeds.measured("a", "w1", 0.0)
        speeds.measured("a", "w2", 0.0)
    speeds.measured("a", "w1", 2.0)
    assert speeds.slowness("w1") == 0.0
    speeds.measured("a", "w1", 2.0)
    assert speeds.slowness("w1") == 2.0
    for _ in range(2):
        speeds.measured("a", "w1", 0.0)
    assert speeds.slowness("w1") == 0.0


def test_an_ended_trial_is_forgotten() -> None:
    speeds = Speeds(costs_known=False)
    speeds.measured("a", "w1", 1.0)
    speeds.forget("a")
    speeds.forget("b")
    assert speeds.cost("a") is None


def test_the_noise_is_the_median_error() -> None:
    speeds, rng = Speeds(costs_known=True), random.Random(0)
    assert speeds.noise == 0.0
    for number in range(200):
        speeds.measured("a", f"w{number % 3}", rng.gauss(0.0, 0.1))
    assert 0.03 < speeds.noise < 0.12


def test_workers_of_about_the_same_speed_are_one_class() -> None:
    workers = ("w1", "w2", "w3", "w4")
    assert classes(workers, [1.0, 1.05, 1.0, 0.99], EQUAL) == (workers,)
    assert classes(workers, [2.0, 1.0, 2.02, 1.0], EQUAL) == (("w2", "w4"), ("w1", "w3"))
    assert classes(workers, [2.0, 1.0, 2.02, 1.0], 1.0) == (workers,)
    assert classes((), [], EQUAL) == ((),)


def test_classes_follow_what_is_expected_and_what_was_measured() -> None:
    estimates = Estimates([1, 1], lambda number, worker, partition: 1.0 if worker == "w1" else 4.0)
    assert estimates.classes(["w1", "w2"], [0, 1]) == (("w1",), ("w2",))
    assert estimates.classes(["w1", "w2"], []) == (("w1", "w2"),)
    for _ in range(3):
        estimates.measured("a", 0, "w2", 0, 1.0)  # it is as fast as the other one
    assert estimates.classes(["w1", "w2"], [0, 1]) == (("w1", "w2"),)


def test_classes_follow_most_trials_however_long_they_are() -> None:
    times = {0: (1.0, 4.0), 1: (2.0, 2.0), 2: (8.0, 32.0)}
    estimates = Estimates([1, 1], lambda number, worker, partition: times[number][worker == "w2"])
    assert estimates.classes(["w1", "w2"], [0, 1, 2]) == (("w1",), ("w2",))


def test_the_fastest_of_idle_workers_is_served_first() -> None:
    schedule = Schedule(1, 0, Estimates([1], lambda number, worker, partition: 1.0 if worker == "w2" else 4.0))
    for worker in ("w1", "w2", "w3"):
        schedule.join(worker, None)
    schedule.add(trial(1))
    assert [slot.worker for slot in by_load(schedule)] == ["w2", "w1", "w3"]


def test_slight_differences_count_if_they_were_expected() -> None:
    """Eight trials on 27 workers took 5% longer than they could: they were on the slowest, which are 8% slower."""
    estimates = Estimates([1, 1], lambda number, worker, partition: 1.0 if worker == "w1" else 1.05)
    assert estimates.classes(["w1", "w2"], [0]) == (("w1",), ("w2",))
    for _ in range(3):
        estimates.measured("a", 0, "w2", 0, 1.0)  # it is as fast as the other one
    assert estimates.classes(["w1", "w2"], [0]) == (("w1", "w2"),)


def test_costs_follow_what_is_learned_of_workers() -> None:
    speeds = Speeds(costs_known=False)
    speeds.measured("a", "w1", 0.0)
    speeds.measured("b", "w2", 0.0)
    assert speeds.cost("a") == speeds.cost("b") == 0.0
    speeds.measured("a", "w2", -1.0)
    assert speeds.slowness("w2") == -1.0
    assert speeds.cost("b") == 1.0, "its only unit was on the faster worker"


def test_a_worker_that_is_known_shows_where_a_trial_was_before() -> None:
    """Trials on a slow worker each, which none of them left, seemed to be long, and the workers to be fast."""
    speeds = Speeds(costs_known=False)
    speeds.measured("a", "w1", 0.0)
    speeds.measured("a", "w2", -1.0)
    speeds.measured("b", "w3", 0.5)
    speeds.measured("b", "w2", -1.5)
    assert speeds.slowness("w1") - speeds.slowness("w2") == 1.0
    assert speeds.slowness("w3") - speeds.slowness("w2") == 2.0
    assert speeds.cost("b") == speeds.cost("a") - 0.5


@pytest.mark.parametrize(("known", "assumed"), [(False, 1.0), (True, 0.0)])
def test_a_worker_that_no_trial_has_shown_is_like_the_usual_one_or_as_expected(known: bool, assumed: float) -> None:
    speeds = Speeds(costs_known=known)
    for worker, value in (("w1", 0.0), ("w2", 1.0), ("w3", 3.0)):
        speeds.measured("a", worker, value)
    assert speeds.slowness("w4") == assumed and not speeds.tells("w4")
    speeds.measured("b", "w4", 2.0)
    assert speeds.cost("b") == (1.0 if not known else 0.0), "the cost of an earlier assumption is not kept"


def test_the_first_unit_on_a_worker_is_no_error() -> None:
    """Large errors count as noise, with which workers of different speed would pass for equal."""
    speeds = Speeds(costs_known=False)
    for worker in ("w1", "w2", "w3"):
        speeds.measured("a", worker, {"w1": 0.0, "w2": 1.0, "w3": 2.0}[worker])
    assert speeds.noise == 0.0
    speeds.measured("a", "w3", 2.5)
    assert speeds.noise > 0.0


def test_a_table_of_expected_seconds() -> None:
    estimates = Estimates([1, 1])
    assert estimates.table([("a", 0)], ["w1", "w2"]) == [[1.0, 1.0]]
    for worker, seconds in (("w1", 2.0), ("w2", 8.0), ("w2", 8.0)):
        estimates.measured("a", 0, worker, 0, seconds)
    # An unmeasured trial counts as usual.
    known, unknown = estimates.table([("a", 0), ("b", 1)], ["w1", "w2"])
    assert known == pytest.approx([2.0, 8.0])
    assert unknown == pytest.approx(known)


# ------------------------------------------------------------------------------------------ number by number


def shown(*values: float) -> Speeds:
    """Return what units of trials that cost what was expected show of a worker, as logarithms."""
    speeds = Speeds(costs_known=True)
    for value in values:
        speeds.measured("a", "w1", value)
    return speeds


@pytest.mark.parametrize(
    ("values", "slowness"),
    [
        ((0.0, 0.0, 0.0, 0.1, 0.3), 0.0),  # the median
        ((0.0, 0.0, 0.0, 0.5, 0.7), 0.6),  # two in a row, far above it
        ((0.0, 0.0, 0.0, -0.5, -0.7), -0.6),
        ((0.0, 0.0, 0.0, SUDDEN, SUDDEN), 0.0),
        ((0.0, 0.0, 0.0, -SUDDEN, -SUDDEN), 0.0),
        ((0.0, 0.0, 0.0, 0.0, 0.9), 0.0),  # one odd unit
        ((0.0, 0.0, 0.0, 0.0, -0.9), 0.0),
        ((0.0, 0.0, 0.0, -0.9, 0.0), 0.0),
        ((ROUNDING,), 0.0),
    ],
)
def test_the_median_counts_unless_two_units_in_a_row_are_far_from_it(
    values: tuple[float, ...], slowness: float
) -> None:
    assert shown(*values).slowness("w1") == pytest.approx(slowness, abs=1e-12)


def test_a_worker_may_become_as_fast_as_it_was_slow() -> None:
    speeds = Speeds(costs_known=True)
    speeds._slowness["w1"] = 0.3
    speeds.measured("a", "w1", -0.3)
    assert speeds.slowness("w1") == -0.3


def test_an_error_is_what_neither_the_trial_nor_the_worker_explains() -> None:
    speeds = Speeds(costs_known=True)
    speeds._costs["a"], speeds._slowness["w1"] = 0.5, 1.0
    speeds.measured("a", "w1", 2.0)
    assert speeds.noise == 0.5


def test_a_cost_that_was_asked_for_is_forgotten_too() -> None:
    speeds = Speeds(costs_known=False)
    speeds.measured("a", "w1", 1.0)
    assert speeds.cost("a") == 1.0
    speeds.forget("a")
    assert speeds.cost("a") is None


def test_what_was_expected_counts_for_another_worker_and_where_nothing_was_measured() -> None:
    speeds = Speeds(costs_known=True)
    assert speeds.cost("a") == 0.0
    speeds._trials["a"] = deque([("w2", 1.0)])
    assert speeds._cost_elsewhere("a", "w1") == 0.5
    assert speeds._cost_elsewhere("a", None) == 1.0


def test_classes_differ_by_more_than_their_limits() -> None:
    assert classes(("a", "b"), [1.0, 2.0], math.log(2.0)) == (("a", "b"),)
    assert classes(("a", "b"), [1.0, 2.0], 0.6) == (("a",), ("b",))
    assert classes(("a", "b", "c"), [1.0, ALIKE, 2.0], 0.0) == (("a", "b"), ("c",))
    assert classes(("a", "b", "c"), [1.0, 1.03, 2.0], 0.0) == (("a",), ("b",), ("c",))
