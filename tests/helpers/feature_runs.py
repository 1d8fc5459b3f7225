"""Batches for tasks with features of PyTorch, and runs of their trials: alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import hopfleet as hop
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.stacked_tasks import DEVICE, several

WIDTH, CLASSES, WORDS = 16, 3, 12


class Batches:
    """Batches of vectors, words and classes; the last one is smaller."""

    def __init__(self, count: int, dtype: torch.dtype = torch.float32) -> None:
        self._count, self._dtype = count, dtype
        self.rows = 8 * count - 4

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for number in range(self._count):
            rows = 4 if number == self._count - 1 else 8
            x = torch.randn(rows, WIDTH, generator=generator)
            words = torch.randint(0, WORDS, (rows, 4), generator=generator)
            y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
            batch = {"x": x.to(self._dtype), "words": words, "y": y}
            yield {name: value.to(DEVICE) for name, value in batch.items()}


def configs(fused: bool = False, count: int = 4) -> list[dict[str, Any]]:
    """Return configurations with different learning rates; updates can be captured on the CPU if they are fused."""
    return [{"lr": 0.003 * (number + 1), "fused": fused or None} for number in range(count)]


def opened(
    task: hop.TorchTask, *, captures: bool = False, double: bool = False, fused: bool = False
) -> list[TorchSession]:
    """Open a session for each of four trials; in double precision if that is wanted."""
    sessions = several(task, configs(fused), captures)
    for session in sessions if double else ():
        session.model.double()
        session.average = [average.double() for average in session.average]
    return sessions


def state_of(session: TorchSession) -> dict[str, torch.Tensor]:
    """Return copies of weights, buffers and averages of weights."""
    found = {name: value.detach().clone() for name, value in session.model.state_dict().items()}
    return found | {f"average {number}": value.clone() for number, value in enumerate(session.average)}


def alone(sessions: Sequence[TorchSession], batches: Batches, units: int) -> list[list[float]]:
    """Train trials one after another; return the losses of each unit of each trial."""
    return [[float(session.train(batches, last=True)["train_loss"].mean) for _ in range(units)] for session in sessions]


def together(sessions: Sequence[TorchSession], batches: Batches, units: int, *, fast: bool) -> list[list[float]]:
    """Train trials at the same time; return the losses of each unit of each trial."""
    found: list[list[float]] = [[] for _ in sessions]
    for _ in range(units):
        flotilla = sessions[0].task.framework.flotilla(sessions, fast=fast)
        for losses, result in zip(found, flotilla.train(batches, last=[True] * len(sessions)), strict=True):
            assert not isinstance(result, BaseException), result
            losses.append(float(result["train_loss"].mean))
    return found


def distance(some: Sequence[TorchSession], others: Sequence[TorchSession]) -> float:
    """Return how far the weights and buffers of some trials are from those of others, as a part of these."""
    pairs = [
        (mine.double(), theirs.double())
        for one, other in zip(some, others, strict=True)
        for mine, theirs in zip(state_of(one).values(), state_of(other).values(), strict=True)
    ]
    off = sum(float((mine - theirs).square().sum()) for mine, theirs in pairs)
    size = sum(float(theirs.square().sum()) for _, theirs in pairs)
    return float((off / size) ** 0.5)
