"""The requests that users can make to an experiment, and the steps that carry them out.

Pure: from the state of the experiment to a list of steps, or a reason to refuse. A refused request changes nothing.
Requests come through the queue of the journal, from the API, the command line or a dashboard; all are answered alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.controller.request_arguments import check_arguments
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import MOST_WORKERS, integer
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import UsageError, describe
from hopfleet.phrases import cut, plural, shown
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.search.base import Clone, Search


class Refused(Exception):
    """A request that makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Add:
    """Add a trial with a configuration of the user's own."""

    config: Config


EXAMPLES = 8
"""Configurations that are drawn from a changed space before the change is granted."""

Step = m.Decision | m.Command | Clone | Add


@dataclass(frozen=True, slots=True)
class Office:
    """What one needs to know to answer."""

    schedule: Schedule
    search: Search
    held: bool
    #: The name that the next trial will have.
    next_trial: str
    #: How many workers the run may have.
    max_workers: int = MOST_WORKERS

    def known(self, trial: str) -> Progress:
        progress = self.schedule.find(trial)
        if progress is None:
            raise Refused(f"trial {shown(trial)}: there is none of that name; hopfleet show lists them")
        return progress

    def check_live(self, trial: str) -> None:
        progress = self.known(trial)
        if trial not in self.schedule.trials:
            raise Refused(f"{trial} does not train: it is {progress.state.value}")
        if progress.outcome is not None:
            raise Refused(f"{trial} is about to end already")


def answer(asked: m.RequestMade, office: Office) -> tuple[list[Step], str]:
    """Return the steps of a request, in order, and the answer to the user. Raises Refused, and no other error."""
    if asked.problem:
        raise Refused(asked.problem)
    try:
        check_arguments(asked.request, asked.arguments, office.search.space)
        given = {name: value for name, value in asked.arguments.items() if value is not None}
        return REQUESTS[asked.request](office, **given)
    except Refused:
        raise
    except UsageError as error:
        raise Refused(cut(str(error))) from error
    except Exception as error:  # of a search from elsewhere; the run must go on
        raise Refused(f"{asked.request}: the request raised {cut(describe(error))}") from error


# ------------------------------------------------------------------------------------------------- one trial


def _stop(office: Office, trial: str, now: bool = False) -> tuple[list[Step], str]:
    progress = office.known(trial)
    if progress.state is TrialState.PAUSED:
        return [
            m.TrialEnded(trial, TrialState.STOPPED, "stopped by a person")
        ], f"{trial}, which was paused, is stopped"
    running = _running(office, progress, now)
    if not running:  # else it may be about to end, only not now
        office.check_live(trial)
    steps: list[Step] = [] if progress.outcome is not None else [m.TrialStopped(trial, "stopped by a person")]
    waits = now and not running and (progress.trains_on is not None or progress.evaluates_on)
    when = "after what it is about to do: its worker runs another one" if waits else "now"
    return [*steps, *running], f"{trial} stops {when if now else 'after what it is doing'}"


def _running(office: Office, progress: Progress, now: bool) -> list[Step]:
    """Return commands to abort the running units of a trial if ``now``; aborting its next units would cost others."""
    trial, slots = progress.trial.id, office.schedule.slots.values() if now else ()
    running = ((slot.worker, unit, attempt) for slot in slots for unit, attempt in slot.units.items())
    return [m.StopUnit(worker, trial, attempt) for worker, unit, attempt in running if unit.trial == trial]


def _resume(office: Office, trial: str, epochs: int | None = None) -> tuple[list[Step], str]:
    progress = office.known(trial)
    # A trial that is about to fail may wait for a save that never comes.
    if TrialState.FAILED in (progress.state, progress.outcome and progress.outcome.state):
        raise Refused(f"{trial} has failed and would fail again; clone it with another configuration")
    if trial in office.schedule.trials and progress.outcome is None and epochs is None:
        raise Refused(f"{trial} is {progress.state.value} already; to train it longer, say until which epoch")
    done = progress.epochs_ended
    until = max(office.search.max_epochs, progress.trial.epochs) if epochs is None else epochs
    if until <= done:
        raise Refused(f"epochs={until}: {trial} has trained for {done} epochs already; ask for more")
    if trial in office.schedule.trials and progress.outcome is None and until <= progress.trial.epochs:
        raise Refused(f"epochs={until}: {trial} trains until epoch {progress.trial.epochs} already; ask for more")
    return [m.TrialResumed(trial, until)], f"{trial} goes on from epoch {done} until epoch {until}"


