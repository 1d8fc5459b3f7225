"""CUDA graphs of single steps: how a step is captured, compared with the eager step, and kept while nothing moves.

A captured step is valid while everything that it reads stays in place: the same tensors, the same settings of the
optimizer. Its arithmetic is that of the eager step; where that may not hold, a comparison finds out.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.capturable import CapturableUpdate, upload
from hopfleet.frameworks.torch.engines.capture_backend import CaptureBackend, Graph, GraphCache, Pool
from hopfleet.frameworks.torch.engines.conditions import Conditions, Refused, told_of_no_capture
from hopfleet.frameworks.torch.engines.host_tensors import HostTensors
from hopfleet.frameworks.torch.engines.interleaved import Measures, Member
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.step_log import REASON
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.frameworks.torch.trial import Metrics, ParameterGroup
from hopfleet.frameworks.whole_set import WholeSet
from hopfleet.support.user_code import describe_with_place

SIZES = 3
"""Captures that a member keeps, one for each batch size: the last batch of a partition is often smaller."""

ADVICE = "; build the optimizer with capturable=True or fused=True"
NOTHING_ELSE = contextlib.nullcontext()
READS = "; compute with tensors on the device there, without .item(), float(), print or a condition on a tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """A graph that computes the gradients of several members."""

    graph: Graph
    count: int
    #: What holds the tensors that the graph reads, the weights of members that have left included.
    reads: object
    #: The conditions that the graph takes for granted.
    conditions: Conditions | None = None


@dataclass(slots=True)
class Capture:
    """A step, ready to be replayed. Each replay leaves its outcome in ``values``.

    Where gradients are accumulated over several batches, there is a graph for the first batch, which makes gradients,
    one for the last, which adds to them and makes the update, and one for those between.
    """

    graphs: list[Graph]
    #: The random stream that the step draws from.
    generator: torch.Generator
    values: dict[str, torch.Tensor]
    #: The tensors that the step reads its batch from.
    inputs: Batch
    #: Whether the update is part of the capture; otherwise, it is made eagerly.
    whole: bool
    #: The weights, and the gradients that each replay leaves; empty if no other code needs them.
    gradients: list[tuple[torch.Tensor, torch.Tensor]]
    #: The tensors and settings that the capture was made for; see ``footing``.
    footing: Hashable = None
    #: The number of captures that share its memory and were made before it; None for one with memory of its own.
    place: int | None = None
    pool: Pool | None = None
    #: What computes the gradients of this and other members, before ``launch``; None if its own graphs do that.
    joint: Joint | None = None
    #: Memory of the host that the graphs copy from.
    reads: torch.Tensor | None = None
    #: The conditions that the step took for granted.
    conditions: Conditions | None = None
    #: The kinds of members whose steps are not captured any more if a condition changes.
    kinds: tuple[Hashable, ...] = ()

    def attach(self) -> None:
        """Let the weights have the gradients that replays fill."""
        for weight, gradient in self.gradients:
            weight.grad = gradient

    def replay(self, member: Member) -> None:
        """Take the step of the member."""
        if self.joint is not None:
            self.joint.graph.replay()
        self.launch(member)
        self.update(member)

    def launch(self, member: Member) -> None:
        """Take the step of the member as far as it is captured."""
        if not self.gradients:
            self.graphs[0].replay()
            return
        steps = member.steps
        if self.graphs:
            self.graphs[_graph_of(steps.waiting, member.session.options.accumulate)].replay()
        steps.waiting += 1

    def update(self, member: Member) -> None:
        """Make an update that is due and not captured. If it raises, the exception becomes the member's result."""
        if self.gradients and member.steps.waiting == member.session.options.accumulate:
            member.steps.waiting = 0
            if not self.whole and member.active:
                member.do(member.steps.update)


def _graph_of(waiting: int, batches: int) -> int:
    """Return the number of the graph for the next batch: ``waiting`` of the ``batches`` of an update came before it."""
    return min(waiting, 1) if waiting < batches - 1 else min(waiting, 2)


def shared_pool(session: TorchSession, size: object) -> Pool | None:
    """Return the memory for captures of large models that train with batches of one ``size``; None for small models.

    A large model keeps the device busy by itself. So captured steps of large models are replayed one after another, in
    the order in which they were captured, and use the same memory. Evaluations have no size and use it, too.
    """
    if session.options.accumulate > 1:
        return None  # gradients stay in the memory of a capture while those of other members are replayed
    return session.cache.part(GraphCache).pool(size, session.device) if session.large else None


def backend_of(session: TorchSession) -> CaptureBackend:
    """Return the backend that captures the steps of a session."""
    return session.cache.part(GraphCache).backend


