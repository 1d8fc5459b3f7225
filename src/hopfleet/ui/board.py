"""One experiment as the page shows it: a history that is read in slices, and the changes between two readings.

A board reads the journal and nothing else of a run, so it works beside a running experiment and after its end. Changes
carry the number of the journal's last message, which is also the id of the event that brings them to the page: a page
that comes back asks for what follows the last id that it has seen.
"""

from __future__ import annotations

import contextlib
import json
import math
import time as clocks
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from hopfleet.domain.messages import (
    RELEASED,
    EpochEnded,
    Finish,
    Message,
    RecordLogged,
    RequestAnswered,
    RequestMade,
    RunStalled,
    SaveDelayed,
    TrialDeleted,
    TrialPrioritised,
    TrialRolledBack,
    UnitFailed,
    UnitOverdue,
    VersionLost,
    WorkerLost,
)
from hopfleet.errors import HopfleetError, JournalError, describe
from hopfleet.monitor.history import History, Span, TrialHistory
from hopfleet.monitor.wording import duration, flatten, one_line, overdue, stalled, waiting_for
from hopfleet.runs.state import empty_history, state_of
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import JournalUnfinished
from hopfleet.store.local import LOCAL, MALFORMED, find_store
from hopfleet.support.plain import named, plain

REMEMBERED = 240
"""Changes that a board keeps for pages that come back. A page that was away for longer reads everything again."""

NOTICES = 500
"""Faults, warnings and logged records that a board keeps, the newest ones."""

NOTICED = (
    WorkerLost,
    UnitFailed,
    UnitOverdue,
    VersionLost,
    SaveDelayed,
    RunStalled,
    RecordLogged,
    TrialPrioritised,
)
"""Messages that a notice is made of, or that change a priority."""

EVERY = 512
"""Messages between two looks at the clock while reading."""

EVALUATES, HOPPED, FAILED, UNDONE = 1, 2, 4, 8
"""The marks of a span, as bits."""


