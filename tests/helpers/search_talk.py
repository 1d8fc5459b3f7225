"""A conversation with a search, without a controller."""

from __future__ import annotations

import math

import hopfleet as hop
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.search.base import Goal

GOAL = Goal("loss", "min")
NAN = math.nan


class Talk:
    """A search, and short words to talk to it."""

    def __init__(self, search, space=None, goal=GOAL):
        self.search = search
        search.setup(space or {"x": hop.uniform(0, 1)}, seed=3, goal=goal)
        self.trials = {}

    def add(self, count=1, **given):
        """Add trials as suggested, or others where an origin is given."""
        for _ in range(count):
            number = len(self.trials)
            suggested = sum(trial.origin == "search" for trial in self.trials.values())
            suggestion = self.search.suggest(suggested) if not given else None
            values = {"config": {"x": 0.5}, "epochs": self.search.max_epochs, **given}
            if not given:
                assert suggestion is not None
                values = {"config": suggestion.config, "epochs": suggestion.epochs}
            name = f"t{number}"
            self.trials[name] = Trial(name, number, seed=0, **values)
            self.search.added(self.trials[name])
        return self

    def says(self, name, epoch, loss):
        metrics = {} if loss is None else {"loss": loss}
        return list(self.search.observe(self.trials[name], epoch, metrics))

    def ends(self, name, state=TrialState.STOPPED):
        return list(self.search.ended(self.trials[name], state))


def stopped(decisions):
    return {d.trial for d in decisions if isinstance(d, hop.Stop)}
