"""Placements of least traffic, equations 1 to 6: by a dynamic programme as in the paper, and exactly by CP-SAT.

``place`` looks for throughput instead; these two show what the paper's own measure leads to.
"""

from __future__ import annotations

from typing import Any

from hopfleet.errors import UsageError
from hopfleet.planner import exact
from hopfleet.planner.dike.problem import Assignment, Cluster, Placement

SCALE = 10**6
"""Steps of the solver in the largest cost of a byte."""


def place_by_programme(cluster: Cluster, assignment: Assignment, workers: int) -> Placement:
    """Return a placement of a number of workers, node after node.

    All other nodes are taken to be equally far from a node, as far as they are on average, so that only the numbers of
    tasks that are placed matter. If they are, no placement has less traffic.
    """
    costs, count = cluster.seconds_per_byte, len(cluster.nodes)
    best: dict[tuple[int, int], tuple[float, tuple[tuple[int, int], ...]]] = {(0, 0): (0.0, ())}
    for index, node in enumerate(cluster.nodes):
        away = sum(costs[other][index] for other in range(count) if other != index) / max(1, count - 1)
        reached: dict[tuple[int, int], tuple[float, tuple[tuple[int, int], ...]]] = {}
        for (servers, placed), (cost, chosen) in best.items():
            for server in (0, 1) if servers < assignment.servers else (0,):
                for here in range(min(assignment.room(node, server=bool(server)), workers - placed) + 1):
                    state = servers + server, placed + here
                    far = here * (assignment.servers - server) * away
                    total = cost + here * server * costs[index][index] + far
                    if state not in reached or total < reached[state][0]:
                        reached[state] = total, (*chosen, (server, here))
        best = reached
    if (assignment.servers, workers) not in best:
        raise _no_room(assignment, workers)
    chosen = best[assignment.servers, workers][1]
    return Placement(tuple(at for at, (server, _) in enumerate(chosen) if server), tuple(here for _, here in chosen))


def place_exactly(cluster: Cluster, assignment: Assignment, workers: int, *, seconds: float = 10.0) -> Placement:
    """Return the placement of a number of workers with the least traffic that is found within ``seconds``."""
    cp_model = exact.load()
    model, nodes = cp_model.CpModel(), range(len(cluster.nodes))
    alone = [max(0, assignment.room(node, server=False)) for node in cluster.nodes]
    beside = [assignment.room(node, server=True) for node in cluster.nodes]
    server = [model.new_bool_var(f"server {at}") for at in nodes]
    here = [model.new_int_var(0, alone[at], f"workers {at}") for at in nodes]
    largest = max(max(row) for row in cluster.seconds_per_byte) or 1.0
    terms: list[Any] = []
    for at in nodes:
        if beside[at] < 0:
            model.add(server[at] == 0)
        else:
            model.add(here[at] <= beside[at]).only_enforce_if(server[at])
        for other in nodes:
            served = model.new_int_var(0, alone[other], f"of {other} by {at}")
            model.add(served >= here[other] - alone[other] * (1 - server[at]))
            terms.append(served * round(cluster.seconds_per_byte[at][other] / largest * SCALE))
    model.add(sum(server) == assignment.servers)
    model.add(sum(here) == workers)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.random_seed = 0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise _no_room(assignment, workers)
    servers = tuple(at for at in nodes if solver.boolean_value(server[at]))
    return Placement(servers, tuple(solver.value(count) for count in here))


def _no_room(assignment: Assignment, workers: int) -> UsageError:
    return UsageError(
        f"{assignment.servers} servers and {workers} workers do not fit the cluster: ask for fewer, or for smaller ones"
    )
