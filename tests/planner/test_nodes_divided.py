"""Lower bounds of nodes whose devices are divided into teams."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import MissingExtra
from hopfleet.planner.nodes import NodeShop, NodeStrategy, lower_bound
from hopfleet.planner.nodes_divided import least_seconds, least_seconds_on_nodes

quick = settings(max_examples=25, deadline=None)
times = st.lists(st.floats(0.1, 10), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("work", "speeds", "seconds"),
    [
        pytest.param([6.0], [1.0, 2.0], 3.0, id="the longest task on the fastest team"),
        pytest.param([1.0] * 8, [1.0, 3.0], 2.0, id="all teams busy"),
        pytest.param([5.0, 5.0, 1.0], [2.0, 1.0, 1.0], 10 / 3, id="two long tasks take turns on the two fastest teams"),
        pytest.param([4.0, 4.0], [1.0] * 8, 4.0, id="a task is on one team at a time"),
    ],
)
def test_teams_that_run_every_task(work: list[float], speeds: list[float], seconds: float) -> None:
    assert least_seconds(work, speeds) == pytest.approx(seconds)


@quick
@given(times, times)
def test_one_node_with_all_rows_is_the_same_problem(work: list[float], speeds: list[float]) -> None:
    assert least_seconds_on_nodes(work, [(1.0, tuple(speeds))]) == pytest.approx(least_seconds(work, speeds), rel=1e-6)


@quick
@given(times, st.lists(st.sampled_from([(4,), (2, 2), (3, 1), (2, 1, 1), (1,) * 4]), min_size=1, max_size=4))
def test_fixed_teams_are_never_better_than_free_ones(work: list[float], layout: list[tuple[int, ...]]) -> None:
    """Teams of k devices are k ** 0.9 times as fast as one."""
    nodes = [(1 / len(layout), tuple(size**0.9 for size in teams)) for teams in layout]
    free = NodeShop(
        (4,) * len(layout),
        tuple(
            tuple(
                tuple(NodeStrategy("", size, seconds / len(layout) / size**0.9) for size in range(1, 5)) for _ in layout
            )
            for seconds in work
        ),
    )
    divided = least_seconds_on_nodes(work, nodes)
    assert divided >= lower_bound(free) * (1 - 1e-6)
    assert divided >= max(work) * sum(part / max(speeds) for part, speeds in nodes) * (1 - 1e-6)


def test_nodes_of_different_sizes() -> None:
    # The task is alone: half of its rows on a team of speed 4, a quarter each on teams of speed 2.
    nodes = [(0.5, (4.0,)), (0.25, (2.0,)), (0.25, (2.0,))]
    assert least_seconds_on_nodes([8.0], nodes) == pytest.approx(1.0 + 1.0 + 1.0)
    assert least_seconds_on_nodes([8.0] * 9, nodes) == pytest.approx(9.0), "every node is busy all the time"


def test_scipy_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtra, match="scipy"):
        least_seconds_on_nodes([1.0], [(1.0, (1.0,))])
