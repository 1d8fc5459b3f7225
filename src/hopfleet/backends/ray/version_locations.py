"""Which nodes hold which versions in their shared memory, and what they are still to drop.

Versions are dropped beside the run, by another thread than the one that drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hopfleet.backends.ray.actors import Save


class VersionLocations:
    """Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[Save, set[str]] = {}
        self._drops: dict[str, list[Save]] = {}

    def add(self, save: Save, node: str) -> None:
        with self._lock:
            self._nodes.setdefault(save, set()).add(node)

    def nodes(self, save: Save) -> frozenset[str]:
        with self._lock:
            return frozenset(self._nodes.get(save, ()))

    def source(self, save: Save, node: str) -> str | None:
        """From where a node is to fetch it; None if it has it, or if nobody has."""
        there = self.nodes(save)
        return None if node in there else min(there, default=None)

    def drop(self, save: Save) -> bool:
        """Have it dropped by all nodes that hold it; False if there are none."""
        with self._lock:
            nodes = self._nodes.pop(save, set())
            for node in nodes:
                self._drops.setdefault(node, []).append(save)
            return bool(nodes)

    def drops(self, node: str) -> list[Save]:
        """What a node is to drop, told once."""
        with self._lock:
            return self._drops.pop(node, [])

    def drops_elsewhere(self, nodes: Iterable[str]) -> dict[str, list[Save]]:
        """The same of all nodes but these."""
        with self._lock:
            others = self._drops.keys() - set(nodes)
            return {node: self._drops.pop(node) for node in others}

    def forget(self, trial: str) -> None:
        """Of a trial that all nodes forget, nothing is known any more."""
        with self._lock:
            self._nodes = {save: nodes for save, nodes in self._nodes.items() if save[0] != trial}

    def alone(self, node: str) -> bool:
        """Whether something is there and nowhere else."""
        with self._lock:
            return {node} in self._nodes.values()

    def lose(self, node: str) -> list[Save]:
        """A node is gone: what was there and nowhere else."""
        with self._lock:
            for nodes in self._nodes.values():
                nodes.discard(node)
            lost = [save for save, nodes in self._nodes.items() if not nodes]
            for save in lost:
                del self._nodes[save]
            self._drops.pop(node, None)
            return lost
