"""Select a policy by dry runs: simulate the candidates with the estimated noise and take the one that ends first.

A strictly followed plan is best where unit times are known well and worst where they are not; a dispatch rule that
considers only the present behaves the other way round. How well times are known is learned during the run: exact
estimates cannot be told from poor ones before some units have ended. Until then match-reserve runs, if a plan made
afterwards could still be as good as a plan made now. The choice is made again once the noise is known, whenever the
noise has changed, and when workers or trials come or go.
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
from hopfleet.scheduler.policies.replicated import Replicated
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import DispatchRule, ShopState, Start
from hopfleet.scheduler.shop_view import PartitionLayout
from hopfleet.scheduler.slots import Assignment

MANY = 64
"""Idle trials per worker; with more, all policies do equally well, and longest-remaining decides the fastest."""
SEVERAL = 6
"""Idle trials per worker; with more, plans gain nothing over match-reserve."""
SAMPLES = 3
"""Dry runs of each candidate in the presence of noise."""
LAPS = 1
"""Epochs after the current one that a dry run covers."""
JITTER = 0.05
"""Noise of dry runs while the actual noise is unknown or slight."""
EQUAL = 2e-4
"""Difference of ratios to the bound up to which candidates are equal."""
CLEAR = 0.01
"""Gain in ratio that noisy dry runs must show over the current choice, or over match-reserve, to replace it."""
PRICE = 3e-3
"""Relative loss that is acceptable for not planning before the noise is known."""
HOPELESS = 0.03
"""Distance in mean ratio from the best candidate at which a candidate gets no further dry runs."""
LOOSE = 0.2
"""Noise above which following a plan does not pay, and dry runs cannot tell dispatch rules apart."""
CHANGED = 0.3
"""Relative change of the noise at which the choice is made again ..."""
SLIGHT = 0.02
"""... unless the change is less than this."""
EXACT = 1e-3
"""Noise up to which a plan ends as predicted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to dispatch that dry runs can compare with others."""

    name: str
    #: Makes the dispatch rule; a rule that follows a plan starts at the beginning of the plan each time.
    rule: Callable[[], DispatchRule]
    plan: Plan | None = None


MATCH_RESERVE = Candidate("match-reserve", lambda: match_and_reserve)


class Auto(Dispatcher):
    """The policy that selects among dispatch rules and plans."""

    def __init__(self) -> None:
        super().__init__()
        self._replicated = Replicated()
        self.chosen = MATCH_RESERVE
        self._rule: DispatchRule = match_and_reserve
        self._planner = ByPortfolio()
        #: The basis of the choice: the view's news, the noise and whether it was known, and the units left.
        self._news: int | None = None
        self._noise = 0.0
        self._units = 0
        self._known = False

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        everywhere = self._find_layout(schedule) is PartitionLayout.EVERYWHERE
        # Where all workers read all partitions, no worker waits, and it matters that no long trial is left at the end.
        ends = everywhere and schedule.suggestions_left <= len(schedule.trials)
        if schedule.more_to_come and not ends and not self._plans_chains(schedule):
            return nearly_done(schedule, rng)
        return super().__call__(schedule, rng)

    def _too_many(self, schedule: Schedule) -> bool:
        return len(schedule.ready) > MANY * len(schedule.slots)

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        # Plans do not account for trials that stick to their workers.
        if len(state.idle_trials) > SEVERAL * len(state.worker_free) or not state.plannable or state.sticky:
            self._news = None
            return match_and_reserve(state)
        if self._shop_view.news != self._news:
            self._renew(state, rng, None)
        elif self._noise_changed(state) or self._strays(state):
            # Keep a plan in progress rather than making a similar one from the middle.
            self._renew(state, rng, self.chosen)
        elif self.chosen.plan is not None and not self.chosen.plan.covers(state):
            self.chosen.plan.extend(state)
        return self._rule(state)

    def _noise_changed(self, state: ShopState) -> bool:
        # The first few units say little about the noise; the last few end before a new choice would pay.
        workers, done = len(state.worker_free), self._units - state.units
        if state.noise > LOOSE:
            enough = self._noise <= LOOSE and 2 * done >= workers
        elif state.noise <= SLIGHT and not self._known:
            enough = self.chosen.plan is None and _known(state)
        else:
            enough = done >= 2 * workers and abs(state.noise - self._noise) > max(CHANGED * self._noise, SLIGHT)
        return enough and state.units > workers

    def _strays(self, state: ShopState) -> bool:
        """Whether to check again that a rule without a plan still ends when its dry run did."""
        quarter = len(state.home) * len(state.epoch) / 4
        return self.chosen.plan is None and state.noise <= SLIGHT and self._units - state.units >= quarter

    def _renew(self, state: ShopState, rng: random.Random, kept: Candidate | None) -> None:
        """Choose again; prefer ``kept`` when in doubt."""
        self._news, self._noise, self._units = self._shop_view.news, state.noise, state.units
        self._known = _known(state)
        self.chosen = self._choice(state, rng, kept)
        self._rule = self.chosen.rule()

    def _choice(self, state: ShopState, rng: random.Random, kept: Candidate | None) -> Candidate:
        if state.noise > LOOSE:
            return MATCH_RESERVE
        around = Plan(state, rotation())
        turn = Candidate("rotation, strictly", lambda: strictly(around), around)
        if not self._known:
            if _drawn(state, [MATCH_RESERVE, turn], rng, sigma=JITTER, gain=HOPELESS) is turn:
                return turn
            if _ratio(state, MATCH_RESERVE, exact) <= 1 + PRICE:
                return MATCH_RESERVE
        candidates = [MATCH_RESERVE]
        if kept is not None and kept.plan is not None:
            if not kept.plan.covers(state, LAPS):
                kept.plan.extend(state)
            if self._exactly(state, kept):
                return kept
            candidates = [kept, MATCH_RESERVE]
        planned = Plan(state, lambda shop: self._planner(shop, rng))
        strict = Candidate("portfolio, strictly", lambda: strictly(planned), planned)
        if self._exactly(state, strict):
            return strict
        candidates += [strict, Candidate("portfolio, as priorities", lambda: by_start(planned), planned), turn]
        best = _best(state, candidates, rng)
        if not self._known and best.plan is not None and _can_wait(state, best, rng):
            return MATCH_RESERVE
        return best

    def _exactly(self, state: ShopState, candidate: Candidate) -> bool:
        """Whether units take exactly as long as expected, so that a plan at the bound will end at the bound."""
        return self._known and state.noise <= EXACT and _ratio(state, candidate, exact) <= 1 + EQUAL


def _known(state: ShopState) -> bool:
    """Whether enough units have ended to estimate the noise."""
    return 2 * state.judged >= len(state.worker_free)


def _can_wait(state: ShopState, best: Candidate, rng: random.Random) -> bool:
    """Whether a plan made once the noise is known would, without noise, be as good as the best candidate now."""
    soon = later(state, match_and_reserve, laps=LAPS, ends=(len(state.worker_free) + 1) // 2)
    planned = Plan(soon, lambda shop: plan(shop, rng, effort=EFFORT))
    now = dry_run(state, best.rule(), laps=LAPS)
    then = soon.now - state.now + dry_run(soon, strictly(planned), laps=LAPS).makespan
    return then <= now.makespan + PRICE * now.bound


def _best(state: ShopState, candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    if state.noise <= SLIGHT:
        ratios = [_ratio(state, candidate, exact) for candidate in candidates]
        least = min(ratios)
        candidates = [c for c, ratio in zip(candidates, ratios, strict=True) if ratio <= least + EQUAL]
        if _known(state) and state.noise <= EXACT:
            candidates = [c for c in candidates if c.plan is not None] or candidates
            return candidates[0]
        if len(candidates) == 1:
            return candidates[0]
    gain = CLEAR if state.noise > SLIGHT else 0.0
    return _drawn(state, candidates, rng, sigma=max(state.noise, JITTER), gain=gain)


def _drawn(
    state: ShopState, candidates: Sequence[Candidate], rng: random.Random, *, sigma: float, gain: float
) -> Candidate:
    """Return the best candidate in dry runs with noise; the first, unless another is better by ``gain``."""
    totals = [-gain * SAMPLES, *([0.0] * (len(candidates) - 1))]
    remain = list(range(len(candidates)))
    for sample in range(1, SAMPLES + 1):
        factor = lognormal(sigma, rng.getrandbits(32))
        for index in remain:
            totals[index] += _ratio(state, candidates[index], factor)
        least = min(totals[index] for index in remain)
        remain = [index for index in remain if totals[index] <= least + sample * HOPELESS]
        if len(remain) == 1:
            break
    return candidates[min(remain, key=totals.__getitem__)]


def _ratio(state: ShopState, candidate: Candidate, factor: Factor) -> float:
    """Return the makespan of a dry run divided by its lower bound."""
    return dry_run(state, candidate.rule(), laps=LAPS, factor=factor).ratio
