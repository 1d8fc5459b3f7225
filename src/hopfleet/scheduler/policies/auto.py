"""Choose how to choose: try the candidates in dry runs, with as much noise as there is, and take what ends first.

A plan kept strictly is best where unit times are known well, and worst where they are not; a rule that looks no further
than the present is the other way round. How well times are known is learned on the way. So the choice is made again
when the noise has changed, and with it the plan when workers or trials come or go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from hopfleet.scheduler.dryrun import Factor, dry_run, exact, lognormal
from hopfleet.scheduler.floor import Floor, Rule, Start
from hopfleet.scheduler.plan import Plan, by_start, rotation, strictly
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.longest_remaining import longest_on_floor
from hopfleet.scheduler.policies.match_reserve import match_alone, match_and_reserve
from hopfleet.scheduler.policies.portfolio import by_portfolio

MANY = 64
"""With more idle trials than this for each worker any choice is as good, and longest-remaining is the fastest."""
SEVERAL = 6
"""With more idle trials than this for each worker, plans gain nothing over match-reserve."""
SAMPLES = 3
"""Dry runs of each candidate where there is noise."""
LAPS = 1
"""Epochs after the current one that a dry run covers."""
JITTER = 0.05
"""The noise that a candidate must stand if all units took as long as expected so far."""
EQUAL = 2e-4
"""Candidates whose ratios to the bound differ by no more are equal."""
CLEAR = 3e-3
"""Dry runs with noise must show a gain of this much over what is chosen, or match-reserve, to be believed."""
CHANGED = 0.3
"""The choice is made again when the noise has changed by this part of itself ..."""
SLIGHT = 0.02
"""... unless it is less than this."""


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    #: Makes the rule; those that follow a plan start at its beginning each time.
    rule: Callable[[], Rule]
    plan: Plan | None = None


MATCH_RESERVE = Candidate("match-reserve", lambda: match_and_reserve)


class Auto(Dispatcher):
    def __init__(self) -> None:
        super().__init__()
        self.chosen = MATCH_RESERVE
        self._rule: Rule = match_and_reserve
        #: What the choice was made on: the mirror's news, the noise, and the units that were left.
        self._news = -1
        self._noise = 0.0
        self._units = 0

    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        per_worker = len(floor.idle_trials) / len(floor.worker_free)
        if per_worker > MANY:
            return longest_on_floor(floor)
        if per_worker > SEVERAL or not floor.plannable:
            self._news = -1
            return match_and_reserve(floor)
        if self._mirror.news != self._news:
            self._renew(floor, rng, _candidates(floor, rng))
        elif self._noise_changed(floor) or self._strays(floor):
            # Better to keep a plan that is under way than to make another like it from the middle.
            self._renew(floor, rng, [self.chosen, *_candidates(floor, rng)])
        elif self.chosen.plan is not None and not self.chosen.plan.covers(floor):
            self.chosen.plan.extend(floor)
        return self._rule(floor)

    def _noise_changed(self, floor: Floor) -> bool:
        # The first few units say little about the noise.
        enough = self._units - floor.units >= 2 * len(floor.worker_free)
        return enough and abs(floor.noise - self._noise) > max(CHANGED * self._noise, SLIGHT)

    def _strays(self, floor: Floor) -> bool:
        """Whether it is time to see if a rule, which promises nothing, still ends when its dry run did."""
        quarter = len(floor.home) * len(floor.epoch) / 4
        return self.chosen.plan is None and floor.noise <= SLIGHT and self._units - floor.units >= quarter

    def _renew(self, floor: Floor, rng: random.Random, candidates: Sequence[Candidate]) -> None:
        """Choose among candidates; in doubt, the first."""
        self._news, self._noise, self._units = self._mirror.news, floor.noise, floor.units
        if floor.noise > SLIGHT:
            ratios = _ratios(floor, candidates, floor.noise, rng)
            ratios[0] -= CLEAR
        else:
            ratios = _ratios(floor, candidates, 0.0, rng)
            least = min(ratios)
            candidates = [c for c, ratio in zip(candidates, ratios, strict=True) if ratio <= least + EQUAL]
            ratios = _ratios(floor, candidates, JITTER, rng) if len(candidates) > 1 else [least]
        self.chosen = candidates[ratios.index(min(ratios))]
        self._rule = self.chosen.rule()


def _candidates(floor: Floor, rng: random.Random) -> list[Candidate]:
    ahead, around = Plan(floor, lambda shop: by_portfolio(shop, rng)), Plan(floor, rotation)
    return [
        MATCH_RESERVE,
        Candidate("match", lambda: match_alone),
        Candidate("longest-remaining", lambda: longest_on_floor),
        Candidate("portfolio, strictly", lambda: strictly(ahead), ahead),
        Candidate("portfolio, as priorities", lambda: by_start(ahead), ahead),
        Candidate("rotation, strictly", lambda: strictly(around), around),
    ]


def _ratios(floor: Floor, candidates: Sequence[Candidate], noise: float, rng: random.Random) -> list[float]:
    """The makespan that is to be expected of each, by what it could not fall below."""
    factors: list[Factor] = [lognormal(noise, rng.getrandbits(32)) for _ in range(SAMPLES)] if noise else [exact]
    return [mean(dry_run(floor, c.rule(), laps=LAPS, factor=factor).ratio for factor in factors) for c in candidates]
