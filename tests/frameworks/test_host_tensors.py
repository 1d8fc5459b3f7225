"""Tensors that a loss makes on the host are part of captured steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.frameworks.torch.engines.host_tensors import ROOM, HostTensors
from tests.helpers.sample_tasks import Plain, arrays


class Weighted(Plain):
    """Weights of classes are made, or moved to the device, in each step."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        model.shift = [torch.tensor([0.1, 0.2, 0.3])]
        return model, optimizer

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        weight = torch.tensor([1.0, self.config["weight"], 2.0], device=x.device)
        out = model(x) + model.shift[0].to(x.device)
        return torch.nn.functional.cross_entropy(out, batch["y"], weight=weight)


def test_the_context_changes_no_value() -> None:
    mode = HostTensors(torch.device("cpu"))
    with mode:
        made = torch.tensor([1.0, 2.0], requires_grad=True)
        assert made.requires_grad and made.tolist() == [1.0, 2.0]
        assert torch.as_tensor([3]).to(torch.float64).tolist() == [3.0]
    assert not len(mode.memory)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestOnCuda:
    def test_steps_are_captured_with_the_bits_of_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
        models = {}
        for fuse in ("off", "exact"):
            results = hop.Experiment(
                Weighted(), train=arrays(240), valid=arrays(60), batch_size=8, metric="loss", seed=3, name=fuse,
                space={"lr": hop.grid_search([0.1, 0.2, 0.3]), "weight": hop.grid_search([1.0, 5.0])},
                search=hop.Grid(max_epochs=3), backend="inline", worker_options=hop.WorkerOptions(fuse=fuse),
            ).fit(quiet=True)  # fmt: skip
            models[fuse] = [trial.model().state_dict() for trial in results.trials]
        for one, other in zip(models["off"], models["exact"], strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)
        assert "captured" not in caplog.text

    def test_room_is_used_up_one_by_one(self) -> None:
        mode = HostTensors(torch.device("cuda"))
        with mode:
            made = [torch.tensor([float(number)], device="cuda") for number in range(ROOM // 64 + 3)]
            large = torch.ones(ROOM).to("cuda")
        assert [each.item() for each in made] == list(range(len(made))) and large.sum() == ROOM
