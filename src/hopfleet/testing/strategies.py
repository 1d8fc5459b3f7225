"""A suite for strategies: ways to train one trial of PyTorch on several devices.

Derive a test class from ``StrategySuite`` and return the strategy from ``make``. The suite trains a small model in
double precision on a team of processes on the CPU, and compares it with one process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from hopfleet.domain.rowsum import means
from hopfleet.extend import Batching, EngineCache, Membership, Placement, RowSum, Strategy
from hopfleet.frameworks.torch.checkpoint import weights
from hopfleet.frameworks.torch.parallel.session import TeamSession
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.task import TorchTask

SECONDS = 300.0
"""Seconds that a team has for a test; on a busy machine, processes wait for each other."""

Open = Callable[[TorchTask, TorchTeam], Callable[..., TorchSession]]
"""Returns how a member opens sessions of a task."""


def open_by_name(task: TorchTask, team: TorchTeam) -> Callable[..., TorchSession]:
    """Open sessions whose strategies are registered."""
    cache = EngineCache()
    cache.team = team

    def opened(config: Any, seed: int, threads: int, strategy: str, batching: Batching | None = None) -> TorchSession:
        placement = Placement(team.placement.devices, strategy)
        return task.planned(batching).framework.open(
            config, seed=seed, placement=placement, threads=threads, cache=cache
        )

    return opened


def with_team(
    task: TorchTask,
    size: int,
    work: Callable[[TorchTeam, list[int]], Any],
    opener: Open = open_by_name,
    at: str = "",
    device: str = "cpu",
) -> Any:
    """Form a team that shares a device and do some work in its first member; return what ``work`` returns, or raise.

    ``work`` takes the first member's team and the process ids of the other members. With an address ``at`` which they
    meet, the members share no files, as if each were on a machine of its own. Members are forked: a process that has
    used a GPU can have no team on it.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_lead, args=(task, Placement((device,) * size), work, opener, at, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(SECONDS), "the team does not answer"
        done, value = ours.recv()
    finally:
        process.kill()
        process.join()
    if done:
        return value
    raise value


def _lead(
    task: TorchTask,
    placement: Placement,
    work: Callable[[TorchTeam, list[int]], Any],
    opener: Open,
    at: str,
    answer: Connection,
) -> None:
    torch.set_num_threads(1)
    size = len(placement.devices)
    pairs = [socket.socketpair() for _ in range(size - 1)]
    pids = [_follow(task, rank, placement, pairs, opener, at) for rank in range(1, size)]
    links = []
    for mine, theirs in pairs:
        theirs.close()
        links.append(Connection(mine.detach()))
    try:
        answer.send((True, work(_joined(0, placement, links, at), pids)))
    except BaseException as error:
        answer.send((False, error))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _follow(
    task: TorchTask,
    rank: int,
    placement: Placement,
    pairs: list[tuple[socket.socket, socket.socket]],
    opener: Open,
    at: str,
) -> int:
    """Fork another member; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number, (mine, theirs) in enumerate(pairs, 1):
            mine.close()
            if number != rank:
                theirs.close()
        team = _joined(rank, placement, [Connection(pairs[rank - 1][1].detach())], at)
        team.follow(opener(task, team))
    finally:
        os._exit(0)


def _joined(rank: int, placement: Placement, links: list[Connection], at: str) -> TorchTeam:
    apart = frozenset(range(1, len(placement.devices))) if at else frozenset()
    return TorchTeam(Membership(rank, placement, links, at, apart))


class SuiteBatches(list[dict[str, Any]]):
    """Batches in memory."""

    rows = 0


def suite_batches(rows: int, size: int = 32) -> SuiteBatches:
    """Return the batches of a small regression problem; the last one may be short."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 8, generator=generator, dtype=torch.float64)
    y = x[:, 0] * 2 + x[:, 1] ** 2
    found = SuiteBatches({"x": x[i : i + size].clone(), "y": y[i : i + size].clone()} for i in range(0, rows, size))
    found.rows = rows
    return found


class SuiteTask(TorchTask):
    """A net of five blocks in double precision."""

    clip_norm = 0.5

    def build(self, config: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        ).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


Result = list[dict[str, RowSum]]


class StrategySuite:
    """The tests that every strategy passes."""

    #: Members of the team.
    size = 2
    #: Largest relative difference from one process.
    bound = 1e-5

    def make(self) -> Strategy:
        """Return a new strategy."""
        raise NotImplementedError

    def _opener(self, task: TorchTask, team: TorchTeam) -> Callable[..., TorchSession]:
        def opened(config: Any, seed: int, threads: int, name: str, batching: Batching | None = None) -> TorchSession:
            own = task.planned(batching)
            return TeamSession(
                own, config, seed=seed, threads=threads, cache=None, team=team, strategy=self.make, name=name
            )

        return opened

    def _on_team(self, work: Callable[[Callable[[], TorchSession]], Any]) -> Any:
        """Do some work with a function that opens a session on the team."""
        task = SuiteTask()

        def lead(team: TorchTeam, members: list[int]) -> Any:
            return work(lambda: self._opener(task, team)({}, 1, 1, "suite"))

        return with_team(task, self.size, lead, self._opener)

    @staticmethod
    def _alone() -> TorchSession:
        return TorchSession(SuiteTask(), {}, seed=1, device="cpu", threads=1)

    def _assert_close(self, found: Path, wanted: Path) -> None:
        expected = weights(wanted)
        for name, tensor in weights(found).items():
            torch.testing.assert_close(tensor, expected[name], rtol=self.bound, atol=self.bound)

    def test_trains_like_one_device(self, tmp_path: Path) -> None:
        """Three epochs with a short last batch: the weights, the losses and the metrics of one device."""

        def train(session: TorchSession, path: Path) -> Result:
            found: Result = []
            for _ in range(3):
                found.append(session.train(suite_batches(70), last=True))
                found.append(session.evaluate(suite_batches(70), seed=0))
            session.save(path)
            return found

        together = self._on_team(lambda opened: train(opened(), tmp_path / "team"))
        alone = train(self._alone(), tmp_path / "alone")
        self._assert_close(tmp_path / "team", tmp_path / "alone")
        for one, other in zip(map(means, together), map(means, alone), strict=True):
            assert one == pytest.approx(other, rel=self.bound)

    def test_a_version_is_whole(self, tmp_path: Path) -> None:
        """A trial hops from one device to the team and back."""

        def go_on(opened: Callable[[], TorchSession]) -> None:
            session = opened()
            session.load(tmp_path / "first")
            session.train(suite_batches(64), last=True)
            session.save(tmp_path / "second")

        first, last, alone = self._alone(), self._alone(), self._alone()
        first.train(suite_batches(64), last=True)
        first.save(tmp_path / "first")
        self._on_team(go_on)
        last.load(tmp_path / "second")
        last.train(suite_batches(64), last=True)
        last.save(tmp_path / "third")
        for _ in range(3):
            alone.train(suite_batches(64), last=True)
        alone.save(tmp_path / "alone")
        self._assert_close(tmp_path / "third", tmp_path / "alone")

    def test_the_same_bits_each_time(self, tmp_path: Path) -> None:
        """A session that loads an earlier version repeats what it did before, also with batches of a single row."""

        def twice(opened: Callable[[], TorchSession]) -> list[bytes]:
            session, found = opened(), []
            session.train(suite_batches(33), last=True)
            session.save(tmp_path / "version")
            for _ in range(2):
                session.load(tmp_path / "version")
                session.train(suite_batches(33), last=True)
                session.save(tmp_path / "next")
                found.append((tmp_path / "next").read_bytes())
            return found

        first, second = self._on_team(twice)
        assert first == second
