"""Grid search: every combination of the listed options."""

from __future__ import annotations

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.search.base import Goal, Search, at_least_one


class Grid(Search):
    """Every combination of all ``choice`` and ``grid_search`` options."""

    def __init__(self, max_epochs: int = 10) -> None:
        self.max_epochs = at_least_one("max_epochs", max_epochs)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        for path, dimension in spaces.dimensions(space).items():
            if not isinstance(dimension, spaces.Choice | spaces.Derived):
                raise SpaceError(
                    f"{path}={dimension}: a grid cannot enumerate it; list its values with hop.grid_search([...]) "
                    "or search with hop.Random(trials=...)"
                )
        self._points = spaces.grid(space)

    @property
    def trials(self) -> int:
        return len(self._points)

    def suggest(self, number: int) -> Config | None:
        if number >= len(self._points):
            return None
        return spaces.configure(self.space, seed=self.seed, number=number, fixed=self._points[number])
