"""Workers to start: requested workers without room so far, and replacements for lost workers.

Pure: it decides where workers go, and starts none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hopfleet.backends.ray.placement import spread


class PendingWorker(NamedTuple):
    """A worker to start: when, on which node (or any), and how many predecessors died before they were ready."""

    when: float = 0.0
    node: str | None = None
    failures: int = 0


class PendingWorkers:
    def __init__(self) -> None:
        self._open: list[PendingWorker] = []

    def add(self, *pending: PendingWorker) -> None:
        self._open += pending

    def due(self, now: float) -> bool:
        """Whether a worker is due now, if there is room."""
        return any(pending.when <= now for pending in self._open)

    def nodes(self) -> set[str]:
        """Return the nodes with pending workers."""
        return {pending.node for pending in self._open if pending.node is not None}

    def pause(self, now: float) -> float:
        """Return the seconds until the next worker is due."""
        return min((pending.when - now for pending in self._open if pending.when > now), default=math.inf)

    def homeless(self, nodes: Collection[str]) -> list[PendingWorker]:
        """Return the workers that fit on none of the nodes in use, or whose node is lost."""
        return [pending for pending in self._open if pending.node is None or pending.node not in nodes]

    def fill(self, now: float, nodes: Collection[str], room: Mapping[str, int]) -> list[tuple[str, int]]:
        """Take the workers that are due: the node and the failures of each. A worker without room waits for a new node.

        A replacement goes to the node of its predecessor, which has room for it; others go where there is most room.
        """
        due = [pending for pending in self._open if pending.when <= now]
        self._open = [pending for pending in self._open if pending.when > now]
        left, filled = dict(room), []
        for pending in due:
            node = pending.node if pending.node in nodes else next(iter(spread(left, 1)), None)
            if node is None:
                self._open.append(pending._replace(node=None))
                continue
            if node in left:
                left[node] -= 1
            filled.append((node, pending.failures))
        return filled

    def house(self, count: int, nodes: Collection[str]) -> list[int]:
        """Take up to ``count`` homeless workers for a node that has joined; return the failures of each."""
        homeless = self.homeless(nodes)
        self._open = [pending for pending in self._open if pending not in homeless] + homeless[count:]
        return [pending.failures for pending in homeless[:count]]
