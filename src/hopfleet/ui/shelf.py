"""All boards of a server: which experiments there are, and the boards that are open.

A list of experiments is made by one scan of the folder. Each experiment has an entry that stays valid until one of its
files changes. Of the others, those with a line that was kept (``summaries``) come first; the journals of the rest wait
in a queue, the smallest first, and are read in slices between which other requests have their turn. Until then, the
definition and the last message give the line.
"""

from __future__ import annotations

import contextlib
import os
import time as clocks
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopfleet.errors import HopfleetError, NotFound
from hopfleet.phrases import did_you_mean
from hopfleet.runs.state import bytes_on_disk
from hopfleet.store.folder import RunFolder, home
from hopfleet.ui.board import Board, glance
from hopfleet.ui.metrics import Figure, figures_of
from hopfleet.ui.notes import read_notes
from hopfleet.ui.summaries import content_of, keep_summary, kept_summary

OPEN, OPEN_RUNNING = 8, 64
"""Boards that stay open: those looked at last, and those of running experiments."""

SIZE_SECONDS, SIZE_SECONDS_AT_REST = 20.0, 600.0
"""Seconds between two measurements of a run folder that has changed, and of one that has not."""

TICK_NANOSECONDS = 2 * 10**9
"""Nanoseconds within which a file may change twice and have the same time, on the coarsest of file systems."""

Stamp = tuple[int, ...]


@dataclass(slots=True)
class Entry:
    """What is known of one experiment."""

    folder: RunFolder
    stamp: Stamp = ()  #: of the files before they were read; empty if a change since then may have left no trace
    content: str = ""  #: a digest of what was read; empty while it is being read, and if it changed meanwhile
    line: dict[str, Any] = field(default_factory=dict)  #: of the list of experiments
    noted: dict[str, Any] = field(default_factory=dict)  #: note and tags
    figures: list[Figure] = field(default_factory=list)  #: for Prometheus
    bytes: int | None = None  #: in the folder
    measured: float = 0.0  #: when the bytes were counted, by the monotonic clock
    measured_stamp: Stamp = ()


