"""Trials on teams: every strategy trains like one device, and trials hop between strategies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hopfleet as hop
from hopfleet.domain.placement import Placement, TeamShape
from hopfleet.domain.rowsum import RowSum, means
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.version_ref import SHARED
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import EngineCache, Session
from hopfleet.frameworks.torch.parallel import blocks, wire
from hopfleet.frameworks.torch.parallel.ddp import Ddp
from hopfleet.frameworks.torch.parallel.stages import cut
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.testing.strategies import with_team
from tests.helpers.team_tasks import ROWS, SIZE, Net, batches, opened

TEAMS = ("ddp", "fsdp", "ps", "pipeline", "gpipe")


class Rates(Net):
    """Logs its learning rate in each step."""

    log_lr = True
    lr_step = "batch"


class Talkative(Net):
    """Logs its loss in each step."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        self.log("loss", loss)
        return loss


class Frozen(Net):
    """Its first layers are frozen, and large enough for a file of their own."""

    def layers(self) -> list[torch.nn.Module]:
        frozen = torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.Linear(512, 8)).requires_grad_(False)
        return [frozen, *super().layers()]


class Clipped(Net):
    clip_norm = 0.5
    ema = 0.9
    accumulate = 2


class Stateful(Net):
    """Dropout, BatchNorm, and everything that the default loop offers."""

    clip_norm = 0.5
    ema = 0.9

    def layers(self) -> list[torch.nn.Module]:
        first, second, *rest = super().layers()
        return [first, torch.nn.BatchNorm1d(16), second, torch.nn.Dropout(0.3), *rest]


class Residual(torch.nn.Module):
    """Transformer-like: code around a list of layers, and a value that all of them use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, 16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.scale = torch.nn.Parameter(torch.ones(16))
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x: Any) -> Any:
        first = x = self.embed(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * 0.5
        return self.head((x + first) * self.scale)


class Transformer(Net):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Residual().double()
        return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


class Tied(Net):
    """The first and the last block have the same weights."""

    def layers(self) -> list[torch.nn.Module]:
        first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        last.weight = first.weight
        return [first, torch.nn.Tanh(), last, torch.nn.Linear(8, 1)]


class Branching(torch.nn.Module):
    """Code that depends on values follows one of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.layers[1](self.layers[0](x))
        return self.layers[2](x if x.sum() > 0 else -x)


class Loop(Net):
    def train(self, model: Any, batches: Any, config: Any) -> Any:
        return {"loss": 0.0}


def trained(session: Session, path: Path, epochs: int = 3) -> tuple[dict[str, torch.Tensor], list[dict[str, RowSum]]]:
    found = []
    for _ in range(epochs):
        found += [session.train(batches(), last=True), session.evaluate(batches(), seed=0)]
    session.save(path)
    return load_file(path), found


def assert_close(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], bound: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if tensor.is_floating_point() and not name.startswith("random"):
            torch.testing.assert_close(found[name], tensor, rtol=bound, atol=bound)


pytestmark = pytest.mark.usefixtures("one_thread")


def check_like_single(task: hop.TorchTask, strategy: str, size: int, folder: Path) -> None:
    wanted, alone = trained(opened(task, "single"), folder / "single")
    together = with_team(task, size, lambda team, _: trained(opened(task, strategy, size, team), folder / "team")[1])
    assert_close(load_file(folder / "team"), wanted)
    for one, other in zip(map(means, together), map(means, alone), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_three_members(tmp_path: Path) -> None:
    check_like_single(Net(), "ddp", 3, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "strategy", "size"),
    [
        pytest.param(Clipped(), "ddp", 2, id="ddp-options"),
        pytest.param(Clipped(), "fsdp", 2, id="fsdp-options"),
        pytest.param(Transformer(), "fsdp", 2, id="fsdp-transformer"),
        pytest.param(Tied(), "fsdp", 2, id="fsdp-tied"),
        pytest.param(Clipped(), "ps", 3, id="ps-options"),
        pytest.param(Clipped(), "ps/2", 3, id="ps-two-servers"),
        pytest.param(Clipped(), "ps/1+1", 3, id="ps-one-only-serves"),
        pytest.param(Clipped(), "ps/0+2", 4, id="ps-servers-apart"),
        pytest.param(Transformer(), "ps", 2, id="ps-transformer"),
        pytest.param(Clipped(), "gpipe", 2, id="gpipe-options"),
        pytest.param(Transformer(), "pipeline", 3, id="pipeline-transformer"),
    ],
)
def test_strategies_train_like_one_device(task: hop.TorchTask, strategy: str, size: int, tmp_path: Path) -> None:
    check_like_single(task, strategy, size, tmp_path)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"], ids=["in place", "moved"])
