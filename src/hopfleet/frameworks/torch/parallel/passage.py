"""The passage of micro-batches between the stages of a pipeline: their order, and the messages between neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import distributed

from hopfleet.frameworks.torch.parallel.strategy import TeamView

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.bool, torch.complex64, torch.complex128),
)
"""Types of tensors that can pass, in the order of their codes."""

MAX_DIMENSIONS, MAX_TENSORS = 8, 16
"""Dimensions of a tensor, and tensors between two stages, at most."""


def order(stage: int, stages: int, count: int, *, forward_first: bool) -> Iterator[tuple[bool, int]]:
    """Yield the passes of a stage over ``count`` micro-batches: whether each is a forward pass, and its micro-batch.

    Without ``forward_first``, a stage runs only as many forward passes ahead as later stages need (1F1B).
    """
    ahead = count if forward_first else min(stages - 1 - stage, count)
    yield from ((True, number) for number in range(ahead))
    for number in range(count):
        if ahead + number < count:
            yield True, ahead + number
        yield False, number


class Channels:
    """The process groups of a team's pipelines: values and gradients pass apart, so that neither waits for the other.

    A part of the engine cache; all members make it at the same time.
    """

    def __init__(self) -> None:
        self.values = distributed.new_group()
        self.gradients = distributed.new_group()


class Passage:
    """The neighbours of one stage. Sends return at once; ``wait`` ends them."""

    def __init__(self, channels: Channels, team: TeamView) -> None:
        self._channels, self._team = channels, team
        self._sent: list[tuple[distributed.Work | None, torch.Tensor]] = []

    def onwards(self, values: Sequence[torch.Tensor]) -> None:
        """Send values to the next stage."""
        self._send(values, self._team.rank + 1, self._channels.values)

    def from_before(self) -> list[torch.Tensor]:
        """Receive the values of the stage before."""
        return self._receive(self._team.rank - 1, self._channels.values)

    def backwards(self, gradients: Sequence[torch.Tensor]) -> None:
        """Send gradients to the stage before."""
        self._send(gradients, self._team.rank - 1, self._channels.gradients)

    def from_behind(self) -> list[torch.Tensor]:
        """Receive gradients from the next stage."""
        return self._receive(self._team.rank + 1, self._channels.gradients)

    def wait(self) -> None:
        """Wait until everything that was sent has arrived."""
        sent, self._sent = self._sent, []
        for work, _ in sent:
            if work is not None:
                work.wait()

    def _send(self, tensors: Sequence[torch.Tensor], rank: int, group: distributed.ProcessGroup) -> None:
        header = torch.zeros(MAX_TENSORS, MAX_DIMENSIONS + 2, dtype=torch.int64)
        for row, tensor in zip(header, tensors, strict=False):
            shape = torch.tensor(tensor.shape, dtype=torch.int64)
            row[0], row[1] = 1 + DTYPES.index(tensor.dtype), tensor.ndim
            row[2 : 2 + tensor.ndim] = shape
        for tensor in (header.to(self._team.device), *(tensor.contiguous() for tensor in tensors)):
            self._sent.append((distributed.isend(tensor, rank, group=group), tensor))

    def _receive(self, rank: int, group: distributed.ProcessGroup) -> list[torch.Tensor]:
        header = torch.empty(MAX_TENSORS, MAX_DIMENSIONS + 2, dtype=torch.int64, device=self._team.device)
        distributed.recv(header, rank, group=group)
        tensors = []
        for code, dimensions, *sizes in header.tolist():
            if code:
                tensor = torch.empty(sizes[:dimensions], dtype=DTYPES[code - 1], device=self._team.device)
                distributed.recv(tensor, rank, group=group)
                tensors.append(tensor)
        return tensors
