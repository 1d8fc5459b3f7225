"""Features of PyTorch in ordinary tasks: trials that train together get what each of them gets alone.

With ``exact``, that is every bit. With ``fast``, a stack may round differently: it is as far from double precision as
training alone is, or a few times as far. What cannot be stacked trains as with ``exact``, and the log says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional

from hopfleet.errors import NotFinite
from hopfleet.frameworks.torch.engines.stacked import norms, operations
from hopfleet.frameworks.torch.engines.stacked.gradients import Gradients
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from tests.helpers import feature_states as states
from tests.helpers import feature_tasks as tasks
from tests.helpers.feature_runs import Batches, alone, distance, opened, state_of, together
from tests.helpers.marks import LONG
from tests.helpers.stacked_tasks import DEVICE
from tests.helpers.stand_in_kernels import in_place_of_kernels

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="compares bits and rounding on the CPU"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),
]

UPDATES = 200 if LONG else 48
"""Updates after which a stack is compared with double precision."""

TIMES = 4
"""How many times as far from double precision as training alone a stack may be."""

STACKED = [
    *(tasks.Featured, tasks.Clipped, tasks.Images, states.Counted, states.InLoss, tasks.Tied, tasks.Normed),
    *(tasks.Autocast, tasks.AutocastLayerNorm, tasks.AutocastConv, tasks.AutocastAttention, tasks.Encoder),
    *(tasks.PartlyAutocast, tasks.Compiled, tasks.HalfWeights, tasks.NeverDropped),
]
RANDOM = [tasks.Variational, tasks.StochasticDepth, tasks.NoisyLoss]
REFUSED = {
    tasks.Bf16: "uses another precision",
    tasks.Fp16: "a gradient scaler reads values",
    tasks.Accumulated: "the task accumulates gradients",
    tasks.Averaged: "averages weights",
    tasks.ReadImages: "vmap",
    tasks.Checkpointed: "requires_grad_",
    tasks.Reentrant: "not have been used in the graph",
    tasks.Penalized: "requires_grad_",
    tasks.PenalizedWeights: "custom autograd.Function",
    tasks.Tossed: "random numbers are drawn on the host (python)",
    states.Replaced: "the loss changes 'mean' of module '1' on the host",
    states.Warmed: "the loss changes 'seen' of module '2' on the host",
    states.OfTask: "the loss changes 'seen' of the task on the host",
    states.Remembered: "the loss changes 'mean' of module '1' on the host",
    states.OfRate: "the loss uses the optimizer, the schedule or the scaler of its trial",
    tasks.Embedded: "gradients are sparse",
    tasks.SparseAdam: "the optimizer is SparseAdam, Adam",
    tasks.HalfWeightsRmsprop: "the settings of the optimizer do not fit",
    tasks.TwoTypes: "parameters have several types",
    tasks.TiedByData: "two parameters use the same memory",
    tasks.Spectral: "aten::div.out",
    tasks.OldNormed: "deepcopy",
    tasks.OldSpectral: "the loss changes 'weight' of module '0' on the host",
}
QUICK_EXACT = [states.OfTask, tasks.AutocastLayerNorm]
QUICK_FAST = [
    *(tasks.Tossed, states.Replaced, states.OfTask, states.OfRate),
    *(tasks.TiedByData, tasks.TwoTypes, tasks.ReadImages),
]
"""Features that make test runs, too: one of each kind of state, of randomness and of memory."""


def features(*some: type[tasks.Featured], quick: Sequence[type[tasks.Featured]] = ()) -> list[object]:
    return [pytest.param(task, id=task.__name__, marks=[pytest.mark.slow] * (task not in quick)) for task in some]


def assert_same_bits(task: type[tasks.Featured], *, captures: bool, fast: bool) -> None:
    """Train for two units of eight batches; the last one of each is smaller."""
    ones, others = opened(task(), fused=captures), opened(task(), captures=captures, fused=captures)
    expected = alone(ones, Batches(8), 2)
    assert together(others, Batches(8), 2, fast=fast) == expected
    for one, other in zip(ones, others, strict=True):
        mine, theirs = state_of(one), state_of(other)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), "weights and buffers"
        weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
        assert all(mine.stride() == theirs.stride() for mine, theirs in weights), "the order in memory"
        assert {**vars(one.hooks)} == {**vars(other.hooks)}, "attributes of the task"


@pytest.mark.parametrize("task", features(*STACKED, *RANDOM, *REFUSED, quick=QUICK_EXACT))
@pytest.mark.parametrize("captures", [False, True], ids=["in turn", "captured"])
def test_exact_has_the_bits_of_training_alone(task, captures):
    assert_same_bits(task, captures=captures, fast=False)


@pytest.mark.parametrize("task", features(*REFUSED, quick=QUICK_FAST))
def test_what_is_not_stacked_has_the_bits_of_training_alone(task, capsys):
    assert_same_bits(task, captures=False, fast=True)
    said = capsys.readouterr().err
    assert said.count("trials train in turn") == 1 and REFUSED[task] in said and "are stacked" not in said


@pytest.mark.parametrize("task", features(*STACKED))
def test_a_stack_is_as_close_to_double_precision_as_training_alone(task, capsys):
    ones, others, exact = opened(task()), opened(task()), opened(task(), double=True)
    each = UPDATES // 4
    precise = torch.tensor(alone(exact, Batches(each, torch.float64), 4))
    apart = (torch.tensor(alone(ones, Batches(each), 4)) - precise).norm()
    stacked = (torch.tensor(together(others, Batches(each), 4, fast=True)) - precise).norm()
    assert "are stacked" in capsys.readouterr().err
    assert distance(others, exact) <= TIMES * distance(ones, exact)
    assert stacked <= TIMES * apart + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_few_bits_keep_no_trials_from_being_stacked(seed, capsys):
    """Whatever the weights are, the gradients of some member show that the function is the same."""
    sessions = opened(tasks.Deep())
    for session in sessions:
        torch.manual_seed(100 * seed + sessions.index(session))
        session.model.load_state_dict(session.task.model({}).state_dict())
    together(sessions, Batches(2), 1, fast=True)
    assert "are stacked" in capsys.readouterr().err


class NoisyAutocast(tasks.AutocastLayerNorm):
    def loss(self, model, batch):
        return super().loss(model, {**batch, "x": batch["x"] + torch.randn_like(batch["x"])})


class NoisyNorm(tasks.NoisyLoss):
    def model(self, config):
        return tasks.AutocastLayerNorm.model(self, config)


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (NoisyNorm, 1e-3),
        (NoisyAutocast, 0.05),
        (tasks.AutocastLayerNorm, 0.05),
        pytest.param(tasks.AutocastLayerNorm, math.nan, marks=pytest.mark.slow),
    ],
)
def test_a_stack_that_computes_something_else_is_refused(task, error, monkeypatch, capsys):
    """An error of a rule is told from rounding, in each precision, and whether random numbers are drawn or not."""

    def wrong(x, shape, weight=None, bias=None, eps=1e-5):
        return norms.layer_norm(x, shape, weight, bias, eps) * (1 + error)

    tried: list[int] = []
    measured = Gradients.deviation
    monkeypatch.setattr(Gradients, "deviation", lambda self, batch: tried.append(1) or measured(self, batch))
    together(opened(task()), Batches(2), 1, fast=True)
    assert "are stacked" in capsys.readouterr().err and tried
    tried.clear()
    monkeypatch.setitem(operations.FOLDED, functional.layer_norm, wrong)
    assert_same_bits(task, captures=False, fast=True)
    assert len(tried) == 1, "and not tried again in the second unit"
    said = capsys.readouterr().err
    assert said.count("trials train in turn: gradients of a stack deviate by") == 1 and "rounding does not" in said


@pytest.mark.parametrize("task", features(*RANDOM, quick=RANDOM))
@pytest.mark.parametrize("first", [0, 1])
def test_members_draw_the_same_random_numbers_only_to_be_compared(task, first, capsys):
    """The first member whose gradients are finite is compared, whatever its place is."""
    sessions = opened(task())
    for session in sessions:
        session.model.load_state_dict(sessions[0].model.state_dict())
        session.optimizers[0].param_groups[0]["lr"] = 0.01
    for session in sessions[:first]:
        torch.nn.init.constant_(next(session.model.parameters()), math.nan)
    results = sessions[0].task.framework.flotilla(sessions, fast=True).train(Batches(2), last=[True] * 4)
    assert [isinstance(result, NotFinite) for result in results] == [number < first for number in range(4)]
    said = capsys.readouterr().err
    assert [float(off) < 1e-5 for off in re.findall(r"deviate by (\S+) of the largest", said)] == [True]
    assert "beside the stack" not in said
    weights = [torch.cat([weight.detach().flatten() for weight in one.model.parameters()]) for one in sessions]
    assert not torch.equal(weights[2], weights[3])


@pytest.mark.parametrize("task", features(*RANDOM))
def test_stacked_trials_with_random_numbers_learn_as_well(task):
    """Members draw from one stream, so losses agree as far as chance does."""
    expected = torch.tensor(alone(opened(task()), Batches(50), 4))[:, -1]
    found = torch.tensor(together(opened(task()), Batches(50), 4, fast=True))[:, -1]
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", ["AutocastLayerNorm", "AutocastConv", "AutocastAttention", "PartlyAutocast"])
def test_kernels_get_no_numbers_of_a_type_that_they_cannot_read(name, monkeypatch):
    made = Gradients._module

    def with_kernels(self):
        self._kernels = True
        return made(self)

    monkeypatch.setattr(Gradients, "_module", with_kernels)
    with in_place_of_kernels(monkeypatch):
        stack = Stack(opened(getattr(tasks, name)()))
        stack.read_settings()
        found, _ = stack.gradients.deviation(next(iter(Batches(2))))
    assert found.explained
