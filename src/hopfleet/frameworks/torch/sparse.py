"""Sparse gradients, which members of a team cannot exchange."""

from __future__ import annotations

import torch

REMEDY = "members of a team exchange dense gradients; use sparse=False, or train with parallelism='single'"


def sparse_module(model: torch.nn.Module) -> str:
    """Return what makes the gradients of a model sparse, e.g. ``embed: Embedding(sparse=True)``; empty if nothing."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            kind = f"{type(module).__name__}(sparse=True)"
            return f"{name}: {kind}" if name else kind
    return ""
