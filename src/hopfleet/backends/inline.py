"""Workers inside the user's own process, one command at a time: for debuggers, notebooks and tests."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import time
from collections import deque
from pathlib import Path

from hopfleet.backends.base import WorkerHealth
from hopfleet.backends.supervision import health_of
from hopfleet.domain.messages import RELEASED, Command, Event, RunUnit, SaveVersion, WorkerJoined, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Trial
from hopfleet.errors import UsageError
from hopfleet.store.versions.local import Versions
from hopfleet.support import clock
from hopfleet.worker.logs import copied
from hopfleet.worker.serving import sign_of_life
from hopfleet.worker.spec import Profile, WorkerSpec, placement
from hopfleet.worker.worker import Worker


@explained
class Inline:
    """Runs everything in the calling thread. Several workers take turns."""

    name = "inline"

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._commands: deque[tuple[Command, Trial]] = deque()
        self._workers: dict[str, Worker] = {}
        self._placements: dict[str, Placement] = {}
        self._numbers = itertools.count(1)

    def versions(self, checkpoints: Path) -> Versions:
        return Versions(checkpoints)

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self._spec = spec
        self.add(workers)

    def add(self, count: int) -> None:
        spec = self._spec
        for shape in spec.teams:
            if shape.devices > 1:
                raise UsageError(
                    f"parallelism={str(shape)!r}: a team needs a process for each device, and backend='inline' has "
                    "only this one; use backend='local'"
                )
        for _ in range(count):
            number = next(self._numbers)
            name, where = f"w{number}", placement(spec, number - 1, 1)
            self._placements[name] = where
            self._workers[name] = Worker(name, spec, where, self._events.extend, capture=copied, guest=True)
            self._events.append(WorkerJoined(name, where))

    def retire(self, worker: str) -> None:
        """Do nothing: an inline worker cannot be lost."""

    def release(self, worker: str) -> None:
        # Pending saves come first.
        for command, trial in [sent for sent in self._commands if sent[0].worker == worker]:  # type: ignore[union-attr]
            self._workers[worker].execute(command, trial)
        self._commands = deque(sent for sent in self._commands if sent[0].worker != worker)  # type: ignore[union-attr]
        del self._workers[worker], self._placements[worker]
        self._events.append(WorkerLost(worker, RELEASED))

    def stop(self, worker: str) -> None:
        """Do nothing: units run in the caller's own thread and end before a caller can ask."""

    def give_up(self, worker: str, attempt: int) -> None:
        """Do nothing: units run in the caller's own thread and end before a caller can ask."""

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        """Do nothing: all workers can read all partitions."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        return next(iter(self._workers.values())).probe(trial, batches)

    def send(self, command: Command, trial: Trial) -> None:
        self._commands.append((command, trial))

    def receive(self, timeout: float) -> list[Event]:
        if not self._events and self._commands:
            command, trial = self._commands.popleft()
            assert isinstance(command, RunUnit | SaveVersion)
            self._workers[command.worker].execute(command, trial)
        elif not self._events:
            time.sleep(timeout)  # nothing happens until a command arrives or a disk has room again
            for worker in self._workers.values():
                worker.retry()
        events = list(self._events)
        self._events.clear()
        return events

    def now(self) -> float:
        return clock.now()

    def health(self) -> list[WorkerHealth]:
        """Return how this process is, in the name of its first worker."""
        return [
            health_of(
                name, socket.gethostname(), os.getpid(), self.now(), [sign_of_life(self._spec.task.framework, where)]
            )
            for name, where in list(self._placements.items())[:1]
        ]

    def close(self, *, kill: bool = False) -> None:
        self._commands.clear()
        on_devices = any(where.devices != ("cpu",) for where in self._placements.values())
        self._workers.clear()
        self._placements.clear()
        if on_devices:
            # Models and captured steps refer to each other. A device would be full after a few experiments.
            gc.collect()
            self._spec.task.framework.free_memory()
