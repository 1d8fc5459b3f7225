"""What every backend promises.

A backend starts workers, carries commands to them and brings their events back. It decides nothing. The loop calls
it from one thread: ``start`` once, then ``send`` and ``receive`` in any order, then ``close`` once, also after an
error. Per worker, commands are obeyed in the order sent. A worker that dies is reported as WorkerLost, exactly once;
whether another one takes its place is up to the backend, is told with the loss, and shows as WorkerJoined.

``add``, ``retire``, ``release`` and ``stop`` change who works, ``place`` who can read what; what comes of them shows in
events as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from hopfleet.domain.messages import Command, Event
from hopfleet.domain.trial import Trial
from hopfleet.store.versions.local import Versions
from hopfleet.worker.spec import Profile, WorkerSpec


class Backend(Protocol):
    name: str

    def versions(self, checkpoints: Path) -> Versions:
        """The saved versions of a run, for the process that runs it. Asked for before ``start``."""

    def start(self, spec: WorkerSpec, workers: int) -> None:
        """Begin to start workers. Each shows up as WorkerJoined."""

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        """Build a trial, evaluate one batch, and time ``batches`` batches of training. Blocks; keeps nothing."""

    def send(self, command: Command, trial: Trial) -> None:
        """Hand a command to its worker and return at once. ``trial`` is the one that the command is about."""

    def add(self, count: int) -> None:
        """Begin to start so many more workers."""

    def retire(self, worker: str) -> None:
        """Start nobody in the place of a worker that will be released, should it be lost before."""

    def release(self, worker: str) -> None:
        """Let a worker go that has nothing to do, when it has saved what it was told to. It shows as WorkerLost."""

    def stop(self, worker: str) -> None:
        """Give up what a worker is doing, if that is possible; then it is lost, and replaced. Else it just ends."""

    def place(self, worker: str, partition: int) -> None:
        """Let a worker get a training partition that it cannot read. It shows as PartitionPlaced, or -Unavailable."""

    def receive(self, timeout: float) -> list[Event]:
        """Events that have happened, waiting up to ``timeout`` seconds for the first."""

    def now(self) -> float:
        """Seconds since the epoch, or virtual time."""

    def close(self, *, kill: bool = False) -> None:
        """Stop all workers; with ``kill`` without waiting for anything."""


@runtime_checkable
class Cluster(Protocol):
    """A backend on several machines. It can be started again after it was closed, and chooses devices by itself."""

    def offer(self, device: str, threads: int) -> tuple[int, str]:
        """How many workers there is room for, and why."""
