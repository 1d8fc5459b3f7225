"""A stand-in for CUDA graphs that works on the CPU, so that engines with captures are tested without a GPU.

A graph records the operations of a step, beneath autograd, and repeats them in place: every result is written into the
memory of the capture. So a replay behaves as on CUDA: numbers of the host, such as a learning rate, are those
of the capture; tensors are read where they were; a step that reads values on the host cannot be captured; a capture
itself computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch._compat import TorchDispatchMode, memory_of
from hopfleet.frameworks.torch._operations import WrapperTensor
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache

READS_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def tensors_in(values: object) -> Iterator[torch.Tensor]:
    """Return the tensors in nested lists and tuples."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)


class Recording(TorchDispatchMode):
    """A mode that notes operations, and undoes in the end what they wrote into tensors from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Callable[[], None]] = []
        self._outside: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._inside: set[int] = set()
        #: Tensors of the capture stay alive, so that no memory is used twice.
        self._kept: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if any(issubclass(one, WrapperTensor) for one in types):
            return NotImplemented  # what it stands for comes here next
        kwargs = kwargs or {}
        given = list(tensors_in((*args, *kwargs.values())))
        if given and READS_VALUES & set(func.tags):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        for tensor in given:
            self._remember(tensor)
        found = func(*args, **kwargs)
        results = list(tensors_in(found))
        memory = {memory_of(tensor) for tensor in given}
        fresh = [tensor for tensor in results if memory_of(tensor) not in memory]
        self._inside |= {memory_of(tensor) for tensor in fresh}
        self._kept.append((args, kwargs, found))
        if fresh or func._schema.is_mutable:
            self.operations.append(lambda: self._repeat(func, args, kwargs, results, memory))
        return found

    def _remember(self, tensor: torch.Tensor) -> None:
        key = memory_of(tensor)
        if key not in self._inside and key not in self._outside:
            storage = tensor.untyped_storage()
            self._outside[key] = storage, storage.clone()

    @staticmethod
    def _repeat(func: Any, args: Any, kwargs: Any, results: Sequence[torch.Tensor], memory: set[int]) -> None:
        again = tensors_in(func(*args, **kwargs))
        for old, new in zip(results, again, strict=True):
            if memory_of(old) not in memory:
                old.copy_(new)

    def undo(self) -> None:
        """Restore the tensors from outside."""
        for storage, before in self._outside.values():
            storage.copy_(before)
        self._outside.clear()


class RecordedGraph:
    """A graph of operations on the CPU."""

    def __init__(self, backend: RecordedCapture) -> None:
        self._backend = backend
        self._recording = Recording()
        self._generator: torch.Generator | None = None
        self.replays = 0

    def capture_begin(self, *, pool: object = None, capture_error_mode: str) -> None:
        self.pool = pool
        assert capture_error_mode == "thread_local", "other threads load batches meanwhile"
        assert not self._recording.operations, "a graph is captured once"
        self._generator = self._backend.drawn_from
        self._recording.__enter__()

    def capture_end(self) -> None:
        self._recording.__exit__(None, None, None)
        self._recording.undo()
        self._backend.captures += 1

    def replay(self) -> None:
        assert self._generator is not None, "a capture comes first"
        self._backend.queue(f"replay on {self._backend.current.number}")
        self.replays += 1
        self._backend.now += len(self._recording.operations)
        with drawing_from(self._generator, advance=True), torch.no_grad():
            for operation in self._recording.operations:
                operation()


@contextlib.contextmanager
def drawing_from(generator: torch.Generator, *, advance: bool) -> Iterator[None]:
    """Let code draw from ``generator`` instead of the process's own; without ``advance`` leave its state as it is."""
    own = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        if advance:
            generator.set_state(torch.get_rng_state())
        torch.set_rng_state(own)


