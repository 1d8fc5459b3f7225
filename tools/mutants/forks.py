"""Jobs in forks of this process, several at once, each with limits on processor time, memory and waiting."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

MEMORY = 8 << 30
"""Bytes of address space that a job may add to what this process has."""

TIMEOUT = "timeout"

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) for a signal that a process gets when its parent ends."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """Something to be done in a fork, which ends the fork with the exit code that it returns."""

    subject: T
    #: Called with an empty folder of its own.
    work: Callable[[Path], int]
    #: Limits in seconds of processor time, and of time on the wall, which matters if the job waits forever.
    processor: float
    wall: float


@dataclass(frozen=True)
class Ended(Generic[T]):
    subject: T
    #: The exit code, as text; or the signal that ended the fork; or ``TIMEOUT``.
    outcome: str
    #: What the job wrote to the file "result" in its folder.
    result: str


def run(jobs: Iterable[Job[T]], processes: int) -> Iterator[Ended[T]]:
    """Run jobs, and yield them as they end."""
    waiting, running = iter(jobs), dict[int, tuple[Job[T], Path, float]]()
    try:
        while True:
            while len(running) < processes and (job := next(waiting, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="hopfleet-mutants-"))
                running[_fork(job, folder)] = (job, folder, time.monotonic() + job.wall)
            if not running:
                return
            yield from _reap(running)
    finally:
        for pid, (_, folder, _) in running.items():
            _end(pid)
            os.waitpid(pid, 0)
            shutil.rmtree(folder, ignore_errors=True)


def _fork(job: Job[T], folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _limit(job.processor)
            _forbid_kills()
            code = job.work(folder)
        finally:
            os._exit(code)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _reap(running: dict[int, tuple[Job[T], Path, float]]) -> Iterator[Ended[T]]:
    """Yield the jobs that have ended, or wait a moment."""
    late = [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]
    for pid in late:
        _end(pid)
    ended = [(pid, status) for pid in running for got, status in [os.waitpid(pid, os.WNOHANG)] if got]
    for pid, status in ended:
        job, folder, _ = running.pop(pid)
        _end(pid)  # processes that it has started
        code = os.waitstatus_to_exitcode(status)
        result = folder / "result"
        said = result.read_text() if result.exists() else ""
        shutil.rmtree(folder, ignore_errors=True)
        slow = pid in late or code in (-signal.SIGXCPU, -signal.SIGALRM)
        yield Ended(job.subject, TIMEOUT if slow else str(code) if code >= 0 else signal.Signals(-code).name, said)
    if not ended:
        time.sleep(0.01)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def limit_step(processor: float, wall: float) -> None:
    """End this fork unless the next call comes within ``processor`` seconds of CPU time and ``wall`` seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = int(used.ru_utime + used.ru_stime + processor) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, most), most))
    signal.setitimer(signal.ITIMER_REAL, wall)


def _limit(processor: float) -> None:
    seconds = int(processor) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


def _forbid_kills() -> None:
    """Let no mutant send signals to processes that were there before it."""
    kill, others = os.kill, {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}  # noqa: PTH208

    def guarded(pid: int, number: int) -> None:
        if number and (pid <= 1 or pid in others):
            raise ProcessLookupError(f"{pid}: not a process of this mutant")
        kill(pid, number)

    os.kill = guarded
