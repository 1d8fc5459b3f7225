"""Updates of captured gradients without the Python of optimizers: the bits are those of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.torch.engines import direct_update
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.direct_update import DirectUpdates
from tests.helpers.captures import Batches, Place, bits, compare, several


class Task(hop.TorchTask):
    """Momentum goes up and down, so that updates are not captured."""

    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        first, last = (list(layer.parameters()) for layer in (model[0], model[2]))
        groups = [{"params": first}, {"params": last, "weight_decay": 0.1}]
        settings = {"fused": True, **({"momentum": 0.9} if config["kind"] == "SGD" else {}), **config["settings"]}
        optimizer = getattr(torch.optim, config["kind"])(groups, lr=config["lr"], **settings)
        return model, optimizer, OneCycleLR(optimizer, config["lr"], total_steps=60)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the optimizers whose updates were made without them."""
    found: list[str] = []
    step = direct_update.fused_step

    def counted(optimizer: Any, *args: Any) -> None:
        found.append(type(optimizer).__name__)
        step(optimizer, *args)

    monkeypatch.setattr(direct_update, "fused_step", counted)
    return found


def configs(kind: str, count: int = 2, **settings: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "lr": 0.1 / (number + 1), "settings": settings} for number in range(count)]


def verdict(sessions: Any) -> list[str]:
    found = sessions[0].cache.part(GraphCache).verdicts
    return [why for kind, why in found.items() if isinstance(kind, tuple) and kind[0] is DirectUpdates]


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_they_have_the_bits_of_the_optimizer(kind: str, place: Place, tmp_path: Path, made: list[str]) -> None:
    compare(place, Task(), configs(kind), tmp_path)
    assert len(made) > 100 and set(made) == {kind}


@pytest.mark.parametrize("settings", [{"nesterov": True}, {"dampening": 0.5}, {"maximize": True}])
def test_settings_of_momentum(settings: dict[str, Any], place: Place, tmp_path: Path, made: list[str]) -> None:
    compare(place, Task(), configs("SGD", **settings), tmp_path)
    assert made


class Frozen(Task):
    """Some weights have no gradients."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, schedule = super().build(config)
        model[0].bias.requires_grad_(False)
        return model, optimizer, schedule


class Clipped(Task):
    clip_norm, ema, accumulate = 0.1, 0.9, 2


@pytest.mark.parametrize("task", [Frozen, Clipped])
def test_other_parts_of_a_step_stay(task: type[Task], place: Place, tmp_path: Path, made: list[str]) -> None:
    compare(place, task(), configs("AdamW"), tmp_path)
    assert made


class Hooked(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, schedule = super().build(config)
        optimizer.register_step_post_hook(lambda *_: model[0].weight.data.mul_(0.999))
        return model, optimizer, schedule


class Own(torch.optim.SGD):
    """An optimizer that does something else."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = -weight.grad
        return super().step(closure)


class Derived(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, _, _ = super().build(config)
        optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, OneCycleLR(optimizer, 0.1, total_steps=60)


@pytest.mark.parametrize(
    ("task", "settings"), [(Hooked, {}), (Derived, {}), (Task, {"amsgrad": True}), (Task, {"fused": False})]
)
def test_what_an_optimizer_does_besides_is_left_to_it(
    task: type[Task], settings: dict[str, Any], place: Place, tmp_path: Path, made: list[str]
) -> None:
    compare(place, task(), configs("Adam", **settings), tmp_path)
    assert not made


def test_an_update_with_other_bits_is_found(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = direct_update.fused_step

    def wrong(optimizer: Any, group: Any, *args: Any) -> None:
        step(optimizer, group._replace(settings={**group.settings, "weight_decay": 0.1001}), *args)

    monkeypatch.setattr(direct_update, "fused_step", wrong)
    together, alone = (several(place, Task(), configs("AdamW", 3)) for _ in range(2))
    for seed in range(2):
        batches = Batches(place.device, seed=seed)
        found = Task().framework.flotilla(together).train(batches, last=[False] * 3)
        assert found == [one.train(batches, last=False) for one in alone]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert verdict(together) == ["updates differ from those of the optimizer"]


class Both(Task):
    """One optimizer for each layer, of different kinds."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, _, _ = super().build(config)
        settings = {"lr": config["lr"], "fused": True}
        adam = torch.optim.AdamW(model[0].parameters(), **settings)
        momentum = torch.optim.SGD(model[2].parameters(), momentum=0.9, **settings)
        schedules = [OneCycleLR(one, config["lr"], total_steps=60) for one in (adam, momentum)]
        return model, [adam, momentum], schedules


def test_several_optimizers(place: Place, tmp_path: Path, made: list[str]) -> None:
    captures = compare(place, Both(), configs("AdamW"), tmp_path)
    assert len(captures) == 5 and made.count("AdamW") == made.count("SGD") > 80


def test_each_of_several_optimizers_is_compared(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = direct_update.fused_step

    def wrong(optimizer: Any, group: Any, *args: Any) -> None:
        right = isinstance(optimizer, torch.optim.AdamW)
        step(optimizer, group if right else group._replace(settings={**group.settings, "momentum": 0.8}), *args)

    monkeypatch.setattr(direct_update, "fused_step", wrong)
    together, alone = (several(place, Both(), configs("AdamW")) for _ in range(2))
    batches = Batches(place.device)
    found = Both().framework.flotilla(together).train(batches, last=[False] * 2)
    assert found == [one.train(batches, last=False) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert verdict(together) == ["", "updates differ from those of the optimizer"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: a CPU counts steps where it needs them")
def test_counts_of_another_device_are_moved(tmp_path: Path, made: list[str]) -> None:
    """A version of a CPU counts its steps there, and a capture that is reused makes no eager step before."""
    place = Place("cuda:0")
    together = several(place, Task(), configs("AdamW"))
    on_cpu = Task().framework.open(configs("AdamW")[0], seed=0, placement=CPU, threads=1)
    on_cpu.train(Batches("cpu"), last=False)
    on_cpu.save(tmp_path / "hop")
    for _ in range(2):
        Task().framework.flotilla(together).train(Batches(place.device, ragged=False), last=[False] * 2)
    together[0].load(tmp_path / "hop")
    made.clear()
    Task().framework.flotilla(together).train(Batches(place.device, ragged=False), last=[False] * 2)
    assert len(made) >= 2 * 8 * 2, "two groups of both members in each batch, but perhaps the first"
