"""A flotilla on CUDA: the step of each member is captured once and replayed, on a stream of its own.

A small model keeps a GPU waiting for the processor, which launches one kernel after another. A captured step, or the
evaluation of a batch, is launched at once, and those of all members run side by side. The arithmetic is that of the
step that was captured, so the bits are those of eager training; where that may not be so, it is found out:

* the first step of each kind of member is replayed, and taken eagerly from the same state, a few times, and compared;
* a step that cannot be captured (it looks at values, draws random numbers on the host, has an optimizer that computes
  on the host) is taken as ``together`` does it, and the reason is told once.

A capture holds as long as nothing that it reads has moved: the same tensors, the same settings of the optimizer.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, Batches, Result
from hopfleet.frameworks.torch.engines.interleaved import Eager, Measures, Member
from hopfleet.frameworks.torch.steps import Steps, rows_of
from hopfleet.frameworks.torch.task import TorchSession

CHECKS = 3
"""How often the first step of a kind of member is replayed and compared."""

LANES = 32
"""Streams on which members take their turns. A member alone cannot fill a device; so many can."""

ABREAST = 8
"""Updates of stacked members that are made side by side: each is too small for a device."""

SIZES = 3
"""Captures that a member keeps, for batches of as many sizes: the last batch of a partition is often a smaller one."""

DEVICE = frozenset({"device"})

UNEQUAL = "replayed steps do not have the bits of eager ones"
ADVICE = "; build the optimizer with capturable=True or fused=True"

#: Kinds of members whose captured steps were looked at: nothing, or why they are not used.
_verdicts: dict[Hashable, str] = {}
#: Where captured steps find their batch, by device, names, shapes and types.
_inputs: dict[Hashable, Batch] = {}


@dataclass(slots=True)
class Capture:
    """A step, ready to be replayed. Each replay leaves what came of it in ``values``."""

    graph: Any
    #: The random stream that it draws from.
    generator: Any
    values: Mapping[str, Any]
    #: What it was made for; see ``_footing``.
    footing: Hashable = None


class Fleet:
    """Captures that are replayed together, on a few streams, and what came of each batch."""

    def __init__(self, crew: Mapping[Member, Capture], room: int, device: Any) -> None:
        self._crew = crew
        self._ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        captures = list(crew.values())
        streams = _streams(str(device))[: len(captures)]
        self._lanes: list[tuple[Any, Any, list[Any]]] = [
            (stream, torch.cuda.Event(), [capture.graph for capture in captures[number :: len(streams)]])  # type: ignore[no-untyped-call]
            for number, stream in enumerate(streams)
        ]
        #: Values of one type lie side by side, a row for each batch.
        self._values: dict[Any, list[Any]] = {}
        self._columns: list[dict[str, tuple[Any, int]]] = []
        for capture in captures:
            places: dict[str, tuple[Any, int]] = {}
            self._columns.append(places)
            for name, value in capture.values.items():
                of_type = self._values.setdefault(value.dtype, [])
                places[name] = (value.dtype, len(of_type))
                of_type.append(value)
        self._tables = {
            dtype: torch.empty(room, len(values), dtype=dtype, device=device) for dtype, values in self._values.items()
        }
        self._rows: list[int] = []

    def step(self, rows: int) -> None:
        """One replay of each."""
        here = torch.cuda.current_stream()
        self._ready.record(here)
        for stream, done, graphs in self._lanes:
            stream.wait_event(self._ready)
            torch.cuda.set_stream(stream)
            for graph in graphs:
                graph.replay()
            done.record(stream)
        torch.cuda.set_stream(here)
        # Convolutions replayed on several streams that nobody joins have been seen to hang.
        for _, done, _ in self._lanes:
            here.wait_event(done)
        for dtype, values in self._values.items():
            torch.cat(values, out=self._tables[dtype][len(self._rows)])
        self._rows.append(rows)

    def end(self) -> None:
        """Let every member note what came of its steps."""
        tables = {dtype: table[: len(self._rows)].cpu() for dtype, table in self._tables.items()}
        for member, columns in zip(self._crew, self._columns, strict=True):
            _work(member).note({name: tables[dtype][:, at] for name, (dtype, at) in columns.items()}, *self._rows)


class Graphs(Eager):
    """Captured steps where possible, eager ones where not."""

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        return self._shared(super().train(batches, last=last))

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        return self._shared(super().evaluate(batches, seed=seed))

    def _shared(self, results: list[Result]) -> list[Result]:
        # Nobody knows how long each one's kernels took.
        self.shares = [1 / len(results)] * len(results)
        return results

    def _go(self, members: Sequence[Member], batches: Batches) -> None:
        self._room = len(batches)
        self._captures: dict[Member, Capture] = {}
        self._fleet: Fleet | None = None
        #: What batches of captured steps look like, and how many batches there were.
        self._key: Hashable | None = None
        self._seen = 0
        #: Members whose captures are of earlier units, and those whose last step, on a smaller batch, has none yet.
        self._steady: list[Member] = []
        self._late: list[Member] = []
        super()._go(members, batches)
        self._land()

    # -------------------------------------------------------------------------------------------- each batch

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        device = self.sessions[0].device
        key = batch_key(batch, device)
        self._seen += 1
        if self._key is None:
            self._key = key
            self._board(members)
            self._steady = [] if self.sessions[0].task.lr_step == "batch" else list(self._captures)
        elif key != self._key and self._seen == self._room and self._steady:
            self._land()
            self._key = key
            self._board(members)
            self._late = [member for member in self._steady if member not in self._captures]
        if key != self._key or not self._captures:
            self._land()
            return members
        for name, value in _inputs[key].items():
            value.copy_(batch[name], non_blocking=True)
        if self._fleet is None:
            self._fleet = Fleet(dict(self._captures), self._room, device)
        self._fleet.step(rows_of(batch))
        if self.sessions[0].task.lr_step == "batch":
            for member in self._captures:
                if isinstance(member.work, Steps):
                    member.session.activate()
                    member.work.step_schedule()
        return [member for member in members if member not in self._captures]

    def _board(self, members: list[Member]) -> None:
        """Take up the captures of earlier units that still hold."""
        for member in members:
            capture = member.session.aboard.get(type(member.work), {}).get(self._key)
            if capture is not None and capture.footing == _footing(member, self._key):
                self._take_up(member, capture)

    def _step(self, members: Sequence[Member], batch: Batch) -> None:
        super()._step(members, batch)
        self._watch([member for member in self._late if member.aboard], batch)

    def _take_up(self, member: Member, capture: Capture) -> None:
        self._rest()
        capture.generator.set_state(member.random["device"])
        member.draws = frozenset()
        self._captures[member] = capture

    def _rest(self) -> None:
        if self._fleet is not None:
            self._fleet.end()
            self._fleet = None

    def _land(self) -> None:
        """Go on eagerly from where the captured steps have come to."""
        self._rest()
        for member, capture in self._captures.items():
            member.random["device"] = capture.generator.get_state()
            member.draws = DEVICE
        self._captures = {}

    # ------------------------------------------------------------------------------------------ a new capture

    def _watch(self, members: list[Member], batch: Batch) -> None:
        key = self._key
        for member in members:
            session = member.session
            kind = (type(member.work), _kind(session), key)
            if _verdicts.get(kind):
                continue
            before = None if kind in _verdicts else _snapshot(session)
            try:
                if key is None:
                    raise Refused("a batch has a column that is not a tensor")
                if key not in _inputs:
                    _inputs[key] = {name: torch.empty_like(value) for name, value in batch.items()}
                for name, value in _inputs[key].items():
                    value.copy_(batch[name])
                capture = _captured(member, _inputs[key])
                if before is not None:
                    _compare(member, capture, _inputs[key], before)
            except Refused as reason:
                if str(reason) not in _verdicts.values():
                    sys.stderr.write(f"hopfleet: steps are not captured, and trials train in turn: {reason}\n")
                _verdicts[kind] = str(reason)
                if before is not None:
                    _restore(session, before)  # what was done on the host, to no avail
                continue
            _verdicts[kind] = ""
            capture.footing = _footing(member, key)
            kept = session.aboard.setdefault(type(member.work), {})
            kept[key] = capture
            if len(kept) > SIZES:
                del kept[next(iter(kept))]
            self._take_up(member, capture)


@contextlib.contextmanager
def side_by_side(device: Any) -> Iterator[Callable[[int], contextlib.AbstractContextManager[Any]]]:
    """Work on several streams, which begin after what was done before and are joined in the end; not so on a CPU."""
    if device.type != "cuda":
        yield lambda number: contextlib.nullcontext()
        return
    here, streams = torch.cuda.current_stream(device), _streams(str(device))[:ABREAST]
    for stream in streams:
        stream.wait_stream(here)
    yield lambda number: torch.cuda.stream(streams[number % ABREAST])
    for stream in streams:
        here.wait_stream(stream)


@functools.cache
def _streams(device: str) -> list[Any]:
    return [torch.cuda.Stream(device) for _ in range(LANES)]  # type: ignore[no-untyped-call]


class Refused(Exception):
    """Why a step is not captured."""


def _work(member: Member) -> Steps | Measures:
    assert isinstance(member.work, Steps | Measures)
    return member.work


def _captured(member: Member, inputs: Batch) -> Capture:
    """The member's step on ``inputs``. Nothing of it is done yet."""
    session = member.session
    if member.draws - DEVICE:
        raise Refused(f"random numbers are drawn on the host ({', '.join(sorted(member.draws - DEVICE))})")
    if session.scaler is not None:
        raise Refused("a gradient scaler looks at values")
    if session.options.accumulate > 1:
        raise Refused("gradients are gathered over several batches")
    device = session.device
    generator = torch.Generator(device)
    generator.set_state(member.random["device"])
    work = _work(member)
    values: dict[str, Any] = {}
    # A stream on which a capture has failed is of no further use.
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    session.activate()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with own_generator(device, generator), _fused(session), torch.cuda.stream(stream), capturing(graph):
            for name, value in work.take(dict(inputs)).items():
                if not torch.is_tensor(value) or not value.is_cuda or value.numel() != 1:
                    raise Refused(f"{name!r} is not a single number on the device")
                values[name] = value.reshape(1)
    except Refused:
        torch.cuda.synchronize(device)
        raise
    except Exception as error:
        torch.cuda.synchronize(device)
        raise Refused(describe(error) + (ADVICE if "capturable" in str(error) else "")) from error
    torch.cuda.current_stream().wait_stream(stream)
    return Capture(graph, generator, values)