def captured(member: Member, inputs: Batch, *, whole: bool, noted: tuple[bool, ...] = ()) -> Capture:
    """Capture the member's step on ``inputs`` without executing it: all of it, or its gradients without the update.

    ``noted`` are the conditions of an eager step. Raises Refused if it is impossible, or if there are others.
    """
    session = member.session
    backend = backend_of(session)
    check_step(member)
    work, waits = member.work.take, [0]
    size: object = None
    if isinstance(member.work, Steps):
        size = dict.get(session.config, "batch_size")  # trials with batches of other sizes may step at the same time
        batches = session.options.accumulate
        waits = sorted({0, min(1, batches - 1), batches - 1})
        if whole:
            check_update(session)
            upload(held_updates(session))  # nothing is uploaded inside a capture
        else:
            work = member.work.gradients
    generator = backend.generator(session.device)
    generator.set_state(member.random[backend.random_stream])
    values: dict[str, torch.Tensor] = {}
    constants, conditions = HostTensors(session.device), Conditions(session.device, noted)

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        with constants, conditions.assumed():
            yield

    graphs, pool = [], shared_pool(session, size)
    if pool is not None:
        backend.free_unused()  # the eager step before took as much memory as the capture
    for waiting in waits:
        if isinstance(member.work, Steps):
            member.work.waiting = waiting
        graphs.append(captured_graph(session, generator, lambda: work(dict(inputs)), values, pool, inside()))
    if isinstance(member.work, Steps) and session.logs:  # it was not seen before the loss was called
        raise Refused(REASON)
    needed = [] if isinstance(member.work, Measures) or (whole and len(waits) == 1) else session.model.parameters()
    gradients: list[tuple[torch.Tensor, torch.Tensor]] = [(w, w.grad) for w in needed if w.grad is not None]
    place = None if pool is None else next(pool.places)
    capture = Capture(graphs, generator, values, inputs, whole, gradients, place=place, pool=pool)
    capture.reads, capture.conditions = constants.memory, conditions if noted else None
    return capture


def check_step(member: Member) -> None:
    """Raise Refused if it is known beforehand that steps of the member cannot be captured."""
    session = member.session
    if on_host := member.draws - {backend_of(session).random_stream}:
        raise Refused(
            f"random numbers are drawn on the host ({', '.join(sorted(on_host))}); draw them with torch, on the device"
        )
    if not session.options.capture:
        raise Refused("the task sets capture = False")
    if isinstance(member.work, Steps) and session.logs:
        raise Refused(REASON)


def captured_graph(
    session: TorchSession,
    generator: torch.Generator,
    work: Callable[[], Metrics],
    values: dict[str, torch.Tensor],
    pool: Pool | None,
    inside: contextlib.AbstractContextManager[object] = NOTHING_ELSE,
) -> Graph:
    """Capture some work, in a context, which leaves its outcome in ``values``. Raises Refused if that is impossible."""
    backend, device = backend_of(session), session.device
    # Use a new stream: a stream on which a capture has failed is of no further use.
    graph, stream = backend.graph(), backend.stream(device) if pool is None else pool.stream
    stream.wait_stream(backend.current_stream())
    try:
        with (
            backend.own_generator(device, generator),
            _fused(session),
            backend.on_stream(stream),
            capturing(graph, backend, pool),
            told_of_no_capture(),
            inside,
        ):
            for name, value in work().items():
                if isinstance(value, WholeSet):
                    raise Refused(f"{name!r} is scored over the whole set, from rows that are fetched from the device")
                if not torch.is_tensor(value) or not backend.captures_on(value.device) or value.numel() != 1:
                    raise Refused(
                        f"{name!r} is not a single number on the device; return it as a tensor, without .item()"
                    )
                if name in values:
                    values[name].copy_(value.reshape(1))
                else:
                    values[name] = value.reshape(1)
    except Refused:
        backend.synchronize(device)
        raise
    except Exception as error:
        backend.synchronize(device)
        raise Refused(describe_with_place(error) + _advice(error)) from error
    backend.current_stream().wait_stream(stream)
    return graph


def _advice(error: Exception) -> str:
    """Return the one thing to change for a step to be captured, as far as an exception tells."""
    if "capturable" in str(error):
        return ADVICE
    return READS if "captur" in str(error) else ""


def check_update(session: TorchSession) -> None:
    """Raise Refused if the update of a step cannot be part of its capture."""
    if any(map(_compat.has_step_hooks, session.optimizers, session.updates)):
        raise Refused("the optimizer has step hooks, which run on the host")
    if changes_settings(session):
        raise Refused("the schedule changes settings on the host after each batch")


def changes_settings(session: TorchSession) -> bool:
    """Whether a schedule changes settings after each batch that a capture would keep: all but tensors on the device."""
    if session.hooks.lr_step != "batch" or not session.schedulers:
        return False
    if any(getattr(scheduler, "cycle_momentum", False) for scheduler in session.schedulers):
        return True
    return any("lr" in settings for optimizer in settings_of(session) for settings in optimizer)


