"""One update for many trials: the bits that each gets alone, or no joint update."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import EngineCache, IsolationError
from hopfleet.frameworks.torch import steps
from hopfleet.frameworks.torch.engines import interleaved
from hopfleet.frameworks.torch.engines.joint_optimizer import JointOptimizer, Proofs, admits
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.torch_sessions import Batches


class Task(hop.TorchTask):
    """Two groups of weights. The second may get no gradient in one batch."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.02, "betas": (0.7, 0.9)}]
        kind = torch.optim.AdamW if config.get("decoupled") else torch.optim.Adam
        optimizer = kind(groups, lr=config["lr"], weight_decay=config.get("decay", 0.0), **config.get("more", {}))
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        count = self.counts[self.config["lr"]] = self.counts.get(self.config["lr"], 0) + 1
        if self.config.get("fails") == count:
            raise ValueError("no more")
        last = model[1] if self.config.get("short") != count else torch.nn.Identity()
        return ((last(model[0](batch["x"])).sum(1) - batch["y"]) ** 2).mean()

    def __init__(self) -> None:
        self.counts: dict[float, int] = {}


class Quick(Task):
    lr_step = "batch"


def several(task: hop.TorchTask, configs: list[dict[str, Any]]) -> list[TorchSession]:
    cache = EngineCache()
    return [
        task.framework.open(config, seed=number, placement=CPU, threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]


def bits(one: TorchSession, folder: Path) -> bytes:
    path = folder / "bits"
    one.save(path)
    return path.read_bytes()


@pytest.fixture
def made(monkeypatch):
    """The number of members of each joint update."""
    made: list[int] = []

    class Counted(JointOptimizer):
        def _update(self, grads: list[Any]) -> None:
            super()._update(grads)
            made.append(len(self.sessions))

    monkeypatch.setattr(interleaved, "JointOptimizer", Counted)
    return made


@pytest.mark.parametrize("kind", [Task, Quick])
@pytest.mark.parametrize("decoupled", [False, True])
def test_the_bits_that_they_have_alone(kind, decoupled, tmp_path, made):
    configs = [{"lr": 0.01 * n, "decay": 0.1 * (n - 1), "decoupled": decoupled} for n in (1, 2, 3)]
    alone, together = (several(kind(), configs) for _ in range(2))
    for last in (False, True):
        found = together[0].task.framework.flotilla(together).train(Batches(), last=[last] * 3)
        assert found == [one.train(Batches(), last=last) for one in alone]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == [3] * (2 * len(Batches()) - 1)  # all but the first, before which optimizers have no state


def test_a_member_that_fails_or_has_no_gradient_does_not_affect_the_others(tmp_path, made):
    for odd in ({"fails": 2}, {"short": 3}, {"short": 2}):
        configs: list[dict[str, Any]] = [{"lr": 0.01}, {"lr": 0.02, **odd}, {"lr": 0.03}]
        alone, together = (several(Task(), configs) for _ in range(2))
        found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 3)
        for n, one in enumerate(alone):
            if "fails" in odd and n == 1:
                assert repr(found[n]) == "ValueError('no more')"
            else:
                assert found[n] == one.train(Batches(), last=True)
                assert bits(together[n], tmp_path) == bits(one, tmp_path)
    assert 2 in made and 3 in made


@pytest.mark.parametrize("odd", [{"fails": 5}, {"short": 5}, {"short": 6}])
def test_joint_steps_count_when_a_later_unit_goes_another_way(odd, tmp_path, made):
    """The second unit begins with joint updates. Then a member fails or lacks a gradient, so optimizers step alone."""
    configs: list[dict[str, Any]] = [{"lr": 0.01}, {"lr": 0.02, **odd}, {"lr": 0.03}]
    alone, together = (several(Task(), configs) for _ in range(2))
    for last in (False, True):
        together[0].task.framework.flotilla(together).train(Batches(), last=[last] * 3)
        for one in alone:
            with contextlib.suppress(ValueError):
                one.train(Batches(), last=last)
    kept = [n for n in range(3) if n != 1 or "fails" not in odd]
    assert [bits(together[n], tmp_path) for n in kept] == [bits(alone[n], tmp_path) for n in kept]
    assert made.count(3) > len(Batches()) - 1, "the second unit began with a joint update"


