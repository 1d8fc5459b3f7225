"""Worker processes on this machine, forked from a fork server that has the framework loaded.

Each worker has its own socket. A closed socket reports a death at once, and the fork server reports the exit status.
The backend inspects a silent worker: a stopped or missing process is killed and counts as dead, while a live one may be
busy, e.g. in a long call into C, and gets much longer. A lost worker is replaced, with growing pauses if its
predecessors finished nothing either. The run ends if several workers in a row die before they are ready.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from hopfleet.backends.local.fork_server import STOPPED_SECONDS, ForkServer
from hopfleet.backends.supervision import (
    START_SECONDS,
    SupervisedBackend,
    WorkerHandle,
    check_starts,
    excused,
    last_lines,
    restart_pause,
)
from hopfleet.backends.vitals import ending, vitals
from hopfleet.domain.messages import (
    Command,
    Event,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Trial
from hopfleet.store.base import VersionStore
from hopfleet.store.versions.local import Versions
from hopfleet.support.machine import starvations
from hopfleet.worker.protocol import (
    Execute,
    Order,
    Probe,
    Ready,
    Report,
    Start,
    Stop,
    decode_report,
    encode_orders,
    encode_start,
)
from hopfleet.worker.spec import Profile, WorkerSpec, pickled

SILENCE_SECONDS = 60.0
"""Seconds without a beat and without processor time after which a worker is lost.

