"""The operations of CUDA that engines use to capture and replay steps, behind one seam.

Engines call nothing else of ``torch.cuda``. So a backend that records operations on the CPU can take the place of
CUDA, and tests run the bookkeeping of the engines on machines without a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import torch

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat

LANES = 32
"""Streams on which members take turns. One member cannot fill a device; this many can."""

ABREAST = 8
"""Updates of stacked members that run side by side, since each is too small to fill a device."""

Context = contextlib.AbstractContextManager[object]

OnLane = Callable[[int], Context]
"""Returns the context in which a piece of work is queued on its stream, by the number of the piece."""

PoolHandle = tuple[int, int]
"""What names the memory of several graphs: a value of ``torch.cuda.graph_pool_handle``, or a stand-in."""

Stream = Any
"""A queue of work: ``torch.cuda.Stream``, or a stand-in with ``wait_stream`` and ``wait_event``."""

Event = Any
"""A point in a stream, and the time at which the device comes to it: ``torch.cuda.Event``, or a stand-in."""


class Graph(Protocol):
    """Work that is captured once, between ``capture_begin`` and ``capture_end``, and then replayed."""

    def capture_begin(self, *, pool: PoolHandle | None = None, capture_error_mode: str) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


class CaptureBackend(Protocol):
    """The operations that captures need, each a single call of ``torch.cuda`` or of its stand-in."""

    #: The name of the random stream from which captured code draws.
    random_stream: str

    def captures_on(self, device: torch.device) -> bool:
        """Whether steps on a device can be captured."""

    def graph(self) -> Graph:
        """Return an empty graph."""

    def pool(self) -> PoolHandle:
        """Return memory that several graphs can use."""

    def allocating_from(self, pool: PoolHandle, device: torch.device) -> Context:
        """Return a context in which work that is not captured allocates from the memory of graphs."""

    def free_unused(self) -> None:
        """Give memory that was used by eager work, and is free now, back to the device."""

    def stream(self, device: torch.device) -> Stream:
        """Return a new stream."""

    def event(self, *, timing: bool = False) -> Event:
        """Return a new event; with ``timing``, one that notes its time."""

    def elapsed(self, begin: Event, end: Event) -> float | None:
        """Return the seconds between two events with timing; None if the device has not come to the second yet."""

    def current_stream(self, device: torch.device | None = None) -> Stream:
        """Return the stream on which work is queued at present."""

    def set_stream(self, stream: Stream) -> None:
        """Queue work on a stream from now on."""

    def on_stream(self, stream: Stream) -> Context:
        """Return a context in which work is queued on a stream."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has finished all work."""

    def clear_workspaces(self) -> None:
        """Let libraries allocate new workspaces for the next stream or capture."""

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a new generator for the random stream of a capture."""

    def own_generator(self, device: torch.device, generator: torch.Generator) -> Context:
        """Return a context in which captured code draws from ``generator``."""

    def random_state(self, device: torch.device) -> torch.Tensor:
        """Return the state of the process's generator for the device."""

    def set_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Set the state of the process's generator for the device."""


class CudaBackend:
    """CUDA itself."""

    random_stream = "device"

    def captures_on(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def graph(self) -> Graph:
        return torch.cuda.CUDAGraph()  # type: ignore[return-value]

    def pool(self) -> PoolHandle:
        return torch.cuda.graph_pool_handle()

    def allocating_from(self, pool: PoolHandle, device: torch.device) -> Context:
        return _compat.allocating_from(pool, device)

    def free_unused(self) -> None:
        torch.cuda.empty_cache()

    def stream(self, device: torch.device) -> Stream:
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def event(self, *, timing: bool = False) -> Event:
        return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]

    def elapsed(self, begin: Event, end: Event) -> float | None:
        return begin.elapsed_time(end) / 1000 if end.query() else None

    def current_stream(self, device: torch.device | None = None) -> Stream:
        return torch.cuda.current_stream(device)

    def set_stream(self, stream: Stream) -> None:
        torch.cuda.set_stream(stream)

    def on_stream(self, stream: Stream) -> Context:
        return torch.cuda.stream(stream)

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def clear_workspaces(self) -> None:
        _compat.clear_cublas_workspaces()

    def generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device)

    def own_generator(self, device: torch.device, generator: torch.Generator) -> Context:
        return _compat.own_generator(device, generator)

    def random_state(self, device: torch.device) -> torch.Tensor:
        return torch.cuda.get_rng_state(device)

    def set_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        torch.cuda.set_rng_state(state, device)


