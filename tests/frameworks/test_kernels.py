"""The kernel that updates all members of a stack: on a GPU it computes what the optimizers of torch compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import kernels
from hopfleet.frameworks.torch.engines.stacked.stack import Stack

pytestmark = pytest.mark.usefixtures("stacked_at_once")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

KINDS: dict[str, Any] = {
    "adam": lambda p, c: torch.optim.Adam(p, lr=c["lr"], betas=(c["beta"], 0.99), weight_decay=c["decay"]),
    "adamw": lambda p, c: torch.optim.AdamW(p, lr=c["lr"], betas=(c["beta"], 0.99), weight_decay=c["decay"]),
    "amsgrad": lambda p, c: torch.optim.AdamW(p, lr=c["lr"], amsgrad=True, eps=1e-3),
}


class Batches(list[Any]):
    rows = 64

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        super().__init__({"x": torch.randn(16, 7, generator=generator).cuda()} for _ in range(4))


class Task(hop.TorchTask):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))
        groups = [
            {"params": [model[0].weight, model[2].bias]},
            {"params": [model[0].bias, model[2].weight], "lr": 0.02},
        ]
        optimizer = KINDS[config["kind"]](groups, config)
        # It changes betas as well as learning rates.
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=50)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return (model(batch["x"]) - batch["x"][:, :5]).square().mean()


def opened(kind: str) -> list[Any]:
    configs = [{"kind": kind, "lr": 0.01 * (n + 1), "beta": 0.8 + 0.02 * n, "decay": 0.1 * n} for n in range(5)]
    cache, place = EngineCache(), Placement.on("cuda:0")
    return [
        Task().framework.open(one, seed=n, placement=place, threads=1, cache=cache) for n, one in enumerate(configs)
    ]


@on_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_stacks_learn_what_members_learn_alone(kind: str) -> None:
    together, alone = opened(kind), opened(kind)
    for last in (False, True, False):
        Task().framework.flotilla(together, fast=True).train(Batches(), last=[last] * 5)
        for one in alone:
            one.train(Batches(), last=last)
    stack = together[0].kept[Stack]
    assert stack._kernel is not None
    assert stack.captures and stack.captures_updates, "schedules that change betas leave captures as they are"
    for mine, theirs in zip(together, alone, strict=True):
        for name, weight in theirs.model.state_dict().items():
            torch.testing.assert_close(mine.model.state_dict()[name], weight, rtol=1e-4, atol=1e-6)
        for p, q in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
            for name, value in theirs.optimizers[0].state[q].items():
                torch.testing.assert_close(mine.optimizers[0].state[p][name], value, rtol=1e-4, atol=1e-7)


def test_there_is_no_kernel_where_it_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.adam_kernel(torch.device("cpu")) is None

    def refused(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(_compat, "compiled_kernel", refused)
    kernels.adam_kernel.cache_clear()
    assert kernels.adam_kernel(torch.device("cuda:0")) is None
    kernels.adam_kernel.cache_clear()
