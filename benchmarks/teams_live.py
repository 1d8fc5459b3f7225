"""Teams of processes on this machine: how fast they train by a bare script, how fast they form, how fast units start.

The bare script is PyTorch's own way, as ``torchrun`` starts it: two processes with DistributedDataParallel or
``fully_shard`` over gloo, each with its half of every batch in memory. Hopfleet and the script train alternately, in
one run, with one thread per process.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.row import Row, milliseconds
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.teams import Membership
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.frameworks.torch.task import TorchTask
from hopfleet.testing.strategies import with_team

STRATEGIES = ("ddp", "fsdp")
SIZE, BATCH, FEATURES = 2, 256, 1024
SPEED_BAR, FORM_BAR, UNIT_BAR = 0.95, 0.3, 0.02


class Batches(list[dict[str, Any]]):
    """Batches in memory."""

    rows = 0


class Mlp(TorchTask):
    """The MLP of the other benchmarks, 1.5 million weights."""

    def build(self, config: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Linear(FEATURES, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 500), torch.nn.ReLU()),
            torch.nn.Linear(500, 2),
        )
        return model, torch.optim.Adam(model.parameters())

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def measure(quick: bool) -> Iterator[Row]:
    count, rounds = (3, 2) if quick else (40, 5)
    for strategy in STRATEGIES:
        pairs, standing, hopped = with_team(Mlp(), SIZE, partial(_compared, strategy, count, rounds))
        ratio = statistics.median(bare / ours for ours, bare in pairs)
        ours, bare = (count * BATCH / statistics.median(each) for each in zip(*pairs, strict=True))
        what = f"{strategy}, {SIZE} processes, MLP of 1.5 million weights, batches of {BATCH}: rows per second"
        yield Row("teams_live", what, f"{ours:,.0f}", f"bare script {bare:,.0f}", ratio, "≥ 0.95", ratio >= SPEED_BAR)
        what = f"{strategy}: a unit of two rows on a standing team, beyond its step"
        yield Row("teams_live", what, milliseconds(standing), "", None, "< 20 ms", standing < UNIT_BAR)
        what = f"{strategy}: the same with a trial that has just hopped here"
        yield Row("teams_live", what, milliseconds(hopped), "", None, "", None)

    formed = statistics.median(_forming() for _ in range(1 if quick else 5))
    what = f"forming a team of {SIZE} with processes at hand"
    yield Row("teams_live", what, milliseconds(formed), "", None, "< 300 ms", formed < FORM_BAR)


def _forming() -> float:
    """Return the seconds from two processes that are connected to a team of them, without the start of processes."""
    context = multiprocessing.get_context("fork")
    answer, answers = context.Pipe(duplex=False)
    ends = socket.socketpair()
    processes = [context.Process(target=_join, args=(rank, ends, answers)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    seconds = max(answer.recv() for _ in processes)
    for process in processes:
        process.join()
    for end in ends:
        end.close()
    return float(seconds)


def _join(rank: int, ends: tuple[socket.socket, socket.socket], answers: Connection) -> None:
    torch.set_num_threads(1)
    link = Connection(ends[rank].detach())
    link.send(None)
    link.recv()  # the other process is at hand
    begun = time.perf_counter()
    TorchTeam(Membership(rank, Placement(("cpu",) * SIZE, "ddp"), [link]))
    answers.send(time.perf_counter() - begun)
    link.send(None)
    link.recv()  # the other process is done as well
    os._exit(0)


def _compared(strategy: str, count: int, rounds: int, team: TorchTeam, members: list[int]) -> Any:
    """Train alternately; return the seconds of each pair of units, and of short units."""
    batches = _batches(count, BATCH)
    cache = EngineCache()
    cache.team = team
    placement = Placement(("cpu",) * SIZE, strategy)
    open_session = partial(Mlp().framework.open, {}, seed=0, placement=placement, threads=1, cache=cache)
    session = open_session()
    bare = _Bare(strategy, count)
    pairs = []
    for number in range(rounds + 1):
        ours, theirs = _timed(lambda: session.train(batches, last=False)), bare.train()
        if number:  # the first round warms up
            pairs.append((ours, theirs))
    bare.close()
    return pairs, *_short_units(session, open_session)


def _short_units(session: Any, open_session: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a unit of two rows beyond those of its step, and of one whose trial was just loaded."""
    one, many = _batches(1, SIZE), _batches(21, SIZE)
    units = [
        (_timed(lambda: session.train(one, last=False)), _timed(lambda: session.train(many, last=False)))
        for _ in range(15)
    ]
    standing = statistics.median(short - (long - short) / 20 for short, long in units)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "versions", "version")
        path.parent.mkdir()
        session.save(path)

        def hop() -> None:
            arrived = open_session()
            arrived.load(path)
            arrived.train(one, last=False)

        return standing, statistics.median(_timed(hop) for _ in range(5))


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _batches(count: int, rows: int) -> Batches:
    torch.manual_seed(1)
    made = Batches({"x": torch.randn(rows, FEATURES), "y": torch.randint(2, (rows,))} for _ in range(count))
    made.rows = count * rows
    return made


# ------------------------------------------------------------------------------------------------ the bare script


class _Bare:
    """Two processes that train as a script of one's own would; the processes rest while Hopfleet trains."""

    def __init__(self, strategy: str, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._members = []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            place = f"file://{self._folder.name}/meeting"
            process = context.Process(target=_script, args=(strategy, count, rank, place, theirs))
            process.start()
            self._members.append((ours, process))
        for ours, _ in self._members:
            ours.recv()

    def train(self) -> float:
        begun = time.perf_counter()
        for ours, _ in self._members:
            ours.send(True)
        for ours, _ in self._members:
            ours.recv()
        return time.perf_counter() - begun

    def close(self) -> None:
        for ours, process in self._members:
            ours.send(False)
            process.join()
        self._folder.cleanup()


def _script(strategy: str, count: int, rank: int, place: str, control: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=SIZE)
    model, _ = Mlp().build({})
    wrapped: Any = model
    if strategy == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if next(layer.parameters(), None) is not None:
                fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    share = slice(rank * BATCH // SIZE, (rank + 1) * BATCH // SIZE)
    batches = [{name: column[share] for name, column in batch.items()} for batch in _batches(count, BATCH)]
    control.send(None)
    while control.recv():
        for batch in batches:
            optimizer.zero_grad()
            Mlp().loss(wrapped, batch).backward()
            optimizer.step()
        control.send(None)
    distributed.destroy_process_group()
