"""The memory of a run on this machine: of the process that holds the lock of its folder, and of all that it started."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hopfleet.store.folder import RunFolder
from hopfleet.store.proof import LOCK
from hopfleet.support.processes import stat

PROCESSES = Path("/proc")


def run_memory(folder: RunFolder) -> int | None:
    """Return the bytes in memory of a running experiment; None if it does not run, or not on this machine."""
    runner = _holder(folder)
    if runner is None:
        return None
    parents = {int(path.name): _parent(int(path.name)) for path in PROCESSES.iterdir() if path.name.isdigit()}
    family, found = {runner}, {runner}
    while found:
        found = {process for process, parent in parents.items() if parent in found} - family
        family |= found
    return sum(_memory(PROCESSES / str(process)) for process in family)


def _holder(folder: RunFolder) -> int | None:
    """Return the process that runs the experiment, if it is one of this machine: it has the lock open."""
    lock = folder.path / LOCK
    with contextlib.suppress(OSError, ValueError):
        process = int(lock.read_text(encoding="utf-8"))
        opened = (PROCESSES / str(process) / "fd").iterdir()
        if folder.running and any(_same(link, lock) for link in opened):
            return process
    return None


def _same(link: Path, file: Path) -> bool:
    try:
        return os.path.samefile(link, file)  # noqa: PTH121
    except OSError:
        return False


def _parent(process: int) -> int:
    with contextlib.suppress(OSError):  # it has ended
        return int(stat(process)[1])
    return 0


def _memory(process: Path) -> int:
    """Return the bytes of a process, with its share of memory that processes have in common where that is told."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with contextlib.suppress(OSError, IndexError):
            return int((process / name).read_text(encoding="utf-8").split(field)[1].split()[0]) * 1024
    return 0
