"""Which workers and which partitions go to which node. Pure: numbers in, names out.

Nodes need not be alike. What the workers of a node can do together is its power: their number, times how fast one of
its kind trains this task. Partitions go to nodes in proportion to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

SLOW = 0.75
"""A node whose part of all power is less than so much of a partition should not have one for itself alone."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, and what is free on it."""

    id: str
    address: str
    port: int = 0  #: of its raylet
    cpus: float = 0.0
    gpus: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    kind: str = ""  #: of its accelerator, as Ray names it

    @property
    def name(self) -> str:
        return f"{self.address} ({self.id[:8]})"

    @property
    def sort(self) -> str:
        """Nodes of one sort are taken to be equally fast."""
        gpus = f", {self.gpus:g} GPUs {self.kind}".rstrip() if self.gpus else ""
        return f"{self.cpus:g} CPUs{gpus}"

    def room(self, device: str, threads: int) -> int:
        """How many workers fit: one per free GPU if it has any and they may be used, else one per share of CPUs."""
        if device != "cpu" and self.gpus >= 1:
            return int(self.free_gpus)
        return 0 if device not in ("cpu", "auto") else int(self.free_cpus // threads)

    def explained(self, device: str, threads: int) -> str:
        """What it offers and what is lacking, in words."""
        gpus = f", {self.free_gpus:g} of {self.gpus:g} GPUs" if self.gpus else ""
        fit = self.room(device, threads)
        return f"{self.name}: {self.free_cpus:g} of {self.cpus:g} CPUs{gpus} free, room for {fit}"


def choose_nodes(nodes: Sequence[Node], workers: int, *, device: str, threads: int) -> list[str]:
    """A node for each worker, as evenly as their room allows."""
    room = {node.id: node.room(device, threads) for node in nodes}
    if sum(room.values()) < workers:
        needs = "1 GPU" if device not in ("cpu", "auto") else f"{threads} CPU{'s' * (threads > 1)}"
        seen = "; ".join(node.explained(device, threads) for node in nodes)
        raise UsageError(
            f"workers={workers}: only {sum(room.values())} fit, at {needs} each ({seen}); use fewer workers, or add "
            "nodes (Ray's autoscaler does so for hop.Ray(autoscale=True))"
        )
    return spread(room, workers)


def spread(room: Mapping[str, int], count: int) -> list[str]:
    """At most ``count`` places, each next one where the largest part of the room is left."""
    left = dict(room)
    chosen: list[str] = []
    while len(chosen) < count and any(value > 0 for value in left.values()):
        node = max(left, key=lambda name: (left[name] / max(1, room[name]), left[name]))
        left[node] -= 1
        chosen.append(node)
    return chosen


def powers(workers: Mapping[str, int], sorts: Mapping[str, str], speeds: Mapping[str, float]) -> dict[str, float]:
    """What each node can do: its number of workers, times the speed of its sort if that is known of all."""
    known = all(sort in speeds for sort in sorts.values())
    return {node: max(1, workers.get(node, 0)) * (speeds[sort] if known else 1.0) for node, sort in sorts.items()}


def place_partitions(
    partitions: int,
    power: Mapping[str, float],
    replicas: int,
    held: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """The partitions of each node: each on ``replicas`` nodes, in proportion to their power, no node without.

    What nodes have ``held`` before they keep. A node that is too slow for a partition of its own shares one.
    """
    placed: dict[str, list[int]] = {node: list((held or {}).get(node, ())) for node in power}
    for partition in range(partitions):
        while _copies(placed, partition) < min(replicas, len(power)):
            _give(partition, placed, power)
    for mine in placed.values():
        if not mine:
            mine.append(min(range(partitions), key=lambda partition: _copies(placed, partition)))
    total = sum(power.values())
    for node in power:
        if len(power) > 1 and partitions * power[node] < SLOW * total:
            for partition in [one for one in placed[node] if _copies(placed, one) == 1]:
                _give(partition, placed, power)
    return {node: tuple(sorted(mine)) for node, mine in placed.items()}


def _copies(placed: Mapping[str, Sequence[int]], partition: int) -> int:
    return sum(partition in mine for mine in placed.values())


def _give(partition: int, placed: Mapping[str, list[int]], power: Mapping[str, float]) -> None:
    """To the node that will have the least to do, for what it can."""
    free = [node for node in power if partition not in placed[node]]
    placed[min(free, key=lambda node: (len(placed[node]) + 1) / power[node])].append(partition)


def one_of_each(nodes: Mapping[str, str]) -> list[str]:
    """The first node of each sort, of nodes by their sorts."""
    found: dict[str, str] = {}
    for node, sort in nodes.items():
        found.setdefault(sort, node)
    return list(found.values())


def share(partitions: int, placed: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """What a node that joins is to fetch: all that nobody has, and the rarest up to its part of the whole."""
    held = {partition: sum(partition in mine for mine in placed.values()) for partition in range(partitions)}
    orphans = [partition for partition in held if not held[partition]]
    fair = -(-partitions // (len(placed) + 1))
    others = sorted((p for p in held if held[p]), key=lambda partition: held[partition])
    return tuple(sorted([*orphans, *others[: max(0, fair - len(orphans))]]))
