"""Visit orders that follow from the seed alone."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, TrialAdded
from hopfleet.domain.space import choice
from hopfleet.scheduler.orders import fixed_order, remaining_order
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.search.base import Goal
from hopfleet.search.random import Random


@given(st.integers(), st.integers(0, 50), st.integers(1, 9), st.integers(1, 4))
def test_every_epoch_visits_every_partition(seed: int, number: int, partitions: int, epochs: int) -> None:
    order = fixed_order(seed, number, partitions=partitions, epochs=epochs)
    for start in range(0, partitions * epochs, partitions):
        assert sorted(order[start : start + partitions]) == list(range(partitions))


def test_trials_of_equal_pace_never_meet() -> None:
    orders = [fixed_order(3, number, partitions=6, epochs=2) for number in range(6)]
    for step in zip(*orders, strict=True):
        assert len(set(step)) == 6


def test_the_seed_alone_decides() -> None:
    random.seed(0)
    first = fixed_order(1, 2, partitions=8, epochs=1)
    random.seed(1)
    assert fixed_order(1, 2, partitions=8, epochs=1) == first
    assert fixed_order(2, 2, partitions=8, epochs=1) != first


def test_a_controller_fixes_the_order_of_its_trials() -> None:
    search = Random(trials=2, max_epochs=2)
    search.setup({"lr": choice([1])}, seed=7, goal=Goal("loss", "min"))
    controller = Controller(search, longest_remaining, partitions=3, valid_partitions=1, seed=7, fixed_order=True)
    added = [message for message in controller.handle(RunStarted("1")) if isinstance(message, TrialAdded)]
    for message in added:
        forced = list(controller.schedule.trials[message.trial].forced)
        assert forced == fixed_order(7, message.number, partitions=3, epochs=2)


def test_a_clone_continues_its_order_where_its_parent_was() -> None:
    """The parent of another order has visited 2 and 0 of its second epoch: 1 is left of it, then the third as it is."""
    order = [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert remaining_order(order, [2, 1, 0, 2, 0], partitions=3) == [1, 2, 0, 1]
    assert remaining_order(order, [2, 1, 0], partitions=3) == [1, 2, 0, 2, 0, 1]
    assert remaining_order(order, [], partitions=3) == order
