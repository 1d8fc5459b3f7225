"""Teams that cannot form, members that fail, and what a team cannot train."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from hopfleet.domain.placement import Placement
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.teams import MemberLost, Membership
from hopfleet.frameworks.torch.parallel import wire
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.testing.strategies import with_team
from tests.helpers.team_tasks import SIZE, Net, batches, opened


class Summed(Net):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).sum()


class Sparse(Net):
    def layers(self) -> list[torch.nn.Module]:
        return [torch.nn.Embedding(8, 8, sparse=True), *super().layers()]


class Picky(Net):
    """Fails on the rows that the second of two members gets."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if model.training and len(batch["y"]) < SIZE and batch["y"][0] != batches()[0]["y"][0]:
            raise ValueError("these rows are wrong")
        return super().loss(model, batch)


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_team_that_cannot_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is gone is the backend's business; a PyTorch that lacks NCCL is the user's."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with Connection(ours.detach()) as link, pytest.raises(MemberLost):
        TorchTeam(Membership(1, Placement(("cpu", "cpu"), "ddp"), [link]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    ours, theirs = socket.socketpair()
    with (
        Connection(ours.detach()) as link,
        Connection(theirs.detach()),
        pytest.raises(TaskError, match=r"GLOO_SOCKET_IFNAME='nowhere0': this machine has no .* it has .*lo.*: name"),
    ):
        TorchTeam(Membership(0, Placement(("cpu", "cpu"), "ddp"), [link]))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    ours, theirs = socket.socketpair()
    with (
        Connection(ours.detach()) as link,
        Connection(theirs.detach()),
        pytest.raises(TaskError, match="teams on GPUs need NCCL, which this PyTorch lacks; use device='cpu'"),
    ):
        TorchTeam(Membership(0, Placement(("cuda:0", "cuda:1"), "ddp"), [link]))


def test_a_team_that_cannot_meet_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that cannot be opened is the user's business; a first member that does not answer may have ended."""
    placement = Placement(("cpu", "cpu"), "ddp")
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as link, Connection(theirs.detach()) as other:
        with pytest.raises(UsageError, match=r"no port can be opened at 203\.0\.113\.1 .*: end what uses the ports"):
            TorchTeam(Membership(0, placement, [link], "203.0.113.1"))
        with socket.create_server(("127.0.0.1", 0)) as closed:
            place = closed.getsockname()[:2]
        monkeypatch.setattr("hopfleet.frameworks.torch.parallel.team.MEETING_TIMEOUT", timedelta(seconds=0.2))
        wire.send(link, place)
        with pytest.raises(MemberLost, match=rf"127\.0\.0\.1:{place[1]} does not answer .* let the nodes open"):
            TorchTeam(Membership(1, placement, [other], "127.0.0.1"))


def test_failures_of_members(tmp_path: Path) -> None:
    def fail(team: TorchTeam, members: list[int]) -> None:
        with pytest.raises(TaskError, match="ValueError: these rows are wrong"):
            opened(Picky(), "ddp", 2, team).train(batches(), last=True)
        assert team.broken
        assert not team.lost

    def lose(team: TorchTeam, members: list[int]) -> None:
        session = opened(Net(), "ddp", 2, team)
        session.train(batches(), last=True)
        os.kill(members[0], signal.SIGKILL)
        with pytest.raises(MemberLost):
            session.train(batches(), last=True)
        assert team.lost

    with_team(Picky(), 2, fail)
    with_team(Net(), 2, lose)


def test_what_a_team_cannot_train_is_refused_and_the_team_lives_on() -> None:
    def go_on(team: TorchTeam, members: list[int]) -> None:
        with pytest.raises(TaskError, match="must be a mean over rows"):
            opened(Summed(), "ddp", 2, team).train(batches(), last=True)
        for strategy in ("ddp", "ps", "ps_async", "fsdp"):
            with pytest.raises(TaskError, match=r"0: Embedding\(sparse=True\): .* use sparse=False"):
                opened(Sparse(), strategy, 2, team)
        assert not team.broken
        opened(Net(), "ddp", 2, team).train(batches(), last=True)

    with_team(Net(), 2, go_on)
