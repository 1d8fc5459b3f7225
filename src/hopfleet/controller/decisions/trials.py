"""Which trials there are and how long they train: additions, ends of epochs, pauses, stops and clones."""

from __future__ import annotations

from collections.abc import Iterator

from hopfleet.controller.decisions.versions import drop, needed_versions, recover
from hopfleet.controller.requests import Add, Office, Refused, Step, answer
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.objectives import EPOCH
from hopfleet.domain.rowsum import add, means
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, TrialState, trial_name
from hopfleet.phrases import plural
from hopfleet.scheduler.progress import Outcome, Progress
from hopfleet.search.base import Clone, Decision, Stop, Suggestion, Train


def answer_requests(state: State, max_workers: int) -> Iterator[m.Message]:
    """Answer a person's requests in order, and carry out those that are granted."""
    while state.requests:
        asked = state.requests[0]
        if asked.request == "workers" and state.schedule.starting:
            return  # wait until all workers that are being started have joined
        office = Office(state.schedule, state.search, state.held, state.next_trial, max_workers)
        try:
            steps, text = answer(asked, office)
        except Refused as refusal:
            yield state.decide(m.RequestAnswered(asked.number, False, str(refusal)))
        else:
            yield state.decide(m.RequestAnswered(asked.number, True, text))
            for step in steps:
                yield from carry_out(state, step)


def carry_out(state: State, step: Decision | Step) -> Iterator[m.Message]:
    """Do what a search or a person wants of trials."""
    match step:
        case Train():
            yield from _train(state, step)
        case Stop():
            yield from _stop(state, step)
        case Clone():
            yield from _clone(state, step)
        case Add():
            yield _added(state, step.config, state.search.max_epochs, "person")
        case _:
            yield state.decide(step)


def _train(state: State, wanted: Train) -> Iterator[m.Message]:
    # A person may have stopped or deleted the trial meanwhile, and takes precedence.
    progress = state.schedule.find(wanted.trial)
    if progress is None or progress.outcome is not None or progress.trial.epochs >= wanted.epochs:
        return
    if not progress.state.ended:
        yield state.decide(m.TrialResumed(wanted.trial, wanted.epochs))


def _stop(state: State, wanted: Stop) -> Iterator[m.Message]:
    progress = state.schedule.find(wanted.trial)
    if progress is None or progress.outcome is not None:
        return
    if progress.state is TrialState.PAUSED:
        yield state.decide(m.TrialEnded(wanted.trial, TrialState.STOPPED, wanted.reason))
    elif not progress.state.ended:
        yield state.decide(m.TrialStopped(wanted.trial, wanted.reason))


def _clone(state: State, wanted: Clone) -> Iterator[m.Message]:
    parent = state.schedule.find(wanted.parent)
    if parent is None:
        return
    version, epochs = parent.clonable, wanted.epochs or state.search.max_epochs
    if wanted.warm and not 0 < version < epochs * state.schedule.partitions:
        return
    visits = tuple(parent.visits[:version]) if wanted.warm else ()
    yield _added(state, wanted.config, epochs, "clone", wanted.parent, visits)
    yield from _stop(state, Stop(wanted.replaces, f"replaced by {trial_name(state.next_number - 1)}"))


def _added(
    state: State, config: Config, epochs: int, origin: str, parent: str = "", visits: tuple[int, ...] = ()
) -> m.Message:
    number = state.next_number
    seed = derive(state.seed, "trial", number)
    planned = max(epochs, state.search.max_epochs)
    names = state.next_trial, number, dict(config), seed, epochs, origin, parent, visits, planned
    return state.decide(m.TrialAdded(*names, _chosen(state, config, parent)))


def _chosen(state: State, config: Config, parent: str) -> Config:
    """Return what a space that is a function asked for to make a configuration; see ``Trial.chosen``."""
    lender = state.schedule.find(parent)
    if lender is None:
        return spaces.chosen(state.search.space, config)
    if lender.trial.config == config:
        return lender.trial.chosen
    return spaces.chosen(state.search.space, config, lender.trial.chosen)


def stop_all_if_over(state: State) -> Iterator[m.Message]:
    """Stop trials when the search's budget is used up. If it was one of epochs, those under way are finished first."""
    schedule, reason = state.schedule, state.search.over(state.elapsed)
    if reason:
        # A trial that has trained for all its epochs ends by itself.
        stopped = [progress for progress in schedule.trials.values() if progress.epochs_ended < progress.trial.epochs]
    elif schedule.epoch_limit is not None:
        reason = f"the budget of {plural(schedule.epoch_limit, 'epoch')} is spent"
        stopped = _unaffordable(state)
    else:
        return
    for progress in stopped:
        yield from _stop(state, Stop(progress.trial.id, reason))


def _unaffordable(state: State) -> list[Progress]:
    """Return the trials that have no epoch left in the budget."""
    waiting, left = _beginning(state), state.schedule.epochs_left
    # In rounds, the lowest numbers get the last epochs; otherwise the trials that are dispatched first.
    known = not left or (state.in_rounds and _between_rounds(state))
    return waiting[int(min(left, len(waiting))) :] if known else []


