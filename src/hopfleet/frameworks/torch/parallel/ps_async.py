"""Asynchronous parameter servers: members train on whole batches of their own, and no member waits for another.

Every member serves a part of the weights. For each update, a member sends its gradients to all servers and gets weights
back, which contain the updates of others up to that moment. The servers live as long as a unit: at its end, the weights
and the optimizer's state are the same on every member again.

The result depends on the order in which gradients arrive, so training again ends with other weights.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import torch
from torch import distributed

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.parallel import servers
from hopfleet.frameworks.torch.parallel.ddp import warn_of_batch_norm
from hopfleet.frameworks.torch.parallel.strategy import Share, SpreadTrial, Strategy, TeamSteps, TeamView
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.frameworks.torch.trial import Metrics
from hopfleet.support import meeting
from hopfleet.support.logging import TEAMS, messages

NOT_REPEATABLE = (
    "ps_async: members update the weights in the order in which their gradients arrive, so training again ends with "
    "other weights, and hopfleet replay skips the trial; use parallelism='ps' for results that can be repeated"
)

MEETING_SECONDS = 300.0
"""Seconds for the members to connect to each other's servers."""

PLACE_BYTES = 64
"""Bytes of an address and a port, with blanks behind."""


class Mesh:
    """The connections between all members, each to its own server as well: a part of the engine cache."""

    #: Connections to the servers, and from the workers, in the order of ranks.
    servers: list[socket.socket]
    workers: list[socket.socket]
    connected = False

    def connect(self, team: TeamView) -> None:
        """Connect all members; they call this at the same time."""
        if self.connected:
            return
        self.connected = True
        listener = meeting.listen(team.address or "127.0.0.1")
        host, port = listener.getsockname()[:2]
        secret = bytes(_shared(secrets.token_bytes(32), team)[0])
        places = [
            bytes(place).decode().split() for place in _shared(f"{host} {port}".ljust(PLACE_BYTES).encode(), team)
        ]
        with ThreadPoolExecutor(1) as beside:
            welcome = beside.submit(meeting.welcome, listener, secret, range(team.size), MEETING_SECONDS)
            called = [meeting.call((at, int(number)), secret, team.rank, "", MEETING_SECONDS) for at, number in places]
            self.workers = [_socket(caller.link) for caller in welcome.result()]
        self.servers = [_socket(link) for link in called]


def _shared(mine: bytes, team: TeamView) -> list[list[int]]:
    """Return the bytes of all members, which have as many each."""
    own = torch.tensor(list(mine), dtype=torch.uint8, device=team.device)
    found = [torch.empty_like(own) for _ in range(team.size)]
    distributed.all_gather(found, own)
    return [one.tolist() for one in found]


def _socket(link: Connection) -> socket.socket:
    with link:
        return socket.socket(fileno=os.dup(link.fileno()))


class _AsyncServerSteps(TeamSteps):
    def __init__(self, trial: SpreadTrial, mesh: Mesh) -> None:
        super().__init__(trial)
        (self._optimizer,) = trial.optimizers
        self._team = team = trial.team
        self._server = servers.Server(self._optimizer, number=team.rank, of=team.size, workers=team.size)
        self._server.start(mesh.workers, synchronous=False)
        self._remote = servers.Remote(servers.parameters_of(self._optimizer), mesh.servers)

    def _step_optimizers(self) -> None:
        self._remote.step()

    def result(self) -> Metrics:
        if self.waiting:
            self.update()
        self._remote.end()
        self._server.wait()
        whole = {name: self._added(part) if part.ndim else part for name, part in self._server.whole().items()}
        servers.scatter(whole.pop(""), servers.parameters_of(self._optimizer))
        servers.put_state(self._optimizer, whole)
        _compat.count_as_stepped(self._optimizer)  # also on a member that had no batch
        self._gather_losses()
        return Steps.result(self)

    def _gather_losses(self) -> None:
        """Put the losses and rows of all members into the order of the batches, which were dealt in turn."""
        count = int(self._added(torch.tensor([len(self._rows)])).item())
        table = torch.zeros(2, count, dtype=torch.float64)
        if self._losses:
            table[0, self._team.rank :: self._team.size] = torch.cat(self._losses).double().cpu()
            table[1, self._team.rank :: self._team.size] = torch.tensor(self._rows, dtype=torch.float64)
        losses, rows = self._added(table)
        self._losses, self._rows = [losses] if count else [], [int(number) for number in rows.tolist()]

    def _added(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all members, in the memory of the host."""
        there = part.to(self._team.device)
        distributed.all_reduce(there)
        return there.cpu()


class PsAsync(Strategy):
    """Asynchronous parameter servers, one on each member."""

    replicated = True
    on_host = False
    lockstep = False
    spans_nodes = True
    repeatable = False
    unsupported = (*Strategy.unsupported, "sparse")
    splits_batches = False

    def check(self, trial: SpreadTrial) -> None:
        super().check(trial)
        if len(trial.optimizers) != 1:
            raise TaskError(f"{len(trial.optimizers)} optimizers: 'ps_async' takes tasks with one; use 'ps'")
        numbers = sum(parameter.numel() for parameter in servers.parameters_of(trial.optimizers[0]))
        if numbers < trial.team.size:
            raise TaskError(f"a model of {numbers} weights cannot be served by {trial.team.size} members; use 'single'")
        if trial.schedulers and trial.hooks.lr_step == "batch":
            raise TaskError("lr_step='batch': members of 'ps_async' count batches of their own; use lr_step='epoch'")
        if trial.hooks.weighs_batches:
            raise TaskError(
                "gradient accumulation by labels: members of 'ps_async' make updates of batches of their own; use 'ps'"
            )
        if trial.options.ema is not None:
            raise TaskError("ema: no member of 'ps_async' sees all updates, so there is no average of them; use 'ps'")

    def spread(self, trial: SpreadTrial) -> None:
        warn_of_batch_norm(trial)
        if trial.team.rank == 0:
            messages(TEAMS).warning(NOT_REPEATABLE)

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        mesh = trial.cache.part(Mesh)
        mesh.connect(trial.team)
        return _AsyncServerSteps(trial, mesh)

    def deal(self, batches: Iterable[Batch], size: int) -> Iterator[list[Share | None]]:
        """Deal whole batches to the members in turn."""
        return self.rounds(batches, size)
