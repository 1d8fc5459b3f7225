"""The findings about stacks that a worker keeps from unit to unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple

import torch

from hopfleet.frameworks.tracked_config import TrackedConfig
from hopfleet.support.logging import messages

Program = Callable[..., list[torch.Tensor]]
"""The operations of a step, recorded or compiled."""


class Findings(NamedTuple):
    """The findings of the first batch of a kind of stack."""

    onednn: bool  #: whether oneDNN is faster
    config: TrackedConfig  #: the configuration that members have in common, which tells the keys that the loss reads
    rounding: float  #: how far gradients alone are from double precision, as a part of their norm


class Proof:
    """Sessions that keep the same proof have been found to compute the same."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings


class StackCache:
    """The findings of one worker, by kind of stack and batch."""

    def __init__(self) -> None:
        #: None where no program is used.
        self.programs: dict[Hashable, Program | None] = {}
        #: The seconds of each batch so far, where it is not decided yet whether a program pays.
        self.waiting: defaultdict[Hashable, list[float]] = defaultdict(list)
        self.tried: dict[Hashable, Findings] = {}
        #: The forms of models whose linear layers and activations are not joined, because that changes the outcome.
        self.apart: set[str] = set()
        #: The kinds of trials that are not stacked, because an attempt has failed.
        self.refused: set[Hashable] = set()
        #: Whether a stack is faster than members side by side, by kind of model and batch, where that was measured.
        self.faster: dict[Hashable, bool] = {}
        #: Keys of configurations on which losses depend: trials that differ in one of them are stacked apart.
        self.splitting: set[str] = set()
        self._told: set[str] = set()

    def split_by(self, keys: Collection[str]) -> None:
        """Stack trials that differ in one of these keys apart from now on."""
        self.splitting |= set(keys)
        self.tell(f"trials are stacked by {', '.join(sorted(self.splitting))}, on which the loss depends or may depend")

    def tell(self, text: str) -> None:
        """Log a message once."""
        if text not in self._told:
            self._told.add(text)
            messages().warning("%s", text)
