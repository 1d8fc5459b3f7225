"""Workers to be started: those that were asked for and found no room yet, and those that take the place of others.

Pure: it says who goes where, and starts nobody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hopfleet.backends.ray.placement import spread


class PendingWorker(NamedTuple):
    """A worker to be started: when, where (or anywhere), after how many who ended before they were ready."""

    when: float = 0.0
    node: str | None = None
    failures: int = 0


class PendingWorkers:
    def __init__(self) -> None:
        self._open: list[PendingWorker] = []

    def add(self, *pending: PendingWorker) -> None:
        self._open += pending

    def due(self, now: float) -> bool:
        """Whether anybody is to be started now, if there is room."""
        return any(pending.when <= now for pending in self._open)

    def nodes(self) -> set[str]:
        """Where somebody is to be started."""
        return {pending.node for pending in self._open if pending.node is not None}

    def pause(self, now: float) -> float:
        """Seconds until somebody else is due."""
        return min((pending.when - now for pending in self._open if pending.when > now), default=math.inf)

    def homeless(self, nodes: Collection[str]) -> list[PendingWorker]:
        """Those that none of the nodes in use has room for, or whose node is lost."""
        return [pending for pending in self._open if pending.node is None or pending.node not in nodes]

    def fill(self, now: float, nodes: Collection[str], room: Mapping[str, int]) -> list[tuple[str, int]]:
        """Take those that are due: the node of each, and its failures. Who finds no room waits until a node joins.

        Who takes the place of another goes to its node, for there is room for it; others go where there is most.
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
        """Take up to so many that are homeless, for a node that has joined; how many failures each has."""
        homeless = self.homeless(nodes)
        self._open = [pending for pending in self._open if pending not in homeless] + homeless[count:]
        return [pending.failures for pending in homeless[:count]]
