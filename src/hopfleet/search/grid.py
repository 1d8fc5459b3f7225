"""Grid search: every combination of the listed options."""

from __future__ import annotations

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import Goal, Search, Suggestion, at_least_one


class Grid(Search):
    """Every combination of all ``choice`` and ``grid_search`` options."""

    def __init__(self, max_epochs: int = 10) -> None:
        self.max_epochs = at_least_one("max_epochs", max_epochs)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self._points = _points(space)

    @property
    def trials(self) -> int:
        return len(self._points)

    def suggest(self, number: int) -> Suggestion | None:
        return Suggestion(self._config(number), self.max_epochs) if number < self.trials else None

    def examples(self, count: int) -> list[Config]:
        return [self._config(number) for number in range(min(count, self.trials))]

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        if trials:
            raise UsageError(f"trials={trials}: a grid has as many trials as points; give a dimension other options")
        wider = spaces.widened(self.space, space)
        # Points that were there keep their numbers; the new ones follow.
        more = [point for point in _points(wider) if point not in self._points]
        self.space = wider
        self._points += more
        self.max_epochs += epochs

    def _config(self, number: int) -> Config:
        return spaces.configure(self.space, seed=self.seed, number=number, fixed=self._points[number])


def _points(space: spaces.Space) -> list[dict[str, object]]:
    for path, dimension in spaces.dimensions(space).items():
        if not isinstance(dimension, spaces.Choice | spaces.Derived):
            raise SpaceError(
                f"{path}={dimension}: a grid cannot enumerate it; list its values with hop.grid_search([...]) "
                "or search with hop.Random(trials=...)"
            )
    return spaces.grid(space)
