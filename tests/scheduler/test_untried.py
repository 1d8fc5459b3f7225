"""Which workers are tried out where nothing was expected, by which trials, and for how long that pays."""

from __future__ import annotations

import pytest

from hopfleet.scheduler.policies.untried import untried
from hopfleet.scheduler.speeds import EQUAL
from tests.helpers.schedule_desk import Desk


def tried(
    costs: dict[str, float], *workers: str, held: dict[str, str] | None = None, many: int = 3, epochs: int = 4
) -> Desk:
    """Return a desk of workers, with the costs that trials have shown and the workers that were found equal."""
    desk = Desk(*[None] * many, trials=len(costs), valid=0, epochs=epochs)
    desk.schedule.estimates.speeds._costs = dict(costs)
    desk.schedule.estimates.speeds._slowness = dict.fromkeys(workers, 0.0)
    for name, worker in (held or {"t1": "w1", "t2": "w2"}).items():
        desk[name].holder = worker
    return desk


def chosen(desk: Desk) -> tuple[str, str] | None:
    found = untried(desk.schedule)
    return None if found is None else (found[0].trial.id, found[1].worker)


def test_the_worker_that_is_tried_out_is_one_that_no_trial_has_shown() -> None:
    assert chosen(tried({"t1": 0.0, "t2": 1.0}, "w1", "w2")) == ("t1", "w3")
    assert chosen(tried({"t1": 0.0, "t2": 1.0}, "w2", "w3")) == ("t2", "w1")
    assert chosen(tried({"t1": 0.0, "t2": 1.0}, "w1", "w2", "w3")) is None


def test_the_farthest_worker_is_tried_out_first() -> None:
    """Neighbours often are devices of one node."""
    assert chosen(tried({"t1": 0.0}, held={"t1": "w1"}, many=5)) == ("t1", "w5")
    assert chosen(tried({"t1": 0.0}, "w1", "w5", held={"t1": "w1"}, many=5)) == ("t1", "w3")
    assert chosen(tried({"t1": 0.0}, "w1", "w3", "w5", held={"t1": "w1"}, many=5, epochs=7)) == ("t1", "w2")


@pytest.mark.parametrize(("epochs", "pays"), [(6, False), (7, True)])
def test_a_worker_is_tried_out_while_enough_units_can_follow(epochs: int, pays: bool) -> None:
    """Three were tried, so more than twelve units must be left."""
    found = chosen(tried({"t1": 0.0}, "w1", "w2", "w3", held={"t1": "w1"}, many=5, epochs=epochs))
    assert (found is not None) is pays


def test_a_short_trial_tries_workers_out_that_may_be_slow() -> None:
    """Nothing depends on it, unless the longest trial ends before it does on the slowest worker."""
    for slowness, pays in ((0.9, True), (1.1, False)):
        desk = tried({"t1": 1.0, "t2": 0.0}, "w1", "w2", many=4, epochs=1)
        desk.schedule.estimates.speeds._slowness["w2"] = slowness
        assert chosen(desk) == (("t2", "w4") if pays else None)


@pytest.mark.parametrize(
    ("costs", "alike"),
    [((0.0, EQUAL), True), ((EQUAL, 0.0), True), ((0.0, 2 * EQUAL), False), ((-EQUAL, EQUAL), False)],
)
def test_trials_that_take_as_long_show_that_workers_are_equal(costs: tuple[float, float], alike: bool) -> None:
    found = chosen(tried({"t1": costs[0], "t2": costs[1]}, "w1", "w2"))
    assert (found is None) is alike


def test_trials_that_take_as_long_say_nothing_of_other_workers_once_some_differ() -> None:
    desk = tried({"t1": 0.0, "t2": 0.0}, "w1", "w2")
    desk.schedule.estimates.speeds._slowness["w2"] = 1.0
    assert chosen(desk) == ("t1", "w3")


def test_nothing_is_tried_out_where_hops_cost_times_are_known_or_trials_are_many() -> None:
    desk = tried({"t1": 0.0, "t2": 1.0}, "w1", "w2")
    desk.schedule.sticky = True
    assert chosen(desk) is None
    desk = tried({"t1": 0.0, "t2": 1.0}, "w1", "w2")
    desk.schedule.estimates.speeds.costs_known = True
    assert chosen(desk) is None
    assert chosen(tried({"t1": 0.0, "t2": 1.0, "t3": 2.0}, "w1", "w2")) is None


def test_a_trial_whose_worker_trains_another_one_is_no_trial_to_spare() -> None:
    desk = tried({"t1": 0.0, "t2": 1.0}, "w1", "w2", held={"t1": "w1", "t2": "w1"})
    desk.start("w1", "t2", 0)
    assert chosen(desk) is None
