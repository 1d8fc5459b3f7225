"""How long to wait for a unit."""

from __future__ import annotations

from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.progress import Setback
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.timeouts import FACTOR, FLOOR, estimate, limit, shortest


class Desk:
    """Two trials and a worker."""

    def __init__(self, prior=None):
        self.schedule = Schedule(2, 1, Estimates([1, 1], prior))
        self.schedule.join("w1", None)
        for number in (1, 2):
            self.schedule.add(Trial(f"t{number}", number, {}, 0, 1))

    @property
    def slot(self):
        return self.schedule.slots["w1"]

    def start(self, trial, partition=0, work=Work.TRAIN):
        self.schedule.start("w1", Unit(trial, 1, partition, work), 1)

    def train(self, trial, partition, seconds):
        self.start(trial, partition)
        self.schedule.finish("w1", self.schedule.slots["w1"].unit, seconds, {})


def test_nothing_is_known_at_first():
    desk = Desk()
    assert limit(desk.schedule, desk.slot, "auto") is None  # it does nothing
    desk.start("t1")
    assert limit(desk.schedule, desk.slot, "auto") is None
    assert limit(desk.schedule, desk.slot, None) is None
    assert limit(desk.schedule, desk.slot, 5.0) == 5.0


def test_a_short_unit_has_a_minute():
    desk = Desk()
    desk.train("t1", 0, 1.0)
    desk.start("t1", 1)
    assert limit(desk.schedule, desk.slot, "auto") == FLOOR


def test_a_long_unit_has_many_times_its_estimate():
    desk = Desk()
    desk.train("t1", 0, 100.0)
    desk.start("t1", 1)
    assert estimate(desk.schedule, desk.slot) == desk.schedule.expected(desk.schedule.trials["t1"], "w1", 1)
    assert round(limit(desk.schedule, desk.slot, "auto"), 6) == FACTOR * 100.0


def test_of_a_new_trial_the_longest_is_expected_that_was_seen():
    desk = Desk()
    desk.train("t1", 0, 10.0)
    desk.train("t1", 1, 40.0)
    desk.schedule.longest_seconds = 1000.0
    desk.start("t2")
    assert limit(desk.schedule, desk.slot, "auto") == FACTOR * 1000.0


def test_profiling_knows_something_before_anything_was_measured():
    desk = Desk(lambda trial, worker, partition: 7.0 * trial)
    desk.start("t2")
    assert limit(desk.schedule, desk.slot, "auto") == FACTOR * 14.0


def test_each_loss_makes_the_next_wait_longer():
    desk = Desk()
    desk.train("t1", 0, 1.0)
    desk.schedule.trials["t1"].setbacks[Setback.UNIT] = ["a", "b"]
    desk.start("t1", 1)
    assert limit(desk.schedule, desk.slot, "auto") == 4 * FLOOR


def test_evaluations_are_compared_with_evaluations():
    desk = Desk()
    for trial in ("t1", "t2"):
        for partition in (0, 1):
            desk.train(trial, partition, 1000.0)
    desk.start("t1", 0, Work.EVALUATE)
    assert limit(desk.schedule, desk.slot, "auto") is None
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 10.0, {})
    desk.start("t2", 0, Work.EVALUATE)
    assert limit(desk.schedule, desk.slot, "auto") == FACTOR * 10.0
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 5.0, {})
    assert (desk.schedule.trials["t2"].evaluation_seconds, desk.schedule.evaluation_seconds) == (5.0, 10.0)


def test_nobody_looks_before_it_can_matter():
    assert (shortest("auto"), shortest(3.0), shortest(None)) == (FLOOR, 3.0, None)


def test_the_member_that_was_lost_most_often_decides_for_all():
    desk = Desk()
    desk.train("t1", 0, 1.0)
    for number, name in enumerate(("t1", "t2"), 1):
        desk.schedule.start("w1", Unit(name, 1, 1), number, 1)
    desk.schedule.blame("t2", Setback.UNIT, "killed")
    desk.schedule.blame("t2", Setback.UNIT, "killed")
    assert limit(desk.schedule, desk.slot, "auto") == 4 * FLOOR
