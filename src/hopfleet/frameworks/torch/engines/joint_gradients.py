"""Gradients of members that are alike, captured as one graph with the bits of each member alone.

Captured by itself, a step of a small model with attention consists of some two hundred small kernels, and few of them
fill a device. As one, those that compute each number, row or sequence by itself are launched once for all members (see
``joint_tensor``), and only products and sums run for each. Before such a graph is used, the gradients of every member
are compared with those of an eager step.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch.func import functional_call

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch._operations import ATTENTION, Noted, begin_wrappers
from hopfleet.frameworks.torch.capturable import upload
from hopfleet.frameworks.torch.engines.alike import Loss, traits
from hopfleet.frameworks.torch.engines.capture import (
    Capture,
    Joint,
    backend_of,
    captured_graph,
    check_update,
    copies,
    held_updates,
    kind_of,
    restore,
)
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.common import CommonConfig, compared
from hopfleet.frameworks.torch.engines.comparison import UNEQUAL, compare, same_bits, start_over
from hopfleet.frameworks.torch.engines.conditions import Conditions, Refused
from hopfleet.frameworks.torch.engines.interleaved import Member
from hopfleet.frameworks.torch.engines.joint_tensor import JointTensor, Lanes, computing
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps, check_loss
from hopfleet.frameworks.torch.trial import Metrics

LEAST = 4
"""Members that are alike from which on their gradients are captured as one."""

WITH_ATTENTION = (torch.nn.LayerNorm, torch.nn.Embedding, torch.nn.MultiheadAttention)
"""Modules of models that are likely to attend."""

Gradients = list[torch.Tensor | None]


def alike(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Return groups of members whose gradients may be captured as one, by their kind; the others are in none."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        if _fits(member):
            groups.setdefault(_kind_of(member.session), []).append(member)
    return {kind: some for kind, some in groups.items() if len(some) >= LEAST}


def _kind_of(session: TorchSession) -> str:
    """Return what members have in common that may compute their gradients as one."""
    model = session.model
    layers = [(name, type(module), traits(module), module.training) for name, module in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    forms = [(name, tuple(one.shape), one.stride(), one.dtype, one.requires_grad) for name, one in tensors]
    return str((type(session.task), layers, forms, session.options, session.device))


def _fits(member: Member) -> bool:
    """Whether the gradients of a member depend on its weights and the batch alone, as far as one can see."""
    session = member.session
    model, options = session.model, session.options
    if not isinstance(member.work, Steps) or member.work.waiting or member.draws:
        return False
    if not options.capture or options.accumulate > 1 or session.scaler is not None or session.callable is not model:
        return False
    if session.logs or session.large or _compat.convolves(model):
        return False
    if any(_compat.has_hooks(module) or _keeps_state(module) for module in model.modules()):
        return False
    held = {id(weight) for one in session.optimizers for group in one.param_groups for weight in group["params"]}
    return not any(
        _compat.has_gradient_hooks(weight) or (weight.requires_grad and id(weight) not in held)  # never cleared
        for weight in model.parameters()
    )


def _keeps_state(module: torch.nn.Module) -> bool:
    """Whether a module has buffers that versions keep, since steps may change them."""
    return bool({name for name, _ in module.named_buffers(recurse=False)} - set(_compat.unsaved_buffers(module)))


class Readiness:
    """The first trial that a worker has built, and the number of all."""

    def __init__(self) -> None:
        self.first: weakref.ref[TorchSession] | None = None
        self.built = 0


def make_ready(session: TorchSession) -> None:
    """Begin to import what joint tensors need if trials that may attend are being built to train together."""
    readiness = session.cache.part(Readiness)
    readiness.first = readiness.first or weakref.ref(session)
    readiness.built += 1
    first = readiness.first()
    if readiness.built != LEAST or first is None or first.counters["units"]:
        return
    if any(isinstance(module, WITH_ATTENTION) for module in session.model.modules()):
        begin_wrappers()


class Together:
    """The losses of several members as one function, and its gradients."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        first = sessions[0]
        self._options, self._device = first.options, first.device
        same, numbers, differing = compared([session.config for session in sessions])
        self._config = CommonConfig(same, differing | numbers.keys(), set(), set())
        own = dict[int, object]({id(weight): weight for weight in first.model.parameters()})
        self._loss = Loss(first.hooks, copy.deepcopy(first.model, {**own, id(first.config): self._config}))
        self.lanes = Lanes(len(sessions), first.cache.part(GraphCache), first.device)
        rows = zip(*(session.model.parameters() for session in sessions), strict=True)
        #: The weights of all members. A graph that reads them must keep them, and the buffers of the module.
        self.weights = [[weight.detach() for weight in row] for row in rows]
        names = [f"model.{name}" for name, _ in first.model.named_parameters()]
        needed = [weight.requires_grad for weight in first.model.parameters()]
        self._of_first = dict(zip(names, (row[0] for row in self.weights), strict=True))
        self._inputs: dict[str, torch.Tensor] = {
            name: JointTensor.of_parts(self.lanes, row, given=True).requires_grad_(trained)
            for name, row, trained in zip(names, self.weights, needed, strict=True)
        }

    def attends(self, batch: Batch) -> bool:
        """Whether the loss of the first member takes attention, in a form that all members can share."""
        with torch.no_grad(), self._options.autocast(self._device), Noted() as noted:
            functional_call(self._loss, self._of_first, (dict(batch), self._config))
        return bool(noted.operations & ATTENTION)

    def _losses(self, batch: Batch) -> JointTensor:
        """Return the losses of all members on a batch."""
        before = [_compat.written(buffer) for buffer in self._loss.buffers()]
        with self._options.autocast(self._device):
            loss = functional_call(self._loss, self._inputs, (dict(batch), self._config))
        self._config.check()
        check_loss(loss)
        if not isinstance(loss, JointTensor) or before != [_compat.written(buffer) for buffer in self._loss.buffers()]:
            raise Refused("the loss does not depend on the weights alone")
        return loss

    def gradients(self, batch: Batch) -> tuple[list[torch.Tensor], list[Gradients]]:
        """Return the loss of each member on a batch, and its gradients in the order of its weights."""
        with computing(self.lanes):
            loss = self._losses(batch)
            trained = [one for one in self._inputs.values() if one.requires_grad]
            found = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        columns = [next(found) if one.requires_grad else None for one in self._inputs.values()]
        seen: set[int] = set()
        of_each = [self._own(column, row, seen) for column, row in zip(columns, self.weights, strict=True)]
        return loss.parts, [list(row) for row in zip(*of_each, strict=True)]

    def _own(self, column: torch.Tensor | None, weights: Sequence[torch.Tensor], seen: set[int]) -> Gradients:
        """Return the gradient of one weight for each member, in memory of its own that is laid out as the weight is."""
        if column is None:
            return [None] * len(weights)
        assert isinstance(column, JointTensor)
        parts, place = column.parts, column.first.data_ptr()
        fits = column.first.stride() == weights[0].stride() and place not in seen
        seen.add(place)
        if fits:
            return list(parts)
        return [torch.empty_like(weight).copy_(part) for weight, part in zip(weights, parts, strict=True)]


