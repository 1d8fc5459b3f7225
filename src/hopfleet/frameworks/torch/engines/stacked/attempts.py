"""When a stack is tried on a device that captures steps.

Captured steps of single members begin to train sooner than a stack, and are often as fast. An attempt at a stack takes
time, which is lost if the stack turns out to be slower. So members train side by side until an attempt takes a small
part of the training. Where captured steps are known to be slow, nothing is compared.
"""

from __future__ import annotations

import time

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.capture import changes_settings
from hopfleet.frameworks.torch.engines.rates import Pace
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps

SHARE = 0.03
"""The part of the training that attempts may take."""

SECONDS, STEPS = 0.6, 40
"""What an attempt takes: some seconds, and the time of some steps of all members."""


class Attempts:
    """The time that a worker has had for training, and has spent on attempts at stacks."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.spent = 0.0
        #: Whether a stack was faster: from then on, members of the same kind are stacked at once.
        self.succeeded = False

    def pay(self, session: TorchSession) -> bool:
        """Whether one more attempt takes a small part of the training, including what is left of a trial."""
        pace: float | None = session.kept.get(Pace)
        if pace is None:
            return False
        training = time.monotonic() - self._began + pace * _batches_left(session)
        return self.spent + SECONDS + STEPS * pace <= SHARE * training


def may_stack(session: TorchSession) -> bool:
    """Whether a session may be part of a stack in its next unit."""
    attempts = session.cache.part(Attempts)
    return stacks_at_once(session) or takes_turns(session) or attempts.succeeded or attempts.pay(session)


def stacks_at_once(session: TorchSession) -> bool:
    """Whether a stack is not compared with captured steps, since these take turns, or lack the update.

    Convolutions are compared in any case: a stack of them may be several times slower than members one by one.
    """
    if _compat.convolves(session.model):
        return False
    options = session.options
    return session.large or options.compile or not options.capture or changes_settings(session)


def takes_turns(session: TorchSession) -> bool:
    """Whether the steps of a session were not captured whole in its last unit."""
    return Pace in session.kept and not any(capture.whole for capture in session.kept.get(Steps, {}).values())


def _batches_left(session: TorchSession) -> float:
    """Return about how many batches a trial has yet to train on, if it is trained for as long as planned."""
    batching = session.hooks.batching
    if batching is None:
        return 0.0
    planned = max(1, batching.epochs * len(batching.rows))
    return batching.total_steps() * max(0.0, 1 - session.counters["units"] / planned)
