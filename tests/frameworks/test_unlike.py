"""Trials that look alike and compute something else: each trains with its own numbers, stacked or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache, IsolationError
from hopfleet.frameworks.torch.engines import common
from hopfleet.frameworks.torch.engines.stacked import gradients
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.engines.stacked.models import constants
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.tracked_config import TrackedConfig

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
SCALES = (1.0, 1.0, 2.0, 2.0, 1.01)


class Batches:
    rows = 32

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
            yield {"x": x.to(DEVICE), "y": y.to(DEVICE)}


class Scaled(torch.nn.Module):
    """A model that computes with a number of its configuration, which is an attribute or hidden in an object."""

    def __init__(self, scale: float, hidden: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0)
        self.scale = SimpleNamespace(value=scale) if hidden else scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: float = self.scale.value if isinstance(self.scale, SimpleNamespace) else self.scale
        found: torch.Tensor = self.drop(self.norm(self.layer(x))) * scale
        return found


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Scaled(config["scale"], config["hidden"])
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def several(hidden: bool) -> list[TorchSession]:
    cache, task = EngineCache(), Task()
    return [
        task.framework.open(
            {"scale": scale, "hidden": hidden}, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache
        )
        for seed, scale in enumerate(SCALES)
    ]


def compare_losses(found: list[Any], alone: list[TorchSession], last: bool) -> None:
    """Compare the losses of a unit with those of the same trials alone."""
    for mine, one in zip(found, alone, strict=True):
        theirs = one.train(Batches(), last=last)
        assert isinstance(mine, dict)
        assert float(mine["train_loss"].mean) == pytest.approx(float(theirs["train_loss"].mean), rel=1e-4)


@pytest.mark.parametrize(("hidden", "stacks"), [(False, [0, 0, 1, 1, None]), (True, [0, 0, None, None, None])])
def test_trials_that_differ_inside_their_models_are_not_stacked(hidden, stacks, capfd):
    together, alone = several(hidden), several(hidden)
    for last in (False, True):
        found = Stacked(together).train(Batches(), last=[last] * 5)
        compare_losses(found, alone, last)
    made = [one.kept.get(Stack) for one in together]
    numbers = list(dict.fromkeys(stack for stack in made if stack is not None))
    assert [None if stack is None else numbers.index(stack) for stack in made] == stacks
    assert ("3 trials train beside the stack" in capfd.readouterr().err) == hidden
    for mine, theirs in zip(together, alone, strict=True):
        for one, other in zip(mine.model.buffers(), theirs.model.buffers(), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), "the comparison leaves no trace"


class Noisy(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        noisy = {**batch, "x": batch["x"] + torch.randn_like(batch["x"])}
        return super().loss(model, noisy)


def test_losses_with_random_numbers_are_not_compared():
    cache, task = EngineCache(), Noisy()
    members = [
        task.framework.open(
            {"scale": 1.0, "hidden": True}, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache
        )
        for seed in range(3)
    ]
    Stacked(members).train(Batches(), last=[False] * 3)
    assert all(Stack in one.kept for one in members)


# ------------------------------------------------------------------- configurations that differ in more than numbers


class Scheduled(hop.TorchTask):
    """A task whose configurations have settings that only the schedule reads, and others that the loss may read."""

    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(6, 3, bias=False), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(0.8, 0.99))
        schedules: dict[str, Any] = {
            "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, config["patience"]),
            "cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50 + config["patience"]),
            "none": lambda: None,
        }
        schedule = schedules[config["schedule"]]()
        return (model, optimizer) if schedule is None else (model, optimizer, schedule)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


CONFIGS: list[dict[str, Any]] = [
    {"lr": 0.01, "patience": 1, "schedule": "step"},
    {"lr": 0.02, "patience": 2, "schedule": "step", "batch_size": 8},
    {"lr": 0.01, "patience": 1, "schedule": "cycle"},
    {"lr": 0.03, "patience": 2, "schedule": "cycle", "more": {"deep": [1, 2]}},
    {"lr": 0.01, "patience": 1, "schedule": "none"},
    {"lr": 0.02, "patience": 2, "schedule": "none"},
]


def opened(task: hop.TorchTask, configs: list[dict[str, Any]] = CONFIGS) -> list[TorchSession]:
    cache = EngineCache()
    return [
        task.framework.open(config, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache)
        for seed, config in enumerate(configs)
    ]


def stacks_of(members: list[TorchSession]) -> list[int | None]:
    """Return the number of the stack of each member."""
    made = [one.kept.get(Stack) for one in members]
    numbers = list(dict.fromkeys(stack for stack in made if stack is not None))
    return [None if stack is None else numbers.index(stack) for stack in made]


def compare(task: hop.TorchTask, configs: list[dict[str, Any]] = CONFIGS, units: int = 2) -> list[int | None]:
    """Train some units together and alone; return the number of the stack of each member."""
    together, alone = opened(task, configs), opened(task, configs)
    for _ in range(units):
        found = Stacked(together).train(Batches(), last=[False] * len(configs))
        for mine, one in zip(found, alone, strict=True):
            theirs = one.train(Batches(), last=False)
            assert isinstance(mine, dict)
            assert float(mine["train_loss"].mean) == pytest.approx(float(theirs["train_loss"].mean), rel=1e-4)
    for mine, theirs in zip(together, alone, strict=True):
        for (name, one), other in zip(mine.model.state_dict().items(), theirs.model.state_dict().values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4), f"{name}: a try leaves no trace"
        assert mine.unused() == theirs.unused() and mine.absent() == theirs.absent()
    return stacks_of(together)


def test_settings_that_the_loss_does_not_read_do_not_split_a_stack():
    """Not even schedules of other classes, which add settings of their own to optimizers."""
    assert compare(Scheduled()) == [0] * 6


class Reading(Scheduled):
    """A loss that reads whole numbers and texts."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch) * self.config["patience"]
        return loss if self.config.get("more") is None else loss * 2


