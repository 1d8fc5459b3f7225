"""Small files beside the journal: a record of each trial, and how the workers are.

The journal alone says what happened. A record of a trial repeats what a user would miss most if the journal were lost:
the configuration and the metrics of the best and of the last epoch. Only ``hopfleet recover`` reads it. The health of
workers is not worth a message; the page reads it while the experiment runs.
"""

from __future__ import annotations

import contextlib
import time as clocks
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hopfleet.backends.base import Supervisor
from hopfleet.domain.messages import EpochEnded, Finish, Message, TrialAdded, TrialDeleted, TrialEnded
from hopfleet.monitor.observer import Observer
from hopfleet.store.folder import RunFolder
from hopfleet.support.background import Chores
from hopfleet.support.files import json_text, make_folder, remove_file, write_text

HEALTH_SECONDS = 1.0
"""Seconds between two records of the health of workers."""

RECORD_SECONDS = 5.0
"""Seconds between two writings of the records of trials: to replace a file can take a millisecond."""


class TrialRecords(Observer):
    """Writes the records of trials after their epochs, as ``chores``. A disk that does not take them is ignored."""

    def __init__(self, folder: Path, chores: Chores) -> None:
        self._folder = folder
        self._chores = chores
        self._records: dict[str, dict[str, Any]] = {}
        self._stale: set[str] = set()
        self._due = clocks.monotonic() + RECORD_SECONDS

    def recall(self, time: float, message: Message) -> None:
        match message:
            case TrialAdded(trial=trial):
                self._records[trial] = {
                    "trial": trial,
                    "config": message.config,
                    "seed": message.seed,
                    "origin": message.origin,
                    "parent": message.parent,
                    "state": "running",
                }
            case EpochEnded(trial=trial) if trial in self._records:
                ended = {"epoch": message.epoch, "version": message.version, "metrics": dict(message.metrics)}
                self._records[trial] |= {"last": ended, **({"best": ended} if message.best else {})}
            case TrialEnded(trial=trial) if trial in self._records:
                self._records[trial]["state"] = message.state.value
            case TrialDeleted(trial=trial):
                self._records.pop(trial, None)
            case _:
                pass

    def update(self, time: float, message: Message) -> None:
        self.recall(time, message)
        if isinstance(message, EpochEnded | TrialEnded | TrialDeleted):
            self._stale.add(message.trial)
        elif isinstance(message, Finish):
            self._write_all()

    def refresh(self) -> None:
        if clocks.monotonic() >= self._due:
            self._write_all()
            self._due = clocks.monotonic() + RECORD_SECONDS

    def _write_all(self) -> None:
        stale, self._stale = sorted(self._stale), set()
        texts = {trial: json_text(self._records[trial]) if trial in self._records else "" for trial in stale}
        if texts:
            self._chores.add(partial(write_records, self._folder, texts))


def write_records(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the records of some trials; delete those without a text."""
    for trial, text in texts.items():
        path = folder / f"{trial}.json"
        with contextlib.suppress(OSError):
            if text:
                make_folder(folder, private=True)
                write_text(path, text, durable=False)
            else:
                remove_file(path)


class HealthRecord(Observer):
    """Writes how the workers are, every few seconds."""

    def __init__(self, folder: RunFolder, backend: Supervisor) -> None:
        self._folder = folder
        self._backend = backend
        self._due = 0.0

    def refresh(self) -> None:
        if clocks.monotonic() >= self._due:
            self._due = clocks.monotonic() + HEALTH_SECONDS
            self._folder.keep_health({each.worker: asdict(each) for each in self._backend.health()})
