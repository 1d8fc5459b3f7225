"""Pipelines: each member keeps some blocks of the model, and micro-batches of each batch flow through them.

The user's ``loss`` runs on two members. On the first one it stops at the call of the model, which tells the model's
inputs; on the last one the call returns the output of the pipeline, and the rest computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.parallel.stages import cut
from hopfleet.frameworks.torch.parallel.strategy import Share, SpreadTrial, Strategy, TeamSteps
from hopfleet.frameworks.torch.steps import rows_of
from hopfleet.frameworks.torch.trial import Metrics

MICRO_BATCHES = 4
"""Micro-batches per member. A batch that is not divisible has fewer: all of them must have the same rows."""


class _Called(BaseException):
    """The end of the user's code on the first member: the call of the model."""

    def __init__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.arguments, self.keywords = arguments, keywords


class _Inputs(torch.nn.Module):
    """A stand-in for the model that tells its inputs."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        raise _Called(arguments, keywords)


class _Output(torch.nn.Module):
    """A stand-in for the model that returns the output of the pipeline."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = [output]

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        if not self._output:
            raise TaskError("loss() or metrics() calls the model twice for a batch: a pipeline passes a batch once")
        return self._output.pop()


class _Steps(TeamSteps):
    def __init__(self, trial: SpreadTrial, strategy: Pipeline) -> None:
        super().__init__(trial)
        self._spread, self._strategy = trial, strategy

    def _backward(self, batch: Batch, *, clear: bool = True) -> torch.Tensor:
        if clear and not self._waiting:
            self._clear_gradients()
        self._waiting += 1
        return self._strategy.backward(self._spread, self._share)

    @torch.no_grad()
    def _limit_norm(self, most: float) -> torch.Tensor:
        gradients = [p.grad for p in self._trial.model.parameters() if p.grad is not None]
        square = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).square().sum()
        distributed.all_reduce(square)
        total = square.sqrt()
        factor = torch.clamp(most / (total + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return total


class Pipeline(Strategy):
    """Each member keeps a stage; schedule 1F1B: backward passes start as soon as they can."""

    same_buffers = False
    schedule: Callable[..., Any] = Schedule1F1B

    def __init__(self) -> None:
        self._stage: Any = None
        #: Schedules by the rows of a micro-batch, their number, and whether they train.
        self._schedules: dict[tuple[int, int, bool], Any] = {}
        #: The loss of a micro-batch of the batch at hand, given by its output and number.
        self._loss_of: Callable[..., Any] | None = None
        #: All parameters and buffers, with the rank of the member that has them.
        self._owners: list[tuple[torch.Tensor, int]] = []

    def check(self, trial: SpreadTrial) -> None:
        super().check(trial)
        cut(trial.model, self.blocks(trial), trial.team.size)

    def spread(self, trial: SpreadTrial) -> None:
        team = trial.team
        stages = cut(trial.model, self.blocks(trial), team.size)
        self._stage = stages[team.rank].to(team.device)
        owner = {
            id(tensor): rank for rank, stage in enumerate(stages) for tensor in [*stage.parameters(), *stage.buffers()]
        }
        self._owners = [(p, owner.get(id(p), 0)) for p in [*trial.model.parameters(), *trial.model.buffers()]]
        for optimizer in trial.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if torch.is_tensor(value) and value.ndim and owner.get(id(parameter)) == team.rank:
                        state[key] = value.to(team.device)

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        return _Steps(trial, self)

    # ------------------------------------------------------------------------------------------------- training

    def shares(self, batch: Batch, size: int) -> list[Share]:
        """Give the whole batch to the first and to the last member; others need its rows alone."""
        rows = rows_of(batch)
        return [Share(batch if rank in (0, size - 1) else {}, rows) for rank in range(size)]

    def backward(self, trial: SpreadTrial, share: Share) -> torch.Tensor:
        """Pass a batch through the stages and back; return its loss on the last member, and 0 on the others."""
        team, accumulate = trial.team, trial.options.accumulate
        count = next(n for n in range(min(MICRO_BATCHES * team.size, share.rows), 0, -1) if share.rows % n == 0)
        losses: dict[int, torch.Tensor] = {}
        parts = _parts(share.batch, count) if share.batch else []

        def loss_of(output: Any, number: torch.Tensor) -> torch.Tensor:
            with trial.options.autocast(trial.device):
                loss: torch.Tensor = trial.hooks.loss(_Output(output), parts[int(number[0])])
            # The first batch of its shape is passed once before, to learn the shapes.
            losses[int(number[0])] = loss.detach() / count
            return loss / (count * accumulate)

        self._run(trial, share, count, parts, loss_of)
        return torch.stack(list(losses.values())).sum() if losses else self._nothing(trial)

    def _nothing(self, trial: SpreadTrial) -> torch.Tensor:
        return torch.zeros((), dtype=next(trial.model.parameters()).dtype, device=trial.device)

    def _run(
        self, trial: SpreadTrial, share: Share, count: int, parts: list[Batch], loss_of: Callable[..., Any] | None
    ) -> Any:
        """Pass the micro-batches of a batch through the stages; with a loss, also back."""
        team = trial.team
        inputs = [self._inputs(trial, part, training=loss_of is not None) for part in parts] if team.rank == 0 else []
        key = (share.rows // count, count, loss_of is not None)
        if key not in self._schedules:
            stage = PipelineStage(self._stage, team.rank, team.size, team.device)
            # 1F1B needs at least as many micro-batches as stages.
            kind = type(self).schedule if loss_of is not None and count >= team.size else ScheduleGPipe
            self._schedules[key] = kind(stage, count, loss_fn=self._loss if loss_of else None, scale_grads=False)
        self._loss_of = loss_of
        schedule = self._schedules[key]
        numbers = torch.arange(count)
        whole = _joined(inputs)
        keywords = {"target": numbers} if team.rank == team.size - 1 and loss_of is not None else {}
        step = schedule.step if loss_of is not None else schedule.eval
        return step(*whole, **keywords)

    def _loss(self, output: Any, number: torch.Tensor) -> Any:
        assert self._loss_of is not None
        return self._loss_of(output, number)

    def _inputs(self, trial: SpreadTrial, batch: Batch, *, training: bool) -> tuple[Any, ...]:
        """Return the arguments with which the user's code calls the model."""
        hook = trial.hooks.loss if training else trial.hooks.metrics
        try:
            hook(_Inputs(), batch)
        except _Called as call:
            if call.keywords or not all(torch.is_tensor(one) and len(one) == rows_of(batch) for one in call.arguments):
                raise TaskError(
                    "loss() calls the model with arguments that are no tensors of the batch's rows, or by keyword: a "
                    "pipeline passes tensors alone; use another strategy"
                ) from None
            return call.arguments
        raise TaskError("loss() never calls the model: a pipeline passes batches through the model that loss() calls")

    # ----------------------------------------------------------------------------------------------- evaluation

    def rounds(self, batches: Iterable[Batch], size: int) -> Iterator[list[Share | None]]:
        """All members take part in each batch."""
        for batch in batches:
            yield list[Share | None](self.shares(batch, size))

    def measure(self, trial: SpreadTrial, share: Share) -> tuple[Metrics, int] | None:
        output = self._run(trial, share, 1, [share.batch], None)
        if trial.team.rank < trial.team.size - 1:
            return None
        model, trial.callable = trial.callable, _Output(output)
        try:
            return trial.measure(share.batch)
        finally:
            trial.callable = model

    # ------------------------------------------------------------------------------------------------- versions

    def collect(self, trial: SpreadTrial) -> checkpoint.State:
        """Bring the parts of all stages to the first member. Every member sends its own, in the order of the model."""
        rank = trial.team.rank
        owners = {id(tensor): owner for tensor, owner in self._owners}
        for tensor, owner in self._owners:
            _pass(tensor, owner, rank)
        for optimizer in trial.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    owner = owners[id(parameter)]
                    if owner:
                        state = [optimizer.state.get(parameter) if rank == owner else None]
                        distributed.broadcast_object_list(state, src=owner)
                        if rank == 0 and state[0] is not None:
                            optimizer.state[parameter] = state[0]
        averages = zip(trial.average, trial.model.parameters(), strict=bool(trial.average))
        for average, parameter in averages:
            _pass(average, owners[id(parameter)], rank)
        return checkpoint.state_of(trial)


class Gpipe(Pipeline):
    """The same with the schedule GPipe: all forward passes of a batch before its backward passes."""

    schedule = ScheduleGPipe


def _pass(tensor: torch.Tensor, owner: int, rank: int) -> None:
    """Copy a tensor from the member that owns it to the first member."""
    if owner == 0:
        return
    if rank == owner:
        distributed.send(tensor.detach().contiguous(), 0)
    elif rank == 0:
        copy = torch.empty_like(tensor.detach())
        distributed.recv(copy, owner)
        tensor.detach().copy_(copy)


def _parts(batch: Batch, count: int) -> list[Batch]:
    """Divide a batch into micro-batches of the same rows."""
    rows = rows_of(batch) // count
    return [{name: column[n * rows : (n + 1) * rows] for name, column in batch.items()} for n in range(count)]


def _joined(inputs: list[tuple[Any, ...]]) -> list[Any]:
    """Return the arguments of the model for a whole batch."""
    return [torch.cat(list(one)) for one in zip(*inputs, strict=True)]
