"""The choice of an engine for trials that train together. Engines are imported only when they are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from hopfleet.frameworks.base import Flotilla, IsolationError
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.session import TorchSession


def flotilla(sessions: Sequence[TorchSession], *, fast: bool) -> Flotilla:
    """Return a flotilla of the engine that suits the device; with ``fast``, rounding may differ."""
    if len({session.options.of_process for session in sessions}) > 1:
        raise IsolationError(
            "some trials are deterministic or use tf32 and others do not, but these apply to the whole process"
        )
    captures = sessions[0].cache.part(GraphCache).backend.captures_on(sessions[0].device)
    if fast and (not captures or _may_stack(sessions)):
        from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked, StackedGraphs

        return StackedGraphs(sessions) if captures else Stacked(sessions)
    if captures:
        from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs

        return CudaGraphs(sessions, loose=fast)
    from hopfleet.frameworks.torch.engines.interleaved import Interleaved

    return Interleaved(sessions)


def _may_stack(sessions: Sequence[TorchSession]) -> bool:
    from hopfleet.frameworks.torch.engines.stacked.attempts import may_stack

    return any(map(may_stack, sessions))


def make_ready(session: TorchSession) -> None:
    """Let what such trials need to train together be made while other trials are built."""
    if session.device.type != "cuda":
        return
    if session.cache.fast and _may_stack([session]):
        from hopfleet.frameworks.torch.engines.stacked.readying import begin

        begin(session)
    else:
        from hopfleet.frameworks.torch.engines.joint_gradients import make_ready

        make_ready(session)


def gains(session: TorchSession) -> bool:
    """Whether trials with equal bits take clearly less time together than one after another."""
    if session.device.type != "cpu":
        return True
    from hopfleet.frameworks.torch.engines.joint_optimizer import may_join

    return may_join(session)