def test_spill_has_the_bits_of_one_device(device: str, tmp_path: Path) -> None:
    """A device of another name makes blocks move, although the memory is the same."""
    task = Stateful()
    trained(opened(task, "single"), tmp_path / "single")
    spilled = task.framework.open({}, seed=1, placement=Placement((device,), "spill"), threads=1)
    trained(spilled, tmp_path / "spill")
    assert (tmp_path / "spill").read_bytes() == (tmp_path / "single").read_bytes()


def logged(session: Session) -> StepValues | None:
    session.train(batches(), last=False)
    return session.logged()


@pytest.mark.parametrize(
    ("strategy", "size"), [("spill", 1), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in TEAMS)]
)
def test_learning_rates_of_steps_are_those_of_one_device(strategy: str, size: int) -> None:
    found = with_team(Rates(), size, lambda team, _: logged(opened(Rates(), strategy, size, team)))
    assert found == logged(opened(Rates(), "single"))
    assert found is not None and found.columns["lr"][0] == (0, 1, 2, 3)


def test_values_of_single_steps_need_one_device() -> None:
    assert logged(opened(Talkative(), "spill")) == logged(opened(Talkative(), "single"))
    with pytest.raises(TaskError, match=r"the task uses self.log: each of several devices sees a part of every batch"):
        with_team(Talkative(), 2, lambda team, _: opened(Talkative(), "ddp", 2, team))


@pytest.mark.slow
def test_a_trial_hops_between_strategies(tmp_path: Path) -> None:
    task, path = Net(), tmp_path / "version"
    whole = opened(task, "single")
    hops = ("single", "ddp", "fsdp", "ps", "pipeline", "spill", "single")
    for _ in hops:
        whole.train(batches(), last=True)
    whole.save(tmp_path / "wanted")

    def hop_about(team: TorchTeam, members: list[int]) -> None:
        for number, strategy in enumerate(hops):
            alone = strategy in ("single", "spill")
            session = opened(task, strategy) if alone else opened(task, strategy, 2, team)
            if number:
                session.load(path)
            session.train(batches(), last=True)
            write = session.snapshot()
            assert write is not None
            write(path)

    with_team(task, 2, hop_about)
    assert_close(load_file(path), load_file(tmp_path / "wanted"))


@pytest.mark.slow
def test_versions_and_clones_of_members_with_and_without_common_files(tmp_path: Path) -> None:
    task, path = Frozen(), tmp_path / "versions" / "first"
    path.parent.mkdir()
    (tmp_path / SHARED).mkdir()
    alone = opened(task, "single")
    alone.train(batches(), last=True)
    alone.save(path)
    assert any((tmp_path / SHARED).iterdir())

    trained(alone, tmp_path / "alone", 1)

    def continue_both(team: TorchTeam, members: list[int]) -> None:
        loaded, clone, parent = (opened(task, "fsdp", 2, team) for _ in range(3))
        loaded.load(path)
        clone.inherit(path, parent)
        for name, session in (("loaded", loaded), ("clone", clone)):
            trained(session, tmp_path / f"{name}{team.address}", 1)

    for at in ("", "127.0.0.1"):
        with_team(task, 2, continue_both, at=at)
    wanted = load_file(tmp_path / "alone")
    for name in ("loaded", "loaded127.0.0.1", "clone", "clone127.0.0.1"):
        assert_close(load_file(tmp_path / name), wanted)


@pytest.mark.slow
def test_asynchronous_servers(tmp_path: Path) -> None:
    """With one batch in each unit there is nothing to overtake; with many, each of them counts once."""
    alone = opened(Net(), "single")
    for unit in range(3):
        alone.train(batches(SIZE), last=True)
        if unit == 1:
            alone.save(tmp_path / "middle")
    alone.save(tmp_path / "wanted")

    def train(team: TorchTeam, members: list[int]) -> list[float]:
        cache = EngineCache()
        session = opened(Net(), "ps_async", 3, team, cache)
        for _ in range(2):
            session.train(batches(SIZE), last=True)
        session.save(tmp_path / "found")
        loaded = opened(Net(), "ps_async", 3, team, cache)
        loaded.load(tmp_path / "middle")
        loaded.train(batches(SIZE), last=True)
        loaded.save(tmp_path / "after")
        found = [session.train(batches(), last=True) for _ in range(20)]
        assert {unit["train_loss"].rows for unit in found} == {ROWS}
        session.save(tmp_path / "many")
        return [means(unit)["train_loss"] for unit in found]

    losses = with_team(Net(), 3, train)
    assert_close(load_file(tmp_path / "found"), load_file(tmp_path / "middle"))
    assert_close(load_file(tmp_path / "after"), load_file(tmp_path / "wanted"))
    assert losses[-1] < losses[0] / 2
    steps = [value for name, value in load_file(tmp_path / "many").items() if name.endswith(".step")]
    assert steps and {step.item() for step in steps} == {2 + 20 * len(batches())}


