"""Worker processes on this machine, forked from a zygote that has the framework loaded.

Each worker has a socket of its own. A socket that closes tells of its death at once; a worker that is silent for too
long is killed and counts as dead. A lost worker is replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from hopfleet.domain.messages import (
    RELEASED,
    Command,
    Evaluate,
    Event,
    RunUnit,
    SaveVersion,
    WorkerJoined,
    WorkerLost,
    decode,
    encode,
)
from hopfleet.domain.trial import Trial
from hopfleet.errors import CheckpointError, TaskError, WorkersLost
from hopfleet.worker.job import Finding, Job

SILENCE_SECONDS = 60.0
"""A worker that has not beaten for so long is taken for dead."""

START_SECONDS = 120.0
"""Importing a framework from a cold disk takes a while; longer than this it does not."""


@dataclass(slots=True)
class Member:
    """One worker process, as seen from here."""

    name: str
    device: str
    connection: Connection
    pid: int
    heard: float
    ready: bool = False
    #: It may go, and nobody takes its place.
    released: bool = False


class Local:
    """``workers`` processes on this machine."""

    name = "local"

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._events: deque[Event] = deque()
        self._findings: deque[Finding] = deque()
        self._numbers = itertools.count(1)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closing = False

    def start(self, job: Job, workers: int) -> None:
        self._job = job
        self._payload = _pickle(job)
        self._start_zygote()
        self.add(workers)

    def add(self, count: int) -> None:
        for number in range(len(self._members), len(self._members) + count):
            self._spawn(_device(self._job, number))

    def release(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.released = True
            self._tell(member, ["Stop", None, None])

    def stop(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            _kill(member.pid)

    def probe(self, trial: Trial, batches: int = 0) -> Finding:
        deadline = time.monotonic() + START_SECONDS
        while not any(member.ready for member in self._members.values()):
            self._wait(deadline)
        member = next(member for member in self._members.values() if member.ready)
        self._tell(member, ["Probe", batches, _spec(trial)])
        while not self._findings:
            self._pump(1.0)
            if member.name not in self._members:
                return Finding(error="the worker died while it tried the configuration")
        return self._findings.popleft()

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | Evaluate | SaveVersion)
        member = self._members.get(command.worker)
        # A worker that died meanwhile has its WorkerLost under way; the command dies with it.
        if member is not None:
            kind, body = encode(command)
            self._tell(member, [kind, body, _spec(trial)])

    def receive(self, timeout: float) -> list[Event]:
        if not self._events:
            self._pump(timeout)
        events = list(self._events)
        self._events.clear()
        return events

    def now(self) -> float:
        return time.time()

    def close(self, *, kill: bool = False) -> None:
        self._closing = True
        for member in self._members.values():
            if kill:
                _kill(member.pid)
            else:
                self._tell(member, ["Stop", None, None])
        for member in self._members.values():
            with contextlib.suppress(EOFError, OSError):
                while not kill:
                    member.connection.recv_bytes()
            member.connection.close()
        self._selector.close()
        self._members.clear()
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            self._zygote.wait()

    # ---------------------------------------------------------------------------------------------- processes

    def _start_zygote(self) -> None:
        self._control, theirs = socket.socketpair()
        self._job.logs.mkdir(parents=True, exist_ok=True)
        with (self._job.logs / "workers.log").open("ab") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "hopfleet.worker.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        theirs.close()
        hello = {"path": sys.path, "preload": self._job.task.preload}
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(hello).encode() + b"\n")
        if self._read_line() != "ready":
            raise WorkersLost(f"workers could not be started; {self._job.logs / 'workers.log'} says why")

    def _read_line(self) -> str:
        """A line of the zygote's, or nothing if it is gone."""
        assert self._control is not None
        line = b""
        with contextlib.suppress(ConnectionResetError):
            while not line.endswith(b"\n") and (piece := self._control.recv(4096)):
                line += piece
        return line.decode().strip()

    def _spawn(self, device: str) -> None:
        assert self._control is not None
        mine, theirs = socket.socketpair()
        name = f"w{next(self._numbers)}"
        try:
            socket.send_fds(self._control, [name.encode()], [theirs.fileno()])
            pid = int(self._read_line())
        except (OSError, ValueError):
            log = self._job.logs / "workers.log"
            raise WorkersLost(f"the process that starts workers is gone; {log} may say why") from None
        finally:
            theirs.close()
        member = Member(name, device, Connection(mine.detach()), pid, time.monotonic())
        self._members[name] = member
        self._selector.register(member.connection, selectors.EVENT_READ, member)
        with contextlib.suppress(OSError):
            member.connection.send_bytes(json.dumps({"worker": name, "device": device}).encode())
            member.connection.send_bytes(self._payload)

    def _tell(self, member: Member, message: list[Any]) -> None:
        with contextlib.suppress(OSError):
            member.connection.send_bytes(json.dumps(message).encode())

    # ------------------------------------------------------------------------------------------------- events

    def _wait(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise WorkersLost(f"no worker was ready after {START_SECONDS:.0f} s")
        self._pump(1.0)

    def _pump(self, timeout: float) -> None:
        """Read what workers have said, waiting up to ``timeout`` for the first word."""
        while ready := self._selector.select(timeout):
            for member in [key.data for key, _ in ready]:
                try:
                    kind, body = json.loads(member.connection.recv_bytes())
                    self._hear(member, kind, body)
                except (EOFError, OSError):
                    self._lose(member, "its process ended")
            timeout = 0
        for member in list(self._members.values()):
            silence = time.monotonic() - member.heard
            if silence > SILENCE_SECONDS and member.ready:
                _kill(member.pid)
                self._lose(member, f"it was silent for {silence:.0f} s")

    def _hear(self, member: Member, kind: str, body: Any) -> None:
        member.heard = time.monotonic()
        match kind:
            case "Beat":
                pass
            case "Ready":
                member.ready = True
                self._events.append(WorkerJoined(member.name, member.device))
            case "Unable":
                raise TaskError(
                    f"workers cannot load the task ({body}): put it into a module that can be imported "
                    "(on sys.path, or installed), or define it in your script itself"
                )
            case "Fatal":
                raise CheckpointError(body)
            case "Finding":
                metrics, *rest = body
                self._findings.append(Finding(tuple(metrics), *rest))
            case _:
                self._events.append(decode(kind, body))  # type: ignore[arg-type]

    def _lose(self, member: Member, reason: str) -> None:
        del self._members[member.name]
        self._selector.unregister(member.connection)
        member.connection.close()
        if not member.ready:
            log = self._job.logs / "workers.log"
            raise WorkersLost(f"worker {member.name} ended before it was ready; {log} may say why")
        self._events.append(WorkerLost(member.name, RELEASED if member.released else reason))
        if not self._closing and not member.released:
            self._spawn(member.device)


def _pickle(job: Job) -> bytes:
    try:
        return bytes(cloudpickle.dumps(job))
    except Exception as error:
        raise TaskError(
            f"the task cannot be sent to workers ({error}): keep open files, locks, connections and the like out of "
            "its attributes; make them in build()"
        ) from error


def _device(job: Job, number: int) -> str:
    if job.device == "cuda":
        count = job.task.devices()[1]
        return f"cuda:{number % count}"
    return job.device


def _spec(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "number": trial.number,
        "config": trial.config,
        "seed": trial.seed,
        "epochs": trial.epochs,
        "parent": None if trial.parent is None else [trial.parent.trial, trial.parent.version, trial.parent.config],
    }


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
