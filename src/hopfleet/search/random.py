"""Random search: every trial an independent draw from the space."""

from __future__ import annotations

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config
from hopfleet.search.base import Goal, Search, at_least_one


class Random(Search):
    """``trials`` draws from the space; ``grid_search`` dimensions are taken in turn."""

    def __init__(self, trials: int = 16, max_epochs: int = 10) -> None:
        self._trials = at_least_one("trials", trials)
        self.max_epochs = at_least_one("max_epochs", max_epochs)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self._points = spaces.exhaustive_points(space)

    @property
    def trials(self) -> int:
        return self._trials

    def suggest(self, number: int) -> Config | None:
        if number >= self._trials:
            return None
        fixed = self._points[number % len(self._points)]
        return spaces.configure(self.space, seed=self.seed, number=number, fixed=fixed)
