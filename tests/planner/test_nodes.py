"""Plans of tasks on nodes of several GPUs: valid, no shorter than the bound, and the exact one the shortest."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import InvariantBroken, MissingExtra, UsageError
from hopfleet.planner.nodes import (
    NodePlan,
    NodeShop,
    NodeStrategy,
    Visit,
    capacity_rows,
    lower_bound,
    per_gpu,
    sharded,
    whole_nodes,
)
from hopfleet.planner.nodes_exact import solve_exact
from hopfleet.planner.nodes_fast import solve_fast, solve_randomly

quick = settings(max_examples=50, deadline=None)
TOLERANCE = 1 + 1e-6


SECONDS = st.floats(0.1, 10) | st.integers(1, 4).map(float)


@st.composite
def shops(draw, tasks=5, nodes=3, seconds=SECONDS):
    gpus = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=nodes)))
    strategies = tuple(
        tuple(
            tuple(
                NodeStrategy(f"{count} GPU", count, draw(seconds))
                for count in draw(st.lists(st.integers(1, most), min_size=1, unique=True))
            )
            for most in gpus
        )
        for _ in range(draw(st.integers(0, tasks)))
    )
    return NodeShop(gpus, strategies)


class TestPlans:
    @quick
    @given(shops(), st.integers(0, 9), st.integers(0, 12))
    def test_fast_plans_are_valid_and_no_shorter_than_the_bound(self, shop, seed, effort):
        plan = solve_fast(shop, random.Random(seed), effort=effort)
        plan.check()
        assert plan.bound <= plan.makespan * TOLERANCE
        assert plan == solve_fast(shop, random.Random(seed), effort=effort)

    @quick
    @given(shops(), st.integers(0, 9))
    def test_random_plans_are_valid_and_use_whole_nodes(self, shop, seed):
        plan = solve_randomly(shop, random.Random(seed))
        plan.check()
        assert plan.bound <= plan.makespan * TOLERANCE
        wide = whole_nodes(shop)
        assert all(visit.strategy in wide.strategies[visit.task][visit.node] for visit in plan.visits)

    @settings(max_examples=12, deadline=None)
    @given(shops(tasks=3, nodes=2, seconds=st.floats(0.1, 10)))
    def test_exact_plans_are_the_shortest(self, shop):
        fast = solve_fast(shop, random.Random(0), effort=10)
        exact = solve_exact(shop, seconds=20, hint=fast)
        exact.check()
        assert exact.bound <= exact.makespan * TOLERANCE
        assert exact.makespan <= fast.makespan
        # Proved, but for the time that ticks round away.
        assert exact.makespan <= exact.bound * 1.0001

    @pytest.mark.parametrize(("tasks", "gpus"), [(6, (2,) * 8), (6, (4, 2, 2)), (10, (4, 2, 2))])
    def test_the_thesis_scenarios_end_at_the_bound(self, tasks, gpus):
        seconds = [760.0 + 24 * task for task in range(tasks)]
        plan = solve_fast(sharded(seconds, gpus), random.Random(1))
        plan.check()
        assert plan.bound == pytest.approx(max(len(gpus) * max(seconds), sum(seconds)))
        assert plan.makespan == pytest.approx(plan.bound)
        alone = solve_randomly(per_gpu(seconds, gpus), random.Random(1))
        assert alone.bound == pytest.approx(max(sum(gpus) * max(seconds), sum(seconds)))
        assert plan.makespan <= alone.makespan

    def test_more_effort_finds_strategies_that_fit_together(self):
        # Side by side on one GPU each they end at 4; one after the other on both GPUs, at 6.
        pair = (NodeStrategy("both", 2, 3.0), NodeStrategy("one", 1, 4.0))
        plan = solve_fast(NodeShop((2,), ((pair,), (pair,))), random.Random(0))
        assert plan.makespan == 4.0
        assert sorted(visit.gpus for visit in plan.visits) == [(0,), (1,)]

    def test_no_tasks_and_no_nodes(self):
        for shop in (NodeShop((2,), ()), NodeShop((), ((), ()))):
            plan = solve_fast(shop, random.Random(0))
            plan.check()
            assert (plan.visits, plan.makespan, plan.bound) == ((), 0.0, 0.0)


class TestBounds:
    def test_a_task_is_at_one_node_at_a_time(self):
        assert lower_bound(sharded([3.0], (1, 2))) == pytest.approx(6)

    def test_gpus_run_one_task_at_a_time(self):
        assert lower_bound(sharded([1.0] * 5, (2,))) == pytest.approx(5)

    def test_a_faster_strategy_that_wastes_gpus_cannot_serve_both_limits(self):
        # On 2 GPUs a task takes 3 and on 1 it takes 4: 3 tasks want 12 GPU seconds at least, and each 3 seconds.
        choice = (NodeStrategy("both", 2, 3.0), NodeStrategy("one", 1, 4.0))
        assert lower_bound(NodeShop((2,), ((choice,),) * 3)) == pytest.approx(6)

    def test_wide_tasks_do_not_run_side_by_side(self):
        choice = (NodeStrategy("most", 3, 2.0),)
        assert lower_bound(NodeShop((4,), ((choice,),) * 3)) == pytest.approx(6)


class TestExact:
    def shop(self) -> NodeShop:
        """2 GPUs, three tasks of one GPU and 2 seconds: 4 seconds, where the bound is 3."""
        return NodeShop((2,), (((NodeStrategy("one", 1, 2.0),),),) * 3)

    def test_whole_seconds_are_proved_to_the_second(self):
        plan = solve_exact(self.shop(), seconds=20)
        plan.check()
        assert plan.makespan == plan.bound == 4.0

    def test_it_does_better_than_a_poor_hint(self):
        shop = self.shop()
        strategy = shop.strategies[0][0][0]
        poor = NodePlan(shop, tuple(Visit(task, 0, strategy, 2.0 * task, (0,)) for task in range(3)), 3.0)
        poor.check()
        assert solve_exact(shop, seconds=20, hint=poor).makespan == 4.0

    def test_a_hint_at_the_bound_is_the_answer(self):
        hint = solve_fast(sharded([1.0, 1.0], (2,)), random.Random(0))
        assert solve_exact(hint.shop, hint=hint) is hint

    def test_with_no_time_to_search_the_hint_stands(self):
        shop = sharded([1.0 + task / 7 for task in range(16)], (1,) * 16)
        hint = solve_randomly(shop, random.Random(3))
        plan = solve_exact(shop, seconds=1e-9, hint=hint)
        plan.check()
        assert plan.bound <= plan.makespan <= hint.makespan

    @pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
    def test_seconds(self, seconds):
        with pytest.raises(UsageError, match=f"seconds={seconds}"):
            solve_exact(self.shop(), seconds=seconds)

    def test_a_hint_for_another_shop(self):
        with pytest.raises(UsageError, match="hint: is a plan of another shop"):
            solve_exact(self.shop(), hint=solve_fast(sharded([1.0], (1,)), random.Random(0)))

    def test_without_ortools(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
        with pytest.raises(MissingExtra, match=r"OR-tools.*hopfleet\[solver\]"):
            solve_exact(self.shop())


class TestErrors:
    def test_scipy_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy", None)
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        with pytest.raises(MissingExtra, match=r"hopfleet\[scipy\]"):
            lower_bound(sharded([1.0], [1]))

    @pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
    def test_seconds(self, seconds):
        with pytest.raises(UsageError, match=f"task 0 at node 0: {seconds} seconds: must be finite and above 0"):
            sharded([seconds], (1,))

    @pytest.mark.parametrize("count", [0, 3])
    def test_gpus_of_a_strategy(self, count):
        with pytest.raises(UsageError, match=f"task 0 at node 0: {count} GPUs: must be from 1 to the 2 of the node"):
            NodeShop((2,), (((NodeStrategy("odd", count, 1.0),),),))

    def test_gpus_of_a_node(self):
        with pytest.raises(UsageError, match="gpus=0 at node 1: must be at least 1"):
            NodeShop((2, 0), ())

    def test_no_strategy(self):
        with pytest.raises(UsageError, match="task 0 has no strategy at node 1: add one"):
            NodeShop((1, 1), (((NodeStrategy("one", 1, 1.0),), ()),))

    def test_a_task_without_all_nodes(self):
        with pytest.raises(UsageError, match="task 0 has strategies for 1 nodes: must have them for all 2 nodes"):
            NodeShop((1, 1), (((NodeStrategy("one", 1, 1.0),),),))


class TestCheck:
    """A plan that breaks any rule is found out."""

    def broken(self, number: int, **changes: object) -> None:
        shop = NodeShop((2, 1), (((NodeStrategy("two", 2, 1.0),), (NodeStrategy("one", 1, 1.0),)),) * 2)
        plan = solve_fast(shop, random.Random(0))
        plan.check()
        visits = list(plan.visits)
        visits[number] = dataclasses.replace(visits[number], **changes)
        NodePlan(shop, tuple(visits), plan.bound).check()

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"task": 7}, "not each pair once"),
            ({"strategy": NodeStrategy("new", 2, 1.0)}, "no such strategy"),
            ({"gpus": (0,)}, "wrong number of GPUs"),
            ({"gpus": (0, 0)}, "wrong number of GPUs"),
            ({"gpus": (0, 2)}, "no such GPU"),
            ({"start": -1.0}, "before the beginning"),
            ({"start": 1.0}, "two at once"),
        ],
    )
    def test_a_rule_broken(self, changes, problem):
        with pytest.raises(InvariantBroken, match=problem):
            self.broken(0, **changes)


class TestCapacityRows:
    @quick
    @given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20), st.integers(0, 1000))
    def test_rows_add_up_and_follow_capacity(self, capacities, extra):
        rows = len(capacities) + extra
        counts = capacity_rows(rows, capacities)
        assert sum(counts) == rows
        assert min(counts) >= 1
        quotas = [rows * capacity / sum(capacities) for capacity in capacities]
        if min(quotas) >= 1:
            assert all(abs(count - quota) < 1 + 1e-9 for count, quota in zip(counts, quotas, strict=True))
        pairs = sorted(zip(capacities, counts, strict=True))
        assert all(count <= other + (capacity == larger) for (capacity, count), (larger, other) in pairwise(pairs))

    @pytest.mark.parametrize(
        ("rows", "capacities", "expected"),
        [
            (100, [4, 2, 2], [50, 25, 25]),
            (10, [1, 1, 1], [4, 3, 3]),
            (3, [100, 1, 1], [1, 1, 1]),
            (10, [1000, 1, 1], [8, 1, 1]),
            (7, [3], [7]),
        ],
    )
    def test_examples(self, rows, capacities, expected):
        assert capacity_rows(rows, capacities) == expected

    @pytest.mark.parametrize("capacity", [0.0, -2.0, math.nan, math.inf])
    def test_capacities(self, capacity):
        with pytest.raises(UsageError, match=f"capacity {capacity} of worker 1: must be finite and above 0"):
            capacity_rows(10, [1.0, capacity])

    @pytest.mark.parametrize(("rows", "capacities"), [(1, [1.0, 1.0]), (5, []), (0, [1.0])])
    def test_too_few_rows(self, rows, capacities):
        with pytest.raises(UsageError, match=f"rows={rows} for {len(capacities)} workers"):
            capacity_rows(rows, capacities)