def test_joint_steps_count_when_a_new_member_joins(tmp_path, made):
    """The members of before share the update of the first batch, and the new one has none to share."""
    alone, together = (several(Task(), [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.03}]) for _ in range(2))
    together[0].task.framework.flotilla(together[:2]).train(Batches(), last=[False] * 2)
    for one in alone[:2]:
        one.train(Batches(), last=False)
    before = len(made)
    together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 3)
    for one in alone:
        one.train(Batches(), last=True)
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made[before] == 2


def test_a_new_member_joins_after_its_first_batch(tmp_path, made):
    alone, together = (several(Task(), [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.03}]) for _ in range(2))
    for one in (*alone[:2], *together[:2]):
        one.train(Batches(), last=False)
    found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 3)
    assert found == [one.train(Batches(), last=True) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == [2] + [3] * (len(Batches()) - 1)


@pytest.mark.parametrize("batch", [2, 4])
def test_all_may_fail(batch, made):
    """Let all members fail in the middle of a unit, or with the first batch of the second unit."""
    together = several(Task(), [{"lr": 0.01, "fails": batch}, {"lr": 0.02, "fails": batch}])
    flotilla = together[0].task.framework.flotilla(together)
    found = [flotilla.train(Batches(), last=[True] * 2) for _ in range(batch // 2)][-1]
    assert [repr(one) for one in found] == ["ValueError('no more')"] * 2


def test_an_update_with_other_bits_is_not_made(tmp_path, monkeypatch, made):
    real = torch.sqrt
    monkeypatch.setattr(torch, "sqrt", lambda some, out: real(some, out=out).mul_(1 + 1e-6))
    alone, together = (several(Task(), [{"lr": 0.01}, {"lr": 0.02}]) for _ in range(2))
    together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 2)
    for one in alone:
        one.train(Batches(), last=True)
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == [2]


def test_members_with_other_settings_have_spans_of_their_own(tmp_path, made):
    class Cycling(Task):
        """One member changes its momentum in the middle of a unit."""

        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            loss = super().loss(model, batch)
            if self.counts[self.config["lr"]] == 3 and self.config.get("cycles"):
                self.optimizer.param_groups[0]["betas"] = (0.8, 0.99)
            return loss

    configs: list[dict[str, Any]] = [
        {"lr": 0.01},
        {"lr": 0.02, "cycles": True},
        {"lr": 0.03},
        {"lr": 0.04, "more": {"eps": 1e-3}},
    ]
    alone, together = (several(Cycling(), configs) for _ in range(2))
    found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 4)
    assert found == [one.train(Batches(), last=True) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == [4] * (len(Batches()) - 1)
    proofs = together[0].cache.part(Proofs).spans
    assert sorted(len(cuts) for proven in proofs.values() for cuts in proven) == [4, 6]


class Drawing(Task):
    """Some members draw random numbers."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        noise = torch.rand(()) if self.config.get("noisy") else 1.0
        return super().loss(model, batch) * noise


def test_gradients_are_computed_at_once_where_no_member_draws(tmp_path, monkeypatch, made):
    passes: list[int] = []
    real = JointOptimizer.backward
    monkeypatch.setattr(
        JointOptimizer, "backward", lambda self, losses: (passes.append(len(losses)), real(self, losses))
    )
    for noisy, expected in ((False, [3] * (len(Batches()) - 1)), (True, [])):
        configs: list[dict[str, Any]] = [{"lr": 0.01}, {"lr": 0.02, "noisy": noisy}, {"lr": 0.03}]
        alone, together = (several(Drawing(), configs) for _ in range(2))
        found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 3)
        assert found == [one.train(Batches(), last=True) for one in alone]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
        assert passes == expected
        passes.clear()


class Hooked(Task):
    """Scales gradients by a number of the configuration."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch) * 1.0
        loss.register_hook(lambda grad: grad * self.config["lr"])
        return loss


def test_a_hook_of_the_backward_pass_sees_the_configuration_of_its_own_trial(tmp_path, made):
    alone, together = (several(Hooked(), [{"lr": 0.01}, {"lr": 0.02}]) for _ in range(2))
    found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 2)
    assert found == [one.train(Batches(), last=True) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == [2] * (len(Batches()) - 1)


def test_the_schedule_of_a_trial_that_came_from_elsewhere_steps_after_its_optimizer(tmp_path, made):
    """All updates of its first unit here are joint, and torch warns of a schedule whose optimizer has not stepped."""
    configs = [{"lr": 0.01}, {"lr": 0.02}]
    task = Task()
    first = several(task, configs)
    task.framework.flotilla(first).train(Batches(), last=[False, False])
    for number, one in enumerate(first):
        one.save(tmp_path / str(number))
    hopped = [
        task.framework.open(config, seed=number, placement=CPU, threads=1, cache=first[0].cache)
        for number, config in enumerate(configs)
    ]
    for number, one in enumerate(hopped):
        one.load(tmp_path / str(number))
    results = [task.framework.flotilla(some).train(Batches(), last=[True, True]) for some in (hopped, first)]
    assert results[0] == results[1] and all(isinstance(found, dict) for found in results[0])
    assert [bits(one, tmp_path) for one in hopped] == [bits(one, tmp_path) for one in first]


class Failing(Task):
    """Raises in the backward pass."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch) * 1.0
        if self.counts[self.config["lr"]] == 2:
            loss.register_hook(lambda grad: grad.no_such_method())
        return loss


def test_an_error_in_the_common_backward_pass_concerns_all(made):
    together = several(Failing(), [{"lr": 0.01}, {"lr": 0.02}])
    with pytest.raises(IsolationError, match=r"gradients cannot be computed in one pass \(AttributeError"):
        together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 2)


def test_large_models_step_one_after_another(monkeypatch, tmp_path, made):
    monkeypatch.setattr(steps, "SMALL", 4 * (4 * 3 + 3 + 3 * 3 + 3) - 1)
    alone, together = (several(Task(), [{"lr": 0.01}, {"lr": 0.02}]) for _ in range(2))
    found = together[0].task.framework.flotilla(together).train(Batches(), last=[True] * 2)
    assert found == [one.train(Batches(), last=True) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert made == []


def test_trials_that_may_join():
    def trained(more: Mapping[str, Any]) -> TorchSession:
        (one,) = several(Task(), [{"lr": 0.01, "more": more}])
        one.train(Batches(), last=False)
        return one

    assert admits(trained({}))
    assert not admits(trained({"amsgrad": True}))
    assert not admits(trained({"foreach": True}))
    hooked = trained({})
    hooked.optimizers[0].register_step_post_hook(lambda *args: None)
    assert not admits(hooked)
    patched = trained({})
    patched.optimizers[0].step = lambda: None
    assert not admits(patched)
    assert not admits(several(Task(), [{"lr": 0.01}])[0])


def test_trials_that_gain_by_training_together():
    class Plain(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            model = super().build(config)[0]
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

    class Preparing(Plain):
        def transform(self, batch: Any, rng: Any) -> Any:
            return batch

    def gains(task: hop.TorchTask, *, fast: bool = False) -> bool:
        (one,) = several(task, [{"lr": 0.01}])
        return task.framework.gains(one, fast=fast)

    assert gains(Task()), "their updates are made at once"
    assert not gains(Plain()), "they step in turn"
    assert gains(Plain(), fast=True), "they are stacked"
    assert gains(Preparing()), "batches are made once for all"
