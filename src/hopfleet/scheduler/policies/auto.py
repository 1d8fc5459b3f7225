"""Choose how to choose: try the candidates in dry runs, with as much noise as there is, and take what ends first.

A plan kept strictly is best where unit times are known well, and worst where they are not; a rule that looks no further
than the present is the other way round. How well times are known is learned on the way: nobody can tell exact estimates
from poor ones before some units have ended. Until then match-reserve begins, if a plan made afterwards could still be
as good as one made now. Then the choice is made again, as whenever the noise has changed, and when workers or trials
come or go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hopfleet.planner.portfolio import plan
from hopfleet.scheduler.dryrun import Factor, dry_run, exact, later, lognormal
from hopfleet.scheduler.plan import Plan, by_start, rotation, strictly
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.match_reserve import match_and_reserve
from hopfleet.scheduler.policies.nearly_done import nearly_done
from hopfleet.scheduler.policies.portfolio import EFFORT, ByPortfolio
from hopfleet.scheduler.schedule import Assignment, Schedule
from hopfleet.scheduler.shop_state import Floor, Rule, Start

MANY = 64
"""With more idle trials than this for each worker any choice is as good, and longest-remaining is the fastest."""
SEVERAL = 6
"""With more idle trials than this for each worker, plans gain nothing over match-reserve."""
SAMPLES = 3
"""Dry runs of each candidate where there is noise."""
LAPS = 1
"""Epochs after the current one that a dry run covers."""
JITTER = 0.05
"""The noise that a candidate must stand while it is not known, or slight."""
EQUAL = 2e-4
"""Candidates whose ratios to the bound differ by no more are equal."""
CLEAR = 0.01
"""Dry runs with noise must show a gain of this much over what is chosen, or match-reserve, to be believed."""
PRICE = 3e-3
"""As much longer a run may take if nothing is planned before the noise is known."""
HOPELESS = 0.03
"""Who is behind by this much in the first dry run gets no other."""
LOOSE = 0.2
"""With more noise than this no plan is worth to be kept, and dry runs cannot tell the rules apart."""
CHANGED = 0.3
"""The choice is made again when the noise has changed by this part of itself ..."""
SLIGHT = 0.02
"""... unless it is less than this."""
EXACT = 1e-3
"""With no more noise than this a plan keeps what it promises."""


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
        #: What the choice was made on: the mirror's news, the noise and whether it was known, the units that were left.
        self._news = -1
        self._noise = 0.0
        self._units = 0
        self._known = False

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        return nearly_done(schedule, rng) if schedule.more_to_come else super().__call__(schedule, rng)

    def _too_many(self, schedule: Schedule) -> bool:
        return len(schedule.ready) > MANY * len(schedule.slots)

    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        # No plan is kept where trials stay: it does not know of that.
        if len(floor.idle_trials) > SEVERAL * len(floor.worker_free) or not floor.plannable or floor.stays:
            self._news = -1
            return match_and_reserve(floor)
        if self._shop_view.news != self._news:
            self._renew(floor, rng, None)
        elif self._noise_changed(floor) or self._strays(floor):
            # Better to keep a plan that is under way than to make another like it from the middle.
            self._renew(floor, rng, self.chosen)
        elif self.chosen.plan is not None and not self.chosen.plan.covers(floor):
            self.chosen.plan.extend(floor)
        return self._rule(floor)

    def _noise_changed(self, floor: Floor) -> bool:
        # The first few units say little about the noise; the last few are done before it matters.
        workers, done = len(floor.worker_free), self._units - floor.units
        if floor.noise > LOOSE:
            enough = self._noise <= LOOSE and 2 * done >= workers
        elif floor.noise <= SLIGHT and not self._known:
            enough = self.chosen.plan is None and _known(floor)
        else:
            enough = done >= 2 * workers and abs(floor.noise - self._noise) > max(CHANGED * self._noise, SLIGHT)
        return enough and floor.units > workers

    def _strays(self, floor: Floor) -> bool:
        """Whether it is time to see if a rule, which promises nothing, still ends when its dry run did."""
        quarter = len(floor.home) * len(floor.epoch) / 4
        return self.chosen.plan is None and floor.noise <= SLIGHT and self._units - floor.units >= quarter

    def _renew(self, floor: Floor, rng: random.Random, kept: Candidate | None) -> None:
        """Choose again; in doubt, what is ``kept``."""
        self._news, self._noise, self._units = self._shop_view.news, floor.noise, floor.units
        self._known = _known(floor)
        self.chosen = self._choice(floor, rng, kept)
        self._rule = self.chosen.rule()

    def _choice(self, floor: Floor, rng: random.Random, kept: Candidate | None) -> Candidate:
        if floor.noise > LOOSE:
            return MATCH_RESERVE
        around = Plan(floor, rotation())
        turn = Candidate("rotation, strictly", lambda: strictly(around), around)
        if not self._known:
            if _drawn(floor, [MATCH_RESERVE, turn], rng, sigma=JITTER, gain=HOPELESS) is turn:
                return turn
            if _ratio(floor, MATCH_RESERVE, exact) <= 1 + PRICE:
                return MATCH_RESERVE
        candidates = [MATCH_RESERVE]
        if kept is not None and kept.plan is not None:
            if not kept.plan.covers(floor, LAPS):
                kept.plan.extend(floor)
            if self._exactly(floor, kept):
                return kept
            candidates = [kept, MATCH_RESERVE]
        ahead = Plan(floor, lambda shop: self._planner(shop, rng))
        strict = Candidate("portfolio, strictly", lambda: strictly(ahead), ahead)
        if self._exactly(floor, strict):
            return strict
        candidates += [strict, Candidate("portfolio, as priorities", lambda: by_start(ahead), ahead), turn]
        best = _best(floor, candidates, rng)
        if not self._known and best.plan is not None and _can_wait(floor, best, rng):
            return MATCH_RESERVE
        return best

    def _exactly(self, floor: Floor, candidate: Candidate) -> bool:
        """Whether units take as long as expected, and so a plan that promises the bound will meet it."""
        return self._known and floor.noise <= EXACT and _ratio(floor, candidate, exact) <= 1 + EQUAL


def _known(floor: Floor) -> bool:
    """Whether enough units have ended to tell how noisy they are."""
    return 2 * floor.judged >= len(floor.worker_free)


def _can_wait(floor: Floor, best: Candidate, rng: random.Random) -> bool:
    """Whether a plan made when the noise is known would, if there is none, be as good as the best now."""
    soon = later(floor, match_and_reserve, laps=LAPS, ends=(len(floor.worker_free) + 1) // 2)
    ahead = Plan(soon, lambda shop: plan(shop, rng, effort=EFFORT))
    now = dry_run(floor, best.rule(), laps=LAPS)
    then = soon.now - floor.now + dry_run(soon, strictly(ahead), laps=LAPS).makespan
    return then <= now.makespan + PRICE * now.bound


def _best(floor: Floor, candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    if floor.noise <= SLIGHT:
        ratios = [_ratio(floor, candidate, exact) for candidate in candidates]
        least = min(ratios)
        candidates = [c for c, ratio in zip(candidates, ratios, strict=True) if ratio <= least + EQUAL]
        if _known(floor) and floor.noise <= EXACT:
            candidates = [c for c in candidates if c.plan is not None] or candidates
            return candidates[0]
        if len(candidates) == 1:
            return candidates[0]
    gain = CLEAR if floor.noise > SLIGHT else 0.0
    return _drawn(floor, candidates, rng, sigma=max(floor.noise, JITTER), gain=gain)


def _drawn(
    floor: Floor, candidates: Sequence[Candidate], rng: random.Random, *, sigma: float, gain: float
) -> Candidate:
    """The best in dry runs with noise; the first, unless another is better by ``gain``."""
    totals = [-gain * SAMPLES, *([0.0] * (len(candidates) - 1))]
    remain = list(range(len(candidates)))
    for sample in range(1, SAMPLES + 1):
        factor = lognormal(sigma, rng.getrandbits(32))
        for index in remain:
            totals[index] += _ratio(floor, candidates[index], factor)
        least = min(totals[index] for index in remain)
        remain = [index for index in remain if totals[index] <= least + sample * HOPELESS]
        if len(remain) == 1:
            break
    return candidates[min(remain, key=totals.__getitem__)]


def _ratio(floor: Floor, candidate: Candidate, factor: Factor) -> float:
    """The makespan that is to be expected, by what it could not fall below."""
    return dry_run(floor, candidate.rule(), laps=LAPS, factor=factor).ratio
