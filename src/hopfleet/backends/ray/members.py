"""Workers as the driver sees them: each is an actor of Ray, which is told things and asked what it has to tell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.actors import Setup, Told, WorkerActor
from hopfleet.backends.ray.node_agents import on
from hopfleet.domain.version_ref import VersionRef


@dataclass(slots=True)
class Member:
    """One worker."""

    name: str
    node: str
    actor: Any
    #: The call that tells it something and asks what it has to tell.
    exchange: Any
    heard: float
    #: How many ended before they were ready, in a row, whose place it took.
    failures: int = 0
    pid: int = 0
    device: str = ""
    ready: bool = False
    joined: bool = False
    #: Whether the worker is not replaced when it ends.
    retired: bool = False
    #: It may go.
    released: bool = False
    #: Why it was killed from here.
    killed: str = ""
    #: The trial that it was last told to work on, and the one that comes after that.
    trial: str = ""
    next: str = ""
    #: Its host is asked about it.
    asked: bool = False
    stopped: bool = False
    #: It is asked what it has to tell, and has not answered yet.
    listened: bool = False
    #: Messages for the next send, and the number of sends so far.
    outbox: list[Told] = field(default_factory=list)
    told: int = 0

    def tell(self, kind: str, body: Any = None, trial: Any = None, source: str | None = None) -> None:
        """Have it told something with what goes to it next."""
        self.outbox.append((kind, body, trial, source))

    def letter(self, drops: Sequence[VersionRef]) -> tuple[int, Sequence[Told], Sequence[VersionRef]]:
        """Return a numbered letter with all pending messages and the versions that the node must drop."""
        number, words = self.told, self.outbox
        self.told, self.outbox = number + 1, []
        return number, words, drops


def start_member(setup: Setup, payload: Any, *, cpus: int, gpus: int, failures: int) -> Member:
    """Start a worker as an actor on its node, with its share of processors."""
    ray = cluster.require_ray()
    actor = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"talk": 1}, enable_task_events=False)(
        WorkerActor
    ).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=on(setup.node))
    started = actor.remote(setup, payload)
    exchange = started.exchange.options(concurrency_group="talk")
    return Member(setup.name, setup.node, started, exchange, time.monotonic(), failures)
