"""Captured steps compared with eager ones: a capture counts only if its replays have the bits of eager steps."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable

import torch

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch.engines.capture import (
    Capture,
    backend_of,
    captured,
    check_step,
    copies,
    kind_of,
    restore,
)
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.conditions import Conditions, Refused
from hopfleet.frameworks.torch.engines.host_state import HostState
from hopfleet.frameworks.torch.engines.interleaved import Measures, Member
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.frameworks.torch.trial import Metrics

CHECKS = 3
"""Replays of the first step of a kind of member that are compared with eager steps, from the first update on."""

UNEQUAL = "replayed steps do not have the bits of eager steps"


def compared_capture(
    member: Member, inputs: Batch, key: object, before: list[torch.Tensor] | None, *, whole: bool, repeats: bool
) -> Capture:
    """Capture the member's step, and compare it with the eager step if the state ``before`` is given.

    ``key`` tells the batches of one form from others. If a unit ``repeats`` when that is needed, conditions on tensors
    are taken for granted. They are noted before anything is captured: a capture that ends at a condition would leave
    the backward pass of the next one on its own stream. Raises Refused if the step cannot be captured.
    """
    work, host, known = member.work, HostState(member.session), member.session.cache.part(GraphCache).conditions
    kind = kind_of_step(member, key)
    try:
        check_step(member)
        if repeats and before is not None and kind not in known:
            known[kind] = noted_conditions(member, inputs, before)
            host.restore()
        capture = captured(member, inputs, whole=whole, noted=known.get(kind, ()) if repeats else ())
        check_host(host)
        if before is not None:
            compare(member, capture, inputs, before)
    finally:
        host.restore()
        start_over(work)
    return capture


def kind_of_step(member: Member, key: object) -> Hashable:
    """Return what members have in common if what was found about a step of one, on batches of a form, holds for all."""
    return type(member.work), kind_of(member.session), key


def check_host(host: HostState) -> None:
    """Raise Refused if a step has changed what replays would not change."""
    if change := host.changes(tensors=False):
        raise Refused(f"a step changes {change} on the host; let it be a buffer, and change that in place")


def compare(member: Member, capture: Capture, inputs: Batch, before: list[torch.Tensor]) -> None:
    """Raise Refused unless replays have the bits of eager steps. Restore the state before the capture."""
    session, work = member.session, member.work
    stream = backend_of(session).random_stream
    state = member.random[stream]
    values: list[torch.Tensor] = []
    steps = CHECKS - 1 + (session.options.accumulate if isinstance(work, Steps) else 1)
    start_over(work)
    for _ in range(steps):
        capture.replay(member)
        values += [value.clone() for value in capture.values.values()]
    replayed = [*copies(session), *values, capture.generator.get_state()]
    restore(session, before)
    member.random[stream] = state
    with contextlib.nullcontext() if capture.pool is None else capture.pool.lent():
        found = _taken(member, inputs, steps)
    values = [one[name].reshape(1) for one in found for name in capture.values]
    eager = [*copies(session), *values, member.random[stream]]
    member.random[stream] = state
    restore(session, before)
    if len(eager) != len(replayed) or not all(map(same_bits, eager, replayed)):
        raise Refused(UNEQUAL)


def noted_conditions(member: Member, inputs: Batch, before: list[torch.Tensor]) -> tuple[bool, ...]:
    """Return the conditions that the forward pass of an eager step reads. Restore the state before it."""
    stream, conditions = backend_of(member.session).random_stream, Conditions(member.session.device)
    work, state, kept = member.work, member.random[stream], member.draws
    member.draws = frozenset({stream})
    try:
        with conditions.noting():
            member.do(lambda: (work.forward if isinstance(work, Steps) else work.take)(dict(inputs)))
        raise_refused(member)
    finally:
        member.random[stream], member.draws = state, kept
        restore(member.session, before)
    return conditions.noted


def raise_refused(member: Member) -> None:
    """Raise Refused if the member's code has just raised: it goes on in turn."""
    if isinstance(member.result, BaseException):
        error, member.result = member.result, {}
        raise Refused(describe(error))


def _taken(member: Member, inputs: Batch, steps: int) -> list[Metrics]:
    """Take eager steps, or evaluate; return the metrics. Raises Refused if the member's code raises."""
    work, found, kept = member.work, list[Metrics](), member.draws
    member.draws = frozenset({backend_of(member.session).random_stream})
    start_over(work)
    for _ in range(steps):
        member.do(lambda: found.append(work.take(dict(inputs))))
    member.draws = kept
    raise_refused(member)
    return found


def start_over(work: Steps | Measures) -> None:
    """Let the next batch be the first after an update."""
    if isinstance(work, Steps):
        work.waiting = 0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))
