"""The line of an experiment in a list, kept in its run folder, so that a list is filled without reading journals.

A line is kept together with a digest of all that it was made of: the bytes of the definition and of the journal. It is
shown only while that digest is still right, which takes a fiftieth of the time of reading the journal. So a line
cannot be out of date, whatever the times of files say, and a copy of a run folder has it too. A run keeps its line when
its search is complete; a server keeps the lines of all others that it has read to the end and that do not run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any

from hopfleet.monitor.history import History
from hopfleet.store.folder import RunFolder
from hopfleet.store.proof import JOURNAL
from hopfleet.support.files import json_text, open_plain, parsed_json, write_text
from hopfleet.ui.board import Board
from hopfleet.ui.metrics import Figure, figures_of
from hopfleet.version import __version__

FORMAT = 1
"""Raised when a line, a figure or the way to make one changes."""

MOST_BYTES = 1 << 20
"""Bytes of the largest summary that is read."""

PIECE_BYTES = 1 << 20

Line = dict[str, Any]


def content_of(folder: RunFolder) -> str:
    """Return a digest of the definition and the journal; empty if the experiment runs, or has no such files."""
    found, journal = hashlib.sha256(), folder.journal_file
    beside = [journal.with_name(f"{JOURNAL}{end}") for end in ("-wal", "-journal")]
    try:
        if folder.running:
            return ""
        for path in (folder.definition_file, journal, *(path for path in beside if path.exists())):
            with open_plain(path, links=True) as file:
                found.update(f"{path.name} {os.fstat(file.fileno()).st_size}\n".encode())
                while piece := file.read(PIECE_BYTES):
                    found.update(piece)
    except OSError:
        return ""
    return found.hexdigest()


def keep_summary(folder: RunFolder, content: str, line: Line, figures: list[Figure]) -> None:
    """Keep the line and the figures of a run, which were made of that content.

    A disk that does not take them is ignored, and a folder of another user is left as it is.
    """
    found = {"format": [FORMAT, __version__], "content": content, "line": line, "figures": figures}
    with contextlib.suppress(OSError):
        if folder.path.stat().st_uid == os.geteuid():
            write_text(folder.summary_file, json_text(found), durable=False, private=True)


def keep_complete(folder: RunFolder, content: str, history: History) -> None:
    """Keep the line of a run whose search is complete. ``content`` is from before the history was read."""
    board = Board(folder)
    board.history, board.complete = history, True
    line, figures = board.summary(), list(figures_of(board))
    if content and content_of(folder) == content:
        keep_summary(folder, content, line, figures)


def kept_summary(folder: RunFolder) -> tuple[str, Line, list[Figure]] | None:
    """Return the content, the line and the figures of a run that were kept; None if they do not hold any more.

    Only files of this user count.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open_plain(folder.summary_file, own=True) as file:
            found = parsed_json(file.read(MOST_BYTES))
        content, line = found["content"], {**found["line"], "name": folder.name}
        figures = [(str(name), dict(labels), float(value)) for name, labels, value in found["figures"]]
        if found["format"] == [FORMAT, __version__] and content == content_of(folder):
            return content, line, figures
    return None
