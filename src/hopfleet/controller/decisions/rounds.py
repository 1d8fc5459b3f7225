"""Rounds: how the search hears of results in the same order whatever the speed of the workers.

In a round, every live trial trains one epoch. The round is over when all of them have evaluated and saved that epoch,
or have failed. Only then does the search hear of the results, in the order of the trials' numbers; only then do trials
pause, end, continue and start. So every suggestion and every decision depends on the results of earlier rounds alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from hopfleet.controller.decisions.trials import end, end_epoch
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.scheduler.progress import Progress


def close_round(state: State) -> Iterator[m.Message]:
    """End the epoch of every trial once all trials are done with theirs."""
    if not state.in_rounds:
        return
    live = sorted(state.schedule.trials.values(), key=lambda progress: progress.trial.number)
    if all(_is_done(state, progress) for progress in live):
        for progress in live:
            if progress.outcome is None:
                yield from end_epoch(state, progress)
            else:
                yield from end(state, progress, progress.outcome)


def _is_done(state: State, progress: Progress) -> bool:
    """Whether a trial has nothing left to do in its round."""
    if progress.trains_on is not None or progress.evaluates_on:
        return False
    if progress.outcome is not None:
        return progress.outcome.state is TrialState.FAILED and not progress.lends
    evaluated = progress.awaits_evaluation and len(progress.evaluated) == state.schedule.valid_partitions
    return evaluated and progress.durable(progress.version) and not progress.saves
