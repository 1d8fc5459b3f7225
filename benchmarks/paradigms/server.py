"""A parameter server: workers send gradients and get weights back, after every batch.

The weights are one flat vector, split into chunks of some kilobytes, which are assigned to the servers in turn. Each
chunk is independent: it arrives, is stepped by its own optimizer, and is returned while the next one is on its way, so
both directions of a link are in use. *Synchronous*: a chunk waits for the gradients of all workers, and takes one step
with their mean. *Asynchronous*: each gradient is a step at once, however the weights have changed since its worker last
received them.

On the wire, per step: one byte with the kind of request, the gradients of the server's chunks in their order, and in
return their weights. A worker that is done closes the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hopfleet.errors import TaskError

CHUNK = 1 << 14
"""Maximum numbers in a chunk: 64 kB."""

STEP, READ = b"S", b"R"


@dataclass(frozen=True, slots=True)
class Layout:
    """Return which slices of the flat vector are on which server."""

    size: int
    servers: int

    def chunks(self, server: int) -> list[slice]:
        # Enough chunks of equal size for all servers to have equal work.
        share = -(-self.size // self.servers)
        length = -(-self.size // (self.servers * -(-share // CHUNK)))
        starts = range(0, self.size, length)
        return [slice(start, min(start + length, self.size)) for start in starts[server :: self.servers]]


def flattened(model: torch.nn.Module) -> torch.Tensor:
    """Copy all weights of a model into one vector, and make its parameters views of the vector."""
    parameters = list(model.parameters())
    if any(not parameter.requires_grad or parameter.dtype != torch.float32 for parameter in parameters):
        raise TaskError("a parameter server takes models whose parameters are all float32 and all trained")
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in _views(parameters, flat):
        parameter.data = part
    return flat


def _views(parameters: Sequence[torch.Tensor], flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [(parameter, part.view_as(parameter)) for parameter, part in zip(parameters, parts, strict=True)]


# ------------------------------------------------------------------------------------------------------- a worker


class Remote:
    """A stand-in for a trial's optimizer on a worker: a step sends the gradient and waits for the weights."""

    def __init__(self, model: torch.nn.Module, servers: Sequence[tuple[str, int]], rank: int) -> None:
        self._parameters = list(model.parameters())
        self._weights = flattened(model)
        self._gradient = torch.zeros_like(self._weights)
        layout = Layout(len(self._weights), len(servers))
        self._links = [
            _Link(address, rank, self._gradient, self._weights, layout.chunks(server))
            for server, address in enumerate(servers)
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Make gradients views of one vector, so that nothing is copied to send them."""
        self._gradient.zero_()
        for parameter, part in _views(self._parameters, self._gradient):
            parameter.grad = part

    def step(self) -> None:
        self._ask(STEP)

    def read(self) -> None:
        """Fetch the current weights."""
        self._ask(READ)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _ask(self, request: bytes) -> None:
        # All servers at once: each link has its own threads.
        for link in self._links:
            link.ask(request)
        for link in self._links:
            link.wait()


class _Link:
    """A worker's connection to one server, with one thread that sends and one that receives."""

    def __init__(
        self,
        address: tuple[str, int],
        rank: int,
        gradient: torch.Tensor,
        weights: torch.Tensor,
        chunks: Sequence[slice],
    ) -> None:
        self._socket = _tuned(socket.create_connection(address, timeout=600))
        self._socket.sendall(rank.to_bytes(2, "big"))
        self._out = [_bytes(gradient[chunk]) for chunk in chunks]
        self._into = [_bytes(weights[chunk]) for chunk in chunks]
        self._requests = _Slot()
        self._expected = _Slot()
        self._done = _Slot()
        for target in (self._send, self._receive):
            threading.Thread(target=target, daemon=True).start()

    def ask(self, request: bytes) -> None:
        self._expected.put(request)
        self._requests.put(request)

    def wait(self) -> None:
        error = self._done.take()
        if error is not None:
            raise ConnectionError("a parameter server is gone") from error

    def close(self) -> None:
        self._requests.put(None)
        self._expected.put(None)
        self._socket.close()

    def _send(self) -> None:
        while (request := self._requests.take()) is not None:
            try:
                self._socket.sendall(request)
                for part in self._out if request == STEP else ():
                    self._socket.sendall(part)
            except OSError:
                return  # the receiver reports it

    def _receive(self) -> None:
        while self._expected.take() is not None:
            try:
                for part in self._into:
                    receive(self._socket, part)
            except OSError as error:
                self._done.put(error)
                return
            self._done.put(None)


class _Slot:
    """A slot that passes one value from thread to thread."""

    def __init__(self) -> None:
        self._value: Any = None
        self._full = threading.Semaphore(0)

    def put(self, value: Any) -> None:
        self._value = value
        self._full.release()

    def take(self) -> Any:
        self._full.acquire()
        return self._value


# ------------------------------------------------------------------------------------------------------ a server


class Server:
    """The chunks of one trial on one server; answers all workers until they close."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, number: int, of: int, workers: int
    ) -> None:
        weights = flattened(model)
        chunks = Layout(len(weights), of).chunks(number)
        self._chunks = [_Chunk(weights[chunk].clone(), optimizer, workers) for chunk in chunks]
        self._workers = workers

    def serve(self, listener: socket.socket, *, synchronous: bool) -> None:
        """Accept the connections of all workers, and return when they have closed."""
        threads = []
        for _ in range(self._workers):
            connection = _tuned(listener.accept()[0])
            thread = threading.Thread(target=self._answer, args=(connection, synchronous), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def _answer(self, connection: socket.socket, synchronous: bool) -> None:
        try:
            self._execute(connection, synchronous)
        except (OSError, threading.BrokenBarrierError):
            # Other workers would wait forever for this worker's gradient.
            for chunk in self._chunks:
                chunk.abort()
        finally:
            connection.close()

    def _execute(self, connection: socket.socket, synchronous: bool) -> None:
        rank = int.from_bytes(connection.recv(2, socket.MSG_WAITALL), "big")
        while request := connection.recv(1):
            for chunk in self._chunks:
                if request == STEP:
                    receive(connection, chunk.inbox[rank])
                    (chunk.step_together if synchronous else chunk.step_alone)(rank)
                connection.sendall(chunk.outbox)


class _Chunk:
    """A part of the weights, its optimizer, and room for the gradient of every worker."""

    def __init__(self, weights: torch.Tensor, like: torch.optim.Optimizer, workers: int) -> None:
        self._weights = torch.nn.Parameter(weights)
        self._optimizer = elementwise(like, self._weights)
        self._gradients = [torch.empty_like(weights) for _ in range(workers)]
        self.inbox = [_bytes(gradient) for gradient in self._gradients]
        self.outbox = _bytes(self._weights.detach())
        self._lock = threading.Lock()
        self._together = threading.Barrier(workers, action=self._step_with_mean)

    def step_alone(self, rank: int) -> None:
        with self._lock:
            self._step(self._gradients[rank])

    def step_together(self, rank: int) -> None:
        self._together.wait()

    def abort(self) -> None:
        self._together.abort()

    def _step_with_mean(self) -> None:
        # In the order of ranks, not of arrival: the sum is the same to the bit.
        mean = self._gradients[0].clone()
        for gradient in self._gradients[1:]:
            mean += gradient
        mean /= len(self._gradients)
        self._step(mean)

    def _step(self, gradient: torch.Tensor) -> None:
        self._weights.grad = gradient
        self._optimizer.step()


def elementwise(like: torch.optim.Optimizer, weights: torch.nn.Parameter) -> torch.optim.Optimizer:
    """Return an optimizer of the same kind for a part of the weights; raise unless both are equivalent."""
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    if type(like) not in kinds or len(like.param_groups) != 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TaskError(
            f"{type(like).__name__} with {len(like.param_groups)} groups: a parameter server steps each weight by "
            f"itself; use one group of {names}"
        )
    settings = {name: value for name, value in like.param_groups[0].items() if name in like.defaults}
    return type(like)([weights], **settings)


def listen(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port), backlog=64)


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill ``into``; raise ConnectionError if the other side closes before that."""
    while len(into):
        count = connection.recv_into(into)
        if not count:
            raise ConnectionError("closed in the middle of a message")
        into = into[count:]


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