class Pool:
    """Memory that captures share which are never replayed at the same time.

    Memory is used again only by captures on the same stream. It is given back when the last graph that uses it is gone,
    so a graph that does nothing is kept.
    """

    def __init__(self, backend: CaptureBackend, device: torch.device) -> None:
        self._backend, self._device = backend, device
        self.handle = backend.pool()
        self.stream = backend.stream(device)
        self.places = itertools.count()
        self._keeper = backend.graph()
        backend.synchronize(device)
        with backend.on_stream(self.stream):
            self._keeper.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            torch.zeros(1, device=device)
            self._keeper.capture_end()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let eager steps, none of whose tensors outlasts the next replay, use the memory of the captures."""
        here, stream = self._backend.current_stream(), self.stream
        stream.wait_stream(here)
        try:
            with self._backend.on_stream(stream), self._backend.allocating_from(self.handle, self._device):
                yield
        finally:
            here.wait_stream(stream)
            self._backend.clear_workspaces()  # cuBLAS has taken one from the memory of the captures

    def failed(self) -> None:
        """Use another stream: one on which a capture has failed is of no further use."""
        self.stream = self._backend.stream(self._device)


class GraphCache:
    """The findings about captured steps that a worker keeps, and the memory that captures share."""

    def __init__(self) -> None:
        self.backend: CaptureBackend = CudaBackend()
        #: By kind of member: empty if captured steps have the bits of eager ones, else the reason against captures.
        self.verdicts: dict[Hashable, str] = {}
        #: By kind of member: the conditions that an eager step has read.
        self.conditions: dict[Hashable, tuple[bool, ...]] = {}
        #: Messages that were logged: each is logged once.
        self.told: set[str] = set()
        #: The tensors that captured steps read their batch from, by batch size, device, names, shapes and types.
        self.inputs: dict[Hashable, Batch] = {}
        self._streams: dict[torch.device, list[Stream]] = {}
        self._pools: dict[torch.device, dict[object, Pool]] = {}

    def pool(self, key: object, device: torch.device) -> Pool:
        """Return the memory of captures with a key on a device; the same each time.

        Captures with different keys may run at the same time. Those without a key, evaluations, never run while others
        do, and use the memory of others.
        """
        pools = self._pools.setdefault(device, {})
        if key is None and pools:
            return next(iter(pools.values()))
        if key not in pools:
            pools[key] = pools.pop(None) if None in pools else Pool(self.backend, device)
        return pools[key]

    def streams(self, device: torch.device) -> list[Stream]:
        """Return the streams on which captured steps run; the same ones each time."""
        return self._some(device, LANES)[:LANES]

    @contextlib.contextmanager
    def side_by_side(self, device: torch.device) -> Iterator[OnLane]:
        """Distribute updates over several streams, which start after earlier work and are joined in the end.

        The function provided selects the stream of a piece of work by its number. On a CPU it selects nothing.
        """
        with self._joined(device, self.streams(device)[:ABREAST]) as on_lane:
            yield on_lane

    @contextlib.contextmanager
    def abreast(self, device: torch.device, parts: int) -> Iterator[OnLane]:
        """Give each part of a flotilla a stream of its own, apart from those on which its captured steps run."""
        try:
            with self._joined(device, self._some(device, LANES + parts)[LANES:]) as on_lane:
                yield on_lane
        except BaseException:
            self.backend.synchronize(device)  # the memory of unfinished work is about to be freed
            raise

    @contextlib.contextmanager
    def _joined(self, device: torch.device, streams: list[Stream]) -> Iterator[OnLane]:
        if not self.backend.captures_on(device):
            yield lambda number: contextlib.nullcontext()
            return
        here = self.backend.current_stream(device)
        for stream in streams:
            stream.wait_stream(here)
        yield lambda number: self.backend.on_stream(streams[number % len(streams)])
        for stream in streams:
            here.wait_stream(stream)

    def _some(self, device: torch.device, count: int) -> list[Stream]:
        found = self._streams.setdefault(device, [])
        if self.backend.captures_on(device):
            found += [self.backend.stream(device) for _ in range(count - len(found))]
        return found
