"""Choose how to choose: try the candidates in dry runs, with as much noise as there is, and take what ends first.

A plan kept strictly is best where unit times are known well, and worst where they are not; a rule that looks no further
than the present is the other way round. How well times are known is learned on the way. So the choice is made again
when the noise has changed, and with it the plan when workers or trials come or go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hopfleet.scheduler.dryrun import Factor, dry_run, exact, lognormal
from hopfleet.scheduler.floor import Floor, Rule, Start
from hopfleet.scheduler.plan import Plan, by_start, rotation, strictly
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.longest_remaining import longest_on_floor
from hopfleet.scheduler.policies.match_reserve import match_alone, match_and_reserve
from hopfleet.scheduler.policies.nearly_done import nearly_done
from hopfleet.scheduler.policies.portfolio import ByPortfolio
from hopfleet.scheduler.schedule import Assignment, Schedule

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
HOPELESS = 0.03
"""Who is behind by this much in the first dry run gets no other."""
LOOSE = 0.2
"""With more noise than this no plan is worth to be kept, and dry runs cannot tell the rules apart."""
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
        self._planner = ByPortfolio()
        #: What the choice was made on: the mirror's news, the noise, and the units that were left.
        self._news = -1
        self._noise = 0.0
        self._units = 0

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        return nearly_done(schedule, rng) if schedule.more_to_come else super().__call__(schedule, rng)

    def _too_many(self, schedule: Schedule) -> bool:
        return len(schedule.ready) > MANY * len(schedule.slots)

    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        if len(floor.idle_trials) > SEVERAL * len(floor.worker_free) or not floor.plannable:
            self._news = -1
            return match_and_reserve(floor)
        if self._mirror.news != self._news:
            self._renew(floor, rng, self._candidates(floor, rng))
        elif self._noise_changed(floor) or self._strays(floor):
            candidates = self._candidates(floor, rng)
            # Better to keep a plan that is under way than to make another like it from the middle.
            self._renew(floor, rng, [self.chosen, *candidates] if len(candidates) > 1 else candidates)
        elif self.chosen.plan is not None and not self.chosen.plan.covers(floor):
            self.chosen.plan.extend(floor)
        return self._rule(floor)

    def _noise_changed(self, floor: Floor) -> bool:
        # The first few units say little about the noise; the last few are done before it matters.
        workers, done = len(floor.worker_free), self._units - floor.units
        if floor.noise > LOOSE:
            enough = self._noise <= LOOSE and 2 * done >= workers
        else:
            enough = done >= 2 * workers and abs(floor.noise - self._noise) > max(CHANGED * self._noise, SLIGHT)
        return enough and floor.units > workers

    def _strays(self, floor: Floor) -> bool:
        """Whether it is time to see if a rule, which promises nothing, still ends when its dry run did."""
        quarter = len(floor.home) * len(floor.epoch) / 4
        return self.chosen.plan is None and floor.noise <= SLIGHT and self._units - floor.units >= quarter

    def _renew(self, floor: Floor, rng: random.Random, candidates: Sequence[Candidate]) -> None:
        """Choose among candidates; in doubt, the first."""
        self._news, self._noise, self._units = self._mirror.news, floor.noise, floor.units
        self.chosen = _best(floor, candidates, rng)
        self._rule = self.chosen.rule()

    def _candidates(self, floor: Floor, rng: random.Random) -> list[Candidate]:
        if floor.noise > LOOSE:
            return [MATCH_RESERVE]
        ahead, around = Plan(floor, lambda shop: self._planner(shop, rng)), Plan(floor, rotation())
        return [
            MATCH_RESERVE,
            Candidate("match", lambda: match_alone),
            Candidate("longest-remaining", lambda: longest_on_floor),
            Candidate("portfolio, strictly", lambda: strictly(ahead), ahead),
            Candidate("portfolio, as priorities", lambda: by_start(ahead), ahead),
            Candidate("rotation, strictly", lambda: strictly(around), around),
        ]


def _best(floor: Floor, candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    if len(candidates) == 1:
        return candidates[0]
    if floor.noise <= SLIGHT:
        ratios = [_ratio(floor, candidate, exact) for candidate in candidates]
        least = min(ratios)
        candidates = [c for c, ratio in zip(candidates, ratios, strict=True) if ratio <= least + EQUAL]
        if len(candidates) == 1:
            return candidates[0]
    sigma = max(floor.noise, JITTER)
    gain = CLEAR if floor.noise > SLIGHT else 0.0
    totals = [-gain * SAMPLES, *([0.0] * (len(candidates) - 1))]
    remain = list(range(len(candidates)))
    for sample in range(1, SAMPLES + 1):
        factor = lognormal(sigma, rng.getrandbits(32))
        for index in remain:
            totals[index] += _ratio(floor, candidates[index], factor)
        least = min(totals[index] for index in remain)
        remain = [index for index in remain if totals[index] <= least + sample * HOPELESS]
    return candidates[min(remain, key=totals.__getitem__)]


def _ratio(floor: Floor, candidate: Candidate, factor: Factor) -> float:
    """The makespan that is to be expected, by what it could not fall below."""
    return dry_run(floor, candidate.rule(), laps=LAPS, factor=factor).ratio
