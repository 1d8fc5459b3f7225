"""Which model versions are saved, copied and dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.slots import Slot

AT_RISK = 0.5
"""Seconds of training that may exist in one worker's memory alone."""


def keep_versions(state: State, progress: Progress, begun: Collection[str]) -> Iterator[m.Message]:
    """Save the newest version unless its worker goes on with it and little is at risk; drop versions no longer needed.

    ``begun`` are the trials with a unit that has just been started. At the end of an epoch, the version of a trial that
    stays on its worker may wait in memory: if epochs are short, a newer version replaces it before it is written.
    """
    version, trial = progress.version, progress.trial.id
    boundary = version % state.schedule.partitions == 0
    goes_on = progress.trains_on is not None and progress.trains_on == progress.holder
    urgent = state.ending or progress.outcome is not None
    durable = boundary or urgent
    waits = boundary and not urgent and not state.in_rounds and progress.units_left > 0 and _stays(state, progress)
    enough = progress.durable(version) or (version in progress.saved and not durable)
    # Once its worker trains on, a version that waits is in the worker's copy alone, and follows with the next save.
    told = progress.told(version, durable=durable, waits=waits or progress.trains_on is not None)
    if goes_on and trial in begun:
        goes_on = not at_risk(state, progress, version)
    if version and not enough and not told and (boundary or not goes_on):
        worker = progress.holder or _keeper(state, progress)
        if worker is not None:
            before, digest = ref_of(progress, version)
            ref, replaces = state.next_ref(trial, version), _replaceable(progress)
            yield state.decide(m.SaveVersion(worker, ref, durable, before.attempt, digest, waits, replaces))
    yield from drop(state, progress, needed_versions(progress))


def at_risk(state: State, progress: Progress, version: int) -> bool:
    """Whether too much training would be lost with a version that is in one worker's memory alone."""
    written = [save.version for save in progress.saves.values() if not save.waits]
    return (version - max([*progress.saved, *written], default=0)) * state.schedule.unit_seconds(progress) >= AT_RISK


def _stays(state: State, progress: Progress) -> bool:
    """Whether a trial's worker goes on with its newest version, and no other worker wants that version."""
    if progress.trains_on is not None:
        return progress.trains_on == progress.holder
    alone = len(state.schedule.slots) == 1 or not any(True for _ in state.schedule.unevaluated(progress))
    return alone and progress.holder in progress.evaluates_on.values()


def _replaceable(progress: Progress) -> tuple[int, ...]:
    """Return the waiting saves that a save of the newest version makes needless."""
    kept = {*_best(progress), *progress.lends.values()} - {progress.version}
    return tuple(number for number, save in progress.saves.items() if save.waits and save.version not in kept)


def _keeper(state: State, progress: Progress) -> str | None:
    """Return a worker that makes a saved version durable when no worker holds it and the trial goes no further."""
    if progress.outcome is None or progress.version not in progress.saved:
        return None
    return next(iter(state.schedule.slots), None)


def save_ahead(state: State, slot: Slot) -> Iterator[m.Message]:
    """Save the version that a worker is about to make, because the worker turns to another trial right after it."""
    for unit in slot.units if slot.unit is not None and slot.unit.trains else ():
        version = state.schedule.trials[unit.trial].version + 1
        yield state.decide(m.SaveVersion(slot.worker, state.next_ref(unit.trial, version), False))


def drop(state: State, progress: Progress, needed: Collection[int]) -> Iterator[m.Message]:
    """Delete all files of a trial except ``needed`` versions and files that a running unit may be reading."""
    stale = [] if progress.trains_on is not None or progress.evaluates_on else progress.stale
    others = [(version, saved.attempt) for version, saved in progress.saved.items() if version not in needed]
    for version, attempt in [*stale, *others]:
        yield state.decide(m.DropVersion(VersionRef(progress.trial.id, version, attempt)))


def recover(state: State, progress: Progress) -> Iterator[m.Message]:
    """Return to the newest saved version; a clone may have to copy its first version from its parent again."""
    trial, parent = progress.trial.id, progress.trial.parent
    version = max(progress.saved, default=progress.base)
    if version < progress.version:
        yield state.decide(m.TrialRolledBack(trial, version))
    if parent is not None and version not in progress.saved and not progress.saves:
        lender = state.schedule.find(parent.trial)
        source, digest = (VersionRef(parent.trial, version, None), "") if lender is None else ref_of(lender, version)
        yield state.decide(m.CopyVersion(source, state.next_ref(trial, version), digest))


def needed_versions(progress: Progress) -> set[int]:
    """Return the saved versions that must stay: the newest, the newest durable, the best, and those lent to clones.

    Of the versions on nodes that are on their way to a storage, the first and the last stay.
    """
    saved = sorted(progress.saved)
    durable = [version for version in saved if progress.durable(version)]
    sent = [version for version in saved if progress.saved[version].attempt in progress.saves]
    return {*saved[-1:], *durable[-1:], *_best(progress), *progress.lends.values(), *sent[:1], *sent[-1:]}


def _best(progress: Progress) -> list[int]:
    """Return the version of a trial's best epoch, if an epoch has ended."""
    return [] if progress.best is None else [progress.best[0]]


def ref_of(progress: Progress, version: int) -> tuple[VersionRef, str]:
    """Return a version's reference and the SHA-256 of its file; a version that is not saved has no attempt."""
    saved = progress.saved.get(version)
    attempt, digest = (None, "") if saved is None else (saved.attempt, saved.digest)
    return VersionRef(progress.trial.id, version, attempt), digest
