"""Checks of schedules with a known length against the steps that a trial takes, before it trains.

Only clear mistakes are named: a schedule that raises before the end, one that climbs again or keeps the learning rate
at 0 for the rest of the training, and one whose length counts batches although it steps with epochs, or the other way
round. Schedules without an end of their own, those that repeat themselves, and those that end early at a learning rate
above 0 are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from hopfleet.errors import TaskError
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.trial import Hooks

NEAR = 0.1
"""A length that differs by at most this share from a number of steps was meant to be that number."""


RAISES, UNFINISHED = "training would fail", "the schedule would not come to its end"

EFFECTS = {
    "raises": RAISES,
    "climbs": "the learning rate would climb again",
    "stops": "the learning rate would be 0 from then on",
}
"""What follows if a schedule ends early."""


class Pace(NamedTuple):
    """How often a schedule steps until the planned end."""

    steps: int
    after: str  #: "epoch", "batch" or "update"
    epochs: int
    #: The numbers of steps of other paces, which a length may have been taken for.
    others: tuple[int, ...]


class Length(NamedTuple):
    """The length of a schedule."""

    argument: str  #: as in ``CosineAnnealingLR(T_max``
    steps: int
    #: What happens after its end: "raises"; "climbs" and "stops", where the learning rate rises or is 0; or nothing.
    then: str


def check_lengths(schedulers: Iterable[LRScheduler], hooks: Hooks) -> Iterator[str]:
    """Raise TaskError if a schedule ends before training does; yield a warning where that goes wrong silently."""
    batching = hooks.batching
    if batching is None:
        return
    batches, epochs, total = batching.total_steps(), batching.epochs, hooks.total_steps
    by_step = Pace(total, "batch" if batches == total else "update", epochs, (epochs, batches))
    by_epoch = Pace(epochs, "epoch", epochs, (batches, total))
    for schedule in schedulers:
        pace = by_epoch if hooks.lr_step == "epoch" else by_step
        if isinstance(schedule, Paced):
            if not schedule.regular:
                continue
            pace = by_epoch if schedule.by_epoch else by_step
            schedule = schedule.schedule
        for length, begins in _lengths(schedule, pace.steps):
            effect = _effect(length, pace._replace(steps=pace.steps - begins))
            if effect == RAISES:
                raise TaskError(_worded(length, pace, begins, effect))
            if effect:
                yield _worded(length, pace, begins, effect)


def _lengths(schedule: LRScheduler, steps: int, begins: int = 0) -> Iterator[tuple[Length, int]]:
    """Yield the known lengths in a schedule that steps so often, and the step with which each begins."""
    kind = type(schedule).__name__
    match schedule:
        case lr_scheduler.SequentialLR():
            yield from _lengths(*_compat.last_schedule(schedule, steps, begins))
        case lr_scheduler.ChainedScheduler():
            for part in _compat.chained_schedules(schedule):
                yield from _lengths(part, steps, begins)
        case lr_scheduler.OneCycleLR():
            yield Length(f"{kind}(total_steps", schedule.total_steps, "raises"), begins
        case lr_scheduler.CosineAnnealingLR():
            yield Length(f"{kind}(T_max", int(schedule.T_max), "climbs"), begins
        case lr_scheduler.PolynomialLR():
            yield Length(f"{kind}(total_iters", schedule.total_iters, "stops"), begins
        case lr_scheduler.LinearLR():
            yield Length(f"{kind}(total_iters", schedule.total_iters, "" if schedule.end_factor else "stops"), begins
        case lr_scheduler.LambdaLR():
            for function in schedule.lr_lambdas[:1]:
                # The functions of transformers know the number of steps.
                keywords = function.keywords if isinstance(function, functools.partial) else {}
                if isinstance(length := keywords.get("num_training_steps"), int):
                    end, last = function(length), function(max(length, steps - 1))
                    then = "climbs" if last > end else "" if last else "stops"
                    yield Length("get_scheduler(num_training_steps", length, then), begins


def _effect(length: Length, pace: Pace) -> str:
    """Return what goes wrong with a schedule of this length; empty if nothing does."""
    steps, planned = length.steps, pace.steps
    confused = any(_near(steps, other) if pace.after == "epoch" else steps == other for other in pace.others)
    if steps == planned or not length.then:
        return ""
    if steps < planned:
        whole = length.then == "climbs" and steps > 0 and planned % steps == 0 and not confused
        # The learning rate of the last step is used by no update.
        return "" if whole or (length.then != "raises" and steps == planned - 1) else EFFECTS[length.then]
    return UNFINISHED if confused or length.then == "raises" else ""


def _worded(length: Length, pace: Pace, begins: int, effect: str) -> str:
    planned = pace.steps - begins
    by_epoch = pace.after == "epoch"
    why = ", and each partition ends with a batch of its own" if _near(length.steps, planned) and not by_epoch else ""
    minus = f" - {begins}" if begins else ""
    remedy = f"{pace.steps}{minus}, or set lr_step = 'batch'" if by_epoch else f"self.total_steps{minus}"
    return (
        f"{length.argument}={length.steps}): must be {planned} steps, those until the end of epoch {pace.epochs} (one "
        f"after each {pace.after}{why}), got {length.steps}, so that {effect}; use {remedy}"
    )


def _near(steps: int, number: int) -> bool:
    return abs(steps - number) <= NEAR * number
