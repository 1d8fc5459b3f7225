"""Which nodes hold which versions, in their shared memory or on disk, and which versions each node must still drop.

Versions are dropped beside the run, by another thread than the one that drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hopfleet.domain.version_ref import VersionRef


class VersionLocations:
    """The locations of all versions on nodes. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[VersionRef, set[str]] = {}
        self._drops: dict[str, list[VersionRef]] = {}
        #: Versions on nodes that are also in the storage.
        self._durable: set[VersionRef] = set()

    def add(self, ref: VersionRef, node: str) -> None:
        with self._lock:
            self._nodes.setdefault(ref, set()).add(node)

    def add_durable(self, ref: VersionRef) -> None:
        """Note that a version that nodes hold is in the storage as well."""
        with self._lock:
            if ref in self._nodes:
                self._durable.add(ref)

    def nodes(self, ref: VersionRef) -> frozenset[str]:
        with self._lock:
            return frozenset(self._nodes.get(ref, ()))

    def source(self, ref: VersionRef, node: str) -> str | None:
        """Return the node to fetch a version from; None if ``node`` has it, or if no node has."""
        there = self.nodes(ref)
        return None if node in there else min(there, default=None)

    def drop(self, ref: VersionRef) -> bool:
        """Let all nodes that hold a version drop it; return whether the version was on nodes alone."""
        with self._lock:
            nodes, durable = self._nodes.pop(ref, set()), ref in self._durable
            self._durable.discard(ref)
            for node in nodes:
                self._drops.setdefault(node, []).append(ref)
            return bool(nodes) and not durable

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
            self._durable = {ref for ref in self._durable if ref.trial != trial}

    def alone(self, node: str) -> bool:
        """Whether a node holds a version that is nowhere else."""
        with self._lock:
            return any(nodes == {node} and ref not in self._durable for ref, nodes in self._nodes.items())

    def lose(self, node: str) -> list[VersionRef]:
        """Remove a lost node; return the versions that were nowhere else."""
        with self._lock:
            for nodes in self._nodes.values():
                nodes.discard(node)
            gone = [ref for ref, nodes in self._nodes.items() if not nodes]
            lost = [ref for ref in gone if ref not in self._durable]
            for ref in gone:
                del self._nodes[ref]
            self._durable.difference_update(gone)
            self._drops.pop(node, None)
            return lost
