"""Runs in processes of their own that get signals once enough messages are journaled."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.helpers import warm
from tests.helpers.processes import environment

SCRIPT = [sys.executable, "-m", "tests.helpers.killable"]


def journaled(home: Path) -> int:
    """How many messages the run has written so far."""
    path = home / "killed" / "journal.sqlite"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM messages").fetchone()[0])
    return 0


def run_and_signal(home: Path, arguments: list[str], after: int, *signals: int) -> int:
    """Run the script, send signals when ``after`` messages are journaled; returns the exit status."""
    process = warm.Popen([*SCRIPT, *arguments], env=environment())
    try:
        while not ended(process) and journaled(home) < after:
            pass
        for number in signals:
            if process.poll() is None:
                process.send_signal(number)
        return process.wait(120)
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process ends within a blink."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.02)
    return process.returncode is not None
