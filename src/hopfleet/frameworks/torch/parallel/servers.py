"""Parameter servers: workers send gradients and get weights back, after every batch.

The weights are one flat vector, split into chunks of some kilobytes, which are assigned to the servers in turn. Each
chunk is independent: it arrives, is stepped by its own optimizer, and is returned while the next one is on its way, so
both directions of a link are in use. *Synchronous*: a chunk waits for the gradients of all workers, and takes one step
with their mean. *Asynchronous*: each gradient is a step at once, however the weights have changed since its worker last
received them.

On the wire, per step: one byte with the kind of request, the gradients of the server's chunks in their order, and in
return their weights. A worker that is done says so, or closes the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch.optim import Optimizer

from hopfleet.errors import TaskError

CHUNK = 1 << 14
"""Maximum numbers in a chunk: 64 kB in single precision."""

FOR_DEVICES = {"capturable", "foreach", "fused"}
"""Settings of optimizers that suit the device of a worker, and not the memory of the host, where servers update."""

STEP, READ, END = b"S", b"R", b"E"

State = Mapping[str, torch.Tensor]
"""The state of an optimizer by name: one flat vector over all weights, or one number."""


@dataclass(frozen=True, slots=True)
class ServerLayout:
    """Return which slices of the flat vector are on which server."""

    size: int
    servers: int

    def chunks(self, server: int) -> list[slice]:
        # Enough chunks of equal size for all servers to have equal work.
        share = -(-self.size // self.servers)
        length = -(-self.size // (self.servers * -(-share // CHUNK)))
        starts = range(0, self.size, length)
        return [slice(start, min(start + length, self.size)) for start in starts[server :: self.servers]]


def parameters_of(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """Return the weights that an optimizer updates. Raise TaskError unless servers can update them piece by piece."""
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    if type(optimizer) not in kinds or len(optimizer.param_groups) != 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TaskError(
            f"{type(optimizer).__name__} with {len(optimizer.param_groups)} groups: a parameter server steps each "
            f"weight by itself; use one group of {names}"
        )
    parameters: list[torch.nn.Parameter] = optimizer.param_groups[0]["params"]
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) > 1 or not all(parameter.is_floating_point() for parameter in parameters):
        raise TaskError(f"weights of types {', '.join(sorted(map(str, dtypes)))}: parameter servers take one type")
    return parameters


@torch.no_grad()
def flattened(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a vector of all numbers, in the memory of the host."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu()


@torch.no_grad()
def scatter(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Write the numbers of a vector into tensors."""
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def state_of(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return the state of an optimizer by name, flat; empty before its first step."""
    parameters = optimizer.param_groups[0]["params"]
    found: dict[str, torch.Tensor] = {}
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value) and name not in found:
                likes = [optimizer.state.get(one, {}).get(name, torch.zeros_like(one)) for one in parameters]
                found[name] = flattened(likes) if value.shape == parameter.shape else value.cpu().clone()
    return found


@torch.no_grad()
def put_state(optimizer: Optimizer, state: State) -> None:
    """Replace the state of an optimizer by one that ``state_of`` might have returned."""
    parameters = optimizer.param_groups[0]["params"]
    sizes = [parameter.numel() for parameter in parameters]
    parts = {name: torch.split(flat, sizes) for name, flat in state.items() if flat.ndim}
    for number, parameter in enumerate(parameters):
        optimizer.state[parameter] = {
            name: parts[name][number].view_as(parameter).to(parameter.device, copy=True) if flat.ndim else flat.clone()
            for name, flat in state.items()
        }


# ------------------------------------------------------------------------------------------------------- a worker


class Remote:
    """A stand-in for a trial's optimizer on a worker: a step sends the gradient and waits for the weights."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], servers: Sequence[socket.socket]) -> None:
        self._parameters = parameters
        self._weights = flattened(parameters)
        self._gradient = torch.zeros_like(self._weights)
        layout = ServerLayout(len(self._weights), len(servers))
        self._links = [
            _Link(connection, self._gradient, self._weights, layout.chunks(server))
            for server, connection in enumerate(servers)
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Send the gradients, and get the weights that the servers have made of them. No gradient counts as zeros."""
        self._gradient.copy_(flattened([torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]))
        self._ask(STEP)

    def read(self) -> None:
        """Fetch the current weights."""
        self._ask(READ)

    def end(self) -> None:
        """Tell the servers that there are no more gradients. The connections stay open."""
        for link in self._links:
            link.end()

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _ask(self, request: bytes) -> None:
        # All servers at once: each link has its own threads.
        for link in self._links:
            link.ask(request)
        for link in self._links:
            link.wait()
        scatter(self._weights, self._parameters)


class _Link:
    """A worker's connection to one server, with one thread that sends and one that receives."""

    def __init__(
        self, connection: socket.socket, gradient: torch.Tensor, weights: torch.Tensor, chunks: Sequence[slice]
    ) -> None:
        self._socket = connection
        self._out = [_bytes(gradient[chunk]) for chunk in chunks]
        self._into = [_bytes(weights[chunk]) for chunk in chunks]
        self._requests: _Slot[bytes] = _Slot()
        self._expected: _Slot[bytes] = _Slot()
        self._done: _Slot[OSError] = _Slot()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def ask(self, request: bytes) -> None:
        self._expected.put(request)
        self._requests.put(request)

    def wait(self) -> None:
        error = self._done.take()
        if error is not None:
            raise ConnectionError("a parameter server is gone") from error

    def end(self) -> None:
        self._requests.put(None)
        self._expected.put(None)
        for thread in self._threads:
            thread.join()
        self._socket.sendall(END)

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


Given = TypeVar("Given")


class _Slot(Generic[Given]):
    """A slot that passes one value from thread to thread."""

    def __init__(self) -> None:
        self._value: Given | None = None
        self._full = threading.Semaphore(0)

    def put(self, value: Given | None) -> None:
        self._value = value
        self._full.release()

    def take(self) -> Given | None:
        self._full.acquire()
        return self._value


# ------------------------------------------------------------------------------------------------------ a server


class Server:
    """The chunks of one trial on one server; answers all workers until they are done."""

    def __init__(self, optimizer: Optimizer, *, number: int, of: int, workers: int) -> None:
        weights, state = flattened(parameters_of(optimizer)), state_of(optimizer)
        self._size = len(weights)
        self._slices = ServerLayout(self._size, of).chunks(number)
        self._chunks = [
            _Chunk(weights[part].clone(), optimizer, {name: _part(flat, part) for name, flat in state.items()}, workers)
            for part in self._slices
        ]
        self._threads: list[threading.Thread] = []

    def start(self, connections: Sequence[socket.socket], *, synchronous: bool) -> None:
        """Begin to answer all workers, which have these connections in the order of their ranks."""
        for rank, connection in enumerate(connections):
            thread = threading.Thread(target=self._answer, args=(connection, rank, synchronous), daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self) -> None:
        """Return when all workers are done."""
        for thread in self._threads:
            thread.join()

    def whole(self) -> dict[str, torch.Tensor]:
        """Return the weights under an empty name, and the state by name, as flat vectors with zeros for other servers.

        Numbers that are not per weight are as they are.
        """
        found: dict[str, torch.Tensor] = {"": torch.zeros(self._size, dtype=self._chunks[0].weights.dtype)}
        for part, chunk in zip(self._slices, self._chunks, strict=True):
            found[""][part] = chunk.weights.detach()
            for name, value in chunk.state.items():
                if value.ndim:
                    found.setdefault(name, torch.zeros(self._size, dtype=value.dtype))[part] = value
                else:
                    found[name] = value
        return found

    def _answer(self, connection: socket.socket, rank: int, synchronous: bool) -> None:
        try:
            self._execute(connection, rank, synchronous)
        except (OSError, threading.BrokenBarrierError):
            # Other workers would wait forever for this worker's gradient.
            for chunk in self._chunks:
                chunk.abort()

    def _execute(self, connection: socket.socket, rank: int, synchronous: bool) -> None:
        while (request := connection.recv(1)) not in (b"", END):
            for chunk in self._chunks:
                if request == STEP:
                    receive(connection, chunk.inbox[rank])
                    (chunk.step_together if synchronous else chunk.step_alone)(rank)
                connection.sendall(chunk.outbox)


class _Chunk:
    """A part of the weights, its optimizer, and room for the gradient of every worker."""

    def __init__(self, weights: torch.Tensor, like: Optimizer, state: State, workers: int) -> None:
        self.weights = torch.nn.Parameter(weights)
        (settings,) = like.param_groups
        make: Callable[..., Optimizer] = type(like)
        self._optimizer = make([self.weights], lr=settings["lr"])
        self._optimizer.param_groups[0].update(
            {name: value for name, value in settings.items() if name not in FOR_DEVICES | {"params"}}
        )
        if state:
            self._optimizer.state[self.weights] = {name: value.clone() for name, value in state.items()}
        self._gradients = [torch.empty_like(weights) for _ in range(workers)]
        self.inbox = [_bytes(gradient) for gradient in self._gradients]
        self.outbox = _bytes(self.weights.detach())
        self._lock = threading.Lock()
        self._together = threading.Barrier(workers, action=self._step_with_mean)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The state of the optimizer by name."""
        found = self._optimizer.state[self.weights]
        return {name: value for name, value in found.items() if torch.is_tensor(value)}

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
        self.weights.grad = gradient
        self._optimizer.step()


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill ``into``; raise ConnectionError if the other side closes before that."""
    while len(into):
        count = connection.recv_into(into)
        if not count:
            raise ConnectionError("closed in the middle of a message")
        into = into[count:]


def _part(flat: torch.Tensor, part: slice) -> torch.Tensor:
    return flat[part] if flat.ndim else flat


def _bytes(tensor: torch.Tensor) -> memoryview:
    view: memoryview = tensor.view(torch.uint8).numpy().data
    return view
