"""Dike's planner: assignments, placements by throughput and by traffic, and their limits."""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner.dike import problem
from hopfleet.planner.dike.generate import assignments
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import (
    Assignment,
    Cluster,
    Model,
    Need,
    Node,
    Placement,
    rows_per_second,
    step_seconds,
    traffic,
)
from hopfleet.planner.dike.traffic import place_by_programme, place_exactly

MODEL = Model(parameters=100e6, flops=10e9, batch=32)


def cluster_of(*nodes: Node, inside: float = 1e-10, between: float = 1e-9) -> Cluster:
    count = range(len(nodes))
    costs = tuple(tuple(inside if one == other else between for other in count) for one in count)
    return Cluster(nodes, costs, gpu_flops=4e12)


def five(gpus: int = 4) -> Cluster:
    """The five nodes of the paper."""
    return cluster_of(*(Node(f"n{at}", 8, gpus, 32e9) for at in range(5)))


def drawn(seed: int, nodes: int = 0) -> tuple[Cluster, Model]:
    rng = random.Random(seed)
    count = nodes or rng.randint(3, 4)
    some = [Node(f"n{at}", rng.choice([2, 4]), rng.choice([0, 1, 2]) if at else 2, 16e9) for at in range(count)]
    speed = [[rng.choice([0.1e9, 0.5e9, 1.25e9]) for _ in some] for _ in some]
    costs = [
        [1 / 8e9 if one == other else 1 / speed[min(one, other)][max(one, other)] for other in range(count)]
        for one in range(count)
    ]
    model = Model(rng.choice([85e6, 256e6]), rng.choice([12e9, 34e9]), 32, prepare_seconds=rng.choice([0, 0.01]))
    return Cluster(tuple(some), tuple(map(tuple, costs)), 4e12), model


def placements(cluster: Cluster, assignment: Assignment) -> Iterator[Placement]:
    """Yield all placements with at least one worker."""
    nodes = range(len(cluster.nodes))
    rooms = [[assignment.room(node, server=server) for node in cluster.nodes] for server in (False, True)]
    for servers in itertools.combinations(nodes, assignment.servers):
        if all(rooms[True][at] >= 0 for at in servers):
            for workers in itertools.product(*(range(rooms[at in servers][at] + 1) for at in nodes)):
                if any(workers):
                    yield Placement(servers, workers)


class TestAssignments:
    def test_the_papers_example_has_fewer_than_twenty(self) -> None:
        found = assignments(five(), replace(MODEL, prepare_seconds=0.005))
        assert len(found) == 15
        assert {each.worker.gpus for each in found} == {1, 2, 4}
        assert {each.servers for each in found} == {1, 2, 3, 4, 5}

    def test_numbers_of_gpus_that_waste_some_are_left_out(self) -> None:
        # With 3 GPUs each there would be as many workers as with 4, and an idle GPU on each node.
        assert {each.worker.gpus for each in assignments(five(4), MODEL)} == {1, 2, 4}

    def test_a_worker_for_each_node_with_gpus_unless_they_have_one(self) -> None:
        mixed = cluster_of(Node("a", 4, 1, 1e10), Node("b", 8, 4, 1e10))
        assert {each.worker.gpus for each in assignments(mixed, MODEL)} == {1, 2}

    def test_cpus_keep_gpus_busy_as_far_as_there_are_any(self) -> None:
        # A batch takes 0.08 s on a GPU, and its rows 0.32 s of a core: 4 cores for each GPU.
        busy = replace(MODEL, prepare_seconds=0.01)
        assert {each.worker.cpus for each in assignments(five(1), busy)} == {4}
        assert {each.worker.cpus for each in assignments(five(4), busy) if each.worker.gpus == 1} == {1}
        assert {each.worker.cpus for each in assignments(five(4), MODEL)} == {1}

    def test_the_longest_path_counts(self) -> None:
        busy = replace(MODEL, prepare_seconds=0.01, longest=0.5)
        assert {each.worker.cpus for each in assignments(five(1), busy)} == {7}

    def test_a_model_larger_than_any_node(self) -> None:
        with pytest.raises(UsageError, match=re.escape("a model of 4e+10 bytes fits no node")):
            assignments(five(), replace(MODEL, parameters=40e9))

    def test_servers_only_where_there_is_room(self) -> None:
        tight = cluster_of(Node("gpu", 2, 1, 0.25e9), Node("small", 2, 0, 0.16e9), Node("large", 2, 0, 1e9))
        # One server takes 0.3 GB, two take 0.15 GB each, three 0.1 GB: the GPU's node has 0.05 GB left.
        assert [each.servers for each in assignments(tight, MODEL)] == [1, 2]


