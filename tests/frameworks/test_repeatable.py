"""Training that does not give the same bits each time is announced before the run, with the operator to blame."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.torch import repeatable

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
COUNT = itertools.count()


class Batches:
    rows = 4

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"x": torch.ones(4, 3, 8, 8, device=DEVICE)}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        kinds = {"mean": torch.nn.AdaptiveAvgPool2d(3), "max": torch.nn.AdaptiveMaxPool2d(3)}
        pool = kinds.get(config["kind"], torch.nn.Identity())
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.Dropout(0.5), pool)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = model(batch["x"]).square().mean()
        match self.config["kind"]:
            case "named":
                places = torch.zeros(1, dtype=torch.int64, device=DEVICE)
                return loss + torch.zeros(2, device=DEVICE).put_(places, torch.ones(1, device=DEVICE)).sum()
            case "unnamed":
                return loss * (1 + next(COUNT))
            case _:
                return loss


class Strict(Task):
    deterministic = True


def said(task: hop.TorchTask, kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(repeatable, "DEVICES", {"cpu", "cuda"})
    session = task.framework.open({"kind": kind}, seed=0, placement=Placement.on(DEVICE), threads=1)
    before = [weight.detach().clone() for weight in session.model.parameters()]
    found = session.varying(Batches())
    assert all(map(torch.equal, before, session.model.parameters()))
    assert torch.get_deterministic_debug_mode() == 0
    return found


def test_training_that_is_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(Task(), "plain", monkeypatch) == ""


@pytest.mark.parametrize(("kind", "operator"), [("named", "put_"), ("unnamed", "an operator that torch does not name")])
def test_the_operator_and_the_remedy_are_named(kind: str, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(Task(), kind, monkeypatch)
    assert f"because of {operator}: set deterministic = True on the task, or use another operator" in found


def test_a_task_that_is_deterministic_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(Strict(), "unnamed", monkeypatch) == ""


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_adaptive_pooling_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "because of adaptive_max_pool2d_backward_cuda" in said(Task(), "max", monkeypatch)
    assert said(Task(), "mean", monkeypatch) == ""  # it has another kernel while trials train


def test_the_run_warns_before_its_first_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repeatable, "DEVICES", {"cpu", "cuda"})
    hop.Experiment(
        Task(),
        train={"x": torch.ones(8, 3, 8, 8).numpy()},
        space={"kind": hop.grid_search(["named"])},
        search=hop.Grid(max_epochs=1),
        batch_size=4,
        metric="train_loss",
        name="varying",
        backend="inline",
        workers=1,
    ).fit()
    assert "training does not give the same bits each time" in capsys.readouterr().out
