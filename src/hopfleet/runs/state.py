"""The state of an experiment, and its size on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from hopfleet.domain.expectation import Expectation
from hopfleet.domain.objectives import Limit
from hopfleet.errors import HopfleetError, JournalError, describe
from hopfleet.monitor.history import History
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import MALFORMED, has_journal, open_journal


class RunState(Enum):
    """The state of an experiment as commands and pages show it."""

    RUNNING = "running"  #: a process holds the run folder's lock
    FINISHED = "finished"  #: all trials have ended
    INTERRUPTED = "interrupted"  #: not running, and can be resumed


def empty_history(definition: Mapping[str, Any]) -> History:
    """Return the history of an experiment before its first message."""
    return History(
        metric=definition["metric"],
        mode=definition["mode"],
        partitions=definition["train"]["partitions"],
        name=definition["name"],
        others=[(name, mode) for name, mode in definition.get("others", ())],
        limits=[Limit.parse(text) for text in definition.get("limits", ())],
        expected=Expectation.parse(definition.get("expected")),
    )


def apply_journal(folder: RunFolder, history: History, after: int = 0) -> Iterator[int]:
    """Apply the messages of a journal after a number to a history, and yield the number of each.

    Raise JournalError if the journal is damaged.
    """
    if not has_journal(folder):
        return
    with contextlib.closing(open_journal(folder)) as journal:
        for number, time, message in journal.read(after):
            try:
                history.apply(time, message)
            except HopfleetError:
                raise
            except MALFORMED as error:
                raise JournalError(
                    f"{journal.path}: is damaged: message {number} does not fit those before it "
                    f"({describe(error)}); {folder.rescue}"
                ) from error
            yield number


def read_history(folder: RunFolder) -> History:
    """Return the history of a run folder. Raise JournalError if its journal is damaged."""
    history = empty_history(folder.definition())
    for _ in apply_journal(folder, history):
        pass
    return history


def state_of(folder: RunFolder, history: History) -> RunState:
    """Return the state of a run folder with that history."""
    if history.finished:
        return RunState.FINISHED
    return RunState.RUNNING if folder.running else RunState.INTERRUPTED


def bytes_on_disk(folder: RunFolder) -> int:
    """Sum the sizes of all files in a run folder, ignoring files that disappear meanwhile."""
    total = 0
    for path, _, files in os.walk(folder.path):
        for file in files:
            try:
                total += os.lstat(os.path.join(path, file)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total
