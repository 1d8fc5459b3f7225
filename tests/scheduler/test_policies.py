"""What the policies and the dispatcher choose."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import next_assignment
from hopfleet.scheduler.policies import DEFAULT, POLICIES
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.nearly_done import nearly_done
from hopfleet.scheduler.policies.random import random_choice
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk

quick = settings(deadline=None, max_examples=60)


def longest(desk):
    return longest_remaining(desk.schedule, random.Random(0))


def following(desk, policy=longest_remaining):
    return next_assignment(desk.schedule, policy, random.Random(0))


def test_by_name():
    assert POLICIES["longest-remaining"]() is longest_remaining
    assert POLICIES["random"]() is random_choice
    assert POLICIES["auto"]() is not POLICIES["auto"]()
    assert DEFAULT in POLICIES


def test_what_is_nearly_done_first():
    desk = Desk(None, partitions=3, trials=3)
    assert nearly_done(desk.schedule, random.Random(0)).unit.trial == "t1"
    desk.train("w1", "t2", 0)
    assert nearly_done(desk.schedule, random.Random(0)) == Assignment("w1", Unit("t2", 1, 1))
    desk.schedule.saved(VersionRef("t2", 1, 0), durable=False)
    desk.train("w1", "t1", 0)
    # Both have two left: the one whose model is there goes on.
    assert nearly_done(desk.schedule, random.Random(0)).unit.trial == "t1"


def test_nobody_who_is_idle_may_be_able():
    desk = Desk((0,), partitions=2, trials=1, epochs=1)
    desk.train("w1", "t1", 0)
    assert nearly_done(desk.schedule, random.Random(0)) is None


def test_while_trials_keep_coming_there_is_no_end_to_aim_at():
    desk = Desk(None, partitions=2, trials=2)
    desk.train("w1", "t1", 0)
    auto = POLICIES["auto"]()
    assert auto(desk.schedule, random.Random(0)).unit.trial == "t2"
    desk.schedule.more_to_come = True
    assert auto(desk.schedule, random.Random(0)).unit.trial == "t1"


def test_the_last_trials_have_an_end_to_aim_at():
    """The longest of 15 trials began when another one had ended, and trained alone at the end."""
    desk = Desk(None, None, partitions=2, trials=3)
    desk.train("w1", "t1", 0)
    desk.start("w2", "t3", 0)
    desk.schedule.more_to_come, desk.schedule.suggestions_left = True, 4
    assert POLICIES["auto"]()(desk.schedule, random.Random(0)).unit.trial == "t1"
    desk.schedule.suggestions_left = 3
    assert POLICIES["auto"]()(desk.schedule, random.Random(0)).unit.trial == "t2", "no more than are under way"


def test_longest_trial_first():
    desk = Desk(None, trials=2)
    desk.train("w1", "t1", 0)
    assert longest(desk).unit.trial == "t2"


def test_time_counts_and_not_units():
    desk = Desk(None, trials=2)
    desk.train("w1", "t1", 0, seconds=9.0)
    desk.train("w1", "t2", 0, 1, seconds=1.0)
    assert longest(desk).unit.trial == "t1"


def test_ties_go_to_the_trial_that_is_here():
    desk = Desk(None, trials=3)
    desk.train("w1", "t2", 0)
    desk.schedule.join("w2", None)
    desk.train("w2", "t1", 0)
    desk.train("w2", "t3", 0)
    for name in ("t1", "t3"):
        desk.schedule.saved(VersionRef(name, 1, 0), durable=False)
    assert longest(desk) == Assignment("w1", Unit("t2", 1, 1))


def test_most_loaded_worker_first():
    desk = Desk((0,), (1, 2), (0,), partitions=3)
    assert longest(desk).worker == "w2"


def test_the_next_worker_if_the_most_loaded_can_do_nothing():
    desk = Desk((0,), (1, 2), partitions=3, trials=2)
    for name in ("t1", "t2"):
        desk.train("w1", name, 0)
    desk.schedule.roll_back("t1", 0)
    assert longest(desk) == Assignment("w1", Unit("t1", 1, 0))
    desk.start("w1", "t1", 0)
    assert longest(desk) is None


def test_warm_partition_then_the_one_most_owed():
    desk = Desk(None, trials=3, partitions=3)
    desk.train("w1", "t1", 1)
    assert longest(desk).unit.partition == 1
    desk.schedule.slots["w1"].warm = None
    assert longest(desk).unit.partition == 0
    desk.train("w1", "t2", 0)
    desk.schedule.slots["w1"].warm = None
    assert longest(desk) == Assignment("w1", Unit("t3", 1, 2))


def test_a_scarce_partition_is_more_urgent():
    desk = Desk((0,), (0, 1), partitions=2)
    assert longest(desk) == Assignment("w2", Unit("t1", 1, 1))


def test_a_clock_that_was_set_back_stops_nobody():
    desk = Desk(None)
    desk.train("w1", "t1", 0, seconds=-3600.0)
    assert longest(desk) == Assignment("w1", Unit("t1", 1, 1))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_forced_order_is_followed(policy):
    policy = policy()
    desk = Desk(None, partitions=4, valid=0)
    desk.train("w1", "t1", 2, 0, 3, 1)
    desk.schedule.roll_back("t1", 0)
    order = []
    for _ in range(4):
        chosen = following(desk, policy).unit.partition
        order.append(chosen)
        desk.train("w1", "t1", chosen)
    assert order == [2, 0, 3, 1]


@quick
@given(st.integers(0, 1000), st.sampled_from(["longest-remaining", "random"]))
def test_what_is_chosen_can_be_started(seed, name):
    desk = Desk((0,), (1, 2), None, (), partitions=3, trials=3)
    rng = random.Random(seed)
    policy = POLICIES[name]()
    while (assignment := policy(desk.schedule, rng)) is not None:
        assert assignment.unit.work is Work.TRAIN
        desk.start(assignment.worker, assignment.unit.trial, assignment.unit.partition)
    assert list(desk.schedule.idle) == ["w4"]


def test_random_choices_depend_on_the_generator_alone():
    desk = Desk(None, None, (0, 1), partitions=5, trials=6)
    draws = [random_choice(desk.schedule, random.Random(seed)) for seed in range(60)]
    assert draws == [random_choice(desk.schedule, random.Random(seed)) for seed in range(60)]
    assert {draw.worker for draw in draws} == {"w1", "w2", "w3"}
    assert {draw.unit.trial for draw in draws} == set(desk.schedule.trials)
    assert {draw.unit.partition for draw in draws} == set(range(5))


# ------------------------------------------------------------------------------------------------ dispatch


def test_evaluation_at_home_comes_before_training():
    desk = Desk(None, trials=2)
    desk.train("w1", "t1", 0, 1)
    assert following(desk) == Assignment("w1", Unit("t1", 1, 0, Work.EVALUATE))


def test_training_comes_before_evaluation_away_from_home():
    desk = Desk(None, None, trials=3, valid=2)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.saved(VersionRef("t1", 2, 0), durable=True)
    desk.start("w1", "t2", 0)
    assert following(desk).unit == Unit("t3", 1, 0)
    desk.schedule.park("t3", desk["t3"].state.FAILED)
    assert following(desk) == Assignment("w2", Unit("t1", 1, 0, Work.EVALUATE))


def test_a_homeless_model_is_evaluated_anywhere_first():
    desk = Desk(None, None, trials=2)
    desk.train("w1", "t1", 0, 1)
    desk.schedule.saved(VersionRef("t1", 2, 0), durable=True)
    desk.schedule.leave("w1")
    assert following(desk) == Assignment("w2", Unit("t1", 1, 0, Work.EVALUATE))


def test_a_model_that_cannot_be_loaded_waits():
    desk = Desk(None, None)
    desk.train("w1", "t1", 0, 1)
    del desk.schedule.idle["w1"]
    assert following(desk) is None


def test_nobody_is_idle():
    desk = Desk(None, trials=2)
    desk.start("w1", "t1", 0)
    assert following(desk) is None


def test_nothing_is_ready():
    desk = Desk(None, trials=0)
    assert following(desk, policy=None) is None


def test_the_most_urgent_goes_where_it_can():
    desk = Desk((0,), (1,), trials=2, valid=0)
    desk.train("w1", "t2", 0)
    desk.schedule.saved(VersionRef("t2", 1, 0), durable=False)
    desk.schedule.prioritise("t2", 1)
    assignment = next_assignment(desk.schedule, lambda schedule, rng: None, random.Random(0))
    assert assignment == Assignment("w2", Unit("t2", 1, 1))
    desk.start("w2", "t1", 1)
    assert next_assignment(desk.schedule, lambda schedule, rng: None, random.Random(0)) is None


def staying(desk):
    desk.schedule.sticky = True
    try:
        return next_assignment(desk.schedule, longest_remaining, random.Random(0))
    finally:
        desk.schedule.sticky = False


def test_where_hops_cost_a_trial_stays_while_it_owes_something():
    desk = Desk(None, trials=3)
    assert staying(desk) == following(desk), "no worker holds a model yet"
    desk.train("w1", "t1", 0)
    assert (staying(desk).unit.trial, following(desk).unit.trial) == ("t1", "t2")
    assert staying(desk).unit.partition == 1
    desk.train("w1", "t3", 1, seconds=9.0)
    assert staying(desk) == Assignment("w1", Unit("t3", 1, 0)), "it has more left"


def test_a_trial_that_owes_nothing_here_goes_elsewhere():
    desk = Desk((0,), (1,), partitions=2, trials=2, valid=0)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    del desk.schedule.idle["w2"]
    assert staying(desk) == Assignment("w1", Unit("t2", 1, 0))
    desk.schedule.idle["w2"] = desk.schedule.slots["w2"]
    desk.train("w2", "t1", 1)
    desk.schedule.end_epoch("t1")
    del desk.schedule.idle["w1"]
    assert staying(desk) == Assignment("w2", Unit("t1", 2, 1)), "the next epoch begins where the last one ended"