class Board:
    """The history of one experiment, with the changes since the page last looked."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.definition = folder.definition()
        self._store = find_store(self.definition.get("store", LOCAL))
        self.history: History = empty_history(self.definition)
        self.number = 0  #: of the last message read
        self.told = 0  #: the same after whole readings; any thread may look at it, and ask for changes
        self.complete = False  #: whether the journal was read to its end
        self.notices: deque[dict[str, Any]] = deque(maxlen=NOTICES)
        self.levels: dict[str, int] = {}  #: priorities of trials, where they are not 0
        self.changes: deque[tuple[int, int, str]] = deque(maxlen=REMEMBERED)  #: from a number to a number, as JSON
        #: Charts by kind and metric: the number at which each was made, until when it will do, and its data.
        self.charts: dict[tuple[str, str], tuple[int, float, dict[str, Any]]] = {}
        self.read_at = 0.0  #: when the board was last used, by the monotonic clock
        self._identity = self._file_identity()

    # ----------------------------------------------------------------------------------------------- reading

    def _file_identity(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            found = self.folder.definition_file.stat()
            return found.st_ino, found.st_mtime_ns
        return None

    @property
    def replaced(self) -> bool:
        """Whether the run folder was deleted, or holds another experiment by now."""
        return self._file_identity() != self._identity

    def advance(self, seconds: float) -> bool:
        """Read new messages for about that long; return whether there are more. Raise JournalError if damaged."""
        if not self._store.has_journal(self.folder):
            if self.folder.running:  # it is about to be made
                self.complete = True
                return False
            raise JournalError(
                f"{self.folder.journal_file}: is missing, so nothing is known of the run; {self.folder.rescue}"
            )
        before, trials, spans = self.number, dict[str, None](), len(self.history.spans)
        gone: list[str] = []
        epochs: list[list[Any]] = []
        asked = respan = False
        until = clocks.monotonic() + seconds
        try:
            with contextlib.closing(self._store.journal(self.folder)) as journal:
                more = False
                for number, time, message in journal.read(self.number):
                    self._apply(number, time, message)
                    self.number = number
                    if self.complete:
                        if trial := getattr(message, "trial", ""):
                            trials[trial] = None
                        if isinstance(message, EpochEnded):
                            epochs.append([message.trial, message.epoch, time, message.metrics])
                        elif isinstance(message, TrialDeleted):
                            gone.append(message.trial)
                        asked |= isinstance(message, RequestMade | RequestAnswered)
                        respan |= isinstance(message, TrialRolledBack)
                    if not number % EVERY and clocks.monotonic() > until:
                        more = True
                        break
        except JournalUnfinished:
            more = False
        if self.number > before and self.complete:
            change = {
                "number": self.number,
                "header": self.header(),
                "trials": [self.trial(self.history.trials[name]) for name in trials if name in self.history.trials],
                "gone": gone,
                "epochs": epochs,
                "spans": None if respan else [self.span(place) for place in range(spans, len(self.history.spans))],
                "workers": self.workers(),
                "asked": asked,
                "notices": len(self.notices),
            }
            self.changes.append((before, self.number, encoded(change)))
        self.told = self.number
        self.complete = self.complete or not more
        return more

    def _apply(self, number: int, time: float, message: Message) -> None:
        try:
            self._notice(time, message)
            self.history.apply(time, message)
        except HopfleetError:
            raise
        except MALFORMED as error:
            raise JournalError(
                f"{self.folder.path}: the journal is damaged: message {number} does not fit those before it "
                f"({describe(error)}); {self.folder.rescue}"
            ) from error

    def _notice(self, time: float, message: Message) -> None:
        if not isinstance(message, NOTICED):
            return
        worker, trial, text = getattr(message, "worker", ""), getattr(message, "trial", ""), ""
        match message:
            case WorkerLost(reason=reason) if reason != RELEASED:
                text = f"worker lost: {one_line(reason)}"
            case UnitFailed(error=error):
                text = f"failed: {one_line(error)}"
            case UnitOverdue():
                text = overdue(message)
            case VersionLost(reason=reason):
                text = f"version lost: {one_line(reason)}"
            case SaveDelayed(error=error):
                text = f"save delayed: {one_line(error)}"
            case RunStalled():
                text = stalled(message)
            case RecordLogged():
                text = one_line(message.text)
            case TrialPrioritised():
                self.levels[trial] = message.level
        if text:
            kind = "record" if isinstance(message, RecordLogged) else "fault"
            self.notices.append({"time": time, "kind": kind, "worker": worker, "trial": trial, "text": text})

    def since(self, number: int) -> list[tuple[int, str]] | None:
        """Return the changes after a number, each with the number that it leads to; None if they are not known."""
        if number == self.told:
            return []
        changes = tuple(self.changes)
        later = [(end, text) for begin, end, text in changes if begin >= number]
        known = any(begin == number for begin, _, _ in changes)
        return later if known else None

    # ----------------------------------------------------------------------------------------------- describing

    def snapshot(self) -> dict[str, Any]:
        """Return everything but the points of curves and the spans, which come apart as numbers.

        ``reading`` tells that the journal goes on: what was read so far is shown meanwhile.
        """
        history = self.history
        return {
            "number": self.number,
            "reading": not self.complete,
            "header": self.header(),
            "trials": [self.trial(trial) for trial in history.trials.values()],
            "workers": self.workers(),
            "notices": len(self.notices),
            "metrics": history.metric_names(),
            "definition": {
                name: value for name, value in self.definition.items() if name not in ("origin", "warm_start", "points")
            },
        }

    def header(self) -> dict[str, Any]:
        """Return the state, the progress and the best trial."""
        history = self.history
        progress, leader, busy = history.progress(), history.best(), history.busy_fraction()
        live = [busy[worker.name] for worker in history.live_workers()] or list(busy.values())
        waits = history.waits_for or waiting_for(history.missing, history.missing_valid)
        return {
            "name": self.folder.name,
            "defined": history.name,
            "state": state_of(self.folder, history).value if self.complete else "reading",
            "held": history.held,
            "waits": waits,
            "metric": history.metric,
            "mode": history.mode,
            "objectives": history.objectives,
            "limits": [str(limit) for limit in history.limits],
            "metrics": history.metric_names(),
            "counts": {state.value: count for state, count in history.counts().items() if count},
            "done": progress.done,
            "planned": progress.planned,
            "fraction": progress.fraction,
            "units": progress.units(),
            "remaining": progress.remaining(),
            "elapsed": history.elapsed,
            "elapsed_text": duration(history.elapsed),
            "started": history.started,
            "updated": history.updated,
            "utilisation": sum(live) / len(live) if live else None,
            "hops": history.hops,
            "runs": history.runs,
            "partitions": history.partitions,
            "best": leader.id if leader else None,
            "value": history.value(leader) if leader else None,
            "pareto": [trial.id for trial in history.pareto()] if len(history.objectives) > 1 else [],
            "promoted": any(trial.milestones for trial in history.trials.values()),
            "gaps": history.gaps[-50:],
        }

    def trial(self, trial: TrialHistory) -> dict[str, Any]:
        """Return a row of the leaderboard."""
        last = trial.epochs_done[-1] if len(trial.epochs_done) else None
        return {
            "id": trial.id,
            "number": trial.number,
            "state": trial.state.value,
            "epochs": trial.epochs,
            "trained": trial.epochs_trained,
            "units": trial.units_done,
            "value": self.history.value(trial),
            "best": trial.best.epoch if trial.best else None,
            "metrics": trial.best.metrics if trial.best else {},
            "last": last.metrics if last else {},
            "chosen": named(flatten(trial.displayed)),
            "config": named(flatten(trial.config)) if trial.chosen else None,  # if it is another
            "origin": trial.origin,
            "parent": trial.parent,
            "source": trial.source,
            "begins": trial.begins,
            "reason": one_line(trial.reason)[:300],
            "feasible": trial.best is None or self.history.feasible(trial),
            "level": self.levels.get(trial.id, 0),
        }

    def workers(self) -> list[dict[str, Any]]:
        busy = self.history.busy_fraction()
        return [
            {
                "name": worker.name,
                "device": worker.device,
                "doing": str(worker.doing) if worker.doing and worker.lost is None else None,
                "trial": worker.doing.trial if worker.doing and worker.lost is None else None,
                "since": worker.since if worker.doing else None,
                "next": str(worker.next) if worker.next else None,
                "units": worker.units,
                "busy": busy[worker.name],
                "joined": worker.joined,
                "lost": worker.lost,
                "faults": self.history.faults[worker.name],
                "heard": worker.busy_until if math.isfinite(worker.busy_until) else worker.joined,
            }
            for worker in self.history.workers.values()
        ]

    def span(self, place: int) -> list[Any]:
        span = self.history.spans[place]
        times = (span.started, span.ended)
        return [place, span.worker, span.trial, span.epoch, span.partition, marks(span), *times]

    def summary(self) -> dict[str, Any]:
        """Return a row of the list of experiments."""
        header = self.header()
        names = ("name", "state", "held", "metric", "mode", "counts", "fraction", "units", "remaining", "best", "value")
        leader = self.history.best()
        values = leader.epochs_done.column(self.history.metric)[2] if leader else ()
        return {
            **{name: header[name] for name in (*names, "elapsed_text", "updated")},
            **_defined(self.definition),
            "curve": thinned(values, 40),
        }


def glance(folder: RunFolder) -> dict[str, Any]:
    """Return what the definition and the last message tell of an experiment, as a part of a line of the list."""
    definition = folder.definition()
    store, state = find_store(definition.get("store", LOCAL)), "running" if folder.running else "reading"
    if state == "reading" and store.has_journal(folder):
        with contextlib.suppress(JournalUnfinished), contextlib.closing(store.journal(folder)) as journal:
            last = journal.last()
            if isinstance(last, Finish) and last.complete:
                state = "finished"
    return {"name": folder.name, "state": state, "reading": True, **_defined(definition)}


def _defined(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "defined": definition["name"],
        "created": definition["created"],
        "task": definition["task"]["name"],
        "search": definition["search"].get("search", ""),
    }


def marks(span: Span) -> int:
    """Return the marks of a span as bits."""
    evaluates = 0 if span.work.value == "train" else EVALUATES
    return evaluates | span.hopped * HOPPED | span.failed * FAILED | span.undone * UNDONE


def thinned(values: Iterable[float], most: int) -> list[float]:
    """Return at most ``most`` of the values, evenly spaced, the last one included."""
    listed = list(values)
    if len(listed) <= most:
        return listed
    return [listed[round(place * (len(listed) - 1) / (most - 1))] for place in range(most)]


def encoded(value: Mapping[str, Any] | list[Any]) -> str:
    """Return strict JSON in one line."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
