"""Dike's planner: plans by throughput, the shapes of workers, and their limits."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dike import small
from benchmarks.dike_plans import best_of_all
from hopfleet.errors import UsageError
from hopfleet.planner.dike import place, problem
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import (
    Cluster,
    Model,
    Need,
    Node,
    Placement,
    room,
    rows_per_second,
    step_seconds,
    worker_need,
)
from hopfleet.planner.dike.rings import rings
from hopfleet.planner.dike.shapes import members

MODEL = Model(parameters=100e6, flops=10e9, batch=32)


def cluster_of(*nodes: Node, inside: float = 1e-10, between: float = 1e-9) -> Cluster:
    count = range(len(nodes))
    costs = tuple(tuple(inside if one == other else between for other in count) for one in count)
    return Cluster(nodes, costs, gpu_flops=4e12)


def costs_of(cluster: Cluster) -> list[tuple[int, tuple[float, ...]]]:
    return list(enumerate(cluster.seconds_per_byte))


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


ONE = worker_need(MODEL, 1, 1)


def of_a_team(cluster: Cluster, model: Model) -> float:
    """Return the throughput of the best plan for a team: members are alike, with a GPU and any CPUs each."""
    best = 0.0
    nodes = range(len(cluster.nodes))
    for cpus in range(1, max(node.cpus for node in cluster.nodes) + 1):
        member = worker_need(model, cpus, 1)
        alone = [room(node, member) for node in cluster.nodes]
        for servers in itertools.chain.from_iterable(itertools.combinations(nodes, size) for size in nodes[1:]):
            left = [replace(node, cpus=node.cpus - (at in servers)) for at, node in enumerate(cluster.nodes)]
            if all(alone[at] and left[at].cpus >= 0 for at in servers):
                for counts in itertools.product(*(range(room(node, member) + 1) for node in left)):
                    workers = tuple((member,) * count for count in counts)
                    best = max(best, rows_per_second(cluster, model, Placement(servers, workers)))
    return best


class TestThroughput:
    def test_a_plan_by_hand(self) -> None:
        cluster = cluster_of(Node("a", 4, 1, 1e10), Node("b", 4, 1, 1e10))
        # 0.08 s of computing; the server sends 0.1 GB to both and receives as much.
        expected = 2 * 32 / (0.08 + 2 * 100e6 * (1e-10 + 1e-9))
        assert rows_per_second(cluster, MODEL, Placement((0,), ((ONE,), (ONE,)))) == pytest.approx(expected)

    def test_workers_wait_for_the_one_that_prepares_longest(self) -> None:
        slow = replace(MODEL, prepare_seconds=1.0)
        assert step_seconds(five(), slow, [Need(8, 1, 1.0), Need(2, 1, 1.0)]) == 16.0
        assert step_seconds(five(), slow, [Need(8, 1, 1.0), Need(8, 4, 1.0)]) == 16.0

    def test_a_batch_that_all_share(self) -> None:
        cluster = cluster_of(Node("a", 4, 1, 1e10), Node("b", 4, 1, 1e10))
        shared = replace(MODEL, split=True)
        # Each GPU has half of the batch. The server is the worker of its node, so only the other's gradients travel.
        expected = 32 / (0.04 + 2 * 100e6 * 1e-9)
        assert rows_per_second(cluster, shared, Placement((0,), ((ONE,), (ONE,)))) == pytest.approx(expected)
        # Without a worker beside it, or with several, all others exchange with the server.
        expected = 32 / (0.08 + 2 * 100e6 * 1e-9)
        assert rows_per_second(cluster, shared, Placement((0,), ((), (ONE,)))) == pytest.approx(expected)
        expected = 32 / (0.08 / 3 + 2 * 100e6 * (1e-10 + 1e-9))
        assert rows_per_second(cluster, shared, Placement((0,), ((ONE, ONE), (ONE,)))) == pytest.approx(expected)
        # A server whose only worker is itself moves nothing.
        assert rows_per_second(cluster, shared, Placement((0,), ((ONE,), ()))) == pytest.approx(32 / 0.08)
        # The first worker prepares it for all.
        slow = replace(shared, prepare_seconds=1.0)
        assert {step_seconds(five(), slow, [Need(4, 1, 1.0)] * count) for count in (1, 2, 20)} == {8.0}

    def test_a_part_of_a_step_is_fixed(self) -> None:
        part, batch = replace(MODEL, fixed_seconds=0.02), replace(MODEL, split=True, fixed_seconds=0.02)
        assert [part.computing_seconds(4e12, gpus) for gpus in (1, 4)] == [0.1, 0.1]
        assert [batch.computing_seconds(4e12, gpus) for gpus in (1, 4)] == [0.1, 0.04]

    def test_no_workers_do_nothing(self) -> None:
        assert rows_per_second(five(), MODEL, Placement((0,), ((),) * 5)) == 0.0


class TestAllPlans:
    """Plans against all there are, which ``benchmarks.dike_plans`` enumerates by itself."""

    def test_no_plan_is_faster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for cluster, model in small(12, range(3, 5)):
            best, _ = best_of_all(cluster, model)
            assert compare(cluster, model)[0].rows_per_second == pytest.approx(best, rel=1e-9)
            with monkeypatch.context() as patch:
                patch.setattr(place, "TRIED", 0)  # so that the enumeration begins with nothing
                assert compare(cluster, model)[0].rows_per_second == pytest.approx(best, rel=1e-9)
            with monkeypatch.context() as patch:
                patch.setattr(place, "ENUMERATED", 0)
                assert compare(cluster, model)[0].rows_per_second >= 0.97 * best

    def test_memory_and_disk_count(self) -> None:
        cluster, model = drawn(5)
        nodes = tuple(
            replace(node, memory=[0.5e9, 0.35e9, 0.8e9, 0.65e9][at], disk=1.5e9 if at else 0.5e9)
            for at, node in enumerate(cluster.nodes)
        )
        for again in (replace(model, batch_memory=1e8), replace(model, data=1e9), replace(model, parameters=1e8)):
            tight = replace(cluster, nodes=nodes)
            assert compare(tight, again)[0].rows_per_second == pytest.approx(best_of_all(tight, again)[0])

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("enumerated", [place.ENUMERATED, 0], ids=["enumerated", "searched"])
    def test_no_plan_for_a_team_is_faster(self, seed: int, enumerated: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(place, "ENUMERATED", enumerated)
        cluster, model = drawn(seed, 3)
        model = replace(model, split=True, fixed_seconds=seed % 3 / 100)
        if (
            enumerated and seed % 2
        ):  # where links within nodes are slow, it matters that a server exchanges nothing with itself
            slow = [
                [4 * max(row) if at == to else cost for to, cost in enumerate(row)] for at, row in costs_of(cluster)
            ]
            cluster = replace(cluster, seconds_per_byte=tuple(map(tuple, slow)))
        found = compare(cluster, model)[0].rows_per_second
        assert (1 - 1e-9 if enumerated else 0.97) * of_a_team(cluster, model) <= found

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 10_000))
    def test_capacities_are_kept(self, seed: int) -> None:
        cluster, model = drawn(seed)
        model = replace(model, split=seed % 2 == 1)
        plans = compare(cluster, model)
        assert [plan.rows_per_second for plan in plans] == sorted((p.rows_per_second for p in plans), reverse=True)
        assert len({len(plan.placement.servers) for plan in plans}) == len(plans)
        for plan in plans:
            problem.check(cluster, model, plan.placement)
            assert plan.workers >= 1
            if model.split:
                assert {*plan.placement.all_workers} == {plan.largest} and plan.largest.gpus == 1

    def test_workers_may_differ(self) -> None:
        nodes = Node("large", 8, 4, 1e10), Node("small", 4, 1, 1e10)
        best = compare(cluster_of(*nodes, between=1e-11), replace(MODEL, prepare_seconds=0.005))[0]
        # A core prepares a batch in 0.16 s, and a GPU needs 0.08 s for it; one core serves.
        assert [[(one.cpus, one.gpus) for one in some] for some in best.placement.workers] == [[(8, 4)], [(2, 1)]]

    def test_a_worker_has_no_more_cpus_than_it_needs(self) -> None:
        assert compare(five(), MODEL)[0].largest.cpus == 1
        # The longest path takes half of the time, so rows must come twice as fast.
        for longest, cpus in ((1.0, 4), (0.5, 7)):
            busy = replace(MODEL, prepare_seconds=0.01, longest=longest)
            assert compare(five(1), busy)[0].largest.cpus == cpus


class TestPlans:
    def test_a_node_with_a_slow_link_is_left_out(self) -> None:
        nodes = [Node(f"n{at}", 4, 1, 1e10) for at in range(3)]
        costs = ((1e-10, 1e-9, 1e-6), (1e-9, 1e-10, 1e-6), (1e-6, 1e-6, 1e-10))
        best = compare(Cluster(tuple(nodes), costs, 4e12), MODEL)[0]
        assert best.placement.counts == (1, 1, 0)
        assert 2 not in best.placement.servers

    def test_servers_go_to_nodes_without_gpus_if_links_are_fast(self) -> None:
        nodes = [Node("a", 1, 1, 1e10), Node("b", 1, 1, 1e10), Node("host", 4, 0, 1e10)]
        best = compare(cluster_of(*nodes), MODEL)[0]
        assert (best.placement.servers, best.placement.counts) == ((2,), (1, 1, 0))

    def test_a_server_of_a_team_has_the_place_of_a_member(self) -> None:
        nodes = [Node("a", 1, 1, 1e10), Node("b", 1, 1, 1e10), Node("host", 4, 0, 1e10)]
        assert all(2 not in plan.placement.servers for plan in compare(cluster_of(*nodes), replace(MODEL, split=True)))

    def test_servers_that_leave_no_room_for_workers_are_no_plan(self) -> None:
        nodes = [Node("gpu", 1, 1, 1e10), Node("host", 1, 0, 1e10), Node("tiny", 1, 0, 1e8)]
        assert [plan.placement.servers for plan in compare(cluster_of(*nodes), MODEL)] == [(1,)]
        assert compare(cluster_of(nodes[0]), MODEL) == []

    def test_a_model_larger_than_any_node(self) -> None:
        with pytest.raises(UsageError, match=re.escape("a model of 4e+10 bytes fits no node")):
            compare(five(), replace(MODEL, parameters=40e9))

    def test_servers_only_where_there_is_room(self) -> None:
        tight = cluster_of(Node("gpu", 2, 1, 0.25e9), Node("small", 2, 0, 0.16e9), Node("large", 2, 0, 1e9))
        # One server takes 0.3 GB, two take 0.15 GB each, three 0.1 GB: the GPU's node has 0.05 GB left.
        assert sorted(plan.placement.servers for plan in compare(tight, MODEL)) == [(1, 2), (2,)]

    def test_members_of_a_team_keep_the_data_on_their_disks(self) -> None:
        large = replace(MODEL, split=True, data=1e9)
        nodes = [Node("a", 8, 4, 1e10, disk=2.5e9), Node("b", 8, 4, 1e10, disk=0.5e9)]
        assert compare(cluster_of(*nodes, inside=1e-12), large)[0].placement.counts == (2, 0)

    @pytest.mark.parametrize("nodes", [24, 36])
    def test_a_large_cluster(self, nodes: int) -> None:
        cluster, model = drawn(3, nodes)
        best = compare(cluster, model)[0]
        problem.check(cluster, model, best.placement)
        alone = rows_per_second(cluster, model, Placement((0,), ((worker_need(model, 1, 1),),) + ((),) * (nodes - 1)))
        assert best.rows_per_second > 2 * alone

    def test_more_servers_are_not_tried_for_ever(self) -> None:
        # Computing takes so long that servers do not matter.
        lazy = replace(MODEL, flops=1e15)
        assert len(compare(cluster_of(*(Node(f"n{at}", 4, 1, 1e10) for at in range(24))), lazy)) < 24

    @pytest.mark.parametrize(
        ("placement", "said"),
        [
            (Placement((0, 0), ((ONE,),) * 5), "servers on nodes (0, 0)"),
            (Placement((0, 1), ((ONE,),) * 4), "workers on 4 nodes"),
            (Placement((0, 1), ((), (), (ONE,) * 5, (), ())), "node n2: gpus: its tasks take 5, and it has 4"),
            (Placement((0, 1), ((worker_need(MODEL, 8, 1),), (), (), (), ())), "node n0: cpus: its tasks take 9"),
        ],
        ids=["doubled", "nodes", "room", "beside"],
    )
    def test_placements_that_do_not_fit(self, placement: Placement, said: str) -> None:
        with pytest.raises(UsageError, match=re.escape(said)):
            problem.check(five(), MODEL, placement)


class TestServersAndRings:
    """Plans with parameter servers and those by all-reduce count the same cores."""

    @pytest.mark.parametrize("seed", range(20))
    def test_without_transfers_servers_gain_nothing(self, seed: int) -> None:
        cluster, model = drawn(seed)
        free = replace(cluster, seconds_per_byte=((0.0,) * len(cluster.nodes),) * len(cluster.nodes))
        heavy = replace(model, split=True, prepare_seconds=[0.0, 0.001, 0.1][seed % 3])
        by_servers, by_ring = compare(free, heavy)[0].rows_per_second, rings(free, heavy)[0].rows_per_second
        assert by_servers <= by_ring * (1 + 1e-9)

    def test_a_node_whose_cores_prepare_slowly(self) -> None:
        node, heavy = Node("a", 9, 4, 1e10), replace(MODEL, split=True, prepare_seconds=0.1)
        cluster = cluster_of(node, inside=1e-11)
        (plan,), (ring, *_) = compare(cluster, heavy), rings(cluster, heavy)
        # One worker has eight cores to prepare with, beside a server; without one, it has nine.
        assert (plan.largest.cpus, ring.worker.cpus, ring.workers) == (8, 9, (1,))
        assert plan.rows_per_second < ring.rows_per_second

    def test_members_have_as_many_cpus_as_can_help(self) -> None:
        # A batch takes 0.08 s on one of 20 GPUs and 0.32 s of a core.
        heavy = replace(MODEL, prepare_seconds=0.01)
        assert [member.cpus for member in members(five(), heavy)] == [1, 2, 3, 4]
        assert [member.cpus for member in members(five(), replace(heavy, split=True))] == list(range(1, 9))
        assert [member.cpus for member in members(five(), MODEL)] == [1]


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
        assert room(node, Need(1, 1, 1.0, 1e9)) == 2
        assert room(node, Need(5, 1, 1.0)) == 0
