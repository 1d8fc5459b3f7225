"""FLEET's algorithms, as published: networks of similar pace form a flotilla; each gets GPUs, of one node if it can."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

PERMUTATIONS = 1024
"""Maximum number of orders of networks to try for GPUs."""

Table = Sequence[Sequence[float]]
"""Rates of each network on 1, 2, 3 ... GPUs; they never fall."""


@dataclass(frozen=True, slots=True)
class Flotilla:
    """Networks that train together, and the GPUs of each, numbered through all nodes."""

    gpus: dict[int, range]

    def rate(self, rates: Table) -> float:
        """Return the pace of the flotilla, which is that of its slowest member."""
        return min(rates[network][len(gpus) - 1] for network, gpus in self.gpus.items())


def plan_flotilla(networks: Sequence[int], rates: Table, gpus: int, per_node: int, delta: float) -> Flotilla:
    """Return the next flotilla of some networks: the body of algorithm 1."""
    return Flotilla(assign_gpus(create_flotilla(networks, rates, gpus, delta), per_node))


def create_flotilla(networks: Sequence[int], rates: Table, gpus: int, delta: float) -> dict[int, int]:
    """Return the members of the next flotilla, each with its number of GPUs: algorithm 2.

    The fastest network on one GPU sets the pace. Others join in the order in which they come close to it, as long as
    their rates are within ``delta`` of it and GPUs are left. GPUs that remain go to the slowest
    member, one by one, as long as they make it faster.
    """
    if not networks:
        raise UsageError("networks=[]: a flotilla needs at least one network")
    if gpus < 1:
        raise UsageError(f"gpus={gpus}: a flotilla needs at least one GPU")
    fastest = max(networks, key=lambda network: (rates[network][0], -network))
    pace = rates[fastest][0]
    counts, free = {fastest: 1}, gpus - 1
    queue = [_closest(rates, network, pace, free) for network in networks if free and network != fastest]
    heapq.heapify(queue)
    while queue and queue[0][0] <= delta and free:
        _, network, count = heapq.heappop(queue)
        if count <= free:
            counts[network] = count
            free -= count
        else:
            heapq.heappush(queue, _closest(rates, network, pace, free))
    return spread(counts, free, rates, dict.fromkeys(counts, 1.0), others=False)


def spread(
    counts: dict[int, int], free: int, rates: Table, weights: Mapping[int, float], *, others: bool = True
) -> dict[int, int]:
    """Return numbers of GPUs with some more ``free`` ones, one by one to the member whose weighted rate is lowest.

    If they make that member no faster, they go to ``others``, or stay free.
    """
    counts = dict(counts)
    slowest = [(rates[network][count - 1] * weights[network], network) for network, count in counts.items()]
    heapq.heapify(slowest)
    while free and slowest:
        network = heapq.heappop(slowest)[1]
        table, count = rates[network], counts[network]
        more = bisect_right(table, table[count - 1], count - 1, min(len(table), count + free)) + 1
        if more <= min(len(table), count + free):
            counts[network], free = more, free - (more - count)
            heapq.heappush(slowest, (table[more - 1] * weights[network], network))
        elif not others:
            break
    return counts


def _closest(rates: Table, network: int, pace: float, most: int) -> tuple[float, int, int]:
    """Return (distance, network, GPUs) of the fewest GPUs, at most ``most``, whose rate is closest to a pace."""
    table = rates[network]
    at = bisect_left(table, pace, 0, most)
    below = bisect_left(table, table[at - 1]) if at else 0
    near = [(abs(table[index] - pace), network, index + 1) for index in (below, at) if index < most]
    return min(near)


def assign_gpus(counts: dict[int, int], per_node: int) -> dict[int, range]:
    """Return the GPUs of each network, on as few nodes as possible: algorithms 3 and 4.

    First come the networks that fill whole nodes, then pairs that do so together, then the others in the best of up to
    1,024 orders.
    """
    if per_node < 1:
        raise UsageError(f"per_node={per_node}: a node must have at least one GPU")
    whole = [network for network, count in counts.items() if count % per_node == 0]
    pairs = list(_pairs({network: count for network, count in counts.items() if count % per_node}, per_node))
    first = [*whole, *itertools.chain.from_iterable(pairs)]
    rest = [network for network in counts if network not in set(first)]
    # What comes first fills whole nodes, so the others begin at the start of a node.
    orders = itertools.islice(itertools.permutations(rest), PERMUTATIONS)
    best = min(orders, key=lambda order: scatter(_in_turn(order, counts).values(), per_node))
    return _in_turn([*first, *best], counts)


def _pairs(counts: dict[int, int], per_node: int) -> Iterable[tuple[int, int]]:
    """Yield pairs of networks that fill whole nodes together."""
    waiting: dict[int, int] = {}
    for network, count in counts.items():
        partner = waiting.pop(-count % per_node, None)
        if partner is None:
            waiting[count % per_node] = network
        else:
            yield network, partner


def _in_turn(order: Iterable[int], counts: dict[int, int]) -> dict[int, range]:
    taken, start = {}, 0
    for network in order:
        taken[network] = range(start, start + counts[network])
        start += counts[network]
    return taken


def scatter(taken: Iterable[range], per_node: int) -> float:
    """Return how many nodes the networks use, each divided by its GPUs: what equation 4 minimizes."""
    return sum((gpus[-1] // per_node - gpus[0] // per_node + 1) / len(gpus) for gpus in taken)


def preprocessors(rate: float, throughput: float) -> int:
    """Return how many preprocessing processes of a throughput, in rows per second, keep up with a flotilla's rate."""
    if throughput <= 0:
        raise UsageError(f"throughput={throughput:g} rows/s: must be above 0; profile the preprocessing")
    return max(1, -int(-rate // throughput))
