"""How rows become batches and steps."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopfleet.domain.batching import Batching, batch_size, batches
from hopfleet.frameworks.tracked_config import TrackedConfig


def updates(rows: int, size: int, drop_last: bool, accumulate: int) -> int:
    """Count the updates of a unit as a loop would make them."""
    made = waiting = 0
    for start in range(0, rows, size):
        if drop_last and rows - start < size:
            break
        waiting += 1
        if waiting == accumulate:
            made, waiting = made + 1, 0
    return made + (waiting > 0)


@given(
    st.lists(st.integers(0, 40), max_size=5), st.integers(1, 12), st.booleans(), st.integers(1, 5), st.integers(1, 4)
)
def test_steps_are_those_of_a_loop(rows: list[int], size: int, drop_last: bool, accumulate: int, epochs: int) -> None:
    plan = Batching(tuple(rows), size, drop_last, epochs)
    each = sum(updates(part, size, drop_last, accumulate) for part in rows)
    assert plan.steps_per_epoch(accumulate) == each
    assert plan.total_steps(accumulate) == epochs * each
    assert list(plan.batches) == [batches(part, size, drop_last=drop_last) for part in rows]


def test_the_batch_size_of_a_configuration() -> None:
    plan = Batching((10, 10), 5, False, 2)
    tracked = TrackedConfig({"lr": 0.1})
    assert batch_size({}, 5) == batch_size(tracked, 5) == 5
    assert tracked.absent() == ()  # no caller asked for it in vain
    assert plan.of({"batch_size": 2}) == Batching((10, 10), 2, False, 2)
    assert plan.of(MappingProxyType({"batch_size": 3})).batch_size == 3


def test_folds() -> None:
    plan = Batching((1, 2, 3, 4), 2, False, 5)
    assert plan.without(range(1, 4, 2)).rows == (1, 3)


def test_a_recorded_experiment() -> None:
    definition: dict[str, Any] = {
        "train": {"rows": 11, "partitions": 3},
        "batch_size": 4,
        "drop_last": False,
        "search": {"max_epochs": 2},
    }
    assert Batching.recorded(definition) == Batching((4, 4, 3), 4, False, 2)  # before rows of partitions were recorded
    definition |= {"partition_rows": [9, 1, 1], "search": {}}
    assert Batching.recorded(definition) == Batching((9, 1, 1), 4, False, 1)


def test_even_partitions() -> None:
    for rows, partitions in itertools.product(range(1, 12), range(1, 5)):
        definition = {
            "train": {"rows": rows, "partitions": partitions}, "batch_size": 1, "drop_last": False, "search": {},
        }  # fmt: skip
        assert sum(Batching.recorded(definition).rows) == rows
