"""Workers to be started: those that were asked for and found no room yet, and those that take the place of others.

Pure: it says who goes where, and starts nobody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hopfleet.backends.ray.placement import spread


class Vacancy(NamedTuple):
    """A worker to be started: when, where (or anywhere), after how many who ended before they were ready."""

    when: float = 0.0
    node: str | None = None
    failures: int = 0


class Vacancies:
    def __init__(self) -> None:
        self._open: list[Vacancy] = []

    def add(self, *vacancies: Vacancy) -> None:
        self._open += vacancies

    def due(self, now: float) -> bool:
        """Whether anybody is to be started now, if there is room."""
        return any(vacancy.when <= now for vacancy in self._open)

    def nodes(self) -> set[str]:
        """Where somebody is to be started."""
        return {vacancy.node for vacancy in self._open if vacancy.node is not None}

    def pause(self, now: float) -> float:
        """Seconds until somebody else is due."""
        return min((vacancy.when - now for vacancy in self._open if vacancy.when > now), default=math.inf)

    def homeless(self, nodes: Collection[str]) -> list[Vacancy]:
        """Those that none of the nodes in use has room for, or whose node is lost."""
        return [vacancy for vacancy in self._open if vacancy.node is None or vacancy.node not in nodes]

    def fill(self, now: float, nodes: Collection[str], room: Mapping[str, int]) -> list[tuple[str, int]]:
        """Take those that are due: the node of each, and its failures. Who finds no room waits until a node joins.

        Who takes the place of another goes to its node, for there is room for it; others go where there is most.
        """
        due = [vacancy for vacancy in self._open if vacancy.when <= now]
        self._open = [vacancy for vacancy in self._open if vacancy.when > now]
        left, filled = dict(room), []
        for vacancy in due:
            node = vacancy.node if vacancy.node in nodes else next(iter(spread(left, 1)), None)
            if node is None:
                self._open.append(vacancy._replace(node=None))
                continue
            if node in left:
                left[node] -= 1
            filled.append((node, vacancy.failures))
        return filled

    def house(self, count: int, nodes: Collection[str]) -> list[int]:
        """Take up to so many that are homeless, for a node that has joined; how many failures each has."""
        homeless = self.homeless(nodes)
        self._open = [vacancy for vacancy in self._open if vacancy not in homeless] + homeless[count:]
        return [vacancy.failures for vacancy in homeless[:count]]
