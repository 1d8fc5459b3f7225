"""All boards of a server: which experiments there are, and the boards that are open."""

from __future__ import annotations

import contextlib
import time as clocks
from pathlib import Path
from typing import Any

from hopfleet.errors import HopfleetError, NotFound
from hopfleet.phrases import did_you_mean
from hopfleet.runs.state import bytes_on_disk
from hopfleet.store.folder import RunFolder, home, runs
from hopfleet.ui.board import Board

OPEN = 8
"""Boards that stay open; others keep their line in the list, and are read again when they are looked at."""

SIZE_SECONDS = 20.0
"""Seconds for which the size of a run folder is taken as unchanged."""

Stamp = tuple[int, ...]


class Shelf:
    """The experiments that a server shows, by key: those of a folder, and run folders that were named."""

    def __init__(self, base: Path | None = None, named: RunFolder | None = None) -> None:
        self._base = base
        self._named = named
        self._boards: dict[str, Board] = {}
        self._lines: dict[str, tuple[Stamp, dict[str, Any]]] = {}  #: summaries of boards that are closed
        self._sizes: dict[str, tuple[float, int]] = {}

    @property
    def place(self) -> str:
        """Return the folder whose experiments are listed."""
        return str(self._base or home())

    def folders(self) -> dict[str, RunFolder]:
        """Return the run folders by key, the newest first."""
        found = list(runs()) if self._base is None else _inside(self._base)
        listed = {folder.name: folder for folder in reversed(found)}
        if self._named is not None and self._named.exists:
            listed = {self._named.name: self._named, **listed}
            listed[self._named.name] = self._named
        return listed

    def folder(self, key: str) -> RunFolder:
        found = self.folders()
        if key not in found:
            raise NotFound(f"{key!r}: no such experiment here; {did_you_mean(key, found)}it may have been deleted")
        return found[key]

    def board(self, key: str) -> Board:
        """Return the board of an experiment. Raise NotFound if there is none, or not any more."""
        folder = self.folder(key)
        board = self._boards.get(key)
        if board is None or board.folder.path != folder.path or board.replaced:
            board = self._boards[key] = Board(folder)
        board.read_at = clocks.monotonic()
        self._close_others()
        return board

    def _close_others(self) -> None:
        for key in sorted(self._boards, key=lambda key: self._boards[key].read_at)[:-OPEN]:
            del self._boards[key]

    def summaries(self, seconds: float) -> list[dict[str, Any]]:
        """Return a line per experiment, reading journals for about that long; ``reading`` marks unfinished ones."""
        until = clocks.monotonic() + seconds
        return [self._summary(key, folder, until) for key, folder in self.folders().items()]

    def _summary(self, key: str, folder: RunFolder, until: float) -> dict[str, Any]:
        common = {"key": key, "folder": str(folder.path), "bytes": self._size(key, folder)}
        stamp = _stamp(folder)
        known = self._lines.get(key)
        if known is not None and known[0] == stamp and key not in self._boards:
            return {**known[1], **common}
        reading = {**common, "state": "reading", "reading": True}
        if key not in self._boards and clocks.monotonic() > until:
            return {**reading, "name": folder.name}  # its turn comes when others are read: few boards stay open
        try:
            board = self.board(key)
            while (left := until - clocks.monotonic()) > 0 and board.advance(left):
                pass
            line = board.summary()
            if not board.complete:
                return {**line, **reading}
        except HopfleetError as error:
            return {**common, "name": folder.name, "state": "damaged", "problem": str(error)}
        self._lines[key] = (stamp, line)
        return {**line, **common}

    def _size(self, key: str, folder: RunFolder) -> int:
        measured = self._sizes.get(key)
        if measured is None or clocks.monotonic() - measured[0] > SIZE_SECONDS:
            measured = self._sizes[key] = (clocks.monotonic(), bytes_on_disk(folder))
        return measured[1]


def _inside(base: Path) -> list[RunFolder]:
    found = [RunFolder(path) for path in base.iterdir() if RunFolder(path).exists]
    return sorted(found, key=lambda run: run.definition_file.stat().st_mtime)


def _stamp(folder: RunFolder) -> Stamp:
    """Return what changes when the journal does."""
    journal = folder.journal_file
    found: list[int] = []
    for path in (folder.definition_file, journal, journal.with_name(f"{journal.name}-wal")):
        with contextlib.suppress(OSError):
            status = path.stat()
            found += [status.st_mtime_ns, status.st_size]
    return (*found, folder.running)
