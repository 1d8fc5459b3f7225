"""Models of peft in an ordinary TorchTask: one base for all trials, hops of the adapter alone, the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.session import TorchSession

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WIDTH = 96
BASE_BYTES = 2 * WIDTH * WIDTH * 4
CONFIGS = [{"rank": rank, "lr": lr, "dropout": 0.1} for rank in (2, 4) for lr in (1e-3, 1e-2)]


class Batches:
    rows = 24

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            yield {"x": torch.randn(8, WIDTH, generator=generator), "y": torch.randint(0, 2, (8,), generator=generator)}


class Adapters(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            inner = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        base = torch.nn.Sequential(inner[0], torch.nn.Tanh(), inner[1], torch.nn.Linear(WIDTH, 2))
        adapter = peft.LoraConfig(
            r=config["rank"], target_modules=["0", "2"], lora_dropout=config["dropout"], modules_to_save=["3"]
        )
        model = peft.get_peft_model(base, adapter)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, torch.optim.AdamW(trainable, lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def opened(config: Mapping[str, Any], seed: int, cache: EngineCache | None = None) -> TorchSession:
    return TorchSession(Adapters(), dict(config), seed=seed, device="cpu", threads=1, cache=cache)


def weights(session: TorchSession) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in session.model.state_dict().items()}


def bases(session: TorchSession) -> list[torch.Tensor]:
    return [value for name, value in session.model.named_parameters() if name.endswith("base_layer.weight")]


def test_adapters_of_one_base_train_together_with_the_bits_of_each_alone() -> None:
    cache = EngineCache()
    together = [opened(config, seed, cache) for seed, config in enumerate(CONFIGS)]
    alone = [opened(config, seed) for seed, config in enumerate(CONFIGS)]
    places = {tuple(base.data_ptr() for base in bases(session)) for session in together}
    assert len(places) == 1 and all(session.shared_size >= BASE_BYTES for session in together)
    flotilla = Adapters().framework.flotilla(together, fast=False)
    flotilla.train(Batches(), last=[True] * len(together))
    for session in alone:
        session.train(Batches(), last=True)
    for one, other in zip(together, alone, strict=True):
        mine, theirs = weights(one), weights(other)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert any(value.any() for name, value in weights(together[0]).items() if "lora_B" in name), (
        "the adapter was trained"
    )


def test_stacked_adapters_come_close_to_each_alone() -> None:
    configs = [{**config, "rank": 2, "dropout": 0.0} for config in CONFIGS]
    cache = EngineCache()
    together = [opened(config, seed, cache) for seed, config in enumerate(configs)]
    alone = [opened(config, seed) for seed, config in enumerate(configs)]
    Adapters().framework.flotilla(together, fast=True).train(Batches(), last=[True] * len(together))
    for session in alone:
        session.train(Batches(), last=True)
    for one, other in zip(together, alone, strict=True):
        theirs = weights(other)
        for name, value in weights(one).items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-4)


def test_a_hop_moves_the_adapter_and_its_optimizer_alone(tmp_path: Path) -> None:
    for name in ("t0001", "shared"):
        (tmp_path / name).mkdir()
    version = tmp_path / "t0001" / "v00001-1.safetensors"
    session, stays = (opened(CONFIGS[0], 3) for _ in range(2))
    for one in (session, stays):
        one.train(Batches(), last=False)
    session.save(version)
    assert version.stat().st_size < BASE_BYTES / 2
    assert sum(path.stat().st_size for path in (tmp_path / "shared").iterdir()) >= BASE_BYTES
    hopped = opened(CONFIGS[0], 3)
    hopped.load(version)
    for one in (hopped, stays):
        one.train(Batches(), last=True)
    mine, theirs = weights(hopped), weights(stays)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
