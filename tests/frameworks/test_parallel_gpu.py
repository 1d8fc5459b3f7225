"""Strategies on one GPU: a model larger than the memory that it may use, and teams of one member that speak NCCL."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.teams import Membership
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.parallel import choose
from hopfleet.frameworks.torch.parallel.session import TeamSession
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.testing.strategies import open_by_name, with_team
from tests.helpers.team_tasks import Net
from tests.helpers.team_tasks import batches as team_batches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

GIB = 1 << 30
WIDTH, BLOCKS = 4096, 48
"""48 layers of 64 MiB: 3 GiB of weights."""


class Batches(list[dict[str, Any]]):
    rows = 64


class Deep(hop.TorchTask):
    def build(self, config: Any) -> Any:
        blocks, width = config["blocks"], config["width"]
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(blocks))
        )
        return model, torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["x"])


def batches(width: int) -> Batches:
    generator = torch.Generator().manual_seed(0)
    return Batches({"x": torch.randn(32, width, generator=generator).cuda()} for _ in range(2))


def weights(session: TorchSession) -> list[torch.Tensor]:
    return [parameter.detach().cpu() for parameter in session.model.parameters()]


def train_in_a_third(limit: int) -> None:
    """Train with all memory, then with less than the weights need; the memory of this process is its own."""
    task, config = Deep(), {"blocks": BLOCKS, "width": WIDTH}
    given: Any = {"seed": 1, "threads": 1}
    fits = task.framework.open(config, placement=Placement(("cuda:0",)), **given)
    assert isinstance(fits, TorchSession)
    fits.train(batches(WIDTH), last=True)
    wanted = weights(fits)
    assert sum(tensor.nbytes for tensor in wanted) >= 3 * limit
    del fits
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    spilled = task.framework.open(config, placement=Placement(("cuda:0",), "spill"), **given)
    assert isinstance(spilled, TorchSession)
    torch.cuda.reset_peak_memory_stats()
    spilled.train(batches(WIDTH), last=True)
    assert torch.cuda.max_memory_reserved() <= limit
    assert all(map(torch.equal, weights(spilled), wanted))


def test_a_model_of_three_times_the_memory_has_the_bits_of_one_that_fits() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(train_in_a_third, GIB).result()


class Headed(Deep):
    """Some layers stay on the device, and the optimizer is a choice."""

    def build(self, config: Any) -> Any:
        model = torch.nn.ModuleDict({"body": super().build(config)[0], "head": torch.nn.Linear(config["width"], 1)})
        return model, config["optimizer"](model.parameters())

    def blocks(self, model: Any) -> Any:
        return list(model["body"])

    def loss(self, model: Any, batch: Any) -> Any:
        return model["head"](model["body"](batch["x"])).square().mean()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adam(p, lr=1e-3),
        lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, lr=1e-3),
    ],
    ids=["adam", "foreach", "sgd", "rmsprop"],
)
def test_a_trial_spills_and_comes_back_with_its_bits(optimizer: Any, tmp_path: Path) -> None:
    task, config = Headed(), {"blocks": 3, "width": 64, "optimizer": optimizer}
    places = [Placement(("cuda:0",), strategy) for strategy in ("single", "spill", "spill", "single")]

    def trained(places: list[Placement], folder: str) -> list[torch.Tensor]:
        version = tmp_path / folder
        for number, placement in enumerate(places):
            session = task.framework.open(config, seed=1, placement=placement, threads=1)
            assert isinstance(session, TorchSession)
            if number:
                session.load(version)
            session.train(batches(64), last=True)
            session.save(version := tmp_path / f"{folder}{number}")
        return weights(session)

    assert all(map(torch.equal, trained(places, "spilled"), trained(places[:1] * 4, "alone")))


class TeamOfOne(TorchTeam):
    """A team that forms a process group although it has one member."""

    def __init__(self) -> None:
        super().__init__(Membership(0, Placement(("cuda:0",)), ()))
        self._join(HashStore())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ps"])
def test_a_team_of_one_over_nccl_trains_like_a_device(strategy: str, tmp_path: Path) -> None:
    task, config = Deep(), {"blocks": 3, "width": 64}
    alone = TorchSession(task, config, seed=1, device="cuda:0", threads=1)
    alone.train(batches(64), last=True)
    team = TeamOfOne()
    try:
        assert torch.distributed.get_backend() == "nccl"
        session = TeamSession(
            task,
            config,
            seed=1,
            threads=1,
            cache=EngineCache(),
            team=team,
            strategy=choose.find(strategy),
            name=strategy,
        )
        session.train(batches(64), last=True)
        session.save(tmp_path / "team")
        found = checkpoint.weights(tmp_path / "team")
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(found[name], tensor.cpu(), rtol=1e-5, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


def train_together(strategy: str, folder: Path) -> None:
    """Compare two members that share a GPU with one that has it alone. The parent's CUDA would not survive a fork."""
    task: Any = Net()

    def work(team: TorchTeam, members: list[int]) -> list[str]:
        train_here(open_by_name(task, team)({}, 1, 1, strategy), folder / "team")
        return [distributed.get_backend(), torch.cuda.get_device_name()]

    assert with_team(task, 2, work, device="cuda:0")[0] == "gloo"
    train_here(TorchSession(task, {}, seed=1, device="cuda:0", threads=1), folder / "alone")
    found, wanted = (checkpoint.weights(folder / name) for name in ("team", "alone"))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9)


def train_here(session: TorchSession, path: Path) -> None:
    for _ in range(3):
        session.train(on_gpu(), last=True)
        session.evaluate(on_gpu(), seed=0)
    session.save(path)


def on_gpu() -> Any:
    found = team_batches()
    for batch in found:
        batch.update({name: tensor.cuda() for name, tensor in batch.items()})
    return found


# Gloo sends no CUDA tensors from one member to another, as pipelines need, and has not all that FSDP needs.
@pytest.mark.parametrize("strategy", ["ddp", "ps", "ps/1+1"])
def test_two_members_share_a_gpu(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the question whether there is a GPU, at the top of this module, opens it.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(train_together, strategy, tmp_path).result()
