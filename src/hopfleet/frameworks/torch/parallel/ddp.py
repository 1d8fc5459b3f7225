"""Data parallelism: every member has the whole model, and the members add up their gradients before each update."""

from __future__ import annotations

import torch
from torch import distributed

from hopfleet.frameworks.torch.parallel.strategy import SpreadTrial, Strategy, TeamSteps
from hopfleet.support.logging import TEAMS, messages

SHARES = "each member normalizes its own share of the batch, and the running statistics are those of the first member"
"""What happens to BatchNorm where members train on shares of each batch."""


class _AllReduceSteps(TeamSteps):
    def update(self) -> None:
        add_gradients(list(self._trial.model.parameters()))
        super().update()


class Ddp(Strategy):
    """A synchronous all-reduce of the gradients before each update."""

    replicated = True
    on_host = False
    lockstep = False
    spans_nodes = True
    unsupported = ("sparse",)

    def spread(self, trial: SpreadTrial) -> None:
        warn_of_batch_norm(trial)

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        return _AllReduceSteps(trial)


def warn_of_batch_norm(trial: SpreadTrial, what: str = SHARES) -> None:
    """Tell what happens to BatchNorm, once per session, if the model has any."""
    kept = any(getattr(module, "track_running_stats", False) for module in trial.model.modules())
    if trial.team.rank == 0 and kept:
        messages(TEAMS).warning(
            "BatchNorm on a team: %s; use GroupNorm or LayerNorm for the results of one device", what
        )


@torch.no_grad()
def add_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Replace the gradients of all members by their sums. A gradient that no member has stays absent."""
    kinds: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            kinds.setdefault(parameter.dtype, []).append(parameter)
    for some in kinds.values():
        # One number per parameter tells whether the member has a gradient: all members must treat it alike.
        present = torch.tensor([float(p.grad is not None) for p in some], dtype=some[0].dtype, device=some[0].device)
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in some]
        flat = torch.cat([present, *(piece.reshape(-1) for piece in pieces)])
        distributed.all_reduce(flat)
        parts = torch.split(flat, [len(some), *(piece.numel() for piece in pieces)])
        for parameter, has, part in zip(some, parts[0].tolist(), parts[1:], strict=True):
            if has:
                parameter.grad = part.view_as(parameter)
