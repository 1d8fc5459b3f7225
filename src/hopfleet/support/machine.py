"""The resources of this machine, and the number of workers they allow, which is a pure function of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WORKER_MEMORY = 1 << 30
"""Bytes of memory for a worker with a framework and a model of moderate size."""

CROWD, LEAST_CROWD = 8, 16
"""Worker processes per core that a machine is given at most, and the number that every machine is given."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores and the bytes of memory available to this process."""

    cores: int
    memory: int


def this_machine() -> Machine:
    """Return the cores and bytes that this process may use, container limits included."""
    cores = len(usable_cores()) or os.cpu_count() or 1
    quota = _words("/sys/fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = max(1, min(cores, int(quota[0]) // int(quota[1])))
    memory = 8 << 30
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            memory = int(line.split()[1]) << 10
    limit, used = _words("/sys/fs/cgroup/memory.max"), _words("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0] != "max":
        memory = min(memory, int(limit[0]) - int(used[0]))
    return Machine(cores, memory)


def usable_cores() -> list[int]:
    """Return the cores that this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def choose_workers(machine: Machine, *, device: str, devices: int, threads: int, trials: int) -> tuple[int, str]:
    """Return how many workers to use, and why."""
    if device != "cpu":
        offer, why = devices, f"one per {device} device"
    else:
        offer = max(1, machine.cores // threads)
        why = f"{machine.cores} cores, {threads} thread{'s' if threads > 1 else ''} per worker"
    fitting = max(1, machine.memory // WORKER_MEMORY)
    if fitting < offer:
        offer, why = fitting, f"{machine.memory / 2**30:.1f} GiB of free memory, 1 GiB per worker"
    if trials < offer:
        few = f"are only {trials} trials" if trials > 1 else "is only one trial"
        offer, why = trials, f"there {few}, and a trial trains on one worker at a time"
    return offer, why


def most_workers(machine: Machine) -> int:
    """Return how many worker processes a machine is given at most; more would only wait for each other."""
    return max(LEAST_CROWD, CROWD * machine.cores)


def release_memory() -> None:
    """Return memory that this process has freed to the system; glibc keeps it in case it is needed again."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def spare_cores(machine: Machine, *, device: str, workers: int, threads: int) -> int:
    """Return how many cores each worker may use besides its own."""
    return max(0, machine.cores // workers - (threads if device == "cpu" else 1))


def core_shares(cores: Sequence[int], processes: int, each: int) -> list[set[int]]:
    """Return ``each`` cores of its own for every process, and what is left for the first; empty if there are too few.

    The first process of a team prepares the rows of all.
    """
    count = processes * each
    if not count or count > len(cores):
        return []
    shares = [set(cores[begin : begin + each]) for begin in range(0, count, each)]
    shares[0].update(cores[count:])
    return shares


def starvations() -> int:
    """Count the processes that the kernel has killed because this container was out of memory; 0 if unknown."""
    groups = [line.split(":", 2) for line in _lines("/proc/self/cgroup")]
    second = ["", *(path.rstrip("/") for _, kinds, path in groups if not kinds)]
    first = ["", *(path.rstrip("/") for _, kinds, path in groups if kinds == "memory")]
    files = [f"/sys/fs/cgroup{path}/memory.events" for path in reversed(second)]
    files += [f"/sys/fs/cgroup/memory{path}/memory.oom_control" for path in reversed(first)]
    for line in next(filter(None, map(_lines, files)), []):
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _words(path: str) -> list[str]:
    return " ".join(_lines(path)).split()
