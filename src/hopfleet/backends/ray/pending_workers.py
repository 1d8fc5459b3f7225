"""Workers to start: requested workers without room so far, and replacements for lost workers.

Pure: it decides where workers go, and starts none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from hopfleet.backends.ray.placement import Place, WorkerNeeds

Choice = Callable[[WorkerNeeds, Mapping[str, int]], Sequence[Place]]
"""A function that finds a place for a worker, given the room on each node."""


class PendingWorker(NamedTuple):
    """A worker to start: when, on which nodes (or any), and how many predecessors died before they were ready."""

    needs: WorkerNeeds
    when: float = 0.0
    place: Place = ()
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
        return {node for pending in self._open for node in pending.place}

    def pause(self, now: float) -> float:
        """Return the seconds until the next worker is due."""
        return min((pending.when - now for pending in self._open if pending.when > now), default=math.inf)

    def homeless(self, nodes: Collection[str]) -> list[PendingWorker]:
        """Return the workers that fit on none of the nodes in use, or whose node is lost."""
        return [pending for pending in self._open if not pending.place or not set(pending.place) <= set(nodes)]

    def evict(self, node: str) -> int:
        """Let the workers that were to start on a lost node start anywhere; return how many there are."""
        evicted = [pending for pending in self._open if node in pending.place]
        self._open = [pending._replace(place=()) if node in pending.place else pending for pending in self._open]
        return len(evicted)

    def fill(self, now: float, nodes: Collection[str], room: Mapping[str, int], choose: Choice) -> list[PendingWorker]:
        """Take the workers that are due, each with its place. One without room waits for a new node.

        A replacement goes to the place of its predecessor, which has room for it; others where ``choose`` finds room.
        """
        due = [pending for pending in self._open if pending.when <= now]
        self._open = [pending for pending in self._open if pending.when > now]
        left, filled = dict(room), []
        for pending in due:
            mine = pending.place if set(pending.place) <= set(nodes) else ()
            place = mine or next(iter(choose(pending.needs, left)), ())
            if not place:
                self._open.append(pending._replace(place=()))
                continue
            for node in place:
                if node in left:
                    left[node] -= 1
            filled.append(pending._replace(place=place))
        return filled

    def house(self, wanted: Sequence[WorkerNeeds], nodes: Collection[str]) -> list[PendingWorker]:
        """Take homeless workers for a node that has joined, as far as there are such; all others are new."""
        housed = []
        for needs in wanted:
            alike = [pending for pending in self.homeless(nodes) if pending.needs.shape == needs.shape]
            if alike:
                self._open.remove(alike[0])
            housed.append(alike[0] if alike else PendingWorker(needs))
        return housed