@contextlib.contextmanager
def own_generator(device: Any, generator: Any) -> Iterator[None]:
    """Let what is captured draw from ``generator`` where it draws from the device's own."""
    default = torch.cuda.default_generators[device.index or 0]
    kept = default.graphsafe_get_state()
    default.graphsafe_set_state(generator)
    try:
        yield
    finally:
        default.graphsafe_set_state(kept)


@contextlib.contextmanager
def _fused(session: TorchSession) -> Iterator[None]:
    """A fused optimizer counts on the device anyway, and must say so to be captured."""
    groups = [group for one in session.optimizers for group in one.param_groups]
    fused = [group for group in groups if group.get("fused") and group.get("capturable") is False]
    for group in fused:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in fused:
            group["capturable"] = False


@contextlib.contextmanager
def capturing(graph: Any) -> Iterator[None]:
    """Capture what is done on the current stream, with a scratch pad of its own for products of matrices.

    Else cuBLAS would give all that is captured on one stream the same one, and what is captured may run side by side.
    Nothing is collected as garbage meanwhile: an old capture that goes would spoil this one.
    """
    collects = gc.isenabled()
    gc.disable()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        # Other threads load batches and write checkpoints meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        except Exception:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        if collects:
            gc.enable()


def _compare(member: Member, capture: Capture, inputs: Batch, before: list[Any]) -> None:
    """Raise Refused unless replays do what eager steps do. Leaves the session as it was before the capture."""
    session, work = member.session, _work(member)
    state = member.random["device"]
    values: list[Any] = []
    for _ in range(CHECKS):
        capture.graph.replay()
        values += [value.clone() for value in capture.values.values()]
    replayed = [*_snapshot(session), *values, capture.generator.get_state()]
    _restore(session, before)
    found: list[Mapping[str, Any]] = []
    kept, member.random["device"] = member.draws, state
    member.draws = DEVICE
    for _ in range(CHECKS):
        member.do(lambda: found.append(work.take(dict(inputs))))
    member.draws = kept
    if isinstance(member.result, Exception):
        error, member.result = member.result, {}
        raise Refused(describe(error))
    values = [one[name].reshape(1) for one in found for name in capture.values]
    eager = [*_snapshot(session), *values, member.random["device"]]
    member.random["device"] = state
    _restore(session, before)
    if len(eager) != len(replayed) or not all(map(_same_bits, eager, replayed)):
        raise Refused(UNEQUAL)