def test_settings_that_the_loss_reads_split_a_stack(capfd):
    assert compare(Reading()) == [0, 1, 0, None, 0, 1]
    assert "trials are stacked by more, patience, on which the loss depends or may depend" in capfd.readouterr().err


class Listing(Scheduled):
    """A loss that may read everything."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * dict(**self.config)["patience"]


class Careless(Scheduled):
    """A loss that goes on without the values for which it asks."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        try:
            factor = self.config["patience"]
        except Exception:
            factor = 7
        return super().loss(model, batch) * factor


class Keeping(Scheduled):
    """A model that keeps its configuration, and computes with a number and a text of it."""

    class Model(torch.nn.Sequential):
        def __init__(self, config: Mapping[str, Any], *layers: torch.nn.Module) -> None:
            super().__init__(*layers)
            self.config = config

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = super().forward(x) * self.config["lr"]
            return found * 2 if self.config["schedule"] == "cycle" else found

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *rest = super().build(config)
        return self.Model(config, *model), *rest


class Hiding(Scheduled):
    """A model with a function that depends on a text of its configuration, which no attribute shows."""

    class Model(torch.nn.Sequential):
        def __init__(self, odd: bool, *layers: torch.nn.Module) -> None:
            super().__init__(*layers)
            self.change = lambda x: torch.where(x > 3, 3.01, x) if odd else x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.change(super().forward(x)) * 2

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *rest = super().build(config)
        with torch.no_grad():
            model[1].weight.fill_(2)
        return self.Model(config["schedule"] == "cycle", *model), *rest


class Chancy(Hiding):
    """A loss with random numbers: members draw the same ones when they are compared."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, {**batch, "x": batch["x"] + 1e-9 * torch.randn_like(batch["x"])})


class Frozen(Scheduled):
    """A task that trains one of two layers of the same shape."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
        trained = model[config["patience"] - 1]
        model[2 - config["patience"]].requires_grad_(False)
        return model, torch.optim.SGD(trained.parameters(), lr=config["lr"])


