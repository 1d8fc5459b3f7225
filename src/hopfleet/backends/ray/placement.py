"""Which workers and which partitions go to which node. Pure: numbers in, names out.

Nodes may differ. The power of a node is the number of its workers times the speed at which one of its sort trains this
task. Partitions go to nodes in proportion to their power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

SLOW = 0.75
"""Share of a partition: a node whose share of all power is smaller should not have a partition of its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, and its free resources."""

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
        """Return the sort of the node; nodes of one sort are assumed to be equally fast."""
        gpus = f", {self.gpus:g} GPUs {self.kind}".rstrip() if self.gpus else ""
        return f"{self.cpus:g} CPUs{gpus}"

    def room(self, device: str, threads: int) -> int:
        """Return how many workers fit: one per free GPU if there are any and they may be used, else by CPUs."""
        if device != "cpu" and self.gpus >= 1:
            return int(self.free_gpus)
        return 0 if device not in ("cpu", "auto") else int(self.free_cpus // threads)

    def explained(self, device: str, threads: int) -> str:
        """Describe what the node offers and what is lacking."""
        gpus = f", {self.free_gpus:g} of {self.gpus:g} GPUs" if self.gpus else ""
        fit = self.room(device, threads)
        return f"{self.name}: {self.free_cpus:g} of {self.cpus:g} CPUs{gpus} free, room for {fit}"


def choose_nodes(nodes: Sequence[Node], workers: int, *, device: str, threads: int) -> list[str]:
    """Choose a node for each worker, as evenly as their room allows."""
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
    """Return at most ``count`` places, each on the node with the largest share of room left."""
    left = dict(room)
    chosen: list[str] = []
    while len(chosen) < count and any(value > 0 for value in left.values()):
        node = max(left, key=lambda name: (left[name] / max(1, room[name]), left[name]))
        left[node] -= 1
        chosen.append(node)
    return chosen


def powers(workers: Mapping[str, int], sorts: Mapping[str, str], speeds: Mapping[str, float]) -> dict[str, float]:
    """Return the power of each node: its number of workers, times the speed of its sort if known for all sorts."""
    known = all(sort in speeds for sort in sorts.values())
    return {node: max(1, workers.get(node, 0)) * (speeds[sort] if known else 1.0) for node, sort in sorts.items()}


def place_partitions(
    partitions: int,
    power: Mapping[str, float],
    replicas: int,
    held: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Assign each partition to ``replicas`` nodes, in proportion to their power, with no node left empty.

    Nodes keep the partitions that they ``held`` before. A node that is too slow for its own partition shares one.
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
    """Assign a partition to the node with the least work relative to its power."""
    free = [node for node in power if partition not in placed[node]]
    placed[min(free, key=lambda node: (len(placed[node]) + 1) / power[node])].append(partition)


def one_of_each(nodes: Mapping[str, str]) -> list[str]:
    """Return the first node of each sort."""
    found: dict[str, str] = {}
    for node, sort in nodes.items():
        found.setdefault(sort, node)
    return list(found.values())


def share(partitions: int, placed: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Return the partitions for a node that joins: those without a node, and the rarest up to its share."""
    held = {partition: sum(partition in mine for mine in placed.values()) for partition in range(partitions)}
    orphans = [partition for partition in held if not held[partition]]
    fair = -(-partitions // (len(placed) + 1))
    others = sorted((p for p in held if held[p]), key=lambda partition: held[partition])
    return tuple(sorted([*orphans, *others[: max(0, fair - len(orphans))]]))
