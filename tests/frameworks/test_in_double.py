"""The reference in double precision, by which it is told whether rounding explains how far a stack is off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.torch.engines.stacked.rounding import InDouble, gradients_in_double


class Casting(hop.TorchTask):
    """Code that asks for types, as much code does."""

    def build(self, config: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.Flatten())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: Any) -> Any:
        x = batch["x"].float().to(torch.float32) / 255
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x).to(torch.bfloat16)
        weight = torch.tensor([0.5, 2.0])
        parts = torch.nn.functional.one_hot(batch["y"], 2).float() @ weight
        return (out.float().mean(1) * parts * torch.linspace(0.1, 1.0, len(x))).sum()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_code_that_asks_for_other_types_has_a_reference() -> None:
    task, rng = Casting(), np.random.default_rng(0)
    session = task.framework.open({}, seed=3, placement=CPU, threads=1)
    rows = {"x": rng.integers(0, 255, (6, 1, 5, 5)).astype("uint8"), "y": rng.integers(0, 2, 6)}
    batch = session.prepare(rows, {})
    names = [name for name, _ in session.model.named_parameters()]
    found = gradients_in_double(session, batch, names, [])
    assert found is not None and all(one.dtype == torch.float64 for one in found)

    model = session.model.double()
    out = model(torch.from_numpy(rows["x"]).double() / 255)
    weight = torch.tensor([0.5, 2.0]).double()[torch.from_numpy(rows["y"])]
    loss = (out.mean(1) * weight * torch.linspace(0.1, 1.0, 6).double()).sum()
    wanted = torch.autograd.grad(loss, [*model.parameters()])
    assert all(torch.allclose(one, other, rtol=1e-6) for one, other in zip(found, wanted, strict=True))


def test_whole_numbers_stay_whole() -> None:
    with InDouble():
        assert torch.arange(3).dtype == torch.ones(2).long().dtype == torch.int64
        assert torch.zeros(3, dtype=torch.bool).dtype == torch.bool
        assert torch.ones(2, dtype=torch.float16).dtype == torch.rand(2).half().dtype == torch.float64
