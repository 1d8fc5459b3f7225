"""Data parallelism with parameter servers, synchronous or not: the trials, one at a time, and where the servers are.

The servers are separate processes, one on every host by default, so that equal links carry equal loads. With a single
server, all traffic goes through the link of its host.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.paradigms.allreduce import check_even
from benchmarks.paradigms.site import Outcome, Site
from hopfleet.data import Dataset
from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.parallel import servers


@dataclass(frozen=True, slots=True)
class Plan:
    """``synchronous``: one step for the gradients of all. ``servers``: number of hosts with a server; None for all."""

    synchronous: bool
    servers: int | None = None

    def addresses(self, site: Site) -> Sequence[tuple[str, int]]:
        return [(address, site.port + 1) for address in site.addresses[: self.servers]]

    def load(self, site: Site) -> tuple[Dataset, Dataset]:
        data = site.fetch("train", site.own), site.fetch("valid", site.own)
        if self.synchronous:
            check_even(data[0], site)
        return data

    def train(self, site: Site, data: tuple[Dataset, Dataset]) -> list[Outcome]:
        process = self._start(site)
        # No host may connect before all servers listen.
        dist.barrier()
        found = [self._train(site, number, data) for number in range(site.workload.trials)]
        if process is not None:
            process.join()
        return found if site.rank == 0 else []

    def _start(self, site: Site) -> multiprocessing.process.BaseProcess | None:
        """Start this host's server, if it has one, and wait until it listens.

        A fork has PyTorch at once, and shares its pages. Forking is safe here: a server computes with one thread and
        does not use the group.
        """
        servers = self.addresses(site)
        if site.rank >= len(servers):
            return None
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self, site, theirs), daemon=True)
        process.start()
        theirs.close()
        ours.recv()
        return process

    def _train(self, site: Site, number: int, data: tuple[Dataset, Dataset]) -> Outcome:
        session = site.session(number)
        train, valid = data
        if session.schedulers or len(session.optimizers) != 1:
            raise TaskError("a parameter server takes tasks with one optimizer and no schedule")
        optimizers = session.optimizers
        parameters = servers.parameters_of(optimizers[0])
        remote = servers.Remote(parameters, [_call(address, site.rank) for address in self.addresses(site)])
        outcome = Outcome(number, [])
        for epoch in range(1, site.workload.epochs + 1):
            session.optimizers, session.hooks.optimizer = [remote], remote  # type: ignore[list-item]
            for partition in site.own:
                session.train(site.batches(session, train, partition, epoch), last=partition == site.own[-1])
            session.optimizers, session.hooks.optimizer = optimizers, optimizers[0]
            # All hosts must finish the epoch before any of them evaluates.
            dist.barrier()
            remote.read()
            outcome.epochs.append(site.evaluate_together(session, valid, epoch))
        remote.close()
        if site.rank == 0:
            site.deliver(session, number)
        return outcome


def _serve(plan: Plan, site: Site, ready: multiprocessing.connection.Connection) -> None:
    torch.set_num_threads(1)
    with socket.create_server(plan.addresses(site)[site.rank], backlog=64) as listener:
        ready.send(None)
        for number in range(site.workload.trials):
            session = site.session(number)
            shard = servers.Server(
                session.optimizers[0], number=site.rank, of=len(plan.addresses(site)), workers=site.hosts
            )
            serve(shard, listener, site.hosts, synchronous=plan.synchronous)


def serve(shard: servers.Server, listener: socket.socket, workers: int, *, synchronous: bool) -> None:
    """Answer all workers until they have closed their connections."""
    connections: dict[int, socket.socket] = {}
    while len(connections) < workers:
        connection = _tuned(listener.accept()[0])
        connections[int.from_bytes(connection.recv(2, socket.MSG_WAITALL), "big")] = connection
    shard.start([connections[rank] for rank in range(workers)], synchronous=synchronous)
    shard.wait()
    for connection in connections.values():
        connection.close()


def _call(address: tuple[str, int], rank: int) -> socket.socket:
    """Connect a worker to a server."""
    connection = _tuned(socket.create_connection(address, timeout=600))
    connection.sendall(rank.to_bytes(2, "big"))
    return connection


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
