"""Pipelines: each member keeps some blocks of the model, and micro-batches of each batch flow through them.

The user's ``loss`` runs on two members. On the first one it stops at the call of the model, which tells the model's
inputs; on the last one the call returns the output of the pipeline, and the rest computes the loss.

PyTorch has schedules of its own (``torch.distributed.pipelining``). They learn shapes by running the model on arbitrary
values, which draws random numbers and changes buffers; here nothing runs but the training itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import distributed

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.parallel.ddp import warn_of_batch_norm
from hopfleet.frameworks.torch.parallel.passage import Channels, Passage, order
from hopfleet.frameworks.torch.parallel.stages import cut
from hopfleet.frameworks.torch.parallel.strategy import Share, SpreadTrial, Strategy, TeamSteps
from hopfleet.frameworks.torch.parallel.wire import Value
from hopfleet.frameworks.torch.steps import check_loss, rows_of
from hopfleet.frameworks.torch.trial import Metrics

MICRO_BATCHES = 4
"""Micro-batches per member."""


class _Called(BaseException):
    """The end of the user's code on the first member: the call of the model."""

    def __init__(self, arguments: tuple[Value, ...], keywords: dict[str, Value]) -> None:
        self.arguments, self.keywords = arguments, keywords


class _Inputs(torch.nn.Module):
    """A stand-in for the model that tells its inputs."""

    def forward(self, *arguments: Value, **keywords: Value) -> Value:
        raise _Called(arguments, keywords)


class _Output(torch.nn.Module):
    """A stand-in for the model that returns the output of the pipeline."""

    def __init__(self, output: Value) -> None:
        super().__init__()
        self._output = [output]

    def forward(self, *arguments: Value, **keywords: Value) -> Value:
        if not self._output:
            raise TaskError("loss() or metrics() calls the model twice for a batch: a pipeline passes a batch once")
        return self._output.pop()