def _between_rounds(state: State) -> bool:
    """Whether no trial has begun its epoch of the next round."""
    return all(progress.begins_epoch for progress in state.schedule.trials.values())


def _beginning(state: State) -> list[Progress]:
    """Return the trials that begin another epoch as soon as they can, in the order of their numbers."""
    found = (progress for progress in state.schedule.trials.values() if progress.can_train and progress.begins_epoch)
    return sorted(found, key=lambda progress: progress.trial.number)


def add_trials(state: State, max_live: int) -> Iterator[m.Message]:
    """Add suggested trials while there is room."""
    workers = len(state.schedule.slots)
    if state.in_rounds:
        workers = state.planned_workers or workers
    if state.ending or state.held or (state.in_rounds and not _between_rounds(state)):
        return
    room = min(max_live, state.search.concurrency(workers))
    while len(state.schedule.trials) < room and _affords_trial(state):
        suggestion = next_suggestion(state)
        if suggestion is None:
            return
        origin = "point" if state.pointed < len(state.points) else "search"
        yield _added(state, suggestion.config, suggestion.epochs, origin)


def _affords_trial(state: State) -> bool:
    """Whether the budget has an epoch for one more trial, after one for each trial that is about to begin one."""
    if state.schedule.epoch_limit is None:
        return True
    return state.schedule.epochs_left > len(_beginning(state))


def exhausted(state: State) -> bool:
    """Whether no trial is under way, and none is to come."""
    coming = state.schedule.trials or state.waiting or state.requests
    return not coming and next_suggestion(state) is None


def conclude(state: State) -> Iterator[m.Message]:
    """Do what the search still wants when no trial is under way and none is to come.

    While a person pauses the run, what goes on waits; otherwise the run would end without it.
    """
    if not (state.ending or state.over) and exhausted(state):
        for decision in state.search.conclude():
            yield from carry_out(state, decision)


def next_suggestion(state: State) -> Suggestion | None:
    """Return the next trial to add, or None if there is none at the moment."""
    if state.dry or state.over:
        return None
    if state.pointed < len(state.points):
        return Suggestion(state.points[state.pointed], state.search.max_epochs)
    suggestion = state.search.suggest(state.suggested)
    state.dry = suggestion is None
    return suggestion


def advance(state: State, progress: Progress) -> Iterator[m.Message]:
    """Find a model for a trial that lost its own; end its epoch, pause it or end it."""
    if progress.trains_on is not None or progress.evaluates_on:
        return
    outcome = progress.outcome
    if outcome is not None and progress.gives_up:
        if not progress.lends and (outcome.delete or not state.in_rounds or state.hopeless):
            yield from end(state, progress, outcome)
        return
    if progress.holder is None and progress.version and progress.version not in progress.saved:
        yield from recover(state, progress)
    if state.in_rounds and outcome is None and progress.awaits_evaluation:
        return  # until the round is over
    if outcome is None and progress.awaits_evaluation and len(progress.evaluated) == state.schedule.valid_partitions:
        yield from end_epoch(state, progress)
        return  # the search observes the epoch before the trial ends
    outcome = progress.outcome or _reached(state, progress)
    saved = progress.durable(progress.version) or not progress.version
    if outcome is not None and not progress.can_train and saved and not progress.saves_best:
        yield from end(state, progress, outcome)


def _reached(state: State, progress: Progress) -> Outcome | None:
    """Return how a trial ends that has trained for all its epochs."""
    epochs = progress.trial.epochs
    if progress.epochs_ended < epochs:
        return None
    return Outcome(TrialState.COMPLETED if epochs >= state.search.max_epochs else TrialState.PAUSED)


def end_epoch(state: State, progress: Progress) -> Iterator[m.Message]:
    """End an epoch that is trained and evaluated; fail the trial if a metric that the search needs is missing."""
    goal, epoch = state.search.goal, progress.epochs_ended + 1
    metrics = means(add([add(progress.trained.values()), add(progress.evaluated.values())]))
    if EPOCH in goal.metrics:
        metrics.setdefault(EPOCH, float(epoch))
    missing = next((name for name in goal.metrics if name not in metrics), None)
    if missing is not None:
        known = ", ".join(sorted(metrics)) or "none"
        reason = f"metric={missing!r}: is not among those that the task returned ({known})"
        yield from end(state, progress, Outcome(TrialState.FAILED, reason))
        return
    best = progress.best is None or goal.rank(metrics) < progress.best[1]
    yield state.decide(m.EpochEnded(progress.trial.id, epoch, progress.version, metrics, best))


def end(state: State, progress: Progress, outcome: Outcome) -> Iterator[m.Message]:
    """Pause, end or delete a trial that runs nothing."""
    trial = progress.trial.id
    kept = set() if outcome.delete else {version for version in needed_versions(progress) if progress.durable(version)}
    yield from drop(state, progress, kept)
    if outcome.state is TrialState.PAUSED:
        yield state.decide(m.TrialPaused(trial))
        return
    yield state.decide(m.TrialEnded(trial, outcome.state, outcome.reason, outcome.traceback))
    if outcome.delete:
        yield state.decide(m.TrialDeleted(trial))
