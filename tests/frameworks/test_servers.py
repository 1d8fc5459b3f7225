"""Parameter servers: one worker trains plainly, and several workers lose no gradient."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.parallel import servers

Sockets = list[list[socket.socket]]
Connect = Callable[[int, int], tuple[Sockets, Sockets]]


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Return a function that connects workers and servers, and returns the connections of each of both."""
    with contextlib.ExitStack() as stack:

        def connect(workers: int, of: int) -> tuple[Sockets, Sockets]:
            pairs = [[socket.socketpair() for _ in range(of)] for _ in range(workers)]
            for end in (end for row in pairs for pair in row for end in pair):
                stack.enter_context(end)
            here = [[pair[0] for pair in row] for row in pairs]
            return here, [[row[server][1] for row in pairs] for server in range(of)]

        yield connect


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("synchronous", [True, False])
def test_one_worker_trains_plainly_in_one_unit_after_another(kind: str, synchronous: bool, connected: Connect) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(300, 150), torch.nn.Linear(150, 2))
    plain = copy.deepcopy(model)
    options = {"lr": 0.01, **({"momentum": 0.9} if kind == "SGD" else {"amsgrad": True})}
    wanted, optimizer = (getattr(torch.optim, kind)(one.parameters(), **options) for one in (plain, model))
    (mine,), theirs = connected(1, 2)
    x = torch.randn(2, 3, 8, 300)
    for unit in x:
        held = [servers.Server(optimizer, number=number, of=2, workers=1) for number in range(2)]
        for server, connections in zip(held, theirs, strict=True):
            server.start(connections, synchronous=synchronous)
        remote = servers.Remote(servers.parameters_of(optimizer), mine)
        for batch in unit:
            wanted.zero_grad()
            plain(batch).square().mean().backward()
            wanted.step()
            remote.zero_grad()
            model(batch).square().mean().backward()
            remote.step()
            for one, other in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.equal(one, other)
        remote.read()
        remote.end()
        parts = []
        for server in held:
            server.wait()
            parts.append(server.whole())
        servers.put_state(optimizer, {name: _sum(name, parts) for name in parts[0] if name})
    assert torch.equal(_sum("", parts), servers.flattened(list(plain.parameters())))
    for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
        for name, value in wanted.state[other].items():
            assert torch.equal(optimizer.state[parameter][name], value), name


def _sum(name: str, parts: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return parts[0][name] + parts[1][name] if parts[0][name].ndim else parts[0][name]


def test_no_gradient_of_several_workers_is_lost_or_counted_twice(connected: Connect) -> None:
    """Plain SGD adds up gradients in any order."""
    weights = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    mine, theirs = connected(3, 2)
    held = [servers.Server(optimizer, number=number, of=2, workers=3) for number in range(2)]
    for server, connections in zip(held, theirs, strict=True):
        server.start(connections, synchronous=False)

    def work(rank: int) -> None:
        own = torch.nn.Parameter(weights.detach().clone())
        remote = servers.Remote([own], mine[rank])
        for _ in range(40):
            own.grad = torch.full_like(own, -(10.0**rank))
            remote.step()
        remote.end()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in held:
        server.wait()
    found = held[0].whole()[""] + held[1].whole()[""]
    assert found.tolist() == [40 * 111.0] * 50


def test_a_worker_that_is_gone_holds_no_server_up(connected: Connect) -> None:
    weights = torch.nn.Parameter(torch.zeros(5))
    (mine, other), (theirs,) = connected(2, 1)
    server = servers.Server(torch.optim.SGD([weights], lr=1.0), number=0, of=1, workers=2)
    server.start(theirs, synchronous=True)
    remote = servers.Remote([weights], mine)
    weights.grad = torch.ones(5)
    for connection in other:
        connection.close()
    remote.end()
    server.wait()


@pytest.mark.parametrize(("size", "count"), [(1, 4), (10, 3), (99_000, 4), (1 << 20, 1), (1 << 20, 3)])
def test_chunks_cover_all_weights_once_and_evenly(size: int, count: int) -> None:
    chunks = [servers.ServerLayout(size, count).chunks(number) for number in range(count)]
    covered = sorted(index for part in chunks for chunk in part for index in range(chunk.start, chunk.stop))
    assert covered == list(range(size))
    loads = [sum(chunk.stop - chunk.start for chunk in part) for part in chunks]
    longest = max(chunk.stop - chunk.start for part in chunks for chunk in part)
    assert longest <= servers.CHUNK and max(loads) - min(loads) <= longest


def test_optimizers_and_weights_that_are_refused() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    with pytest.raises(TaskError, match=r"LBFGS with 1 groups.*use one group of SGD"):
        servers.parameters_of(torch.optim.LBFGS(weights[:1]))
    with pytest.raises(TaskError, match=r"weights of types torch.float32, torch.float64: .* take one type"):
        servers.parameters_of(torch.optim.SGD(weights, lr=1.0))
