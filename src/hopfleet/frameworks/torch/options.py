"""The training options of a task: how the loop that Hopfleet provides takes its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hopfleet.errors import TaskError

PRECISIONS: Mapping[str, torch.dtype | None] = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""The precisions of a task, and the type to which autocast casts, if it does."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one trial, as its task declares them; see ``TorchTask`` for their meaning."""

    precision: str
    clip_norm: float | None
    accumulate: int
    channels_last: bool
    compile: bool
    ema: float | None
    deterministic: bool
    capture: bool

    @classmethod
    def of(cls, task: object) -> TrainingOptions:
        """Read and check the options of a task. Raises TaskError for a value out of range."""
        options = cls(*(getattr(task, name) for name in cls.__slots__))
        if options.precision not in PRECISIONS:
            raise TaskError(f"precision={options.precision!r}: must be one of {', '.join(PRECISIONS)}")
        if options.clip_norm is not None and not (_is_number(options.clip_norm) and options.clip_norm > 0):
            raise TaskError(f"clip_norm={options.clip_norm!r}: must be a number greater than 0, or None")
        if type(options.accumulate) is not int or options.accumulate < 1:
            raise TaskError(f"accumulate={options.accumulate!r}: must be a whole number of batches, 1 or more")
        if options.ema is not None and not (_is_number(options.ema) and 0 < options.ema < 1):
            raise TaskError(f"ema={options.ema!r}: must be between 0 and 1, e.g. 0.999, or None")
        for name in ("channels_last", "compile", "deterministic", "capture"):
            if not isinstance(getattr(options, name), bool):
                raise TaskError(f"{name}={getattr(options, name)!r}: must be True or False")
        if (lr_step := getattr(task, "lr_step", "epoch")) not in ("epoch", "batch"):
            raise TaskError(f"lr_step={lr_step!r}: must be 'epoch' or 'batch'")
        return options

    @property
    def plain(self) -> bool:
        """Whether a step consists of forward pass, backward pass and update alone."""
        return self.clip_norm is None and self.plain_but_clipped

    @property
    def plain_but_clipped(self) -> bool:
        """Whether that is so, but for a limit of the gradients' norm."""
        return PRECISIONS[self.precision] is None and (self.accumulate, self.ema) == (1, None)

    @property
    def of_process(self) -> tuple[bool, bool]:
        """The options that apply to the whole process while a trial runs, so that trials together must share them."""
        return self.deterministic, self.precision == "tf32"

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Return the context in which losses and metrics are computed."""
        dtype = PRECISIONS[self.precision]
        return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)