def captured_together(members: Sequence[Member], inputs: Batch, *, repeats: bool) -> dict[Member, Capture]:
    """Capture the gradients of several members on ``inputs`` as one; take conditions for granted if a unit ``repeats``.

    Raises Refused if that is impossible, does not pay, or does not have the bits of eager steps.
    """
    sessions = [member.session for member in members]
    backend = backend_of(sessions[0])
    found: list[list[Gradients]] = []
    values: dict[str, torch.Tensor] = {}
    conditions = Conditions(sessions[0].device)
    try:
        together = Together(sessions)
        if not together.attends(inputs):
            raise Refused("only models with attention are known to take less time as one")
        with conditions.noting():
            together.gradients(inputs)  # what cannot be captured shows here: streams on which a capture fails are lost
    except Refused:
        raise
    except Exception as error:
        raise Refused(describe(error)) from error

    if conditions.noted and not repeats:
        raise Refused("a step reads a condition on a tensor")

    def work() -> dict[str, torch.Tensor]:
        losses, gradients = together.gradients(inputs)
        found.append(gradients)
        return {str(number): loss for number, loss in enumerate(losses)}

    generator = backend.generator(sessions[0].device)
    graph = captured_graph(sessions[0], generator, work, values, None, conditions.assumed())
    joint = Joint(graph, len(members), together, conditions if conditions.noted else None)
    joint.graph.replay()
    captures: dict[Member, Capture] = {}
    for number, (member, gradients) in enumerate(zip(members, found[0], strict=True)):
        loss = values[str(number)]
        _compare(member, inputs, loss, gradients)
        captures[member] = _capture(member, inputs, joint, loss, gradients)
    return captures