class RecordedStream:
    """A stream that knows how far the work of other streams was when it last waited for them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.position = 0
        self.known: dict[RecordedStream, int] = {}

    def learn(self, known: dict[RecordedStream, int]) -> None:
        for stream, position in known.items():
            self.known[stream] = max(position, self.known.get(stream, 0))

    def wait_stream(self, other: RecordedStream) -> None:
        self.learn({**other.known, other: other.position})

    def wait_event(self, event: RecordedEvent) -> None:
        self.learn(event.known)


class RecordedEvent:
    """The work of a stream at some time, and the work that it had waited for."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self.known: dict[RecordedStream, int] = {}
        self._clock = clock
        self.time: float | None = None

    def record(self, stream: RecordedStream) -> None:
        self.known = {**stream.known, stream: stream.position}
        self.time = None if self._clock is None else self._clock()


class RecordedCapture:
    """A backend that captures steps on the CPU. Dropout draws from the random stream of the host."""

    random_stream = "torch"

    def __init__(self) -> None:
        self.main = RecordedStream(0)
        self.current = self.main
        self.streams = [self.main]
        self.drawn_from: torch.Generator | None = None
        #: Captures that ended, failed ones included.
        self.captures = 0
        self.workspaces_cleared = 0
        #: Pools that were made, those that eager work was allocated from, and how often unused memory was given back.
        self.pools = 0
        self.lent: list[tuple[int, int]] = []
        self.freed = 0
        #: The time of the device, which a replay takes by the number of its operations; whether events can be read.
        self.now = 0.0
        self.ready = True
        self.measured = 0
        #: Replays and synchronizations, in their order.
        self.log: list[str] = []

    def captures_on(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def graph(self) -> RecordedGraph:
        return RecordedGraph(self)

    def pool(self) -> tuple[int, int]:
        self.pools += 1
        return (0, self.pools)

    @contextlib.contextmanager
    def allocating_from(self, pool: tuple[int, int], device: torch.device) -> Iterator[None]:
        self.lent.append(pool)
        yield

    def free_unused(self) -> None:
        self.freed += 1

    def stream(self, device: torch.device) -> RecordedStream:
        self.streams.append(RecordedStream(len(self.streams)))
        return self.streams[-1]

    def event(self, *, timing: bool = False) -> RecordedEvent:
        return RecordedEvent((lambda: self.now) if timing else None)

    def elapsed(self, begin: RecordedEvent, end: RecordedEvent) -> float | None:
        assert begin.time is not None and end.time is not None, "events without timing"
        self.measured += 1
        return end.time - begin.time if self.ready else None

    def current_stream(self, device: torch.device | None = None) -> RecordedStream:
        self.current.position += 1  # for the work since the last call
        return self.current

    def set_stream(self, stream: RecordedStream) -> None:
        self.current = stream

    @contextlib.contextmanager
    def on_stream(self, stream: RecordedStream) -> Iterator[None]:
        before, self.current = self.current, stream
        stream.position += 1
        try:
            yield
        finally:
            self.current = before

    def queue(self, work: str) -> None:
        """Note work on the current stream, which must have waited for the work before."""
        if self.current is not self.main:
            assert self.current.known.get(self.main) == self.main.position, "a stream did not wait for earlier work"
        self.current.position += 1
        self.log.append(work)

    def unjoined(self) -> list[RecordedStream]:
        """Return the streams with work that the main stream has not waited for."""
        return [one for one in self.streams[1:] if one.position > self.main.known.get(one, 0)]

    def synchronize(self, device: torch.device) -> None:
        for stream in self.streams[1:]:
            self.main.wait_stream(stream)
        self.log.append("synchronize")

    def clear_workspaces(self) -> None:
        self.workspaces_cleared += 1

    def generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device)

    @contextlib.contextmanager
    def own_generator(self, device: torch.device, generator: torch.Generator) -> Iterator[None]:
        self.drawn_from = generator
        try:
            with drawing_from(generator, advance=False):
                yield
        finally:
            self.drawn_from = None

    def random_state(self, device: torch.device) -> torch.Tensor:
        return torch.get_rng_state()

    def set_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        torch.set_rng_state(state)


def recorded_capture(cache: EngineCache) -> RecordedCapture:
    """Put the stand-in in place of CUDA for the sessions that share a cache."""
    backend = RecordedCapture()
    cache.part(GraphCache).backend = backend
    return backend
