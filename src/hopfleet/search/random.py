"""Random search: every trial is an independent draw from the space."""

from __future__ import annotations

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.trial import Config
from hopfleet.search.base import UNLIMITED, Search, Suggestion, at_least_one, check_concurrency


class Random(Search):
    """A search with ``trials`` random draws (None: until a budget is spent); ``grid_search`` options are cycled."""

    listens = False

    def __init__(self, trials: int | None = 16, max_epochs: int = 10, concurrency: Concurrency = None) -> None:
        self.live = check_concurrency(concurrency)
        self._trials = UNLIMITED if trials is None else at_least_one("trials", trials)
        self.max_epochs = at_least_one("max_epochs", max_epochs)

    @property
    def trials(self) -> int:
        return self._trials

    def suggest(self, number: int) -> Suggestion | None:
        return Suggestion(self.draw(number), self.max_epochs) if number < self._trials else None

    def planned(self, trials: int) -> Expectation:
        return self._in_full(trials, "exactly")

    def examples(self, count: int) -> list[Config]:
        return super().examples(min(count, self._trials))

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self._walk(spaces.widened(self.space, space))
        self._trials += trials
        self.max_epochs += epochs
