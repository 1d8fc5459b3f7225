"""The messages between a backend and its workers, and their form on a socket.

All backends use the same messages. Ray passes the objects themselves; a worker process on the same machine gets JSON
over its socket. Node agents and output travel on clusters only and have no form on a socket.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.messages import Command, Event, decode, encode
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Parent, Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.worker.spec import Profile

# ------------------------------------------------------------------------------------------------------- to a worker


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a process of a worker; the pickled WorkerSpec follows."""

    worker: str
    placement: Placement
    rank: int = 0  #: the place of the process in the worker's team; the first one is the worker itself


@dataclass(frozen=True, slots=True)
class Execute:
    """Execute a command about a trial."""

    command: Command
    trial: Trial
    source: str | None = None  #: node to fetch the model from, if the worker's own node does not have it


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up the unit with this attempt, also in the middle of it. Unlike other orders, it is heard at once."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Build a trial, evaluate one batch and time ``batches`` batches of training on a partition."""

    trial: Trial
    batches: int = 0
    partition: int = 0
    valid: int = 0  #: the validation partition


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish all saves, then end."""


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """Models can be fetched from the agent of a node."""

    node: str
    agent: Any


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Nothing can be fetched from a node any more."""

    node: str


Order = Execute | GiveUp | Probe | Stop | NodeJoined | NodeLost

# ----------------------------------------------------------------------------------------------------- from a worker


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has loaded its task."""

    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class Unable:
    """The worker cannot load its task, and ends."""

    reason: str
    complete: bool = False  #: whether the reason tells everything, and what to do


@dataclass(frozen=True, slots=True)
class Beat:
    """The worker is alive. Its process has ``memory`` bytes in memory and ``device_memory`` bytes on its device."""

    memory: int = 0
    device_memory: int = 0
    processor: float = 0.0  #: seconds of processors that the process has used so far
    clock: float = 0.0  #: when that was, by a clock of the process
    device_load: float | None = None  #: the busy share of its device; None if unknown


@dataclass(frozen=True, slots=True)
class Events:
    """Events that happened at once."""

    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Profiled:
    """The answer to Probe."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Fetched:
    """The worker's node has a version that another node saved."""

    ref: VersionRef


@dataclass(frozen=True, slots=True)
class Printed:
    """The output of a unit, to be appended to a log of the run folder."""

    log: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has finished after Stop."""


@dataclass(frozen=True, slots=True)
class Apart:
    """The process ends, since it cannot form a team with the others; another try may succeed."""

    reason: str


Report = Ready | Unable | Beat | Events | Profiled | Fetched | Printed | Stopped | Apart

# ------------------------------------------------------------------------------------------------------ on a socket


def encode_start(start: Start) -> bytes:
    placement = start.placement
    return json.dumps([start.worker, placement.devices, placement.strategy, start.rank]).encode()


def decode_start(data: bytes) -> Start:
    worker, devices, strategy, rank = json.loads(data)
    return Start(worker, Placement(tuple(devices), strategy), rank)


def encode_orders(orders: Sequence[Order]) -> bytes:
    """Return orders as one message: the worker wakes once for all of them."""
    return json.dumps([_order_fields(order) for order in orders]).encode()


def decode_orders(data: bytes) -> Iterator[Order]:
    """Yield the orders of one message, each decoded when it is needed."""
    for kind, *fields in json.loads(data):
        match kind:
            case "Execute":
                name, body, trial = fields
                yield Execute(decode(name, body), _trial(trial))  # type: ignore[arg-type]
            case "GiveUp":
                yield GiveUp(*fields)
            case "Probe":
                trial, *numbers = fields
                yield Probe(_trial(trial), *numbers)
            case "Stop":
                yield Stop()
            case _:
                raise ValueError(f"unknown order {kind!r}")


def encode_report(report: Report) -> bytes:
    return json.dumps([type(report).__name__, _report_body(report)]).encode()


def decode_report(data: bytes) -> Report:
    kind, body = json.loads(data)
    match kind:
        case "Beat":
            return Beat(*body)
        case "Events":
            return Events([decode(*fields) for fields in body])  # type: ignore[misc]
        case "Ready":
            return Ready(*body)
        case "Profiled":
            metrics, *measured = body
            return Profiled(Profile(tuple(metrics), *measured))
        case "Unable":
            return Unable(*body)
        case _:
            raise ValueError(f"unknown report {kind!r}")


def _order_fields(order: Order) -> list[Any]:
    match order:
        case Execute():
            return ["Execute", *encode(order.command), _trial_fields(order.trial)]
        case GiveUp():
            return ["GiveUp", order.attempt]
        case Probe():
            return ["Probe", _trial_fields(order.trial), order.batches, order.partition, order.valid]
        case Stop():
            return ["Stop"]
        case _:
            raise TypeError(f"{order}: has no form on a socket")


def _report_body(report: Report) -> Any:
    match report:
        case Beat():
            return list(dataclasses.astuple(report))
        case Events():
            return [encode(event) for event in report.events]
        case Ready():
            return [report.pid, report.device]
        case Profiled():
            return list(dataclasses.astuple(report.profile))
        case Unable():
            return [report.reason, report.complete]
        case _:
            raise TypeError(f"{report}: has no form on a socket")


def _trial_fields(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "number": trial.number,
        "config": trial.config,
        "seed": trial.seed,
        "epochs": trial.epochs,
        "planned": trial.planned,
        "parent": None if trial.parent is None else [trial.parent.trial, trial.parent.version, trial.parent.config],
    }


def _trial(fields: dict[str, Any]) -> Trial:
    parent = fields.pop("parent")
    return Trial(**fields, parent=None if parent is None else Parent(*parent))