def _delete(office: Office, trial: str, now: bool = False) -> tuple[list[Step], str]:
    progress = office.known(trial)
    if trial in office.schedule.parked:
        if progress.lends:
            raise Refused(f"{trial}: a clone is about to take its model; ask again in a moment")
        drops: list[Step] = [
            m.DropVersion(VersionRef(trial, version, saved.attempt)) for version, saved in progress.saved.items()
        ]
        paused = progress.state is TrialState.PAUSED  # then its search may count on it, and must hear of its end
        ends: list[Step] = [m.TrialEnded(trial, TrialState.STOPPED, "deleted by a person")] if paused else []
        return [*ends, *drops, m.TrialDeleted(trial)], f"{trial} and its models are deleted"
    steps: list[Step] = [m.TrialStopped(trial, "deleted by a person", delete=True)]
    return [*steps, *_running(office, progress, now)], f"{trial} will be deleted when it runs nothing"


def _clone(
    office: Office,
    trial: str,
    changes: Mapping[str, Any] | None = None,
    warm: bool = False,
    epochs: int | None = None,
) -> tuple[list[Step], str]:
    parent = office.known(trial)
    config = spaces.changed(parent.trial.config, changes or {})
    done = parent.clonable
    if warm and not done:
        raise Refused(f"{trial} has no saved model yet; wait for the end of its first epoch, or clone it cold")
    until, begins = epochs, done // office.schedule.partitions if warm else 0
    if until is None:
        until = office.search.max_epochs + (begins if begins >= office.search.max_epochs else 0)
    if until <= begins:
        raise Refused(f"epochs={until}: {trial} has trained for {begins} epochs already; ask for more")
    how = f"goes on from epoch {begins} of {trial}" if warm else f"starts afresh with what {trial} had"
    return [Clone(trial, config, warm, epochs=until)], f"{office.next_trial} {how}, until epoch {until}"


def _add(office: Office, config: Mapping[str, Any]) -> tuple[list[Step], str]:
    return [Add(spaces.plain(config))], f"{office.next_trial} is added"


def _prioritise(office: Office, trial: str, level: int = 1) -> tuple[list[Step], str]:
    office.check_live(trial)
    return [m.TrialPrioritised(trial, level)], f"{trial} has level {level}"


# ------------------------------------------------------------------------------------------ the whole experiment


def _extend(
    office: Office, trials: int = 0, epochs: int = 0, space: Mapping[str, Any] | None = None
) -> tuple[list[Step], str]:
    if not (trials or epochs or space):
        raise Refused("extend by what? Give trials, epochs or dimensions")
    search = office.search
    extended = copy.deepcopy(search)
    extended.extend(trials=trials, epochs=epochs, space=spaces.parse(space or {}))
    if space:
        extended.examples(EXAMPLES)  # raises if a constraint cannot be met, or evaluated, with the new dimensions
    until = search.max_epochs + epochs
    longer = [
        name
        for name, progress in (*office.schedule.parked.items(), *office.schedule.trials.items())
        if epochs and progress.trial.epochs == search.max_epochs
        if progress.state is TrialState.COMPLETED or (name in office.schedule.trials and progress.outcome is None)
    ]
    steps: list[Step] = [m.SearchExtended(trials, epochs, dict(space or {}))]
    more = [plural(trials, "more trial")] * bool(trials) + [f"all train until epoch {until}"] * bool(epochs)
    more += [f"{', '.join(space)} changed"] if space else []
    return [*steps, *(m.TrialResumed(name, until) for name in longer)], "; ".join(more)


def _pause(office: Office) -> tuple[list[Step], str]:
    if office.held:
        raise Refused("the experiment is paused already")
    return [m.RunHeld(True)], "running units end, no other starts"


def _proceed(office: Office) -> tuple[list[Step], str]:
    if not office.held:
        raise Refused("the experiment is not paused")
    return [m.RunHeld(False)], "the experiment goes on"


def _workers(office: Office, count: int = 0, by: int = 0) -> tuple[list[Step], str]:
    here = [slot for slot in office.schedule.slots.values() if not slot.retired]
    if by:
        count = len(here) + by
    integer("workers", count, 1, office.max_workers, f"; this run may have {office.max_workers:,}")
    if count > len(here):
        return [m.AddWorkers(count - len(here))], f"from {len(here)} to {count} workers"
    if count == len(here):
        raise Refused(f"there {'is' if count == 1 else 'are'} {plural(count, 'worker')} already")
    # Those that do nothing go first, then the newest.
    order = sorted(enumerate(here), key=lambda entry: (entry[1].unit is not None, -entry[0]))
    leaving = [slot for _, slot in order[: len(here) - count]]
    return [m.WorkerRetired(slot.worker) for slot in leaving], f"from {len(here)} to {count} workers"


REQUESTS: Mapping[str, Callable[..., tuple[list[Step], str]]] = {
    "add": _add,
    "clone": _clone,
    "delete": _delete,
    "extend": _extend,
    "pause": _pause,
    "prioritise": _prioritise,
    "proceed": _proceed,
    "resume": _resume,
    "stop": _stop,
    "workers": _workers,
}