After ``STOPPED_SECONDS`` a worker is lost if its process is stopped or gone.
"""


@dataclass(slots=True, kw_only=True)
class ProcessHandle(WorkerHandle):
    """A worker process."""

    connection: Connection
    #: The fork server that forked the process.
    parent: int
    #: Whether the worker has finished a unit.
    useful: bool = False
    #: Processor time used so far, and when it was last seen to change.
    ticks: int = 0
    worked: float = 0.0


class PendingStart(NamedTuple):
    """A worker to start: when, on which device, and how many predecessors in a row achieved nothing."""

    when: float
    device: str
    failures: int = 0


@explained
class Local(SupervisedBackend[ProcessHandle]):
    """``workers`` processes on this machine."""

    name = "local"
    importable = "can be imported (on sys.path, or installed)"

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._fork_server: ForkServer | None = None
        self._due: list[PendingStart] = []
        #: Number of processes killed for want of memory that are reported already.
        self._starved = starvations()

    def versions(self, checkpoints: Path) -> VersionStore:
        return Versions(checkpoints)

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self._spec = spec
        self._payload = pickled(spec)
        self._log = spec.logs / "workers.log"
        self._fork_server = ForkServer(log=self._log, threads=spec.threads, preload=spec.task.preload)
        # Workers are started at the first ``receive``, so that the caller can work while the framework loads.
        now = time.monotonic()
        self._due = [PendingStart(now, _device(spec, number)) for number in range(workers)]

    def add(self, count: int) -> None:
        here = len(self._workers) + len(self._due)
        for number in range(here, here + count):
            self._spawn(_device(self._spec, number))

    def place(self, worker: str, partition: int) -> None:
        """Do nothing: all workers can read all partitions."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        return self._probe(self._first_worker(lambda handle: handle.ready), Probe(trial, batches))

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | SaveVersion)
        handle = self._workers.get(command.worker)
        if handle is None:
            return  # the worker has died, and its WorkerLost is under way
        handle.outbox.append(Execute(command, trial))
        if isinstance(command, RunUnit):
            handle.trial = command.trial
            if not command.more:
                self._flush(handle)

    def close(self, *, kill: bool = False) -> None:
        self._closing = True
        for handle in self._workers.values():
            if kill:
                self._kill(handle)
            else:
                self._flush(handle, Stop())
        for handle in self._workers.values():
            with contextlib.suppress(EOFError, OSError):
                while not kill and _lives_on(handle):
                    handle.connection.recv_bytes()
            handle.connection.close()
        self._selector.close()
        self._workers.clear()
        if self._fork_server is not None:
            self._fork_server.close()

    def unready(self) -> str:
        waiting = [handle.name for handle in self._workers.values() if not handle.ready]
        return f"; {', '.join(waiting) or 'no worker'} started and loads the task; {self._log} may say more"

    # ----------------------------------------------------------------------------------------------- messages

    def _flush(self, handle: ProcessHandle, *orders: Order) -> None:
        """Send all buffered orders, and some more. Orders to a dead worker are lost with it."""
        sent, handle.outbox = [*handle.outbox, *orders], []
        with contextlib.suppress(OSError):
            handle.connection.send_bytes(encode_orders(sent))

    def _pump(self, timeout: float) -> None:
        now = time.monotonic()
        due = [start for start in self._due if start.when <= now]
        self._due = [start for start in self._due if start.when > now]
        for start in due:
            self._spawn(start.device, start.failures)
        for handle in list(self._workers.values()):
            if handle.outbox:
                self._flush(handle)
        timeout = min([timeout, *(start.when - now for start in self._due)])
        while ready := self._selector.select(timeout):
            for handle in [key.data for key, _ in ready]:
                try:
                    self._hear(handle, decode_report(handle.connection.recv_bytes()))
                except (EOFError, OSError):
                    self._lose(handle)
            timeout = 0
        self._look()

    def _hear(self, handle: ProcessHandle, report: Report) -> None:
        handle.heard = time.monotonic()
        if isinstance(report, Ready):
            handle.ready = True
            self._events.append(WorkerJoined(handle.name, Placement.on(handle.device)))
        else:
            super()._hear(handle, report)

    def _note(self, handle: ProcessHandle, event: Event) -> None:
        handle.useful = handle.useful or isinstance(event, UnitFinished | UnitFailed)

    # ------------------------------------------------------------------------------------ workers come and go

    def _spawn(self, device: str, failures: int = 0) -> None:
        assert self._fork_server is not None
        name = self._next_name()
        connection, pid = self._fork_server.fork(name)
        handle = ProcessHandle(
            name=name,
            device=device,
            connection=connection,
            pid=pid,
            parent=self._fork_server.pid,
            failures=failures,
        )
        self._workers[name] = handle
        self._selector.register(connection, selectors.EVENT_READ, handle)
        with contextlib.suppress(OSError):
            connection.send_bytes(encode_start(Start(name, device)))
            connection.send_bytes(self._payload)

    def _look(self) -> None:
        """Kill workers that are taken for dead."""
        if self._fork_server is not None:
            self._fork_server.revive()
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for handle in list(self._workers.values()):
            handle.heard = excused(handle.heard, now, away)
            if now - handle.heard > STOPPED_SECONDS and (verdict := _verdict(handle, now)):
                handle.killed = handle.killed or verdict
                self._kill(handle)
                self._lose(handle)

    def _kill(self, handle: ProcessHandle) -> None:
        _kill(handle.pid)

    def _lose(self, handle: ProcessHandle) -> None:
        """Report the loss of a worker, and replace the worker."""
        del self._workers[handle.name]
        self._selector.unregister(handle.connection)
        handle.connection.close()
        reason = self._end_reason(handle)
        replaced = not (self._closing or handle.retired)
        if handle.ready:
            output = last_lines(self._spec.logs / f"{handle.trial}.log") if handle.trial and not handle.released else ""
            self._events.append(WorkerLost(handle.name, reason, output, replaced))
        if not replaced:
            return
        if handle.useful or (handle.ready and not handle.failures):
            self._spawn(handle.device, 0 if handle.useful else 1)
            return
        failures = handle.failures + 1
        if not handle.ready:
            check_starts(handle.name, failures, reason, f"{self._log} may say why")
        self._due.append(PendingStart(time.monotonic() + restart_pause(failures), handle.device, failures))

    def _end_reason(self, handle: ProcessHandle) -> str:
        assert self._fork_server is not None
        code = self._fork_server.exit_code(handle.pid, handle.parent)
        if code is None:
            self._kill(handle)  # no other process makes sure that the worker is gone
        if reason := handle.end_reason(""):
            return reason
        starved = code in (-signal.SIGKILL, None) and starvations() > self._starved
        self._starved += starved
        return ending(code, starved=starved)


def _lives_on(handle: ProcessHandle) -> bool:
    """Wait for a report of a worker that was told to stop; kill the worker if it cannot go on."""
    while not handle.connection.poll(STOPPED_SECONDS):
        found = vitals(handle.pid)
        if found is not None and (found.stopped or found.gone):
            _kill(handle.pid)
            return False
    return True


def _verdict(handle: ProcessHandle, now: float) -> str:
    """Return why a silent worker is taken for dead; empty if it may be alive."""
    found = vitals(handle.pid)
    silence = now - handle.heard
    if found is not None:
        if lost := found.lost(silence):
            return lost
        if found.ticks != handle.ticks:
            handle.ticks, handle.worked = found.ticks, now
    idle = now - max(handle.heard, handle.worked)
    return f"it was silent for {silence:.0f} s" if idle > (SILENCE_SECONDS if handle.ready else START_SECONDS) else ""


def _device(spec: WorkerSpec, number: int) -> str:
    if spec.device == "cuda":
        count = spec.task.framework.devices()[1]
        return f"cuda:{number % count}"
    return spec.device


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