def held_updates(session: TorchSession) -> list[CapturableUpdate]:
    """Return the updates whose learning rates captures read from the device."""
    return [update for update in session.updates if update is not None and update.active]


@contextlib.contextmanager
def _fused(session: TorchSession) -> Iterator[None]:
    """Declare fused optimizers capturable: they count steps on the device anyway, but torch insists on the flag."""
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
def capturing(graph: Graph, backend: CaptureBackend, pool: Pool | None = None) -> Iterator[None]:
    """Capture the work on the current stream, with cuBLAS workspaces of its own, in the memory of a ``pool``.

    Otherwise cuBLAS would give all captures on one stream the same workspace, although captures run side by side. The
    garbage collector is off meanwhile: freeing an old capture would spoil the new one.
    """
    collects = gc.isenabled()
    gc.disable()
    backend.clear_workspaces()
    try:
        # Other threads load batches and write checkpoints meanwhile.
        options = {} if pool is None else {"pool": pool.handle}
        graph.capture_begin(**options, capture_error_mode="thread_local")
        try:
            yield
        except Exception:
            if pool is not None:
                pool.failed()
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    finally:
        backend.clear_workspaces()
        if collects:
            gc.enable()


def _tensors(session: TorchSession) -> list[torch.Tensor]:
    """Return the tensors that a step may change: weights, buffers and optimizer states."""
    return _weights(session) + _states(session)


def _states(session: TorchSession) -> list[torch.Tensor]:
    """Return the tensors of optimizers and of the gradient scaler."""
    found: list[torch.Tensor] = []
    for optimizer in session.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                found += [state[name] for name in sorted(state) if torch.is_tensor(state[name])]
    return found + _compat.scaler_tensors(session.scaler)


def _weights(session: TorchSession) -> list[torch.Tensor]:
    return [*session.model.parameters(), *session.model.buffers(), *session.average]


def _own(session: TorchSession) -> list[torch.Tensor]:
    """Return the tensors of ``_tensors`` that the session does not share with others."""
    shared = {one.tensor.data_ptr() for one in session.shared}
    return [tensor for tensor in _tensors(session) if tensor.data_ptr() not in shared]


def copies(session: TorchSession) -> list[torch.Tensor]:
    """Copy the tensors that a step may change."""
    return [tensor.detach().clone() for tensor in _own(session)]


def restore(session: TorchSession, values: Sequence[torch.Tensor]) -> None:
    """Put copies back in place."""
    _compat.abandon_update(session.scaler)
    with torch.no_grad():
        for tensor, value in zip(_own(session), values, strict=False):
            tensor.copy_(value)


def batch_key(batch: Batch, device: torch.device) -> Hashable | None:
    """Return what batches have in common that fit into the same input tensors; None if a column is not a tensor."""
    if not all(torch.is_tensor(value) for value in batch.values()):
        return None
    return device, tuple((name, tuple(value.shape), value.dtype) for name, value in batch.items())


def kind_of(session: TorchSession) -> Hashable:
    """Return what members have in common if the comparison of one holds for the others."""
    optimizers = [type(one) for one in session.optimizers], settings_of(session, of=bool)
    return type(session.task), str(session.model), str(optimizers), str(session.device), session.options.accumulate


def loose_kind_of(session: TorchSession) -> Hashable:
    """Return what models of all sizes have in common whose steps consist of the same code."""
    kinds = [type(one) for one in (*session.model.modules(), *session.optimizers)]
    return type(session.task), frozenset(kinds), str(session.options), session.device


def footing(member: Member, key: Hashable, *, whole: bool) -> Hashable:
    """Return everything that a capture relies on. Evaluations and gradients do not depend on optimizers."""
    session = member.session
    if isinstance(member.work, Measures) or not whole:
        return key, tuple(tensor.data_ptr() for tensor in _weights(session))
    places = tuple(tensor.data_ptr() for tensor in _tensors(session))
    return key, places, str(settings_of(session))


def update_footing(session: TorchSession) -> Hashable:
    """Return everything that a capture of the update alone relies on, except the gradients."""
    tensors = (*session.model.parameters(), *session.average, *_states(session))
    return tuple(tensor.data_ptr() for tensor in tensors), str(settings_of(session))


def settings_of(session: TorchSession, of: type = object) -> list[list[dict[str, object]]]:
    """Return the settings of each group of each optimizer, except those that a capture reads on the device."""
    return [
        [_baked(group, update, of) for group in optimizer.param_groups]
        for optimizer, update in zip(session.optimizers, session.updates, strict=True)
    ]


def _baked(group: ParameterGroup, update: CapturableUpdate | None, of: type) -> dict[str, object]:
    """Return the settings of a group that a capture contains."""
    read = {"params", "lr"} if update is not None and update.holds(group) else {"params"}
    return {
        name: value.item() if torch.is_tensor(value) else value
        for name, value in group.items()
        if name not in read and isinstance(value, of) and not (torch.is_tensor(value) and value.is_cuda)
    }
