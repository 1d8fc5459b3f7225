"""Transformers of Hugging Face and of torch, with dropout, masks and shared heads as they come: they are stacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.hugging_face import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        make, none = MODELS[config["kind"]]
        model = make(**({} if config["drops"] else none))
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"]
        if self.config["kind"] in ("gpt2", "llama", "t5"):
            return model(input_ids=x, attention_mask=batch["there"], labels=x).loss
        return model(input_ids=x, attention_mask=batch["there"], labels=x[:, 0] % 2).loss


class Batches:
    rows = 24

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            x = torch.randint(3, 32, (8, 12), generator=generator)
            there = torch.arange(12) < torch.randint(4, 13, (8, 1), generator=generator)
            yield {"x": x.to(DEVICE), "there": there.long().to(DEVICE)}


def sessions(kind: str, drops: bool, count: int) -> list[TorchSession]:
    cache, task = EngineCache(), Task()
    configs = [{"kind": kind, "drops": drops, "lr": 0.001 * (number + 1)} for number in range(count)]
    place = Placement.on(DEVICE)
    return [task.framework.open(one, seed=0, placement=place, threads=1, cache=cache) for one in configs]


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_they_are_stacked(kind, drops, capsys):
    found = Stacked(sessions(kind, drops, 3)).train(Batches(), last=[True] * 3)
    said = capsys.readouterr().err
    assert "are stacked; gradients deviate by" in said
    assert not any(words in said for words in ("in turn", "not captured"))
    assert float(said.split("deviate by ")[1].split()[0]) < 0.01
    if not drops or kind == "llama":
        expected = [one.train(Batches(), last=True) for one in sessions(kind, drops, 3)]
        for one, alone in zip(found, expected, strict=True):
            assert float(one["train_loss"].mean) == pytest.approx(float(alone["train_loss"].mean), rel=1e-3)