class TestThroughput:
    def test_a_plan_by_hand(self) -> None:
        cluster = cluster_of(Node("a", 4, 1, 1e10), Node("b", 4, 1, 1e10))
        (assignment, *_) = assignments(cluster, MODEL)
        placement = Placement((0,), (1, 1))
        # 0.08 s of computing; the server sends 0.1 GB to both and receives as much.
        expected = 2 * 32 / (0.08 + 2 * 100e6 * (1e-10 + 1e-9))
        assert rows_per_second(cluster, MODEL, assignment, placement) == pytest.approx(expected)
        assert traffic(cluster, MODEL, placement) == pytest.approx(100e6 * (1e-10 + 1e-9))

    def test_preparation_may_take_longer_than_training(self) -> None:
        slow = replace(MODEL, prepare_seconds=1.0)
        cluster = five(4)
        assignment = assignments(cluster, slow)[0]
        assert step_seconds(cluster, slow, assignment.worker, 4) == 32.0 / assignment.worker.cpus

    def test_a_batch_that_all_share(self) -> None:
        cluster = cluster_of(Node("a", 4, 1, 1e10), Node("b", 4, 1, 1e10))
        shared = replace(MODEL, split=True)
        (assignment, *_) = assignments(cluster, shared)
        # Each GPU has half of the batch; as much travels as for two batches.
        expected = 32 / (0.04 + 2 * 100e6 * (1e-10 + 1e-9))
        assert rows_per_second(cluster, shared, assignment, Placement((0,), (1, 1))) == pytest.approx(expected)

    def test_the_first_worker_prepares_a_shared_batch(self) -> None:
        shared = replace(MODEL, split=True, prepare_seconds=1.0)
        assignment = assignments(five(4), shared)[0]
        seconds = {step_seconds(five(4), shared, assignment.worker, gpus) for gpus in (1, 2, 20)}
        assert seconds == {32.0 / assignment.worker.cpus}

    def test_no_workers_do_nothing(self) -> None:
        assert rows_per_second(five(), MODEL, assignments(five(), MODEL)[0], Placement((0,), (0,) * 5)) == 0.0


class TestPlans:
    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("split", [False, True], ids=["own batches", "shared batch"])
    def test_no_plan_is_faster(self, seed: int, split: bool) -> None:
        cluster, model = drawn(seed)
        model = replace(model, split=split)
        best = max(
            rows_per_second(cluster, model, assignment, placement)
            for assignment in assignments(cluster, model)
            for placement in placements(cluster, assignment)
        )
        assert compare(cluster, model)[0].rows_per_second >= 0.95 * best

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 10_000))
    def test_capacities_are_kept(self, seed: int) -> None:
        cluster, model = drawn(seed)
        model = replace(model, split=seed % 2 == 1)
        plans = compare(cluster, model)
        assert [plan.rows_per_second for plan in plans] == sorted((p.rows_per_second for p in plans), reverse=True)
        for plan in plans:
            problem.check(cluster, plan.assignment, plan.placement)
            assert plan.workers >= 1
            assert plan.traffic == traffic(cluster, model, plan.placement)

    def test_a_node_with_a_slow_link_is_left_out(self) -> None:
        nodes = [Node(f"n{at}", 4, 1, 1e10) for at in range(3)]
        costs = ((1e-10, 1e-9, 1e-6), (1e-9, 1e-10, 1e-6), (1e-6, 1e-6, 1e-10))
        best = compare(Cluster(tuple(nodes), costs, 4e12), MODEL)[0]
        assert best.placement.workers == (1, 1, 0)
        assert 2 not in best.placement.servers

    def test_servers_go_to_nodes_without_gpus_if_links_are_fast(self) -> None:
        nodes = [Node("a", 1, 1, 1e10), Node("b", 1, 1, 1e10), Node("host", 4, 0, 1e10)]
        best = compare(cluster_of(*nodes), MODEL)[0]
        assert (best.placement.servers, best.placement.workers) == ((2,), (1, 1, 0))

    def test_servers_that_leave_no_room_for_workers_are_no_plan(self) -> None:
        nodes = [Node("gpu", 1, 1, 1e10), Node("host", 1, 0, 1e10), Node("tiny", 1, 0, 1e8)]
        assert [plan.assignment.servers for plan in compare(cluster_of(*nodes), MODEL)] == [1]

    def test_a_large_cluster(self) -> None:
        plans = compare(*drawn(3, 24))
        cluster, model = drawn(3, 24)
        assert all(plan.rows_per_second <= plans[0].rows_per_second for plan in plans)
        alone = rows_per_second(cluster, model, plans[0].assignment, Placement((0,), (1,) + (0,) * 23))
        assert plans[0].rows_per_second > 2 * alone

    def test_more_servers_are_not_tried_for_ever(self) -> None:
        # Computing takes so long that servers do not matter.
        lazy = replace(MODEL, flops=1e15)
        assert len(compare(cluster_of(*(Node(f"n{at}", 4, 1, 1e10) for at in range(24))), lazy)) < 24

    @pytest.mark.parametrize(
        ("placement", "said"),
        [
            (Placement((0, 0), (1,) * 5), "1 servers and workers on 5 nodes"),
            (Placement((0, 1), (1,) * 4), "workers on 4 nodes"),
            (Placement((0, 1), (1, 1, 5, 1, 1)), "node n2 has no room for 5 workers"),
            (Placement((0, 1), (9, 1, 1, 1, 1)), "node n0 has no room for 9 workers and a server"),
        ],
        ids=["doubled", "nodes", "room", "beside"],
    )
    def test_placements_that_do_not_fit(self, placement: Placement, said: str) -> None:
        two = next(each for each in assignments(five(), MODEL) if each.servers == 2)
        with pytest.raises(UsageError, match=said):
            problem.check(five(), two, placement)


