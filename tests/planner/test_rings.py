"""All-reduce: how many workers, and on which nodes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.planner.dike import rings as module
from hopfleet.planner.dike.problem import Cluster, Model, Node
from hopfleet.planner.dike.rings import rings

MODEL = Model(parameters=100e6, flops=10e9, batch=32)
NODE = Node("n", 4, 1, 16e9)


def cluster_of(costs: list[list[float]], *nodes: Node) -> Cluster:
    named = tuple(replace(node, name=f"n{at}") for at, node in enumerate(nodes or [NODE] * len(costs)))
    return Cluster(named, tuple(map(tuple, costs)), gpu_flops=4e12)


def flat(count: int, between: float = 1e-9) -> list[list[float]]:
    return [[1e-10 if one == other else between for other in range(count)] for one in range(count)]


def test_one_worker_sends_nothing():
    (ring,) = rings(cluster_of(flat(1)), MODEL)
    assert ring.nodes == (0,) and ring.workers == (1,)
    assert ring.rows_per_second == pytest.approx(32 / (32 * 10e9 / 4e12))


def test_each_worker_sends_nearly_twice_the_parameters():
    best = next(ring for ring in rings(cluster_of(flat(3)), MODEL) if len(ring.nodes) == 3)
    assert best.rows_per_second == pytest.approx(3 * 32 / (0.08 + 4 / 3 * 100e6 * 1e-9))


def test_the_workers_of_a_shared_batch_are_worth_their_transfers():
    node, shared = replace(NODE, gpus=4), replace(MODEL, split=True)
    best = rings(cluster_of(flat(1), node), shared)[0]
    assert best.workers == (4,)
    # Within a node, cores send and receive in turn.
    assert best.rows_per_second == pytest.approx(32 / (0.02 + 6 / 4 * 100e6 * 2e-10))
    # Transfers within the node take longer than computing alone.
    assert rings(cluster_of([[1e-9]], node), shared)[0].workers == (1,)
    # Preparing takes as long as computing on two GPUs, so more would only exchange more.
    slow = replace(shared, prepare_seconds=0.04 / 32)
    assert rings(cluster_of([[1e-11]], node), slow)[0].workers == (2,)


def test_a_slow_link_is_left_out():
    costs = flat(3, between=1e-10)
    costs[2][0] = costs[0][2] = costs[1][2] = costs[2][1] = 1e-6
    assert rings(cluster_of(costs), MODEL)[0].nodes == (0, 1)


def test_a_ring_goes_around_a_slow_link():
    costs = flat(4, between=1e-10)
    costs[0][1] = costs[1][0] = 1e-6
    best = rings(cluster_of(costs), MODEL)[0]
    assert len(best.nodes) == 4
    pairs = {frozenset(pair) for pair in zip(best.nodes, [*best.nodes[1:], best.nodes[0]], strict=True)}
    assert frozenset({0, 1}) not in pairs


def test_nodes_without_room_are_left_out():
    found = rings(cluster_of(flat(3), NODE, replace(NODE, gpus=0), replace(NODE, memory=1e6)), MODEL)
    assert [ring.nodes for ring in found] == [(0,)]
    assert rings(cluster_of(flat(1), replace(NODE, memory=1e6)), MODEL) == []


def test_all_gpus_of_a_node_take_part():
    best = rings(cluster_of(flat(2, between=1e-10), replace(NODE, gpus=4, cpus=8), NODE), MODEL)[0]
    assert dict(zip(best.nodes, best.workers, strict=True)) == {0: 4, 1: 1}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-10, 1e-7), min_size=10, max_size=10), st.integers(2, 5))
def test_near_rings_are_almost_as_good_as_all(drawn, count):
    costs = flat(count)
    for (one, other), cost in zip(itertools.combinations(range(count), 2), drawn, strict=False):
        costs[one][other] = costs[other][one] = cost
    cluster = cluster_of(costs)
    best = rings(cluster, MODEL)[0].rows_per_second
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW", 0)
        near = rings(cluster, MODEL)
    assert best / 2 <= near[0].rows_per_second <= best * (1 + 1e-9)
    assert all(sum(ring.workers) == len(ring.nodes) for ring in near)


def test_many_nodes():
    found = rings(cluster_of(flat(60)), MODEL)
    assert len(found) == 60 and len(found[0].nodes) == 60