class _PipelineSteps(TeamSteps):
    def __init__(self, trial: SpreadTrial, strategy: Pipeline) -> None:
        super().__init__(trial)
        self._spread, self._strategy = trial, strategy

    def _backward(self, batch: Batch, *, clear: bool = True) -> torch.Tensor:
        if clear and not self.waiting:
            self._clear_gradients()
        self.waiting += 1
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
    cuts_models = True
    #: Whether all forward passes of a batch come before its backward passes.
    forward_first = False

    def __init__(self) -> None:
        self._stage: Value = None
        self._passage: Passage | None = None
        #: All parameters and buffers, with the rank of the member that has them.
        self._owners: list[tuple[torch.Tensor, int]] = []

    def check(self, trial: SpreadTrial) -> None:
        super().check(trial)
        cut(trial.model, self.blocks(trial), trial.team.size)

    def spread(self, trial: SpreadTrial) -> None:
        team = trial.team
        warn_of_batch_norm(trial, f"it normalizes each of the {MICRO_BATCHES * team.size} micro-batches of a batch")
        stages = cut(trial.model, self.blocks(trial), team.size)
        self._stage = stages[team.rank].to(team.device)
        self._passage = Passage(trial.cache.part(Channels), team)
        owner = {id(one): rank for rank, stage in enumerate(stages) for one in [*stage.parameters(), *stage.buffers()]}
        self._owners = [(one, owner.get(id(one), 0)) for one in [*trial.model.parameters(), *trial.model.buffers()]]
        for optimizer in trial.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if torch.is_tensor(value) and value.ndim and owner.get(id(parameter)) == team.rank:
                        state[key] = value.to(team.device)

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        return _PipelineSteps(trial, self)

    # ------------------------------------------------------------------------------------------------- training

    def shares(self, batch: Batch, size: int) -> list[Share]:
        """Give the whole batch to the first and to the last member; others need its rows alone."""
        rows = rows_of(batch)
        return [Share(batch if rank in (0, size - 1) else {}, rows) for rank in range(size)]

    def backward(self, trial: SpreadTrial, share: Share) -> torch.Tensor:
        """Pass a batch through the stages and back; return its loss on the last member, and 0 on the others."""
        team, rows = trial.team, share.rows
        count = max(1, min(MICRO_BATCHES * team.size, rows // self.fewest_rows))
        bounds = [rows * number // count for number in range(count + 1)]
        parts = [{name: column[a:b] for name, column in share.batch.items()} for a, b in itertools.pairwise(bounds)]
        losses: list[torch.Tensor] = []
        passing: deque[_Passing] = deque()
        for forward, number in order(team.rank, team.size, count, forward_first=self.forward_first):
            if forward:
                passing.append(self._forward(trial, parts[number]))
                if team.rank == team.size - 1:
                    weight = (bounds[number + 1] - bounds[number]) / rows
                    losses.append(passing[-1].weigh(self._loss(trial, passing[-1], parts[number]), weight))
            else:
                self._backward(trial, passing.popleft())
        self._passed.wait()
        return torch.stack(losses).sum() if losses else torch.zeros((), device=trial.device)

    @property
    def _passed(self) -> Passage:
        assert self._passage is not None, "a trial is spread before it trains"
        return self._passage

    def _forward(self, trial: SpreadTrial, part: Batch, *, training: bool = True) -> _Passing:
        """Run this member's stage on a micro-batch, and pass its values on."""
        team = trial.team
        if team.rank == 0:
            inputs = list(self._inputs(trial, part, training=training))
        else:
            inputs = [one.requires_grad_(training and one.is_floating_point()) for one in self._passed.from_before()]
        with trial.options.autocast(trial.device):
            found = self._stage(*inputs)
        outputs = list(found) if isinstance(found, tuple) and team.rank < team.size - 1 else [found]
        if team.rank < team.size - 1:
            for one in outputs:
                if not torch.is_tensor(one):
                    raise TaskError(
                        f"the code between the blocks passes on a {type(one).__name__}: a pipeline passes tensors alone"
                    )
            self._passed.onwards([one.detach() for one in outputs])
        return _Passing(inputs, outputs)

    def _loss(self, trial: SpreadTrial, passing: _Passing, part: Batch) -> torch.Tensor:
        with trial.options.autocast(trial.device):
            loss: torch.Tensor = trial.hooks.loss(_Output(passing.outputs[0]), part)
        check_loss(loss)
        return loss

    def _backward(self, trial: SpreadTrial, passing: _Passing) -> None:
        """Run the backward pass of this member's stage for a micro-batch, and pass the gradients back."""
        team = trial.team
        if team.rank == team.size - 1:
            (passing.outputs[0] / trial.options.accumulate).backward()  # type: ignore[no-untyped-call]
        else:
            outputs = [one for one in passing.outputs if one.is_floating_point()]
            pairs = [pair for pair in zip(outputs, self._passed.from_behind(), strict=True) if pair[0].requires_grad]
            torch.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])
        if team.rank:
            floating = [one for one in passing.inputs if one.is_floating_point()]
            self._passed.backwards([torch.zeros_like(one) if one.grad is None else one.grad for one in floating])

    def _inputs(self, trial: SpreadTrial, batch: Batch, *, training: bool) -> tuple[Value, ...]:
        """Return the arguments with which the user's code calls the model."""
        hook = trial.hooks.loss if training else trial.hooks.metrics
        try:
            hook(_Inputs(), batch)
        except _Called as call:
            if call.keywords:
                raise TaskError(
                    "loss() calls the model with keywords: a pipeline passes arguments by position alone; use another "
                    "strategy"
                ) from None
            return call.arguments
        raise TaskError("loss() never calls the model: a pipeline passes batches through the model that loss() calls")

    # ----------------------------------------------------------------------------------------------- evaluation

    def rounds(self, batches: Iterable[Batch], size: int) -> Iterator[list[Share | None]]:
        """Have all members take part in each batch."""
        for batch in batches:
            yield list[Share | None](self.shares(batch, size))

    def measure(self, trial: SpreadTrial, share: Share) -> tuple[Metrics, int] | None:
        passing = self._forward(trial, share.batch, training=False)
        self._passed.wait()
        if trial.team.rank < trial.team.size - 1:
            return None
        model, trial.callable = trial.callable, _Output(passing.outputs[0])
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

    forward_first = True


class _Passing:
    """A micro-batch on its way through one stage."""

    def __init__(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        self.inputs, self.outputs = inputs, outputs

    def weigh(self, loss: torch.Tensor, weight: float) -> torch.Tensor:
        """Let the loss of the micro-batch count by its part of the rows; return its part of the batch's loss."""
        self.outputs = [loss * weight]
        return self.outputs[0].detach()


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
