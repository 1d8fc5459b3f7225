"""Observers that add notes and warnings to a view: on requests, full disks, records, stalls, unused keys and NaN."""

from __future__ import annotations

from hopfleet.domain.messages import (
    Finish,
    Message,
    RecordLogged,
    RequestAnswered,
    RequestMade,
    RunStalled,
    SaveDelayed,
    UnitFinished,
    VersionSaved,
)
from hopfleet.domain.objectives import warning_of_nan
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.terminal.live import LiveView
from hopfleet.monitor.wording import stalled
from hopfleet.phrases import listed


def watchers(view: LiveView) -> list[Observer]:
    """Return all observers of this module, for one view."""
    return [
        UnusedKeys(view),
        DiskNotes(view),
        RequestNotes(view),
        LoggedRecords(view),
        Stalls(view),
        MissingNumbers(view),
    ]


class UnusedKeys(Observer):
    """Warns about configuration keys that no trial has read, in the second epoch of a trial and at the end of a run."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._unused: set[str] | None = None  #: None until a unit was trained
        self._absent: set[str] = set()
        self._warned = False

    def update(self, time: float, message: Message) -> None:
        if isinstance(message, UnitFinished) and message.unit.trains:
            unused = set(message.unused)
            self._unused = unused if self._unused is None else self._unused & unused
            self._absent.update(message.absent)
        # By its second epoch, a trial has built, trained and evaluated.
        second = isinstance(message, UnitFinished) and message.unit.epoch > 1
        if (second or isinstance(message, Finish)) and not self._warned:
            self._warned = True
            for key in sorted(self._unused or ()):
                self._view.warn(f"the task never read config[{key!r}]; {self._remedy(key)}")

    def _remedy(self, key: str) -> str:
        if not self._absent:
            return "check its spelling, or remove it from the space"
        return f"it asked for {listed(key, sorted(self._absent))} instead, which the space does not have"


class DiskNotes(Observer):
    """Notes that the run or a save waits for a disk, and that the run continues."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._delayed: set[VersionRef] = set()

    def update(self, time: float, message: Message) -> None:
        if isinstance(message, SaveDelayed) and message.on_node:
            self._view.note(f"{message.error}; training continues, and versions are sent when the storage answers")
        elif isinstance(message, SaveDelayed):
            self.waiting(message.error)
            self._delayed.add(message.ref)
        elif isinstance(message, VersionSaved) and message.ref in self._delayed:
            self._delayed.discard(message.ref)
            self.waiting("")

    def waiting(self, text: str) -> None:
        self._view.note(f"waiting: {text}; the run continues when this is resolved" if text else "the run continues")


class LoggedRecords(Observer):
    """Shows what the code of trials has logged at WARNING and above, each text once for the whole run."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._shown: set[str] = set()

    def update(self, time: float, message: Message) -> None:
        if isinstance(message, RecordLogged) and message.text not in self._shown:
            self._shown.add(message.text)
            self._view.warn(f"{message.trial}: {message.text}")


class Stalls(Observer):
    """Warns that a run stalled, with its state, and says whether it continues."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def update(self, time: float, message: Message) -> None:
        if isinstance(message, RunStalled):
            self._view.warn(stalled(message))


class MissingNumbers(Observer):
    """Warns, once per trial, of a metric that is NaN, and says how the trial is ranked."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._warned: set[str] = set()

    def update(self, time: float, message: Message) -> None:
        if not isinstance(message, UnitFinished) or message.trial in self._warned:
            return
        if text := warning_of_nan(message.sums, self._view.history.metric, message.unit.epoch):
            self._warned.add(message.trial)
            self._view.warn(f"{message.trial}: {text}")


class RequestNotes(Observer):
    """Notes the answers to requests, and that the run drains."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._asked: dict[int, RequestMade] = {}

    def update(self, time: float, message: Message) -> None:
        if isinstance(message, RequestMade):
            if message.request == "drain":
                self._view.note("finishing running units; press Ctrl-C again to stop at once")
            else:
                self._asked[message.number] = message
        elif isinstance(message, RequestAnswered):
            asked = self._asked.pop(message.number, RequestMade("request", who="an earlier request"))
            refused = "" if message.granted else f"{asked.request} refused: "
            self._view.note(f"{asked.who}: {refused}{message.text}")
