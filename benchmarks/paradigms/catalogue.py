"""All measured paradigms, by name, and the bytes that each one moves according to the Cerebro paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.paradigms import allreduce, averaging, copies, parameters, reads
from benchmarks.paradigms.site import Outcome, Site
from benchmarks.paradigms.workload import Workload


@dataclass(frozen=True, slots=True)
class Sizes:
    """S configurations for k epochs on p hosts; models of m bytes; data of D bytes; b batches per host and epoch."""

    S: int
    k: int
    p: int
    m: int
    D: int
    b: int

    @classmethod
    def of(cls, workload: Workload, *, hosts: int, model: int, data: int) -> Sizes:
        batches = math.ceil(workload.rows / (workload.batch_size * hosts))
        return cls(workload.trials, workload.epochs, hosts, model, data, batches)


@dataclass(frozen=True, slots=True)
class Formula:
    """Bytes on the wire according to the paper's Table 2, in its notation."""

    text: str
    count: Callable[[Sizes], int]


@dataclass(frozen=True, slots=True)
class Paradigm:
    """A paradigm. ``load`` fetches the data that a host keeps, ``train`` does the rest with the result of ``load``.

    With ``in_turn``, all hosts train one configuration after the other.
    """

    title: str
    formula: Formula
    load: Callable[[Site], Any]
    train: Callable[[Site, Any], list[Outcome]]
    in_turn: bool = False


HOPPING = Formula("kmpS + mS", lambda s: s.k * s.m * s.p * s.S + s.m * s.S)
COPIES = Formula("pD + mS", lambda s: s.p * s.D + s.m * s.S)
READS = Formula("kSD + mS", lambda s: s.k * s.S * s.D + s.m * s.S)
AVERAGING = Formula("2kmpS", lambda s: 2 * s.k * s.m * s.p * s.S)
ALL_REDUCE = Formula("2km(p−1)S⌈D/bp⌉", lambda s: 2 * s.k * s.m * (s.p - 1) * s.S * s.b)
SERVER = Formula("2kmpS⌈D/bp⌉", lambda s: 2 * s.k * s.m * s.p * s.S * s.b)


def _servers(title: str, *, synchronous: bool, servers: int | None = None) -> Paradigm:
    plan = parameters.Plan(synchronous, servers)
    return Paradigm(title, SERVER, plan.load, plan.train, in_turn=True)


PARADIGMS: dict[str, Paradigm] = {
    "copies": Paradigm("task-parallel, full copies", COPIES, copies.load, copies.train),
    "reads": Paradigm("task-parallel, remote reads", READS, reads.load, reads.train),
    "averaging": Paradigm("model averaging", AVERAGING, averaging.load, averaging.train, in_turn=True),
    "allreduce": Paradigm("DDP, all-reduce (gloo)", ALL_REDUCE, allreduce.load, allreduce.train, in_turn=True),
    "ps-sync": _servers("parameter server, synchronous", synchronous=True),
    "ps-async": _servers("parameter server, asynchronous", synchronous=False),
    "ps-async-one": _servers("the same with one server", synchronous=False, servers=1),
}