class Shelf:
    """The experiments that a server shows, by key: those of a folder, and run folders that were named."""

    def __init__(self, base: Path | None = None, named: RunFolder | None = None) -> None:
        self._base = base
        self._named = named
        self._boards: dict[str, Board] = {}
        self._entries: dict[str, Entry] = {}  #: of all experiments at the last scan, the newest first
        self._unseen: deque[str] = deque()  #: keys without a line, the newest first
        self._unread: deque[str] = deque()  #: keys whose journals have changed since they were read
        self._unmeasured: deque[str] = deque()
        self._reading: tuple[Entry, str, Board] | None = None  #: an entry, its content, and how far it was read

    @property
    def place(self) -> str:
        """Return the folder whose experiments are listed."""
        return str(self._base or home())

    def folders(self) -> dict[str, RunFolder]:
        """Scan for run folders, and return them by key, the newest first."""
        listed = {folder.name: folder for folder in scanned(self._base or home())}
        if self._named is not None and self._named.exists:
            listed = {self._named.name: self._named, **listed}
            listed[self._named.name] = self._named
        return listed

    def folder(self, key: str) -> RunFolder:
        """Return a run folder without a scan. Raise NotFound if there is none, or not any more."""
        if self._named is not None and key == self._named.name and self._named.exists:
            return self._named
        if key not in ("", ".", "..") and not set(key) & {os.sep, "\0"}:
            found = RunFolder((self._base or home()) / key)
            if found.exists:
                return found
        near = did_you_mean(key, self.folders())
        raise NotFound(f"{key!r}: no such experiment here; {near}it may have been deleted")

    def board(self, key: str) -> Board:
        """Return the board of an experiment. Raise NotFound if there is none, or not any more."""
        board = self._known(key, self.folder(key))
        board.read_at = clocks.monotonic()
        self._boards[key] = board
        self._close_others()
        return board

    def _known(self, key: str, folder: RunFolder) -> Board:
        board = self._boards.get(key)
        return Board(folder) if board is None or board.folder.path != folder.path or board.replaced else board

    def _close_others(self) -> None:
        least_used = sorted(self._boards, key=lambda key: self._boards[key].read_at)
        running = [key for key in least_used if key in self._entries and _runs(self._entries[key])][-OPEN_RUNNING:]
        for key in [key for key in least_used if key not in running and self._boards[key].complete][:-OPEN]:
            del self._boards[key]

    # --------------------------------------------------------------------------------------------- the list

    def scan(self) -> None:
        """Find out which experiments there are, and which of them have changed."""
        before, sizes, runs = self._entries, dict[str, int](), dict[str, None]()
        self._entries, unmeasured = {}, dict[str, float]()
        now = clocks.monotonic()
        for key, folder in self.folders().items():
            entry = before.get(key)
            if entry is None or entry.folder.path != folder.path:
                entry = Entry(folder)
            self._entries[key] = entry
            stamp, _ = _stamp(folder)
            if stamp[-1]:
                runs[key] = None  # its memory changes without a message
            elif entry.stamp != stamp:
                sizes[key] = sum(stamp[:-1:4])
            pause = SIZE_SECONDS_AT_REST if entry.measured_stamp == stamp else SIZE_SECONDS
            if entry.bytes is None or now - entry.measured > pause:
                unmeasured[key] = entry.measured
        self._boards = {key: board for key, board in self._boards.items() if key in self._entries}
        self._unseen = deque(key for key, entry in self._entries.items() if not entry.line)
        self._unread = deque([*runs, *sorted(sizes, key=lambda key: sizes[key])])
        self._unmeasured = deque(sorted(unmeasured, key=lambda key: unmeasured[key]))

    def fill(self, seconds: float) -> bool:
        """Read journals that have changed, for about that long; return whether there are more."""
        until = clocks.monotonic() + seconds
        while self._unseen and clocks.monotonic() < until:
            if (entry := self._entries.get(self._unseen.popleft())) is not None and not _recall(entry):
                with contextlib.suppress(HopfleetError, OSError):  # told when the journal is read
                    entry.line, entry.noted = glance(entry.folder), _noted(entry.folder)
        while self._unread and clocks.monotonic() < until:
            key = self._unread[0]
            if key not in self._entries or self._read(key, self._entries[key], until):
                self._unread.popleft()
        while self._unmeasured and clocks.monotonic() < until:
            entry = self._entries.get(self._unmeasured.popleft())
            if entry is not None:
                entry.measured, entry.measured_stamp = clocks.monotonic(), entry.stamp
                entry.bytes = bytes_on_disk(entry.folder)
        return bool(self._unread or self._unmeasured)

    def _read(self, key: str, entry: Entry, until: float) -> bool:
        """Bring an entry up to date, and return whether that is done. Boards that are only listed do not stay open."""
        stamp, settled = _stamp(entry.folder)
        if entry.stamp == stamp and not stamp[-1]:
            return True
        done, unchanged = (self._follow if stamp[-1] else self._read_at_rest)(key, entry, until)
        if done:
            entry.stamp, entry.noted = stamp if settled and unchanged else (), _noted(entry.folder)
        return done

    def _follow(self, key: str, entry: Entry, until: float) -> tuple[bool, bool]:
        """Read what is new of a running experiment. Its board stays open."""
        entry.content = ""
        with _told(key, entry):
            board = self._boards[key] = self._known(key, entry.folder)
            return _advance(entry, board, until), True
        self._boards.pop(key, None)
        return True, True

    def _read_at_rest(self, key: str, entry: Entry, until: float) -> tuple[bool, bool]:
        """Read the whole journal of an experiment that does not run, unless its line is known for the same content.

        A board that is open does not count: the messages that it has read may have changed. Return whether that is
        done, and whether the content was the same at the end.
        """
        begun = self._reading
        if begun is None or begun[0] is not entry:
            content = content_of(entry.folder)
            if (content and content == entry.content) or _recall(entry):
                return True, True
            entry.content, begun = "", None
        else:
            content = begun[1]
        with _told(key, entry):
            board = begun[2] if begun else Board(entry.folder)
            self._reading = entry, content, board
            if not _advance(entry, board, until):
                return False, True
        self._reading = None
        unchanged = content_of(entry.folder) == content
        if content and unchanged and entry.figures:
            entry.content = content
            keep_summary(entry.folder, content, entry.line, entry.figures)
        return True, unchanged

    def lines(self) -> list[dict[str, Any]]:
        """Return a line per experiment as of the last scan; ``reading`` marks those not read to their ends."""
        unread = {"state": "reading", "reading": True}
        return [
            {
                **(entry.line or {"name": key, **unread}),
                **entry.noted,
                "key": key,
                "folder": str(entry.folder.path),
                "bytes": entry.bytes,
            }
            for key, entry in self._entries.items()
        ]

    def summaries(self, seconds: float) -> list[dict[str, Any]]:
        """Scan, read changed journals for about that long, and return a line per experiment."""
        self.scan()
        self.fill(seconds)
        return self.lines()

    def figures(self) -> dict[str, list[Figure]]:
        """Return the figures of all experiments whose journals were read, by key."""
        return {key: entry.figures for key, entry in self._entries.items() if entry.figures}


