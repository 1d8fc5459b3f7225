"""Attempts at stacks on CUDA: members are stacked if a step of the stack takes less time than all steps side by side.

What is faster depends on the model: a stack of convolutions, for example, is a grouped convolution, for which CUDA has
faster algorithms in some shapes than in others. So both ways are measured. Members train side by side first, with
captured steps; later these are replayed a few times, a stack is built and captured, and its step is replayed as often.
Nothing of that is left but the faster one: states are restored, and members get their own tensors back if the stack is
slower.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import randomness
from hopfleet.frameworks.torch.engines.capture import Capture, backend_of, batch_key, copies, footing, restore
from hopfleet.frameworks.torch.engines.capture_backend import CaptureBackend, GraphCache
from hopfleet.frameworks.torch.engines.cuda_graphs import Replays
from hopfleet.frameworks.torch.engines.interleaved import Measures, Member
from hopfleet.frameworks.torch.engines.stacked.stack import Stack, StackCapture
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps

ROUNDS = 3
"""Measurements of each way; the shortest counts."""

STEPS = 4
"""Steps in each measurement."""

ENOUGH = 0.2
"""Seconds after which no further measurement begins: the time of long steps varies less."""


class Slower(Exception):
    """The reason why members train side by side."""


def captured_steps(members: Sequence[Member], key: Hashable) -> dict[Member, Capture]:
    """Return the captured steps of all members for a kind of batch; none unless each has one that contains its update.

    An update on the host may have other effects than on tensors, which could not be undone after a measurement.
    """
    found: dict[Member, Capture] = {}
    for member in members:
        capture: Capture | None = member.session.kept.get(Steps, {}).get(key)
        if capture is None or not capture.whole or capture.footing != footing(member, key, whole=True):
            return {}
        found[member] = capture
    return found


def faster_stack(
    captures: Mapping[Member, Capture], batch: Batch, first_lane: int, build: Callable[[], Stack | None]
) -> tuple[Stack | None, str]:
    """Return a stack of members with captured steps, and in words how much time its steps save.

    Raises Slower if they do not save time. Without a stack of all members there is nothing to compare. However it ends,
    members have the state that they had before, and the process its random streams.
    """
    members = list(captures)
    sessions = [member.session for member in members]
    backend, device = backend_of(sessions[0]), sessions[0].device
    streams = randomness.current(device)
    try:
        with own_tensors(sessions) as let_go:
            apart = _seconds_side_by_side(captures, batch, first_lane)
            stack = build()
            if stack is None or len(stack.sessions) < len(members):
                return None, ""
            capture, together = _seconds_of(stack, batch, members[0].random[backend.random_stream])
            if together >= apart:
                raise Slower(f"{_shown(apart)} a step, {_shown(together)} as a stack")
            let_go()
    finally:
        randomness.put(streams, device)
    stack.captures[batch_key(batch, device)] = capture
    for session in sessions:
        for kind in (Steps, Measures):
            session.kept.pop(kind, None)  # they read the tensors of before
    return stack, f"{_shown(together)} a step, {_shown(apart)} side by side"


@contextlib.contextmanager
def own_tensors(sessions: Sequence[TorchSession]) -> Iterator[Callable[[], None]]:
    """Give sessions back the tensors that they have now, so that their captures stay valid.

    The function provided lets them keep the tensors that they have in the end.
    """
    models = [session.model for session in sessions]
    before = [(one, one.data) for model in models for one in (*model.parameters(), *model.buffers())]
    try:
        yield before.clear
    finally:
        for tensor, data in before:
            tensor.data = data


def _seconds_side_by_side(captures: Mapping[Member, Capture], batch: Batch, first_lane: int) -> float:
    """Return the seconds of a step of all members by their captures. Restore their states."""
    sessions = [member.session for member in captures]
    cache, device = sessions[0].cache.part(GraphCache), sessions[0].device
    before = [copies(session) for session in sessions]
    replays = Replays(captures, ROUNDS * STEPS + 1, device, cache, first_lane)
    try:
        return seconds(lambda: replays.step(batch), cache.backend, device)
    finally:
        for session, values in zip(sessions, before, strict=True):
            restore(session, values)


def _seconds_of(stack: Stack, batch: Batch, random: torch.Tensor) -> tuple[StackCapture, float]:
    """Capture the step of a stack; return the capture, and the seconds of a step. Restore the state of the stack."""
    before = [table.clone() for table in stack.tables()]
    stack.step(batch)  # libraries prepare themselves in the first step
    capture = StackCapture(stack, batch, random)
    found = seconds(lambda: capture.step(batch), backend_of(stack.sessions[0]), stack.weights.device)
    for table, values in zip(stack.tables(), before, strict=True):
        table.copy_(values)
    return capture, found


def seconds(step: Callable[[], object], backend: CaptureBackend, device: torch.device) -> float:
    """Return the seconds that a step takes."""
    step()
    found: list[float] = []
    while len(found) < ROUNDS and STEPS * sum(found) < ENOUGH:
        backend.synchronize(device)
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        backend.synchronize(device)
        found.append((time.perf_counter() - began) / STEPS)
    return min(found)


def _shown(duration: float) -> str:
    return f"{1000 * duration:.3g} ms"
