"""Which nodes hold which versions in their shared memory, and what they are still to drop.

Versions are dropped beside the run, by another thread than the one that drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hopfleet.domain.version_ref import VersionRef


class VersionLocations:
    """Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[VersionRef, set[str]] = {}
        self._drops: dict[str, list[VersionRef]] = {}

    def add(self, ref: VersionRef, node: str) -> None:
        with self._lock:
            self._nodes.setdefault(ref, set()).add(node)

    def nodes(self, ref: VersionRef) -> frozenset[str]:
        with self._lock:
            return frozenset(self._nodes.get(ref, ()))

    def source(self, ref: VersionRef, node: str) -> str | None:
        """Return the node to fetch a version from; None if ``node`` has it, or if no node has."""
        there = self.nodes(ref)
        return None if node in there else min(there, default=None)

    def drop(self, ref: VersionRef) -> bool:
        """Have it dropped by all nodes that hold it; False if there are none."""
        with self._lock:
            nodes = self._nodes.pop(ref, set())
            for node in nodes:
                self._drops.setdefault(node, []).append(ref)
            return bool(nodes)

    def drops(self, node: str) -> list[VersionRef]:
        """What a node is to drop, told once."""
        with self._lock:
            return self._drops.pop(node, [])

    def drops_elsewhere(self, nodes: Iterable[str]) -> dict[str, list[VersionRef]]:
        """The same of all nodes but these."""
        with self._lock:
            others = self._drops.keys() - set(nodes)
            return {node: self._drops.pop(node) for node in others}

    def forget(self, trial: str) -> None:
        """Of a trial that all nodes forget, nothing is known any more."""
        with self._lock:
            self._nodes = {ref: nodes for ref, nodes in self._nodes.items() if ref.trial != trial}

    def alone(self, node: str) -> bool:
        """Whether something is there and nowhere else."""
        with self._lock:
            return {node} in self._nodes.values()

    def lose(self, node: str) -> list[VersionRef]:
        """A node is gone: what was there and nowhere else."""
        with self._lock:
            for nodes in self._nodes.values():
                nodes.discard(node)
            lost = [ref for ref, nodes in self._nodes.items() if not nodes]
            for ref in lost:
                del self._nodes[ref]
            self._drops.pop(node, None)
            return lost
