"""What the kernel tells of processes: who began whom, how long each had a processor, how much memory it takes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")


def descend(family: set[int]) -> set[int]:
    """Add all that members of a family have begun, also those that they began later; returns who is there now."""
    parents: dict[int, int] = {}
    for place in PROC.iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(place.name)] = int(_fields(place)[1])
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return family & parents.keys()


def processor(place: Path, *, children: bool = False) -> float:
    """Seconds that a process or thread has had a processor, with its ended ``children`` or without; 0 if it is gone."""
    try:
        fields = _fields(place)
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")


def proportional(pid: int) -> int:
    """Bytes that a process takes; a page that several share counts in parts (PSS). 0 if it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _fields(place: Path) -> list[str]:
    """What stands behind the name, which may have spaces in it."""
    return (place / "stat").read_text().rpartition(")")[2].split()