class TestTraffic:
    @pytest.mark.parametrize("seed", range(6))
    def test_the_programme_is_exact_if_all_links_are_alike(self, seed: int) -> None:
        cluster, model = drawn(seed)
        alike = cluster_of(*cluster.nodes)
        for assignment in assignments(alike, model)[:3]:
            workers = max(sum(placement.workers) for placement in placements(alike, assignment))
            least = min(
                traffic(alike, model, placement)
                for placement in placements(alike, assignment)
                if sum(placement.workers) == workers
            )
            found = place_by_programme(alike, assignment, workers)
            problem.check(alike, assignment, found)
            assert traffic(alike, model, found) == pytest.approx(least)

    @pytest.mark.parametrize("seed", range(4))
    def test_the_solver_finds_the_least(self, seed: int) -> None:
        cluster, model = drawn(seed)
        assignment = assignments(cluster, model)[1]
        least = min(
            traffic(cluster, model, placement)
            for placement in placements(cluster, assignment)
            if sum(placement.workers) == 2
        )
        found = place_exactly(cluster, assignment, 2)
        problem.check(cluster, assignment, found)
        assert traffic(cluster, model, found) == pytest.approx(least, rel=1e-4)
        assert traffic(cluster, model, place_by_programme(cluster, assignment, 2)) >= least * (1 - 1e-9)

    @pytest.mark.parametrize("place", [place_by_programme, place_exactly])
    def test_what_does_not_fit(self, place) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(UsageError, match="1 servers and 99 workers do not fit"):
            place(five(), assignments(five(), MODEL)[0], 99)

    def test_a_server_that_fits_some_nodes_only(self) -> None:
        cluster = cluster_of(Node("tiny", 4, 1, 0.25e9), Node("large", 4, 0, 1e9))
        one = Assignment(1, Need(1, 0, 0.3e9), Need(1, 1, 0.2e9))
        assert place_exactly(cluster, one, 1) == place_by_programme(cluster, one, 1) == Placement((1,), (1, 0))

    def test_the_solver_is_an_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
        with pytest.raises(MissingExtra, match="solver"):
            place_exactly(five(), assignments(five(), MODEL)[0], 1)


class TestBadInput:
    @pytest.mark.parametrize(
        ("node", "said"),
        [
            (Node("a", 0, 1, 1e9), "node a: 0 CPUs"),
            (Node("a", 1, -1, 1e9), "-1 GPUs"),
            (Node("a", 1, 1, 0.0), "0 bytes of memory"),
            (Node("a", 1, 1, 1e9, 0.0), "0 of disk"),
            (Node("a", 1, 0, 1e9), "no node of the cluster has a free GPU"),
        ],
        ids=["cpus", "gpus", "memory", "disk", "no-gpu"],
    )
    def test_nodes(self, node: Node, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            cluster_of(node)

    def test_clusters(self) -> None:
        node = Node("a", 1, 1, 1e9)
        with pytest.raises(UsageError, match="at least one node"):
            Cluster((), (), 1e12)
        with pytest.raises(UsageError, match="must have 1 rows and 1 columns"):
            Cluster((node,), ((0.0, 0.0),), 1e12)
        with pytest.raises(UsageError, match="inf seconds per byte from a to a"):
            Cluster((node,), ((math.inf,),), 1e12)
        with pytest.raises(UsageError, match="gpu_flops=0"):
            Cluster((node,), ((0.0,),), 0.0)

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"parameters": 0}, "parameters=0"),
            ({"flops": math.inf}, "flops=inf"),
            ({"prepare_seconds": -1.0}, "prepare_seconds=-1"),
            ({"longest": 1.5}, "longest=1.5"),
        ],
        ids=["parameters", "flops", "prepare", "longest"],
    )
    def test_models(self, wrong: dict[str, float], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            replace(MODEL, **wrong)  # type: ignore[arg-type]

    def test_data_take_disk(self) -> None:
        node = Node("a", 4, 4, 1e10, disk=2.5e9)
        assert Assignment(1, Need(1, 0, 1.0), Need(1, 1, 1.0, 1e9)).room(node, server=False) == 2
        assert Assignment(1, Need(9, 0, 1.0), Need(1, 1, 1.0)).room(node, server=True) == -1
