"""Grid search: every combination of the listed options."""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import Goal, Search, Suggestion, at_least_one, check_concurrency, name_of


class Grid(Search):
    """A search over every combination of all ``choice`` and ``grid_search`` options."""

    listens = False

    def __init__(self, max_epochs: int = 10, concurrency: Concurrency = None) -> None:
        self.live = check_concurrency(concurrency)
        self.max_epochs = at_least_one("max_epochs", max_epochs)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self._points = self._allowed(_points(space))
        if not self._points:
            constraints = ", ".join(map(name_of, goal.constraints))
            raise SpaceError(f"no point of the grid satisfies {constraints}; make the constraints looser")

    @property
    def trials(self) -> int:
        return len(self._points)

    def suggest(self, number: int) -> Suggestion | None:
        config = self.sample(number)
        return None if config is None else Suggestion(config, self.max_epochs)

    def sample(self, number: int) -> Config | None:
        return self._config(self._points[number]) if number < self.trials else None

    def planned(self, trials: int) -> Expectation:
        return self._in_full(trials, "exactly")

    def examples(self, count: int) -> list[Config]:
        return [self._config(point) for point in self._points[:count]]

    @classmethod
    def check_extension(cls, *, trials: int, epochs: int, space: spaces.Space) -> None:
        if trials:
            raise UsageError(
                f"trials={trials}: a grid has one trial per point; change the options of a dimension instead"
            )
        _check_listable(space)

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self.check_extension(trials=trials, epochs=epochs, space=space)
        wider = spaces.widened(self.space, space)
        # Existing points keep their numbers; new points follow.
        more = [point for point in _points(wider) if point not in self._points]
        self.space = wider
        self._points += self._allowed(more)
        self.max_epochs += epochs

    def _allowed(self, points: list[dict[str, object]]) -> list[dict[str, object]]:
        return [point for point in points if self.goal.allows(self._config(point))] if self.goal.constraints else points

    def _config(self, point: Mapping[str, object]) -> Config:
        return spaces.configure(self.space, seed=self.seed, number=0, fixed=point)


def _points(space: spaces.Space) -> list[dict[str, object]]:
    if callable(space):
        raise SpaceError(
            f"space={spaces.describe(space)}: a grid cannot enumerate what a function may ask for; search with "
            "hop.Random(trials=...), or write the space as a dict"
        )
    _check_listable(space)
    return spaces.grid(space)


def _check_listable(space: spaces.Space) -> None:
    for path, dimension in spaces.dimensions(space).items():
        if not isinstance(dimension, spaces.Choice | spaces.Derived):
            raise SpaceError(
                f"{path}={dimension}: a grid cannot enumerate it; list its values with hop.grid_search([...]) "
                "or search with hop.Random(trials=...)"
            )
