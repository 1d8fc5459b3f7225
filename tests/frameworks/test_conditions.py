"""Conditions on tensors are taken for granted in captured steps, and a unit in which one changes is trained anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch.engines.conditions import CHANGED, Conditions, told_of_no_capture
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.captures import Batches, Place, bits, compare, several
from tests.helpers.sample_tasks import Plain, arrays

CONFIGS = [{"lr": 0.1 * (number + 1)} for number in range(3)]


class Perceptron(hop.TorchTask):
    """Its way depends on conditions: as a rule, no number of a batch is large."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        if (x > 50).any():
            x = x.clamp(max=1)
        if (torch.arange(3, device=x.device) == torch.arange(3, device=x.device)).all():
            x = x * 2
        return torch.nn.functional.cross_entropy(model(x), batch["y"])


class Spiked(Batches):
    """One batch has a large number."""

    def __init__(self, device: str, at: int) -> None:
        super().__init__(device, ragged=False)
        self.at = at

    def __iter__(self) -> Any:
        for number, batch in enumerate(super().__iter__()):
            if number == self.at:
                batch["x"][3, 4] = 60.0
            yield batch


def test_steps_with_conditions_are_captured(place: Place, tmp_path: Path) -> None:
    captures = compare(place, Perceptron(), CONFIGS, tmp_path)
    conditions = [next(iter(kept.values())).conditions for kept in captures[-1]]
    assert all(one.noted == (False, True) and not one.changed for one in conditions)


def steps_kept(sessions: list[TorchSession]) -> list[bool]:
    return [bool(one.kept.get(Steps)) for one in sessions]


def test_a_unit_in_which_a_condition_changes_is_not_counted(place: Place, tmp_path: Path) -> None:
    task = Perceptron()
    together, alone = several(place, task, CONFIGS), several(place, task, CONFIGS)
    with pytest.raises(IsolationError, match=CHANGED) as caught:
        task.framework.flotilla(together).train(Spiked(place.device, at=7), last=[True] * 3)
    assert not caught.value.lasting

    # The worker builds the models anew. From then on, steps are not captured, and have the right bits.
    again = [
        task.framework.open(
            config, seed=number, placement=Placement.on(place.device), threads=1, cache=together[0].cache
        )
        for number, config in enumerate(CONFIGS)
    ]
    for at in (7, 99):
        batches = Spiked(place.device, at)
        found = task.framework.flotilla(again).train(batches, last=[True] * 3)
        assert found == [one.train(batches, last=True) for one in alone]
        assert [bits(one, tmp_path) for one in again] == [bits(one, tmp_path) for one in alone]
        assert not any(steps_kept(again))


def test_captures_of_before_are_not_used_once_a_condition_has_changed(place: Place, tmp_path: Path) -> None:
    task = Perceptron()
    sessions, alone = several(place, task, CONFIGS), several(place, task, CONFIGS)
    for one in (sessions, alone):
        task.framework.flotilla(one).train(Spiked(place.device, 99), last=[True] * 3)
    assert all(steps_kept(sessions))
    with pytest.raises(IsolationError):
        task.framework.flotilla(sessions[:2]).train(Spiked(place.device, 5), last=[True] * 2)
    batches = Spiked(place.device, 5)
    found = task.framework.flotilla(sessions[2:]).train(batches, last=[True])
    assert found == [alone[2].train(batches, last=True)]
    assert bits(sessions[2], tmp_path) == bits(alone[2], tmp_path)


def test_evaluations_have_conditions_too(place: Place) -> None:
    task = Perceptron()
    sessions = several(place, task, CONFIGS)
    calm = Spiked(place.device, 99)
    assert task.framework.flotilla(sessions).evaluate(calm, seed=0) == [one.evaluate(calm, seed=0) for one in sessions]
    with pytest.raises(IsolationError, match=CHANGED):
        task.framework.flotilla(sessions).evaluate(Spiked(place.device, 5), seed=0)


def test_nothing_is_taken_for_granted_where_units_cannot_repeat(place: Place, tmp_path: Path) -> None:
    task = Perceptron()
    together, alone = several(place, task, CONFIGS), several(place, task, CONFIGS)
    flotilla, batches = task.framework.flotilla(together), Spiked(place.device, 7)
    flotilla.repeats = False
    assert flotilla.train(batches, last=[True] * 3) == [one.train(batches, last=True) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


def test_code_outside_of_torch_hears_of_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    inside: dict[str, Any] = {"__name__": "torch.optim.optimizer", "torch": torch}
    exec("def asks(): return torch.cuda.is_current_stream_capturing()", inside)
    with told_of_no_capture():
        assert not torch.cuda.is_current_stream_capturing()
        assert inside["asks"]()
    assert torch.cuda.is_current_stream_capturing()


def test_other_values_are_read_as_ever() -> None:
    conditions = Conditions(torch.device("cpu"))
    with conditions.noting():
        assert torch.tensor(3).item() == 3
        assert not torch.tensor([False]).any()
        assert torch.tensor(2.5).item() == 2.5
    assert conditions.noted == (False,)


class Signs(Perceptron):
    """A condition that is not the same for all members."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss * 2 if (model[0].weight.sum() > 0) == self.config["flips"] else loss

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        with torch.no_grad():
            model[0].weight.abs_()
        return model, optimizer


def test_members_with_other_conditions_are_not_taken_for_those_of_the_first(place: Place, tmp_path: Path) -> None:
    task, configs = Signs(), [{"lr": 0.01, "flips": number != 1} for number in range(3)]
    together, alone = several(place, task, configs), several(place, task, configs)
    for unit in range(2):
        batches = Batches(place.device, seed=unit)
        assert task.framework.flotilla(together).train(batches, last=[True] * 3) == [
            one.train(batches, last=True) for one in alone
        ]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


class Seldom(Plain):
    """The batches of one partition have a large number, those of the others have none."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        if (x > 3.5).any():
            x = x.clamp(max=1)
        return torch.nn.functional.cross_entropy(model(x), batch["y"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_run_in_which_conditions_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
    train = arrays(240)
    train["x"][200:, 0] = 9.0
    models = {}
    for fuse in ("off", "exact"):
        results = hop.Experiment(
            Seldom(), train=train, valid=arrays(60), batch_size=8, metric="loss", seed=3, name=fuse, partitions=3,
            space={"lr": hop.grid_search([0.1, 0.2, 0.3])}, search=hop.Grid(max_epochs=3), backend="inline",
            worker_options=hop.WorkerOptions(fuse=fuse, device="cuda"), run_options=hop.RunOptions(order="fixed"),
        ).fit(quiet=True)  # fmt: skip
        models[fuse] = [trial.model().state_dict() for trial in results.trials]
    for one, other in zip(models["off"], models["exact"], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
