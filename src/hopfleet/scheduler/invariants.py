"""The whole truth about a schedule and about a history, checked at leisure.

``validate`` looks at a schedule between two transitions; tests call it after every one. ``validate_history`` looks
at what was done, as the journal tells it, and needs no schedule: the two cannot share a mistake.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hopfleet.domain.messages import (
    Message,
    PartitionPlaced,
    RunStarted,
    RunUnit,
    TrialAdded,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    WorkerJoined,
)
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.progress import Progress, Readable
from hopfleet.scheduler.schedule import Schedule

Span = tuple[float, float, str]
Spans = dict[str, list[Span]]
"""Beginnings and ends, and what it was, by trial or by worker."""

Partitions = dict[tuple[str, bool], set[int]]
"""The training or, if true, validation partitions that a worker can read; a worker that can read all has no entry."""


SHOWN = 20
"""Trials that the description of a stall names."""


def stall(schedule: Schedule) -> str:
    """Describe a schedule in which work remains, nothing runs and nothing is coming: the fifth invariant is broken."""
    workers = [
        f"{slot.worker} reads {_named(slot.partitions)}, validation {_named(slot.valid)}"
        for slot in schedule.slots.values()
    ]
    trials = [
        f"{name} owes {sorted(progress.owed_to(None))} of epoch {progress.epoch}/{progress.trial.epochs}, "
        f"version {progress.version} held by {progress.holder}, saved {sorted(progress.saved)}, "
        f"{'ready' if name in schedule.ready else progress.outcome or 'not ready'}, "
        f"to evaluate on {sorted(schedule.unevaluated(progress)) if name in schedule.awaiting else []}"
        for name, progress in [*schedule.trials.items()][:SHOWN]
    ]
    return (
        f"liveness: work remains, nothing runs and nothing is coming: {len(workers)} workers ({'; '.join(workers)}), "
        f"{len(schedule.trials)} trials ({'; '.join(trials)})"
    )


def _named(readable: Readable) -> str:
    return "all" if readable is None else str(sorted(readable))


def validate(schedule: Schedule) -> None:
    """Raise InvariantBroken unless every part of the schedule agrees with every other."""
    partitions, remaining = schedule.partitions, schedule.remaining
    every = set(range(partitions))
    owed = [sum([progress.trial.epochs for progress in schedule.trials.values()])] * partitions
    running: dict[str, list[str]] = {}
    for worker, slot in schedule.slots.items():
        for unit in slot.told:
            running.setdefault(unit.trial, []).append(worker)
    for progress in schedule.trials.values():
        trial, visits, version = progress.trial.id, progress.visits, len(progress.visits)
        for start in range(0, version, partitions):
            epoch = visits[start : start + partitions]
            _check(len(set(epoch)) == len(epoch), "completeness: a partition twice in one epoch", progress)
        for partition in visits:
            owed[partition] -= 1
        told = running.get(trial, [])
        if progress.trains_on is not None:
            told = list(dict.fromkeys(told))  # a trial that goes on where it is was told two units
        claimed = [*filter(None, [progress.trains_on]), *progress.evaluates_on.values()]
        _check(sorted(told) == sorted(claimed), "isolation: workers and trial disagree on what runs", progress)
        _check(not (progress.trains_on and progress.evaluates_on), "isolation: trained while evaluated", progress)
        _check((trial in schedule.ready) == schedule.may_train(progress), "ready is out of date", progress)
        wanted = progress.awaits_evaluation and progress.outcome is None and progress.trains_on is None
        waits = wanted and any(True for _ in schedule.unevaluated(progress))
        _check((trial in schedule.awaiting) == waits, "awaiting is out of date", progress)
        _check(max(progress.saved, default=0) <= version, "a version from the future", progress)
        done = visits[version - version % partitions :]
        _check(progress.todo == every.difference(done), "todo is out of date", progress)
    for worker, slot in schedule.slots.items():
        free = slot.unit is None and not slot.retired
        _check(free == (worker in schedule.idle), "exclusive access: idle is out of date", slot)
        for unit in slot.told:
            mine = slot.readable(not unit.trains)
            _check(mine is None or unit.partition in mine, "completeness: a worker cannot read its partition", slot)
        ready = [progress for progress in schedule.ready.values() if schedule.suits(progress, slot)]
        able = [progress for progress in ready if schedule.options(progress, slot)]
        told = [progress.trial.id for progress in schedule.able(slot)]
        _check(sorted(told) == sorted([progress.trial.id for progress in able]), "able is out of date", slot)
        most = max(map(remaining, able), default=None)
        longest = schedule.longest(slot)
        _check(most == (longest and remaining(longest)), "longest is out of date", slot)
    _check(set(schedule.idle) <= set(schedule.slots), "a lost worker is idle", schedule.idle)
    _check(owed == schedule.owed, "owed is out of date", f"{owed} {schedule.owed}")


def validate_history(messages: Iterable[Message], partitions: int) -> None:
    """Raise InvariantBroken unless what happened, as journaled, kept the four invariants."""
    visits: dict[str, list[int]] = {}
    readable: Partitions = {}
    #: The flotilla of each attempt that is part of one.
    flotillas: dict[int, int] = {}
    spans: Spans = {}
    sailed: dict[tuple[str, int], Span] = {}

    def occupy(worker: str, attempt: int, started: float, ended: float, where: str) -> None:
        """A worker was busy for so long. What a flotilla does is one thing."""
        flotilla = flotillas.get(attempt)
        if flotilla is None:
            spans.setdefault(worker, []).append((started, ended, where))
        else:
            first = sailed.get((worker, flotilla), (started, ended, where))
            sailed[worker, flotilla] = min(started, first[0]), max(ended, first[1]), first[2]

    trained: Spans = {}
    for message in messages:
        _check_readable(message, readable)
        match message:
            case RunStarted():
                # Nothing of earlier workers is left, and the clock may have been set since.
                _check_spans(trained, spans, sailed)
            case TrialAdded(trial=trial):
                visits[trial] = list(message.visits)
            case TrialRolledBack(trial=trial, version=version):
                del visits[trial][version:]
            case UnitFinished() if message.unit.trains:
                mine = visits[message.trial]
                mine.append(message.unit.partition)
                where = f"{message.trial} version {message.version}"
                _check(message.version == len(mine), "completeness: a version is missing or double", where)
                epoch = mine[(message.unit.epoch - 1) * partitions :]
                _check(0 < len(epoch) <= partitions, "completeness: wrong epoch", where)
                _check(len(set(epoch)) == len(epoch), "completeness: a partition twice in one epoch", where)
                trained.setdefault(message.trial, []).append((message.started, message.ended, where))
                occupy(message.worker, message.attempt, message.started, message.ended, where)
            case RunUnit():
                if message.flotilla:
                    flotillas[message.attempt] = message.flotilla
            case UnitFinished() | UnitFailed() | UnitStopped():
                where = f"{message.trial} epoch {message.unit.epoch}"
                occupy(message.worker, message.attempt, message.started, message.ended, where)
                if message.unit.trains:
                    trained.setdefault(message.trial, []).append((message.started, message.ended, where))
            case _:
                pass
    _check_spans(trained, spans, sailed)


def _check_readable(message: Message, readable: Partitions) -> None:
    """Check that a unit is for a worker that can read its partition, and note what workers can read."""
    match message:
        case RunStarted():
            readable.clear()
        case WorkerJoined(worker=worker):
            for valid, some in ((False, message.partitions), (True, message.valid)):
                readable.pop((worker, valid), None)
                if some is not None:
                    readable[worker, valid] = set(some)
        case PartitionPlaced(worker=worker, valid=valid):
            readable[worker, valid].add(message.partition)
        case RunUnit(worker=worker, unit=unit):
            known = readable.get((worker, not unit.trains), {unit.partition})
            _check(unit.partition in known, f"completeness: {worker} cannot read", unit)
        case _:
            pass


def _check_spans(trained: Spans, spans: Spans, sailed: dict[tuple[str, int], Span]) -> None:
    """Look at the units of one run, and forget them."""
    for (worker, _), span in sailed.items():
        spans.setdefault(worker, []).append(span)
    sailed.clear()
    _check_disjoint(trained, "isolation")
    _check_disjoint(spans, "exclusive access")
    trained.clear()
    spans.clear()


def _check_disjoint(groups: Spans, invariant: str) -> None:
    for owner, spans in groups.items():
        spans.sort()
        for (_, ended, first), (started, _, second) in itertools.pairwise(spans):
            _check(ended <= started, f"{invariant}: two units at once on {owner}", f"{first}; {second}")


def _check(holds: bool, what: str, evidence: object) -> None:
    if not holds:
        raise InvariantBroken(f"{what}: {evidence.story() if isinstance(evidence, Progress) else evidence}")
