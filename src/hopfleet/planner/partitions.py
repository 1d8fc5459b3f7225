"""Which partitions go to which node of a cluster: rows in proportion to the power of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SLOW = 0.75
"""Share of a partition: a node that can train less in the time of all others should not have it for its own."""


def place_partitions(
    rows: Sequence[float],
    power: Mapping[str, float],
    replicas: int,
    held: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Assign each partition to ``replicas`` nodes, with rows in proportion to their power and no node left empty.

    Nodes keep the partitions that they ``held`` before. A node that is too slow for its own partition shares one.
    """
    placed: dict[str, list[int]] = {node: list((held or {}).get(node, ())) for node in power}
    for partition in sorted(range(len(rows)), key=lambda partition: -rows[partition]):
        while _copies(placed, partition) < min(replicas, len(power)):
            _give(partition, placed, power, rows)
    for mine in placed.values():
        if not mine:
            mine.append(min(range(len(rows)), key=lambda partition: _copies(placed, partition)))
    total = sum(power.values())
    for node in power:
        smallest = min(rows[partition] for partition in placed[node])
        if len(power) > 1 and sum(rows) * power[node] < SLOW * total * smallest:
            for partition in [one for one in placed[node] if _copies(placed, one) == 1]:
                _give(partition, placed, power, rows)
    return {node: tuple(sorted(mine)) for node, mine in placed.items()}


def place_valid(
    valid: Sequence[float], train: Sequence[float], power: Mapping[str, float], replicas: int
) -> dict[str, tuple[int, ...]] | None:
    """Assign validation partitions to nodes, given the rows of all partitions; None stands for all on every node.

    Every node has all of them, so that no model hops for its evaluation, unless they have more rows than a node's share
    of the training data. Then they are assigned like training partitions if there are enough of them for all nodes:
    with fewer, some nodes would evaluate while others wait.
    """
    if len(valid) < len(power) or sum(valid) * len(power) <= sum(train) * replicas:
        return None
    return place_partitions(valid, power, replicas)


def _copies(placed: Mapping[str, Sequence[int]], partition: int) -> int:
    return sum(partition in mine for mine in placed.values())


def _give(partition: int, placed: Mapping[str, list[int]], power: Mapping[str, float], rows: Sequence[float]) -> None:
    """Assign a partition to the node with the least work relative to its power."""
    free = [node for node in power if partition not in placed[node]]
    placed[min(free, key=lambda node: sum(rows[one] for one in (*placed[node], partition)) / power[node])].append(
        partition
    )
