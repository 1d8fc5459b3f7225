"""Worker processes on this machine, forked from a fork server that has the framework loaded.

Each worker has its own socket. A closed socket reports a death at once, and the fork server reports the exit status.
The backend inspects a silent worker: a stopped or missing process is killed and counts as dead, while a live one may be
busy, e.g. in a long call into C, and gets much longer. A lost worker is replaced, with growing pauses if its
predecessors finished nothing either. The run ends if several workers in a row die before they are ready.

If the fork server dies, another one is started, and the old one's workers go on; only their exit status stays unknown.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

from hopfleet.backends.supervision import ending, vitals
from hopfleet.domain.messages import (
    RELEASED,
    Command,
    Event,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
    decode,
    encode,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Trial
from hopfleet.errors import TaskError, WorkersLost
from hopfleet.store.versions.local import Versions
from hopfleet.support import clock
from hopfleet.support.machine import starvations
from hopfleet.worker.spec import Profile, WorkerSpec, pickled

STOPPED_SECONDS = 1.5
"""A worker that has not beaten for so long is taken for dead if its process is stopped or gone."""

SILENCE_SECONDS = 60.0
"""A worker that has not beaten for so long, nor used a processor, is taken for dead."""

AWAY_SECONDS = 1.0
"""Seconds without listening, for example after Ctrl-Z, after which silence means nothing."""

MAX_STARTS = 5
"""How often in a row a worker may die before it is ready, and how often a fork server may fail to start one."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0
"""The pause before a worker takes the place of one that has done nothing. It doubles each time, up to the most."""

START_SECONDS = 120.0
"""Importing a framework from a cold disk takes a while; longer than this it does not."""

LOG_LINES, LOG_BYTES = 20, 4096
"""How much of the end of a trial's log is told with the loss of its worker."""


@dataclass(slots=True)
class Member:
    """One worker process, as seen from here."""

    name: str
    device: str
    connection: Connection
    pid: int
    heard: float
    #: How many died before they had done anything, in a row, whose place it took.
    failures: int = 0
    ready: bool = False
    #: It has finished something.
    useful: bool = False
    #: The process that forked it.
    parent: int = 0
    #: Whether the worker is not replaced when it ends.
    retired: bool = False
    #: It may go.
    released: bool = False
    #: Why it was killed from here.
    killed: str = ""
    #: The trial that it was last told to work on.
    trial: str = ""
    #: Processor time that it had used, and when that was last seen to change.
    ticks: int = 0
    worked: float = 0.0
    #: Messages buffered until the next send, so that the worker wakes once.
    unsent: list[list[Any]] = field(default_factory=list)


