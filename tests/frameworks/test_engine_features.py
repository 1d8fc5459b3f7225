"""Features of PyTorch in ordinary tasks: trials that train together get what each of them gets alone.

With ``exact``, that is every bit. With ``fast``, a stack may round differently: it is as far from double precision as
training alone is, or a few times as far. What cannot be stacked trains as with ``exact``, and the log says why.
"""

from __future__ import annotations

import pytest
import torch

from tests.helpers import feature_tasks as tasks
from tests.helpers.feature_runs import Batches, alone, distance, opened, state_of, together
from tests.helpers.stacked_tasks import DEVICE

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="compares bits and rounding on the CPU"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),
]

TIMES = 4
"""How many times as far from double precision as training alone a stack may be."""

STACKED = [
    *(tasks.Featured, tasks.Clipped, tasks.Images, tasks.Counted, tasks.InLoss, tasks.Tied, tasks.Normed),
    *(tasks.Autocast, tasks.AutocastLayerNorm, tasks.AutocastConv, tasks.AutocastAttention, tasks.Encoder),
    *(tasks.PartlyAutocast, tasks.Compiled),
]
RANDOM = [tasks.Variational, tasks.StochasticDepth, tasks.NoisyLoss]
REFUSED = {
    tasks.Bf16: "uses another precision",
    tasks.Fp16: "a gradient scaler reads values",
    tasks.Accumulated: "the task accumulates gradients",
    tasks.Averaged: "averages weights",
    tasks.Checkpointed: "requires_grad_",
    tasks.Reentrant: "not have been used in the graph",
    tasks.Penalized: "requires_grad_",
    tasks.PenalizedWeights: "custom autograd.Function",
    tasks.Tossed: "random numbers are drawn on the host (python)",
    tasks.Replaced: "the loss changes 'mean' of module '1' on the host",
    tasks.Warmed: "the loss changes 'seen' of module '2' on the host",
    tasks.OfTask: "the loss changes 'seen' of the task on the host",
    tasks.Remembered: "the loss changes 'mean' of module '1' on the host",
    tasks.OfRate: "the loss uses the optimizer, the schedule or the scaler of its trial",
    tasks.Embedded: "gradients are sparse",
    tasks.SparseAdam: "the optimizer is SparseAdam, Adam",
    tasks.TiedByData: "two parameters use the same memory",
    tasks.Spectral: "aten::div.out",
    tasks.OldNormed: "deepcopy",
    tasks.OldSpectral: "the loss changes 'weight' of module '0' on the host",
}
QUICK = {
    *(tasks.Counted, tasks.AutocastLayerNorm, tasks.StochasticDepth),
    *(tasks.Fp16, tasks.Penalized, tasks.Tossed, tasks.Replaced, tasks.OfTask, tasks.OfRate, tasks.Embedded),
    *(tasks.TiedByData, tasks.OldSpectral),
}


def features(*some: type[tasks.Featured]) -> list[object]:
    return [pytest.param(task, id=task.__name__, marks=[pytest.mark.slow] * (task not in QUICK)) for task in some]


def assert_same_bits(task: type[tasks.Featured], *, captures: bool, fast: bool) -> None:
    """Train for four units of eight batches; the last one of each is smaller."""
    ones, others = opened(task(), fused=captures), opened(task(), captures=captures, fused=captures)
    expected = alone(ones, Batches(8), 4)
    assert together(others, Batches(8), 4, fast=fast) == expected
    for one, other in zip(ones, others, strict=True):
        mine, theirs = state_of(one), state_of(other)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), "weights and buffers"
        assert {**vars(one.hooks)} == {**vars(other.hooks)}, "attributes of the task"


@pytest.mark.parametrize("task", features(*STACKED, *RANDOM, *REFUSED))
@pytest.mark.parametrize("captures", [False, True], ids=["in turn", "captured"])
def test_exact_has_the_bits_of_training_alone(task, captures):
    assert_same_bits(task, captures=captures, fast=False)


@pytest.mark.parametrize("task", features(*REFUSED))
def test_what_is_not_stacked_has_the_bits_of_training_alone(task, capsys):
    assert_same_bits(task, captures=False, fast=True)
    said = capsys.readouterr().err
    assert said.count("trials train in turn") == 1 and REFUSED[task] in said and "are stacked" not in said


@pytest.mark.slow
@pytest.mark.parametrize("task", features(*STACKED))
def test_a_stack_is_as_close_to_double_precision_as_training_alone(task, capsys):
    ones, others, exact = opened(task()), opened(task()), opened(task(), double=True)
    precise = torch.tensor(alone(exact, Batches(50, torch.float64), 4))
    apart = (torch.tensor(alone(ones, Batches(50), 4)) - precise).norm()
    stacked = (torch.tensor(together(others, Batches(50), 4, fast=True)) - precise).norm()
    assert "are stacked" in capsys.readouterr().err
    assert distance(others, exact) <= TIMES * distance(ones, exact)
    assert stacked <= TIMES * apart + 1e-6
