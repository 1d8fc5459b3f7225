"""Gradients of members that are alike, captured as one: the bits of each member alone, or captures of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines import cuda_graphs, joint_gradients
from hopfleet.frameworks.torch.engines.capture import Capture, Joint
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.recorded_capture import recorded_capture

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
LETTERS, WIDTH, TOKENS = 11, 16, 130 if DEVICE != "cpu" else 7
"""On CUDA, more tokens than attention goes through in one part unless it is told to."""


class Text:
    """Batches of random letters."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.rows = sizes or (3, 3, 3, 2), sum(sizes or (11,))

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for rows in self.sizes:
            yield {"x": torch.randint(0, LETTERS, (rows, TOKENS), generator=generator).to(DEVICE)}


class Block(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.before, self.attend = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
        self.drop = nn.Dropout(config.get("dropout", 0.0))

    def forward(self, x: Any) -> Any:
        parts = self.attend(self.before(x)).view(*x.shape[:2], 3, 2, WIDTH // 2)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.think(self.drop(found.transpose(1, 2).flatten(2)))


class Model(nn.Module):
    """Tied, frozen, unused and hidden values included."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(LETTERS, WIDTH), Block(config), nn.Linear(WIDTH, LETTERS)
        self.places, self.scale = nn.Parameter(torch.zeros(TOKENS - 1, WIDTH)), nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(2))
        self.head.weight = self.tokens.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("halves", torch.full((WIDTH,), 0.5), persistent=False)
        self.hidden = SimpleNamespace(factor=config.get("hidden", 1.0))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.block((self.tokens(x) + self.places) * self.halves)
        return self.head(x * self.scale * self.hidden.factor)


class Task(hop.TorchTask):
    made_by: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def build(self, config: Mapping[str, Any]) -> Any:
        model = Model(config)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        return model, type(self).made_by(trained, lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def opened(task: hop.TorchTask, configs: Sequence[Mapping[str, Any]]) -> list[TorchSession]:
    cache = EngineCache()
    if DEVICE == "cpu":
        recorded_capture(cache)
    placement = Placement.on(DEVICE)
    return [
        task.framework.open({"lr": 0.01 * (seed + 1), **config}, seed=seed, placement=placement, threads=1, cache=cache)
        for seed, config in enumerate(configs)
    ]


def bits(session: TorchSession, folder: Path) -> bytes:
    session.save(folder / "bits")
    return (folder / "bits").read_bytes()


def joint_of(session: TorchSession) -> Joint | None:
    """Return the graph that computes the gradients of full batches of a session and others."""
    captures: dict[object, Capture] = session.kept.get(Steps, {})
    return next(iter(captures.values())).joint if captures else None


def reasons(sessions: Sequence[TorchSession]) -> list[str]:
    """Return why gradients are not captured as one."""
    verdicts = sessions[0].cache.part(GraphCache).verdicts
    return [why for kind, why in verdicts.items() if isinstance(kind, tuple) and kind[0] is Joint and why]


def check(
    task: hop.TorchTask, configs: Sequence[Mapping[str, Any]], folder: Path, *, units: int = 2
) -> list[TorchSession]:
    """Train members together and alone, and compare; return those that trained together."""
    together, alone = opened(task, configs), opened(task, configs)
    for _ in range(units):
        found = CudaGraphs(together).train(Text(), last=[False] * len(configs))
        expected = [Interleaved([one]).train(Text(), last=[False])[0] for one in alone]
        assert found == expected
        assert [bits(one, folder) for one in together] == [bits(one, folder) for one in alone]
    return together


FIVE = [dict[str, Any]() for _ in range(5)]


class Clipped(Task):
    clip_norm = 0.1


class Averaged(Task):
    ema = 0.9


class Descent(Task):
    made_by = torch.optim.SGD


class Root(Task):
    made_by = torch.optim.RMSprop


class Cycle(Task):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=100)


class Decay(Task):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


class Rounded(Task):
    precision = "tf32"


OTHERS = [pytest.param(one, marks=pytest.mark.slow) for one in (Averaged, Root, Decay, Rounded)]


@pytest.mark.parametrize("task", [Task, Clipped, Descent, Cycle, *OTHERS])
def test_gradients_captured_as_one_have_the_bits_of_each_member(task: type[Task], tmp_path: Path) -> None:
    sessions = check(task(), FIVE, tmp_path)
    assert not reasons(sessions)
    joint = joint_of(sessions[0])
    assert joint is not None and joint.count == len(FIVE)
    assert all(joint_of(one) is joint for one in sessions)


def test_members_with_different_optimizers_and_settings_are_alike(tmp_path: Path) -> None:
    class Several(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer = super().build(config)
            return model, config["kind"](optimizer.param_groups[0]["params"], lr=config["lr"])

    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.Adam, torch.optim.Adagrad)
    sessions = check(Several(), [{"kind": kind} for kind in kinds], tmp_path)
    assert joint_of(sessions[0]) is not None


class Keeps(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        model.count = nn.BatchNorm1d(2)
        return model, optimizer


class Hooked(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        model.scale.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))
        return model, optimizer


class ModuleHooked(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        model.head.register_forward_hook(lambda module, given, found: found * config["lr"])
        return model, optimizer


class Accumulates(Descent):
    accumulate = 2


class Forgets(Task):
    """Gradients that no optimizer clears are summed over all steps."""

    clip_norm = 0.1

    def build(self, config: Mapping[str, Any]) -> Any:
        model, _ = super().build(config)
        return model, torch.optim.SGD([model.scale, model.tokens.weight], lr=config["lr"])


class Eager(Task):
    capture = False


@pytest.mark.parametrize(
    ("task", "configs"),
    [
        (Task, FIVE[:3]),
        (Task, [{"dropout": 0.5}] * 4),
        (Keeps, FIVE),
        (Hooked, FIVE),
        (ModuleHooked, FIVE),
        (Accumulates, FIVE),
        (Forgets, FIVE),
        (Eager, FIVE),
    ],
    ids=["three", "dropout", "statistics", "hooks", "hooks of modules", "accumulation", "not cleared", "no capture"],
)
def test_what_may_depend_on_more_is_captured_for_each_member(
    task: type[Task], configs: list[dict[str, Any]], tmp_path: Path
) -> None:
    sessions = check(task(), configs, tmp_path)
    assert joint_of(sessions[0]) is None
    assert not reasons(sessions)


class Reads(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * self.config["lr"]


class Looks(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss if model.scale.sum() > 0 else -loss


class Counts(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        model.halves += 0
        return super().loss(model, batch)


class Attentionless(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        return nn.functional.cross_entropy(model.head(model.tokens(x[:, :-1])).flatten(0, 1), x[:, 1:].flatten())


@pytest.mark.parametrize(
    ("task", "configs", "why"),
    [
        (Reads, FIVE, "'lr'"),
        (Looks, FIVE, "reads values"),
        (Counts, FIVE, "weights alone"),
        (Attentionless, FIVE, "attention"),
        (Task, [{"hidden": 1.0}] * 4 + [{"hidden": 2.0}], "bits"),
    ],
    ids=["configuration", "values", "buffers", "no attention", "hidden values"],
)
def test_members_that_turn_out_to_differ_are_captured_by_themselves(
    task: type[Task], configs: list[dict[str, Any]], why: str, tmp_path: Path
) -> None:
    sessions = check(task(), configs, tmp_path)
    assert joint_of(sessions[0]) is None
    assert any(why in reason for reason in reasons(sessions)), reasons(sessions)


def test_models_without_attention_need_no_joint_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first operation on one takes a second."""
    monkeypatch.setattr(joint_gradients.Together, "gradients", lambda *_: pytest.fail("computed with joint tensors"))
    assert any("attention" in reason for reason in reasons(check(Attentionless(), FIVE, tmp_path)))


class Layers(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


@pytest.mark.parametrize(
    ("task", "count", "trained", "begins"),
    [(Task, 3, False, 0), (Task, 5, False, 1), (Task, 5, True, 0), (Layers, 5, False, 0)],
    ids=["three", "five", "one after another", "layers"],
)
def test_imports_begin_while_trials_are_built_to_train_together(
    task: type[Task], count: int, trained: bool, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[None] = []
    monkeypatch.setattr(joint_gradients, "begin_wrappers", lambda: begun.append(None))
    sessions = opened(task(), [{}] * count)
    begun.clear()  # on CUDA, that was done once already
    sessions[0].counters["units"] += trained
    cache = EngineCache()
    for session in sessions:
        session.cache = cache
        joint_gradients.make_ready(session)
    assert len(begun) == begins


@pytest.mark.parametrize(("leave", "stays"), [(1, True), (2, False)])
def test_members_leave(leave: int, stays: bool, tmp_path: Path) -> None:
    """While most are still there, the others use the graph of all; the weights of those that left stay in memory."""
    together, alone = opened(Task(), FIVE), opened(Task(), FIVE)
    CudaGraphs(together).train(Text(), last=[False] * 5)
    Interleaved(alone).train(Text(), last=[False] * 5)
    joint = joint_of(together[0])
    del together[:leave]
    del alone[:leave]
    for _ in range(2):
        found = CudaGraphs(together).train(Text(), last=[False] * len(together))
        assert found == Interleaved(alone).train(Text(), last=[False] * len(alone))
    assert (joint_of(together[0]) is joint) is stays
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


def test_a_member_is_given_up_in_the_middle(tmp_path: Path) -> None:
    together, alone = opened(Task(), FIVE), opened(Task(), FIVE)
    flotilla = CudaGraphs(together)
    seen = iter(range(100))
    flotilla.given_up = lambda: [2] if next(seen) > 2 else []
    found = flotilla.train(Text(), last=[False] * 5)
    expected = Interleaved(alone).train(Text(), last=[False] * 5)
    assert isinstance(found[2], Exception)
    others = [0, 1, 3, 4]
    assert [found[number] for number in others] == [expected[number] for number in others]
    assert [bits(together[one], tmp_path) for one in others] == [bits(alone[one], tmp_path) for one in others]


def test_an_attempt_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first bit of one gradient is turned over: all members train by themselves then, as if nothing had been."""
    real = joint_gradients.Together.gradients

    def wrong(self: joint_gradients.Together, batch: Any) -> Any:
        losses, found = real(self, batch)
        with torch.no_grad():
            last = next(one for one in reversed(found[-1]) if one is not None)
            last.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        return losses, found

    monkeypatch.setattr(joint_gradients.Together, "gradients", wrong)
    sessions = check(Task(), FIVE, tmp_path)
    assert joint_of(sessions[0]) is None and any("bits" in reason for reason in reasons(sessions))


def test_updates_that_differ_are_made_eagerly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> None:
    """The capture says that it makes updates, and makes none."""

    def wrong(member: Any, capture: Capture) -> None:
        capture.whole = True

    monkeypatch.setattr(joint_gradients, "_add_update", wrong)
    sessions = check(Descent(), FIVE, tmp_path)
    assert joint_of(sessions[0]) is not None and not reasons(sessions)
    assert (
        "only gradients are captured, and updates are made in turn: replayed steps do not have"
        in capfd.readouterr().err
    )


def test_steps_are_compared_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = joint_gradients.captured_together

    def wrong(members: Any, inputs: Any, **options: Any) -> Any:
        captures = real(members, inputs, **options)
        for capture in captures.values():
            capture.values["loss"] = capture.values["loss"].clone()  # no replay changes it
        return captures

    monkeypatch.setattr(cuda_graphs, "captured_together", wrong)
    sessions = check(Descent(), FIVE, tmp_path)
    assert joint_of(sessions[0]) is None and any("bits" in reason for reason in reasons(sessions))


def test_a_loss_that_raises_is_the_members_own(tmp_path: Path) -> None:
    class Raises(Task):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            if type(model.scale) is not nn.Parameter:
                raise ValueError("a tensor of many")
            return super().loss(model, batch)

    sessions = check(Raises(), FIVE, tmp_path)
    assert joint_of(sessions[0]) is None and reasons(sessions) == ["ValueError: a tensor of many"] * len(
        reasons(sessions)
    )


def test_time_is_shared_among_members(tmp_path: Path) -> None:
    sessions = opened(Task(), FIVE)
    CudaGraphs(sessions).train(Text(3, 3, 3, 3), last=[False] * 5)
    flotilla = CudaGraphs(sessions)
    flotilla.train(Text(3, 3, 3, 3), last=[False] * 5)
    assert joint_of(sessions[0]) is not None
    assert sum(flotilla.shares) == pytest.approx(1)
    if DEVICE == "cpu":
        assert flotilla.shares == pytest.approx([0.2] * 5)
