"""Processes of this machine, told apart from later ones with the same number."""

from __future__ import annotations

import os
from pathlib import Path


def stat(pid: int) -> list[str]:
    """Return what Linux tells of a process: its state, its parent and so on; raise OSError where it tells nothing."""
    # The name, in parentheses, may contain anything.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def resident_memory() -> int:
    """Return the bytes of this process that are in memory, or 0 where the system does not tell (only Linux does)."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def identity(pid: int) -> str:
    """Return a text that names a process and no other, empty where the system does not tell (only Linux does)."""
    try:
        return f"{Path('/proc/self/ns/pid').readlink()} {pid} {stat(pid)[19]}"
    except (OSError, IndexError):
        return ""


def is_over(text: str) -> bool:
    """Whether a process with this identity has ended; False if it may run where this process cannot see it."""
    space, _, rest = text.partition(" ")
    pid = rest.partition(" ")[0]
    own = identity(os.getpid())
    return bool(own) and own.startswith(f"{space} ") and pid.isdigit() and identity(int(pid)) != text
