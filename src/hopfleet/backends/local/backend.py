"""Worker processes on this machine, forked from a fork server that has the framework loaded.

Each worker has its own socket. A closed socket reports a death at once, and the fork server reports the exit status.
The backend inspects a silent worker: a stopped or missing process is killed and counts as dead, while a live one may be
busy, e.g. in a long call into C, and gets much longer. A lost worker is replaced, with growing pauses if its
predecessors finished nothing either. The run ends if several workers in a row die before they are ready.

A worker on several devices is a team: a process for each device, linked by sockets. The first process is the worker;
the end of any of them is the end of the worker, and all are started anew.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from hopfleet.backends.local.fork_server import STOPPED_SECONDS, ForkServer
from hopfleet.backends.supervision import (
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
from hopfleet.domain.placement import CPU, Placement, TeamShape
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Trial
from hopfleet.store.base import VersionStore
from hopfleet.store.versions.local import Versions
from hopfleet.support.machine import core_shares, starvations, usable_cores
from hopfleet.worker.protocol import (
    Beat,
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
from hopfleet.worker.spec import Profile, WorkerSpec, pickled, placement, placements, preload

LOG = "workers.log"
"""What workers print outside of trials, in the folder of logs."""

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
    placement: Placement = CPU
    #: The other processes of a team; empty for a worker on one device.
    members: list[ProcessHandle] = field(default_factory=list)
    #: The worker that a member of a team belongs to.
    leader: ProcessHandle | None = None

    @property
    def team(self) -> list[ProcessHandle]:
        """All processes of the worker."""
        return [self, *self.members]

    @property
    def beats(self) -> list[Beat]:
        return [process.beat for process in self.team]


class PendingStart(NamedTuple):
    """A worker to start: when, where, and how many predecessors in a row achieved nothing."""

    when: float
    placement: Placement
    failures: int = 0


@explained
class Local(SupervisedBackend[ProcessHandle]):
    """``workers`` processes on this machine."""

    name = "local"
    form_seconds = 0.5
    importable = "can be imported (on sys.path, or installed)"

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._fork_server: ForkServer | None = None
        self._due: list[PendingStart] = []
        #: The number of processes of a planned team, and the cores of each; None for its threads.
        self._planned: tuple[int, float | None] = (0, None)
        #: The cores of each process of the planned team.
        self._cores: list[set[int]] = []
        #: The worker that profiles, which has warmed up.
        self._profiling: ProcessHandle | None = None
        #: Number of processes killed for want of memory that are reported already.
        self._starved = starvations()

    def versions(self, checkpoints: Path) -> VersionStore:
        return Versions(checkpoints)

    @contextlib.contextmanager
    def warmed_up(self, modules: Sequence[str], threads: int, logs: Path) -> Iterator[None]:
        server = self._fork_server = ForkServer(log=logs / LOG, threads=threads, preload=modules)
        try:
            yield
        finally:
            server.close(kill=True)
            if self._fork_server is server:
                self._fork_server = None

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self._spec = spec
        self._payload = pickled(spec)
        self._log = spec.logs / LOG
        modules, server = preload(spec), self._fork_server
        if server is not None and not server.has(modules, spec.threads):
            server.close(kill=True)
            server = None
        self._fork_server = server or ForkServer(log=self._log, threads=spec.threads, preload=modules)
        self._fork_server.start_timeout = spec.start_timeout
        members, cpus = self._planned
        self._cores = core_shares(usable_cores(), members, max(1, int(cpus or spec.threads)))
        # Workers are started at the first ``receive``, so that the caller can work while the framework loads.
        now = time.monotonic()
        self._due = [PendingStart(now, self._placement(number)) for number in range(workers)]

    def _placement(self, number: int) -> Placement:
        return placement(self._spec, number, self._devices)

    @property
    def _devices(self) -> int:
        return self._spec.task.framework.devices()[1] if self._spec.device == "cuda" else 1

    def keep_to(self, members: Sequence[str], *, cpus: float | None, memory: float) -> None:
        """Pin each process of the only team to cores of its own; the first has all others, too. Nodes are this machine.

        Memory is not limited: a plan counts that of the model, and a process with a framework takes more.
        """
        self._planned = len(members), cpus

    def add(self, count: int) -> None:
        here = len(self._workers) + len(self._due)
        for number in range(here, here + count):
            self._spawn(self._placement(number))

    def teams_blocker(self, device: str, threads: int) -> str:
        return ""

    def form_teams(self, shapes: Sequence[TeamShape]) -> None:
        present = [handle.placement for handle in self._workers.values()]
        for place in placements(self._spec.device, shapes, self._devices, present):
            self._spawn(place)

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        """Do nothing: all workers can read all partitions."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        if self._profiling is None or not self._is_current(self._profiling):
            self._profiling = self._first_worker(lambda handle: handle.ready)
        return self._probe(self._profiling, Probe(trial, batches))

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
        if self._fork_server is not None:
            self._fork_server.dismiss()
        for handle in self._workers.values():
            with contextlib.suppress(EOFError, OSError):
                while not kill and _lives_on(handle):
                    handle.connection.recv_bytes()
            for process in handle.team:
                process.connection.close()
        self._selector.close()
        self._workers.clear()
        if self._fork_server is not None:
            self._fork_server.close(kill=kill)
            self._fork_server = None

    def start_progress(self) -> object:
        pids = [process.pid for handle in self._workers.values() for process in handle.team if not process.ready]
        server = [] if self._fork_server is None else [self._fork_server.pid]
        return [*server, *map(vitals, [*server, *pids])]

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
            self._spawn(start.placement, start.failures)
        for handle in list(self._workers.values()):
            if handle.outbox:
                self._flush(handle)
        timeout = min([timeout, *(start.when - now for start in self._due)])
        while ready := self._selector.select(timeout):
            for handle in [key.data for key, _ in ready]:
                if not self._is_current(handle.leader or handle):
                    continue  # another process of its team has ended a moment ago
                try:
                    self._hear(handle, decode_report(handle.connection.recv_bytes()))
                except (EOFError, OSError):
                    if self._is_current(handle.leader or handle):
                        self._lose(handle.leader or handle, handle)
            timeout = 0
        self._look()

    def _hear(self, handle: ProcessHandle, report: Report) -> None:
        handle.heard = time.monotonic()
        if isinstance(report, Ready):
            handle.ready = True
            if handle.leader is None:
                self._events.append(WorkerJoined(handle.name, handle.placement))
        else:
            super()._hear(handle, report)

    def _note(self, handle: ProcessHandle, event: Event) -> None:
        handle.useful = handle.useful or isinstance(event, UnitFinished | UnitFailed)

    # ------------------------------------------------------------------------------------ workers come and go

    def _spawn(self, placement: Placement, failures: int = 0) -> None:
        name = self._next_name()
        with contextlib.ExitStack() as stack:
            pairs = [socket.socketpair() for _ in placement.devices[1:]]
            for pair in pairs:
                for end in pair:
                    stack.enter_context(end)
            handle = self._fork(name, placement, 0, [mine.fileno() for mine, _ in pairs])
            handle.failures = failures
            self._workers[name] = handle
            for rank, (_, theirs) in enumerate(pairs, 1):
                member = self._fork(name, placement, rank, [theirs.fileno()])
                member.leader = handle
                handle.members.append(member)

    def _fork(self, name: str, placement: Placement, rank: int, links: Sequence[int]) -> ProcessHandle:
        """Start one process of a worker."""
        assert self._fork_server is not None
        connection, pid = self._fork_server.fork(name, links)
        if len(self._cores) == len(placement.devices):
            with contextlib.suppress(OSError):  # the process has ended, or the cores were taken away
                os.sched_setaffinity(pid, self._cores[rank])  # threads that it starts later inherit its cores
        handle = ProcessHandle(
            name=name,
            device=placement.devices[rank],
            connection=connection,
            pid=pid,
            parent=self._fork_server.pid,
            placement=placement,
        )
        self._selector.register(connection, selectors.EVENT_READ, handle)
        with contextlib.suppress(OSError):
            connection.send_bytes(encode_start(Start(name, placement, rank)))
            connection.send_bytes(self._payload)
        return handle

    def _look(self) -> None:
        """Kill workers that are taken for dead."""
        if self._fork_server is not None:
            self._fork_server.revive()
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for worker in list(self._workers.values()):
            for handle in worker.team:
                handle.heard = excused(handle.heard, now, away)
                if now - handle.heard > STOPPED_SECONDS and (
                    verdict := _verdict(handle, now, self._spec.start_timeout)
                ):
                    worker.killed = worker.killed or verdict
                    _kill(handle.pid)
                    self._lose(worker, handle)
                    break

    def _kill(self, handle: ProcessHandle) -> None:
        for process in handle.team:
            _kill(process.pid)

    def _lose(self, handle: ProcessHandle, ended: ProcessHandle) -> None:
        """Report the loss of a worker, one of whose processes has ended, and replace the worker."""
        del self._workers[handle.name]
        for process in handle.team:
            self._selector.unregister(process.connection)
            process.connection.close()
        reason = self._end_reason(handle, ended)
        replaced = not (self._closing or handle.retired)
        if handle.ready:
            output = last_lines(self._spec.logs / f"{handle.trial}.log") if handle.trial and not handle.released else ""
            self._events.append(WorkerLost(handle.name, reason, output, replaced))
        if not replaced:
            return
        if handle.useful or (handle.ready and not handle.failures):
            self._spawn(handle.placement, 0 if handle.useful else 1)
            return
        failures = handle.failures + 1
        if not handle.ready:
            check_starts(handle.name, failures, reason, f"{self._log} may say why")
        self._due.append(PendingStart(time.monotonic() + restart_pause(failures), handle.placement, failures))

    def _end_reason(self, handle: ProcessHandle, ended: ProcessHandle) -> str:
        """Return why a worker ended, and make sure that all of its processes are gone."""
        assert self._fork_server is not None
        # When one process of a team dies, its first process ends by itself and may be heard first.
        dead = (process for process in handle.members if (found := vitals(process.pid)) is not None and found.gone)
        ended = next(dead, ended)
        for process in handle.team:
            if process is not ended:
                _kill(process.pid)
        codes = {process.pid: self._fork_server.exit_code(process.pid, process.parent) for process in handle.team}
        code = codes[ended.pid]
        if code is None:
            self._kill(handle)  # no other process makes sure that the worker is gone
        if reason := handle.end_reason(""):
            return reason
        starved = code in (-signal.SIGKILL, None) and starvations() > self._starved
        self._starved += starved
        which = f"member {handle.team.index(ended)} of its team: " if ended is not handle else ""
        return which + ending(code, starved=starved)


def _lives_on(handle: ProcessHandle) -> bool:
    """Wait for a report of a worker that was told to stop; kill the worker if it cannot go on."""
    while not handle.connection.poll(STOPPED_SECONDS):
        found = vitals(handle.pid)
        if found is not None and (found.stopped or found.gone):
            _kill(handle.pid)
            return False
    return True


def _verdict(handle: ProcessHandle, now: float, start_timeout: float) -> str:
    """Return why a silent worker is taken for dead; empty if it may be alive."""
    found = vitals(handle.pid)
    silence = now - handle.heard
    if found is not None:
        if lost := found.lost(silence):
            return lost
        if found.ticks != handle.ticks:
            handle.ticks, handle.worked = found.ticks, now
    idle = now - max(handle.heard, handle.worked)
    return f"it was silent for {silence:.0f} s" if idle > (SILENCE_SECONDS if handle.ready else start_timeout) else ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