def _compare(member: Member, inputs: Batch, loss: torch.Tensor, gradients: Gradients) -> None:
    """Raise Refused unless the loss and the gradients of a member are those of an eager step."""
    steps, weights = member.steps, list(member.session.model.parameters())
    metrics = member.do(lambda: steps.gradients(dict(inputs)))
    start_over(steps)
    if isinstance(member.result, BaseException):
        error, member.result = member.result, {}
        raise Refused(describe(error))
    assert isinstance(metrics, dict)
    fresh = [weight.grad for weight in weights]
    if [_form(one) for one in fresh] != [_form(one) for one in gradients]:
        raise Refused(UNEQUAL)
    if not same_bits(_bytes([metrics["loss"], *fresh]), _bytes([loss, *gradients])):
        raise Refused(UNEQUAL)


def _form(gradient: torch.Tensor | None) -> Hashable:
    return None if gradient is None else (gradient.shape, gradient.stride(), gradient.dtype)


def _bytes(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the bytes of some tensors in one."""
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors if one is not None])


def _capture(member: Member, inputs: Batch, joint: Joint, loss: torch.Tensor, gradients: Gradients) -> Capture:
    """Return the capture of one member's gradients, which are part of a graph; its updates are made eagerly."""
    session = member.session
    backend = backend_of(session)
    generator = backend.generator(session.device)
    generator.set_state(member.random[backend.random_stream])
    found: list[tuple[torch.Tensor, torch.Tensor]] = [
        (weight, gradient)
        for weight, gradient in zip(session.model.parameters(), gradients, strict=True)
        if gradient is not None
    ]
    capture = Capture([], generator, {"loss": loss}, inputs, whole=False, gradients=found, joint=joint)
    capture.conditions = joint.conditions
    return capture


def add_updates(captures: Mapping[Member, Capture], inputs: Batch) -> list[str]:
    """Make updates a part of captures where they have the bits of eager ones; return the reasons where not.

    Raises Refused if a member's steps do not have the bits of eager ones even so.
    """
    kinds: dict[Hashable, list[Member]] = {}
    for member in captures:
        kinds.setdefault(kind_of(member.session), []).append(member)
    reasons: list[str] = []
    for first, *others in kinds.values():
        before = copies(first.session)
        try:
            _add_update(first, captures[first])
            compare(first, captures[first], inputs, before)
            for member in others:
                _add_update(member, captures[member])
        except Refused as reason:
            reasons.append(str(reason))
            restore(first.session, before)  # undo what the attempt did on the host
            for member in (first, *others):
                captures[member].graphs.clear()
                captures[member].whole = False
            captures[first].attach()
            compare(first, captures[first], inputs, before)
    return reasons


def _add_update(member: Member, capture: Capture) -> None:
    """Capture the update that follows the gradients of a member. Raises Refused if that is impossible."""
    session = member.session

    def update() -> Metrics:
        member.steps.updated()
        return {}

    check_update(session)
    capture.attach()
    upload(held_updates(session))  # nothing is uploaded inside a capture
    capture.graphs.append(captured_graph(session, capture.generator, update, {}, None))
    capture.whole = True
