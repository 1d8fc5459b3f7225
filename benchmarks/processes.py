"""Process statistics from the kernel: parents and children, processor time, memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")


def descend(family: set[int]) -> set[int]:
    """Add all descendants of a family of processes, including later ones; return the processes that are alive."""
    parents: dict[int, int] = {}
    for place in PROC.iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(place.name)] = int(_fields(place)[1])
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return family & parents.keys()


def processor(place: Path, *, children: bool = False) -> float:
    """Return processor seconds of a process or thread, with its ended ``children`` or without; 0 if it is gone."""
    try:
        fields = _fields(place)
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")


def proportional(pid: int) -> int:
    """Return the bytes of a process, with shared pages counted proportionally (PSS); 0 if it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def anonymous(pid: int) -> int:
    """Return the bytes of a process that no file backs; 0 if it is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def mapped(pid: int, folder: Path) -> int:
    """Return the bytes of the files in a folder that a process has in memory, shared pages counted proportionally."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text().splitlines()
    except OSError:
        return 0
    total, inside = 0, False
    for line in lines:
        if not line.split(None, 1)[0].endswith(":"):  # the first line of a mapping ends with its file
            inside = f" {folder}/" in line
        elif inside and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def _fields(place: Path) -> list[str]:
    """Return the fields after the process name, which may contain spaces."""
    return (place / "stat").read_text().rpartition(")")[2].split()