def scanned(base: Path) -> list[RunFolder]:
    """Return all run folders in a folder, the newest first."""
    found: list[tuple[float, RunFolder]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in base.iterdir():
            folder = RunFolder(path)
            with contextlib.suppress(OSError):
                if folder.exists:
                    found.append((folder.definition_file.stat().st_mtime, folder))
    return [folder for _, folder in sorted(found, key=lambda each: each[0], reverse=True)]


def _noted(folder: RunFolder) -> dict[str, Any]:
    return read_notes(folder).get("", {})


@contextlib.contextmanager
def _told(key: str, entry: Entry) -> Iterator[None]:
    """Tell in the list what is wrong with an experiment that cannot be read."""
    try:
        yield
    except (HopfleetError, OSError) as error:
        entry.line, entry.figures = {"name": key, "state": "damaged", "problem": str(error)}, []


def _advance(entry: Entry, board: Board, until: float) -> bool:
    """Read messages, describe what was read so far, and return whether that is all."""
    while board.advance(max(0.0, until - clocks.monotonic())):
        if clocks.monotonic() >= until:
            entry.line = {**board.summary(), "reading": True}
            return False
    entry.line, entry.figures = board.summary(), list(figures_of(board))
    return True


def _recall(entry: Entry) -> bool:
    """Fill an entry with what was kept in the run folder, and return whether that is right."""
    kept = kept_summary(entry.folder)
    if kept is not None:
        entry.content, entry.line, entry.figures = kept
        entry.noted = _noted(entry.folder)
    return kept is not None


def _runs(entry: Entry) -> bool:
    return bool(entry.stamp and entry.stamp[-1])


def _stamp(folder: RunFolder) -> tuple[Stamp, bool]:
    """Return what changes when an entry does: sizes, times and numbers of files, and whether the experiment runs.

    Return also whether each change from now on gives another stamp: not if a file has changed within the same tick.
    """
    journal, now = folder.journal_file, clocks.time_ns()
    found: list[int] = []
    for path in (folder.definition_file, folder.notes_file, journal, journal.with_name(f"{journal.name}-wal")):
        status = None
        with contextlib.suppress(OSError):
            status = path.stat()
        found += [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino] if status else [0, 0, 0, 0]
    runs = folder.running
    return (*found, runs), runs or now - max(found[2::4]) > TICK_NANOSECONDS