def _same_bits(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _tensors(session: TorchSession) -> list[Any]:
    """All that a step may change: weights, buffers and what optimizers have gathered."""
    found = _weights(session)
    for optimizer in session.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                found += [state[name] for name in sorted(state) if torch.is_tensor(state[name])]
    return found


def _weights(session: TorchSession) -> list[Any]:
    return [*session.model.parameters(), *session.model.buffers(), *session.average]


def _snapshot(session: TorchSession) -> list[Any]:
    return [tensor.detach().clone() for tensor in _tensors(session)]


def _restore(session: TorchSession, values: Sequence[Any]) -> None:
    with torch.no_grad():
        for tensor, value in zip(_tensors(session), values, strict=False):
            tensor.copy_(value)


def batch_key(batch: Batch, device: Any) -> Hashable | None:
    """What batches must have in common to be put in the same place."""
    if not all(torch.is_tensor(value) for value in batch.values()):
        return None
    return device, tuple((name, tuple(value.shape), value.dtype) for name, value in batch.items())


def _kind(session: TorchSession) -> Hashable:
    """What members must have in common for a comparison of one to speak for the others."""
    optimizers = [(type(one), _settings(one, of=bool)) for one in session.optimizers]
    return type(session.task), str(session.model), str(optimizers), str(session.device)


def _footing(member: Member, key: Hashable) -> Hashable:
    """All that what is captured relies on: an evaluation has nothing to do with optimizers."""
    session = member.session
    if isinstance(member.work, Measures):
        return key, tuple(tensor.data_ptr() for tensor in _weights(session))
    places = tuple(tensor.data_ptr() for tensor in _tensors(session))
    return key, places, str([_settings(optimizer) for optimizer in session.optimizers])


def _settings(optimizer: Any, of: type = object) -> list[dict[str, Any]]:
    """The settings of each group, but for tensors on the device, which are read where they are."""
    return [
        {
            name: value.item() if torch.is_tensor(value) else value
            for name, value in group.items()
            if name != "params" and isinstance(value, of) and not (torch.is_tensor(value) and value.is_cuda)
        }
        for group in optimizer.param_groups
    ]