class Local:
    """``workers`` processes on this machine."""

    name = "local"

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._events: deque[Event] = deque()
        self._profiles: deque[Profile] = deque()
        self._numbers = itertools.count(1)
        self._fork_server: Popen[bytes] | None = None
        self._control: socket.socket | None = None
        #: The fork server has said that it is ready.
        self._awake = False
        self._closing = False
        #: Workers to be started again: when, on which device, after how many failures.
        self._due: list[tuple[float, str, int]] = []
        self._looked = time.monotonic()
        #: How many deaths for want of memory are told already.
        self._starved = starvations()

    def versions(self, checkpoints: Path) -> Versions:
        return Versions(checkpoints)

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self._spec = spec
        self._payload = pickled(spec)
        self._start_fork_server()
        # Workers are started at the first ``receive``, so that the caller can work while the framework loads.
        now = time.monotonic()
        self._due = [(now, _device(spec, number), 0) for number in range(workers)]

    def add(self, count: int) -> None:
        here = len(self._members) + len(self._due)
        for number in range(here, here + count):
            self._spawn(_device(self._spec, number))

    def retire(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.retired = True

    def release(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.retired = member.released = True
            self._tell(member, ["Stop", None, None])

    def stop(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.killed = "it was told to give up what it did"
            _kill(member.pid)

    def place(self, worker: str, partition: int) -> None:
        """All can read everything."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        deadline = time.monotonic() + START_SECONDS
        while not any(member.ready for member in self._members.values()):
            self._wait(deadline)
        member = next(member for member in self._members.values() if member.ready)
        self._tell(member, ["Probe", batches, _trial_fields(trial)])
        while not self._profiles:
            self._pump(AWAY_SECONDS / 4)
            if member.name not in self._members:
                return Profile(error="the worker died while it tried the configuration")
        return self._profiles.popleft()

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | SaveVersion)
        member = self._members.get(command.worker)
        # A worker that died meanwhile has its WorkerLost under way; the command dies with it.
        if member is not None:
            if isinstance(command, RunUnit):
                member.trial = command.trial
            kind, body = encode(command)
            member.unsent.append([kind, body, _trial_fields(trial)])
            if isinstance(command, RunUnit) and not command.more:
                self._tell(member)

    def receive(self, timeout: float) -> list[Event]:
        deadline = time.monotonic() + timeout
        for member in list(self._members.values()):
            if member.unsent:
                self._tell(member)
        while not self._events:
            left = deadline - time.monotonic()
            self._pump(max(0.0, left))
            if left <= 0:
                break
        events = list(self._events)
        self._events.clear()
        return events

    def now(self) -> float:
        return clock.now()

    def close(self, *, kill: bool = False) -> None:
        self._closing = True
        for member in self._members.values():
            if kill:
                _kill(member.pid)
            else:
                self._tell(member, ["Stop", None, None])
        for member in self._members.values():
            with contextlib.suppress(EOFError, OSError):
                while not kill and _lives_on(member):
                    member.connection.recv_bytes()
            member.connection.close()
        self._selector.close()
        self._members.clear()
        self._end_fork_server()

    # ---------------------------------------------------------------------------------------------- processes

    def _start_fork_server(self) -> None:
        self._control, theirs = socket.socketpair()
        self._spec.logs.mkdir(parents=True, exist_ok=True)
        with (self._spec.logs / "workers.log").open("ab") as log:
            self._fork_server = Popen(
                [sys.executable, "-m", "hopfleet.worker.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self._spec.threads),
            )
        theirs.close()
        self._awake = False
        hello = {"path": sys.path, "preload": list(self._spec.task.preload)}
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(hello).encode() + b"\n")

    def _end_fork_server(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._fork_server is not None:
            try:
                self._fork_server.wait(STOPPED_SECONDS)
            except TimeoutExpired:
                self._fork_server.kill()
                self._fork_server.wait()

    def _renew_fork_server(self) -> None:
        """Replace a fork server that is dead or does not answer. The new one needs a while to be ready."""
        assert self._fork_server is not None
        self._fork_server.kill()
        self._end_fork_server()
        self._start_fork_server()

    def _ask_fork_server(self, question: str, descriptors: Sequence[int] = ()) -> str:
        """The fork server's answer; nothing if it gives none. Then it is another one that is asked next."""
        assert self._control is not None
        with contextlib.suppress(OSError):
            self._awake = self._awake or self._read_line() == "ready"
            if self._awake:
                socket.send_fds(self._control, [question.encode()], list(descriptors))
                answer = self._read_line()
                if answer:
                    return answer
        # An answer that came late would be taken for that to another question.
        self._renew_fork_server()
        return ""

    def _read_line(self) -> str:
        """A line of the fork server's, or nothing if it is gone. Raises OSError if it is stopped."""
        assert self._control is not None and self._fork_server is not None
        line, deadline = b"", time.monotonic() + START_SECONDS
        self._control.settimeout(STOPPED_SECONDS)
        while not line.endswith(b"\n"):
            try:
                piece = self._control.recv(4096)
            except TimeoutError:
                found = vitals(self._fork_server.pid)
                if (found is not None and found.stopped) or time.monotonic() > deadline:
                    raise
                continue
            if not piece:
                return ""
            line += piece
        return line.decode().strip()

    def _ending(self, member: Member) -> int | None:
        """Return the exit code of a worker from the fork server that forked it; None if unknown."""
        assert self._fork_server is not None
        if member.parent == self._fork_server.pid:
            with contextlib.suppress(ValueError):
                return int(self._ask_fork_server(str(member.pid)))
        # No other process makes sure that the worker is gone.
        _kill(member.pid)
        return None

    def _spawn(self, device: str, failures: int = 0) -> None:
        name = f"w{next(self._numbers)}"
        mine, pid = self._forked(name)
        assert self._fork_server is not None
        member = Member(name, device, mine, pid, time.monotonic(), failures, parent=self._fork_server.pid)
        self._members[name] = member
        self._selector.register(member.connection, selectors.EVENT_READ, member)
        with contextlib.suppress(OSError):
            member.connection.send_bytes(json.dumps({"worker": name, "device": device}).encode())
            member.connection.send_bytes(self._payload)

    def _forked(self, name: str) -> tuple[Connection, int]:
        """A new worker process: the socket to it, and its id."""
        for _ in range(MAX_STARTS):
            mine, theirs = socket.socketpair()
            with theirs:
                answer = self._ask_fork_server(name, [theirs.fileno()])
            if answer:
                return Connection(mine.detach()), int(answer)
            mine.close()
        log = self._spec.logs / "workers.log"
        raise WorkersLost(f"workers could not be started, tried {MAX_STARTS} times; {log} says why")

    def _tell(self, member: Member, *messages: list[Any]) -> None:
        told, member.unsent = [*member.unsent, *messages], []
        with contextlib.suppress(OSError):
            member.connection.send_bytes(json.dumps(told).encode())

    # ------------------------------------------------------------------------------------------------- events

    def _wait(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise WorkersLost(f"no worker was ready after {START_SECONDS:.0f} s")
        self._pump(AWAY_SECONDS / 4)

    def _pump(self, timeout: float) -> None:
        """Read what workers have said, waiting up to ``timeout`` for the first word."""
        now = time.monotonic()
        due, self._due = [start for start in self._due if start[0] <= now], [s for s in self._due if s[0] > now]
        for _, device, failures in due:
            self._spawn(device, failures)
        timeout = min([timeout, *(when - now for when, _, _ in self._due)])
        while ready := self._selector.select(timeout):
            for member in [key.data for key, _ in ready]:
                try:
                    kind, body = json.loads(member.connection.recv_bytes())
                    self._hear(member, kind, body)
                except (EOFError, OSError):
                    self._lose(member)
            timeout = 0
        self._look()

    def _look(self) -> None:
        """Kill who is taken for dead."""
        if self._awake and self._fork_server is not None and self._fork_server.poll() is not None:
            self._renew_fork_server()  # it may be ready by the next fork
        now = time.monotonic()
        away, self._looked = now - self._looked, now
        for member in list(self._members.values()):
            if away > AWAY_SECONDS:
                member.heard = min(now, member.heard + away)
            if now - member.heard > STOPPED_SECONDS:
                verdict = _verdict(member, now)
                if verdict:
                    member.killed = member.killed or verdict
                    _kill(member.pid)
                    self._lose(member)

    def _hear(self, member: Member, kind: str, body: Any) -> None:
        member.heard = time.monotonic()
        match kind:
            case "Beat":
                pass
            case "Ready":
                member.ready = True
                self._events.append(WorkerJoined(member.name, Placement.on(member.device)))
            case "Unable":
                raise TaskError(
                    f"workers cannot load the task ({body}): put it into a module that can be imported "
                    "(on sys.path, or installed), or define it in your script itself"
                )
            case "Profile":
                metrics, *rest = body
                self._profiles.append(Profile(tuple(metrics), *rest))
            case "Events":
                for event in (decode(*told) for told in body):
                    member.useful = member.useful or isinstance(event, UnitFinished | UnitFailed)
                    self._events.append(event)  # type: ignore[arg-type]
            case _:
                raise AssertionError(f"a worker has said {kind}")

    def _lose(self, member: Member) -> None:
        del self._members[member.name]
        self._selector.unregister(member.connection)
        member.connection.close()
        reason = self._reason(member)
        if member.ready:
            replaced = not (self._closing or member.retired)
            self._events.append(WorkerLost(member.name, reason, self._last_words(member), replaced))
        if self._closing or member.retired:
            return
        if member.useful or (member.ready and not member.failures):
            self._spawn(member.device, 0 if member.useful else 1)
        else:
            self._retry(member, reason)

    def _reason(self, member: Member) -> str:
        code = self._ending(member)
        if member.released:
            return RELEASED
        if member.killed:
            return member.killed
        starved = code in (-signal.SIGKILL, None) and starvations() > self._starved
        self._starved += starved
        return ending(code, starved=starved)

    def _last_words(self, member: Member) -> str:
        """The end of what the code of the trial at work has printed."""
        if not member.trial or member.released:
            return ""
        try:
            with (self._spec.logs / f"{member.trial}.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_LINES:])
        except OSError:
            return ""

    def _retry(self, member: Member, reason: str) -> None:
        """Start another one in place of one that has done nothing, after a while."""
        failures = member.failures + 1
        if failures >= MAX_STARTS and not member.ready:
            log = self._spec.logs / "workers.log"
            raise WorkersLost(
                f"worker {member.name} ended before it was ready, as {failures - 1} before it did: {reason}; "
                f"{log} may say why"
            )
        pause = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** (failures - 1))
        self._due.append((time.monotonic() + pause, member.device, failures))


def _environment(threads: int) -> dict[str, str]:
    """The variables of workers. Libraries that a framework calls may ask these, and not it, how many threads to use."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path}


def _lives_on(member: Member) -> bool:
    """Wait for something to read from a worker that is told to stop; if it cannot go on, kill it."""
    while not member.connection.poll(STOPPED_SECONDS):
        found = vitals(member.pid)
        if found is not None and (found.stopped or found.gone):
            _kill(member.pid)
            return False
    return True


def _verdict(member: Member, now: float) -> str:
    """Return why a silent worker counts as dead; empty if it may be alive."""
    found = vitals(member.pid)
    silence = now - member.heard
    if found is not None:
        if lost := found.lost(silence):
            return lost
        if found.ticks != member.ticks:
            member.ticks, member.worked = found.ticks, now
    idle = now - max(member.heard, member.worked)
    return f"it was silent for {silence:.0f} s" if idle > (SILENCE_SECONDS if member.ready else START_SECONDS) else ""


def _device(spec: WorkerSpec, number: int) -> str:
    if spec.device == "cuda":
        count = spec.task.framework.devices()[1]
        return f"cuda:{number % count}"
    return spec.device


def _trial_fields(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "number": trial.number,
        "config": trial.config,
        "seed": trial.seed,
        "epochs": trial.epochs,
        "parent": None if trial.parent is None else [trial.parent.trial, trial.parent.version, trial.parent.config],
    }


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
