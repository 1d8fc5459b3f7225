"""Freeze-thaw: after every step of a trial, train the trial that is the most likely to become the best one.

Swersky et al., "Freeze-thaw Bayesian optimization", 2014. Each decision looks ahead a random number of epochs, or to
the end, and aims at a random improvement, as in Rakotoarison et al., "In-context freeze-thaw Bayesian optimization for
hyperparameter optimization", 2024. A trial is compared with those of a similar number of epochs only, and every fifth
choice is random, so a model that is wrong does limited harm. ``curve_model.py`` has the model of the learning curves,
``curve_chooser.py`` the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.search.base import (
    UNLIMITED,
    Decision,
    Goal,
    Search,
    Suggestion,
    Train,
    at_least_one,
    check_concurrency,
)

if TYPE_CHECKING:
    import numpy as np

    from hopfleet.search.curve_chooser import Curve

RANDOM = 8
"""Configurations that are drawn at random before the model chooses any."""

STRIDE = 4
"""The epochs of a trial for each further one that it is continued for; short trials continue for a step."""


class FreezeThaw(Search):
    """A search that trains each trial for ``step`` epochs at a time, and continues the most promising ones.

    Whenever a trial pauses, a stage is drawn: new trials, those of one epoch, of two or three, of four to seven, and so
    on. A model of all learning curves predicts how each paused trial of the stage would continue, or how new
    configurations would do, and the most promising one is trained next. Most trials therefore stay paused after a few
    epochs, and a slow starter is resumed once the model expects it to overtake the others. A trial that has trained
    for longer continues for a quarter of its epochs. The first eight configurations and every fifth later choice are
    random.

    ``trials=None`` adds trials until a budget is spent. Once all trials have started, the search is done when the model
    gives no paused trial a chance of 5% to become the best one; the best trial is then trained until ``max_epochs``. A
    trial whose last result is NaN, infinite or outside a limit is not resumed.

    Trials that the search did not suggest are not resumed, but the model learns from them.
    """

    adaptive = True

    def __init__(
        self, trials: int | None = 64, max_epochs: int = 27, step: int = 1, concurrency: Concurrency = None
    ) -> None:
        self._trials = UNLIMITED if trials is None else at_least_one("trials", trials)
        self.max_epochs = at_least_one("max_epochs", max_epochs)
        self.step = at_least_one("step", step)
        self.live = check_concurrency(concurrency)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        from hopfleet.search.curve_chooser import CurveChooser

        self._chooser = CurveChooser(space, self.max_epochs)
        #: All trials; those of this search that have started; the most of them that were under way at once.
        self._known: dict[str, Trial] = {}
        self._started = 0
        self._width = 0
        self._reports = 0

    @property
    def trials(self) -> int:
        return self._trials

    @property
    def _curves(self) -> dict[str, Curve]:
        return self._chooser.curves

    # ------------------------------------------------------------------------------------------------ suggesting

    def suggest(self, number: int) -> Suggestion | None:
        return Suggestion(self.sample(number), min(self.step, self.max_epochs)) if number < self._trials else None

    def sample(self, number: int) -> Config:
        rng = self._rng("suggest", number)
        if number < RANDOM or not self._chooser.ready or self._chooser.dares(rng):
            return self.draw(number)
        fixed = self._turns[number % len(self._turns)]
        known = [trial.config for trial in self._known.values()]
        offers = self._chooser.offers(rng, fixed)
        found = next((config for config in offers if config not in known and self.goal.allows(config)), None)
        return self.draw(number) if found is None else found

    def examples(self, count: int) -> list[Config]:
        return super().examples(min(count, self._trials))

    # -------------------------------------------------------------------------------------------------- learning

    def added(self, trial: Trial) -> None:
        from hopfleet.search.curve_chooser import Curve

        own = trial.origin == "search"
        self._known[trial.id] = trial
        self._curves[trial.id] = Curve(
            trial.number, self._chooser.locate(trial.config, trial.chosen), own, trial.epochs
        )
        self._started += own
        self._width = max(self._width, self._under_way())

    def _under_way(self) -> int:
        """Count the trials of this search that run."""
        return sum(curve.own and curve.runs for curve in self._curves.values())

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        curve = self._curves[trial.id]
        curve.report(epoch, self.goal.cost(metrics))
        curve.until = trial.epochs
        self._reports += 1
        self._chooser.learn(max(1, self._width // 2))
        return self._fill() if curve.own and not curve.runs else ()

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        curve = self._curves[trial.id]
        curve.ended = True
        return self._fill() if curve.own else ()

    # -------------------------------------------------------------------------------------------------- deciding

    def _fill(self) -> list[Decision]:
        """Continue paused trials in the places that are free, unless new ones should take them."""
        decisions: list[Decision] = []
        while self._under_way() < self._width:
            name = self._next()
            if name is None:
                break
            curve = self._curves[name]
            curve.until = min(curve.epoch + max(self.step, curve.epoch // STRIDE), self.max_epochs)
            decisions.append(Train(name, curve.until))
        return decisions

    def _next(self) -> str | None:
        """Return the paused trial to continue; None if a new one should start, or if none is worth it."""
        waiting = [name for name, curve in self._curves.items() if self._may_continue(curve)]
        if not waiting or not self._chooser.ready:
            return None
        rng = self._rng("continue", self._under_way())
        return self._chooser.choose(waiting, rng, more=self._started < self._trials)

    def _may_continue(self, curve: Curve) -> bool:
        paused = curve.own and not curve.ended and not curve.runs
        return paused and curve.epoch < self.max_epochs and curve.last < math.inf

    def _rng(self, *names: object) -> np.random.Generator:
        import numpy

        return numpy.random.default_rng(derive(self.seed, "freeze-thaw", self._reports, *names))

    def conclude(self) -> Sequence[Decision]:
        finite = {name: curve for name, curve in self._curves.items() if curve.own and curve.last < math.inf}
        finished = {name for name, curve in finite.items() if curve.epoch >= self.max_epochs}
        able = [name for name in finite if name in finished or not finite[name].ended]
        best = min(able, key=lambda name: (finite[name].best, finite[name].number), default=None)
        return () if best is None or best in finished else [Train(best, self.max_epochs)]

    # ------------------------------------------------------------------------------------------ further requests

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self._walk(spaces.widened(self.space, space))
        self._trials += trials
        self.max_epochs += epochs
        self._chooser.change(self.space, self.max_epochs)
        for name, trial in self._known.items():
            self._curves[name].place = self._chooser.locate(trial.config, trial.chosen)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "step": self.step}
