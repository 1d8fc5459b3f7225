"""Which workers and which partitions go to which node. Pure: numbers in, names out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError


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
            "nodes"
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


def place_partitions(partitions: int, workers: Mapping[str, int], replicas: int) -> dict[str, tuple[int, ...]]:
    """The partitions of each node: each on ``replicas`` nodes, in proportion to the workers there, no node without."""
    placed: dict[str, list[int]] = {node: [] for node in workers}
    for partition in range(partitions):
        for _ in range(min(replicas, len(workers))):
            free = [node for node in workers if partition not in placed[node]]
            placed[min(free, key=lambda node: (len(placed[node]) + 1) / workers[node])].append(partition)
    held = {partition: sum(partition in mine for mine in placed.values()) for partition in range(partitions)}
    for mine in placed.values():
        if not mine:
            rarest = min(held, key=lambda partition: held[partition])
            held[rarest] += 1
            mine.append(rarest)
    return {node: tuple(sorted(mine)) for node, mine in placed.items()}


def share(partitions: int, placed: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """What a node that joins is to fetch: all that nobody has, and the rarest up to its part of the whole."""
    held = {partition: sum(partition in mine for mine in placed.values()) for partition in range(partitions)}
    orphans = [partition for partition in held if not held[partition]]
    fair = -(-partitions // (len(placed) + 1))
    others = sorted((p for p in held if held[p]), key=lambda partition: held[partition])
    return tuple(sorted([*orphans, *others[: max(0, fair - len(orphans))]]))