class Buffered(Scheduled):
    """A model with a buffer whose shape depends on the configuration."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *rest = super().build(config)
        model.register_buffer("table", torch.zeros(config["patience"]))
        return model, *rest


EQUAL = [{key: config[key] for key in ("lr", "patience", "schedule")} for config in CONFIGS for _ in range(2)]


@pytest.mark.parametrize(
    ("task", "stacks"),
    [
        (Listing, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        (Careless, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]),
        (Keeping, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        (Hiding, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        (Frozen, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]),
        (Buffered, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]),
        (Chancy, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    ],
)
def test_no_member_is_computed_with_a_value_of_another(task, stacks):
    assert compare(task(), EQUAL) == stacks


class Late(Scheduled):
    """A loss that begins to read a whole number in some call, of any trial."""

    def __init__(self) -> None:
        super().__init__()
        self.count = SimpleNamespace(calls=0, begins=10**9)  # where no stack looks for it before it is formed

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.count.calls += 1
        reads = self.count.calls >= self.count.begins
        return super().loss(model, batch) * (self.config["patience"] if reads else 1)


@pytest.mark.skipif(DEVICE != "cpu", reason="captured steps do not call the loss")
@pytest.mark.parametrize("program", [False, True])
def test_a_loss_that_begins_to_read_a_value_is_noticed(program, monkeypatch):
    """With and without a program, in the middle of a unit."""
    monkeypatch.setattr(gradients, "PAYS", 1 if program else 10**9)
    monkeypatch.setattr(gradients, "COMPARED", 2)
    task = Late()
    members = opened(task)
    for _ in range(2):
        Stacked(members).train(Batches(), last=[False] * 6)
    assert stacks_of(members) == [0] * 6
    task.count.begins = task.count.calls + 2
    with pytest.raises(IsolationError, match="stacked trials differ in 'patience', which their loss did not use"):
        for _ in range(8):
            Stacked(members).train(Batches(), last=[False] * 6)


def test_who_was_compared_with_others_is_compared_again():
    """Members of two stacks that each compute the same need not compute what the other stack computes."""
    scales = (1.0, 1.0, 2.0, 2.0)
    cache, task = EngineCache(), Task()
    members = [
        task.framework.open(
            {"scale": scale, "hidden": True}, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache
        )
        for seed, scale in enumerate(scales)
    ]
    for some in (members[:2], members[2:]):
        Stacked(some).train(Batches(), last=[False] * 2)
    Stacked([members[0], members[2]]).train(Batches(), last=[False] * 2)
    assert members[0].kept[Stack] is not members[2].kept[Stack]


def test_configurations_are_compared():
    configs = [
        TrackedConfig({"lr": 0.1, "n": 1, "deep": {"a": 1}, "mixed": 1, "here": 1.0, "same": [1]}),
        TrackedConfig({"lr": 0.2, "n": True, "deep": {"a": 2}, "mixed": 1.5, "same": [1]}),
    ]
    same, numbers, differing = common.compared(configs)
    assert (same, numbers) == ({"same": [1]}, {"lr": [0.1, 0.2]})
    assert differing == {"n", "deep", "mixed", "here"}
    assert configs[0].unused() == ("lr", "n", "deep.a", "mixed", "here", "same"), "nothing counts as read"
    assert common.separating(configs, {"n", "same"}, [1]) == {"n"}
    assert common.separating(configs, {"same"}, [1]) == {"same"}
    config = common.CommonConfig(same, differing, set(), set())
    assert config["same"] == [1] and config.get("unknown", 3) == 3 and "unknown" not in config
    for ask in (
        lambda: config["n"],
        lambda: config.get("n", 1),
        lambda: config.pop("n", 1),
        lambda: config.setdefault("n", 1),
        lambda: "n" in config,
        lambda: {**config},
        lambda: list(config.items()),
    ):
        with pytest.raises(common.Differs, match="'n'"):
            ask()


class Counting(torch.nn.Module):
    """A model with buffers of its own: positions, a limit of its configuration, and a count that it may change."""

    def __init__(self, limit: int, counts: bool) -> None:
        super().__init__()
        self.layer, self.table, self.counts = torch.nn.Linear(6, 3), torch.nn.Embedding(6, 3), counts
        self.register_buffer("places", torch.arange(6).expand(1, -1), persistent=False)
        self.register_buffer("limit", torch.tensor(limit), persistent=False)
        self.register_buffer("scale", torch.tensor(1.0), persistent=False)
        self.register_buffer("count", torch.tensor(0), persistent=False)
        self.register_buffer("kept", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.count += 1
        there = (self.places < self.limit).unsqueeze(-1)
        return self.layer(x) + (self.table(self.places) * there).sum(1) * self.scale


class Counts(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Counting(config["limit"], config["counts"])
        return model, torch.optim.Adam(model.parameters(), lr=0.01)


def counting(limits: list[int], counts: bool = False) -> list[TorchSession]:
    cache, task = EngineCache(), Counts()
    place = Placement.on(DEVICE)
    configs = [{"limit": limit, "counts": counts} for limit in limits]
    return [
        task.framework.open(config, seed=seed, placement=place, threads=1, cache=cache)
        for seed, config in enumerate(configs)
    ]


def test_buffers_that_members_have_in_common():
    some = counting([3, 3, 3])
    found = constants(some)
    assert found.keys() == {"places", "limit", "count"}, "whole numbers that no version keeps"
    assert all(value is not some[0].model.get_buffer(name) for name, value in found.items())
    assert constants(counting([3, 4, 3])).keys() == {"places", "count"}


@pytest.mark.parametrize("limits", [[3, 3, 3], [2, 3, 6]], ids=str)
@pytest.mark.parametrize("counts", [False, True])
def test_models_with_buffers_of_their_own(limits, counts, capfd):
    together, alone = counting(limits, counts), counting(limits, counts)
    for last in (False, True):
        found = Stacked(together).train(Batches(), last=[last] * 3)
        compare_losses(found, alone, last)
    said = capfd.readouterr().err
    if counts and DEVICE != "cpu":
        assert "trials train in turn: RuntimeError:" in said and "would mutate a captured Tensor" in said
        assert [one.model.count.item() for one in together] == [one.model.count.item() for one in alone]
    else:
        assert "are stacked" in said and "in turn" not in said and "not captured" not in said
