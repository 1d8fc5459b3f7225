"""One run of an experiment: the controller restored from the journal, its observers, and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hopfleet.backends.base import Backend, Supervisor
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import Message, RunStarted, RunUnit
from hopfleet.errors import HopfleetError, JournalError, describe
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.terminal.live import LiveView
from hopfleet.monitor.terminal.watcher import watchers
from hopfleet.runtime.callbacks import CallbackObserver
from hopfleet.runtime.effects import missing_versions
from hopfleet.runtime.load_record import LoadRecord
from hopfleet.runtime.loop import Interrupts, Loop
from hopfleet.runtime.records import HealthRecord, TrialRecords
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import MALFORMED, recalled
from hopfleet.support.background import Chores
from hopfleet.version import __version__


class OnceAtWork(Observer):
    """Adds jobs to the chores as soon as a worker has something to do: no worker shall wait for them."""

    def __init__(self, jobs: list[Callable[[], object]], chores: Chores) -> None:
        self._jobs, self._chores = jobs, chores

    def update(self, time: float, message: Message) -> None:
        while self._jobs and isinstance(message, RunUnit):
            self._chores.add(self._jobs.pop(0))


def observers_of(
    view: LiveView, callbacks: CallbackObserver, chores: Chores, folder: RunFolder, backend: Backend
) -> list[Observer]:
    """Return the observers of a run, in the order in which they hear of messages."""
    supervised: list[Observer] = []
    if isinstance(backend, Supervisor):
        supervised = [HealthRecord(folder, backend), LoadRecord(folder.load_file, backend, chores)]
    return [
        *(view.history, view, *watchers(view), *([callbacks] if callbacks.hooked else [])),
        TrialRecords(folder.trials, chores),
        *supervised,
    ]


def run_loop(
    controller: Controller,
    backend: Backend,
    journal: JournalStore,
    versions: VersionStore,
    observers: Sequence[Observer],
    *,
    workers: int,
    definition: Mapping[str, Any],
) -> tuple[Loop, bool]:
    """Continue from the journal until the search is complete or the run ends early.

    Return the loop, and whether the search is complete. The first Ctrl-C drains the run.
    """
    try:
        controller.restore(_recalled(journal, observers))
    except HopfleetError:
        raise
    except MALFORMED as error:
        raise JournalError(
            f"{journal.path}: cannot be replayed ({describe(error)}); the journal is damaged, or the search has changed"
        ) from error
    loop = Loop(controller, backend, journal, versions, observers)
    missing = list(missing_versions(controller.schedule, versions))
    started = RunStarted(__version__, workers, len(journal.requests.pending()), definition)
    with Interrupts(loop.drain):
        complete = loop.run([started, *missing])
    return loop, complete


def _recalled(journal: JournalStore, observers: Sequence[Observer]) -> Iterator[Message]:
    """Yield the messages of earlier runs, after the observers have taken note of them."""
    recalls = [observer.recall for observer in observers]
    for when, message in recalled(journal):
        for recall in recalls:
            recall(when, message)
        yield message
