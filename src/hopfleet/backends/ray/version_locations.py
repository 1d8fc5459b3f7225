"""Which nodes hold which versions in their shared memory, and which versions each node must still drop.

Versions are dropped beside the run, by another thread than the one that drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hopfleet.domain.version_ref import VersionRef


class VersionLocations:
    """The locations of all versions that are not durable. All methods are thread-safe."""

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
        """Let all nodes that hold a version drop it; return whether there are any."""
        with self._lock:
            nodes = self._nodes.pop(ref, set())
            for node in nodes:
                self._drops.setdefault(node, []).append(ref)
            return bool(nodes)

    def drops(self, node: str) -> list[VersionRef]:
        """Return the versions that a node must drop, each once."""
        with self._lock:
            return self._drops.pop(node, [])

    def drops_elsewhere(self, nodes: Iterable[str]) -> dict[str, list[VersionRef]]:
        """Return the versions to drop of all other nodes, each once."""
        with self._lock:
            others = self._drops.keys() - set(nodes)
            return {node: self._drops.pop(node) for node in others}

    def forget(self, trial: str) -> None:
        """Forget the locations of a trial's versions, which all nodes delete."""
        with self._lock:
            self._nodes = {ref: nodes for ref, nodes in self._nodes.items() if ref.trial != trial}

    def alone(self, node: str) -> bool:
        """Whether a node holds a version that no other node holds."""
        with self._lock:
            return {node} in self._nodes.values()

    def lose(self, node: str) -> list[VersionRef]:
        """Remove a lost node; return the versions that no other node holds."""
        with self._lock:
            for nodes in self._nodes.values():
                nodes.discard(node)
            lost = [ref for ref, nodes in self._nodes.items() if not nodes]
            for ref in lost:
                del self._nodes[ref]
            self._drops.pop(node, None)
            return lost
