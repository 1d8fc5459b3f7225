"""Whether training gives the same bits twice on a device, and which operators prevent that.

Some operators of CUDA add numbers in the order in which threads arrive. Torch names those that it knows when it is
asked for deterministic algorithms; others show when the same gradients are computed a few times.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import torch

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import randomness
from hopfleet.frameworks.torch.settings import WARN
from hopfleet.frameworks.torch.trial import LiveTrial

DEVICES = frozenset({"cuda"})
"""Kinds of devices on which operators may differ from run to run."""

TIMES = 3
"""How often the same gradients are computed."""

NEVER = re.compile(r"(\S+) does not have a deterministic implementation")
"""The warning about an operator that has no deterministic form."""

SELDOM = re.compile(r"([\w ]+?) defaults to a non-deterministic algorithm")
"""The warning about an operator that differs for some shapes, unless only deterministic algorithms are used."""


def varying(trial: LiveTrial, batch: Batch) -> str:
    """Return a warning if training on a batch does not give the same bits each time; empty if it does.

    Call only while the trial's environment is in place. Weights are left as they are.
    """
    if torch.get_deterministic_debug_mode() > WARN:
        return ""
    weights = [weight for weight in trial.model.parameters() if weight.requires_grad]
    streams = randomness.current(trial.device)

    def gradients() -> list[torch.Tensor]:
        randomness.put(streams, trial.device)
        with trial.options.autocast(trial.device):
            loss = trial.hooks.loss(trial.callable, dict(batch))
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        return [gradient for gradient in found if gradient is not None]

    first = gradients()
    differ = any(not all(map(torch.equal, first, gradients())) for _ in range(TIMES - 1))
    said = _warnings(gradients)
    named = {found[1] for text in said for kind in (NEVER, SELDOM) if (found := kind.match(text))}
    if not differ and not any(map(NEVER.match, said)):
        return ""
    operators = ", ".join(sorted(named)) or "an operator that torch does not name"
    return (
        f"training does not give the same bits each time on {trial.device.type}, because of {operators}: set "
        "deterministic = True on the task, or use another operator. Until then no result can be reproduced to the bit, "
        "and steps may not be captured"
    )


def _warnings(work: Callable[[], object]) -> list[str]:
    """Do some work; return what torch says about operators that are not deterministic."""
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_deterministic_debug_mode(WARN)
        try:
            work()
        finally:
            torch.set_deterministic_debug_mode(before)
    return [str(one.message) for one in caught]
