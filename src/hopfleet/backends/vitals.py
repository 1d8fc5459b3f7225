"""The state of a process according to the system: whether it is running, and how it ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from hopfleet.support.processes import stat

ADVICE = "use fewer workers or smaller batches"


@dataclass(frozen=True, slots=True)
class Vitals:
    """The state of a process: a letter, as in ``ps``, and the processor time used so far, in ticks."""

    state: str
    ticks: int

    @property
    def stopped(self) -> bool:
        """Whether the process was stopped by a signal; being traced by a debugger does not count."""
        return self.state == "T"

    @property
    def gone(self) -> bool:
        return self.state in ("Z", "X")

    def lost(self, silence: float) -> str:
        """Return why the worker is lost after ``silence`` seconds without a message; empty if it may be alive."""
        if self.stopped:
            return f"its process was stopped (SIGSTOP), and silent for {silence:.1f} s"
        return f"its process is gone, and was silent for {silence:.1f} s" if self.gone else ""


def vitals(pid: int) -> Vitals | None:
    """Return the state of a process; None where the system does not report it (only Linux does)."""
    try:
        fields = stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return Vitals("X", 0) if Path("/proc/self/stat").exists() else None
    return Vitals(fields[0], int(fields[11]) + int(fields[12]))


def ending(code: int | None, *, starved: bool) -> str:
    """Describe how a process ended. ``code`` is as in ``subprocess``, None if unknown.

    ``starved``: the kernel killed it because memory ran out.
    """
    if starved:
        return f"out of memory: killed by the kernel; {ADVICE}"
    if code is None:
        return "its process ended"
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}"