@pytest.mark.parametrize("fewest", [1, 2], ids=["any", "BatchNorm"])
def test_shares_of_a_batch(fewest: int) -> None:
    for rows, size in itertools.product(range(1, 20), range(1, 9)):
        strategy = Ddp()
        strategy.fewest_rows = fewest
        shares = strategy.shares({"x": np.arange(rows)}, size)
        assert len(shares) == size and {share.rows for share in shares} == {rows}
        counted = [share for share in shares if share.weight]
        assert np.concatenate([share.batch["x"] for share in counted]).tolist() == list(range(rows))
        assert [share.weight for share in counted] == [len(share.batch["x"]) / rows for share in counted]
        assert all(len(share.batch["x"]) >= min(fewest, rows) for share in shares)
        if rows >= fewest * size:
            assert [len(share.batch["x"]) for share in shares] == [
                rows * (rank + 1) // size - rows * rank // size for rank in range(size)
            ]


def test_batch_norm_and_a_last_batch_of_a_row_for_each_member() -> None:
    """A pipeline makes fewer micro-batches of such a batch."""

    def train(team: TorchTeam, members: list[int]) -> None:
        cache = EngineCache()
        for strategy, rows in itertools.product(("ddp", "pipeline", "gpipe"), (2, 3)):
            opened(Stateful(), strategy, 2, team, cache).train(batches(SIZE + rows), last=True)

    with_team(Stateful(), 2, train)


def test_models_are_built_before_a_run_if_a_strategy_cuts_them() -> None:
    framework = Net().framework
    framework.check_team({}, TeamShape("pipeline", 2), seed=0)
    framework.check_team({}, TeamShape("ddp", 9), seed=0)
    with pytest.raises(UsageError, match=r"parallelism='pipeline:9': the model must have a block for each of 9 .* got"):
        framework.check_team({}, TeamShape("pipeline", 9), seed=0)


def test_tasks_and_shapes_that_do_not_suit() -> None:
    framework = Net().framework
    with pytest.raises(TaskError, match="owns its training loop"):
        opened(Loop(), "spill")
    with pytest.raises(UsageError, match="needs at least 2 devices"):
        opened(Net(), "ddp")
    with pytest.raises(UsageError, match="single:2"):
        framework.team_shape("single", 2)
    with pytest.raises(UsageError, match="at most"):
        framework.team_shape("spill", 2)
    with pytest.raises(UsageError, match="did you mean 'ddp'"):
        framework.team_shape("dpp")
    assert framework.team_shape("spill") == ("spill", 1)
    assert framework.team_shape("ddp") == ("ddp", 0)


def test_models_that_a_pipeline_cannot_cut() -> None:
    tied, branching = torch.nn.Sequential(*Tied().layers()), Branching()
    with pytest.raises(TaskError, match=r"'2.weight' is used in two stages: .* use 'ddp' or 'fsdp'"):
        cut(tied, blocks.find(tied), 2)
    with pytest.raises(TaskError, match=r"the code of Branching after block 'layers.1' cannot be traced"):
        cut(branching, blocks.find(branching), 2)
    with pytest.raises(TaskError, match=r"the model has 3 block\(s\) \(layers.0, layers.1, layers.2\) for 4 stages"):
        cut(branching, blocks.find(branching), 4)


def test_values_travel_as_they_are() -> None:
    from multiprocessing import Pipe

    near, far = Pipe()
    half = torch.arange(4, dtype=torch.bfloat16)
    wire.send(near, {"half": half, "rows": [half, "text"], "empty": torch.zeros(0, 3)})
    found = wire.moved(wire.receive(far), torch.device("cpu"))
    assert found["half"].dtype == torch.bfloat16
    assert torch.equal(found["half"], half)
    assert torch.equal(found["rows"][0], half)
    assert found["empty"].shape == (0, 3)
    found["half"][0] = 1  # tasks may write into their batches
