"""The arguments of ``self.log``, and the reductions that they name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hopfleet.errors import TaskError
from hopfleet.phrases import shown

ONCE = ("on_train_start", "on_train_epoch_start", "on_train_epoch_end")
"""Hooks that are called once an epoch. All others that may log are called for each batch."""

REDUCTIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
"""What joins the values of two batches, by the name of a reduction other than the mean."""

NAMES: Mapping[Any, str] = {
    **{word: word for word in ("mean", *REDUCTIONS)},
    **{getattr(torch, word): word for word in ("mean", *REDUCTIONS)},
    "avg": "mean",
    sum: "sum",
    min: "min",
    max: "max",
}
"""The name of a reduction by what users write."""


class Asked(NamedTuple):
    """The arguments of ``self.log`` after the value, in their order. Those about devices and views have no effect."""

    prog_bar: bool = False
    logger: bool | None = None
    on_step: bool | None = None
    on_epoch: bool | None = None
    reduce_fx: Any = "mean"
    enable_graph: bool = False
    sync_dist: bool = False
    sync_dist_group: Any = None
    add_dataloader_idx: bool = True
    batch_size: int | None = None
    metric_attribute: str | None = None
    rank_zero_only: bool = False

    def reduction(self, name: str, hook: str) -> str:
        """Return the name of the reduction. Raises TaskError for arguments that a Trainer refuses, too."""
        if hook in ("", "on_fit_start"):
            raise TaskError(f"self.log({name!r}, ...): must be called in a step, or in a hook of a batch or an epoch")
        if hook in ONCE and (self.on_step or self.on_epoch is False):
            raise TaskError(
                f"self.log({name!r}, on_step={self.on_step}, on_epoch={self.on_epoch}) in {hook}(): there is no step; "
                "leave out both"
            )
        if self.on_epoch is False and not self.on_step and (self.on_step is False or hook == "validation_step"):
            raise TaskError(f"self.log({name!r}, on_step=False, on_epoch=False): one of both must be True")
        asked = self.reduce_fx.lower() if isinstance(self.reduce_fx, str) else self.reduce_fx
        try:
            return NAMES[asked]
        except (KeyError, TypeError):
            raise TaskError(
                f"self.log({name!r}, reduce_fx={shown(self.reduce_fx)}): must be 'mean', 'sum', 'min' or 'max'; for "
                "another reduction, log a metric of torchmetrics"
            ) from None


class Reduced:
    """Joins the values of all batches of an evaluation, in their order."""

    def __init__(self, reduction: str) -> None:
        self._reduction = reduction

    def __call__(self, states: Sequence[Mapping[str, Any]]) -> Any:
        return functools.reduce(REDUCTIONS[self._reduction], [torch.from_numpy(state["value"]) for state in states])


def as_number(name: str, value: Any) -> torch.Tensor:
    """Return a value with the type in which a Trainer joins values: float32, or float64 if it has that."""
    number = value.detach() if torch.is_tensor(value) else None
    if number is None and isinstance(value, int | float):
        number = torch.tensor(value)
    if number is None or number.numel() != 1:
        raise TaskError(f"self.log({name!r}, ...): must be one number, got {shown(value)}")
    default = torch.get_default_dtype()
    wide = number.dtype in (torch.float32, torch.float64) and torch.is_tensor(value)
    return number.reshape(()).to(number.dtype if wide else torch.promote_types(default, torch.float32)).clone()
