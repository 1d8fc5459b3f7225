"""Frozen tensors: trials of a worker hold them once, versions refer to them, and a task may still change them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import EngineCache, SharedStateChanged
from hopfleet.frameworks.torch import shared
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.shared import SharedTensors
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.recorded_capture import recorded_capture

pytestmark = pytest.mark.usefixtures("stacked_at_once")

WIDTH = 64  # a square matrix of this width has exactly the least size of a shared tensor


class Batches:
    rows = 24

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            yield {"x": torch.randn(8, WIDTH, generator=generator), "y": torch.randn(8, generator=generator)}


class Adapted(torch.nn.Module):
    """A frozen base with tied weights, a mask and running statistics, and an adapter."""

    def __init__(self, rank: int, base: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(base)
            self.base = torch.nn.Linear(WIDTH, WIDTH)
        self.tied = torch.nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.base.weight
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.base.requires_grad_(False)
        self.down = torch.nn.Linear(WIDTH, rank, bias=False)
        self.up = torch.nn.Linear(rank, 1, bias=False)
        self.register_buffer("mask", torch.ones(WIDTH, WIDTH).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.tied(self.base(x)) @ self.mask) + x
        return self.up(self.down(x)).squeeze(1)


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Adapted(config["rank"], config.get("base", 0))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()


class Averaging(Task):
    ema = 0.9


def opened(cache: EngineCache | None = None, task: hop.TorchTask | None = None, **config: Any) -> TorchSession:
    config = {"rank": 2, "lr": 0.01, **config}
    return TorchSession(task or Task(), config, seed=1, device="cpu", threads=1, cache=cache)


def content(session: TorchSession) -> dict[str, torch.Tensor]:
    found = {**dict(session.model.named_parameters()), **dict(session.model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def same(one: TorchSession, other: TorchSession) -> bool:
    mine, theirs = content(one), content(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Return the file of a version in a run folder that has a folder for shared files."""
    for name in ("t0001", "shared"):
        (tmp_path / name).mkdir()
    return tmp_path / "t0001" / "v00001-1.safetensors"


def files(version: Path) -> list[Path]:
    return sorted((version.parent.parent / "shared").iterdir())


def test_trials_of_a_worker_hold_frozen_tensors_once_and_train_with_the_same_bits() -> None:
    cache = EngineCache()
    together = [opened(cache, rank=rank) for rank in (2, 4)]
    alone = [opened(rank=rank) for rank in (2, 4)]
    first, second = (session.model for session in together)
    assert first.base.weight.data_ptr() == second.base.weight.data_ptr() == second.tied.weight.data_ptr()
    assert first.mask.data_ptr() == second.mask.data_ptr()
    assert first.norm.running_mean.data_ptr() != second.norm.running_mean.data_ptr()
    assert {one.name for one in together[0].shared} == {"base.weight", "mask"}
    assert together[0].shared_size == 2 * WIDTH * WIDTH * 4 > together[0].size
    for session in (*together, *alone):
        session.train(Batches(), last=True)
    assert all(map(same, together, alone))
    cache.part(SharedTensors).check()


def test_tensors_of_trials_that_are_gone_are_forgotten() -> None:
    cache = EngineCache()
    place = opened(cache, base=1).model.base.weight.data_ptr()
    gc.collect()
    held = cache.part(SharedTensors)._held
    assert place and not any(held.values())


def test_different_frozen_tensors_stay_apart() -> None:
    cache = EngineCache()
    one, other = opened(cache, base=1), opened(cache, base=2)
    assert one.model.base.weight.data_ptr() != other.model.base.weight.data_ptr()
    assert one.model.mask.data_ptr() == other.model.mask.data_ptr()


@pytest.mark.parametrize("copied", [False, True], ids=["saved", "snapshot"])
def test_a_version_has_the_trainable_part_alone(version: Path, copied: bool) -> None:
    session = opened()
    session.train(Batches(), last=False)
    session.snapshot()(version) if copied else session.save(version)
    assert version.stat().st_size < WIDTH * WIDTH * 4
    assert len(files(version)) == 2
    session.save(second := version.with_name("v00002-2.safetensors"))
    assert len(files(version)) == 2
    assert second.read_bytes() == version.read_bytes()
    again = opened()
    again.load(version)
    assert same(again, session)
    again.save(second)
    assert second.read_bytes() == version.read_bytes()
    for one in (again, session):
        one.train(Batches(), last=True)
    assert same(again, session)


def test_without_a_folder_for_shared_files_versions_are_whole(tmp_path: Path, version: Path) -> None:
    session = opened()
    session.train(Batches(), last=False)
    session.save(whole := tmp_path / "whole.safetensors")
    assert whole.stat().st_size > 2 * WIDTH * WIDTH * 4
    cache = EngineCache()
    other, again = opened(cache), opened(cache)
    again.load(whole)
    assert same(again, session)
    assert again.model.base.weight.data_ptr() == other.model.base.weight.data_ptr()  # the content is the same
    again.save(version)
    session.save(second := version.with_name("v00002-2.safetensors"))
    assert second.read_bytes() == version.read_bytes()


def test_weights_are_read_without_a_session(version: Path) -> None:
    session = opened()
    session.train(Batches(), last=False)
    session.save(version)
    found, expected = hop.state_dict(version), session.model.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_model_that_is_built_differently_gets_the_shared_file(version: Path) -> None:
    cache = EngineCache()
    session = opened()
    session.save(version)
    other, witness = opened(cache, base=5), opened(cache, base=5)
    other.load(version)
    assert same(other, session)
    assert not same(witness, session)
    assert other.model.base.weight is not other.model.tied.bias
    assert other.model.base.weight.data_ptr() == other.model.tied.weight.data_ptr()
    other.save(second := version.with_name("v00002-2.safetensors"))
    assert second.read_bytes() == version.read_bytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [(Path.unlink, "cannot be read"), (lambda path: path.write_bytes(b"?"), "another SHA-256 than its name says")],
    ids=["missing", "damaged"],
)
def test_a_missing_or_damaged_shared_file_is_named(
    version: Path, damage: Callable[[Path], object], message: str
) -> None:
    opened().save(version)
    for path in files(version):
        damage(path)
    with pytest.raises(CheckpointError, match=message):
        hop.state_dict(version)
    with pytest.raises(CheckpointError, match=message):
        opened(base=5).load(version)
    opened().load(version)  # needs no file


def edit(session: TorchSession) -> None:
    session.model.base.weight.data[3, 4] += 1


def swap(session: TorchSession) -> None:
    weight = session.model.base.weight.data
    weight[[3, 40]] = weight[[40, 3]]


def thaw(session: TorchSession) -> None:
    session.model.base.requires_grad_(True)
    session.train(Batches(), last=True)


@pytest.mark.parametrize("change", [edit, swap, thaw])
def test_a_task_that_changes_a_frozen_tensor_gets_one_of_its_own(
    version: Path, change: Callable[[TorchSession], None]
) -> None:
    cache = EngineCache()
    held = cache.part(SharedTensors)
    session, other = opened(cache), opened(cache)
    change(session)
    with pytest.raises(SharedStateChanged, match=r"changed base\.weight, which was frozen"):
        held.check()
    assert not same(other, opened())  # the other trial must be opened again
    session, other, alone = opened(cache), opened(cache), opened()
    assert session.model.base.weight.data_ptr() != other.model.base.weight.data_ptr()
    assert session.model.mask.data_ptr() == other.model.mask.data_ptr()
    change(session)
    held.check()
    assert same(other, alone)
    session.save(version)
    other.save(unchanged := version.with_name("v00002-2.safetensors"))
    assert version.stat().st_size > WIDTH * WIDTH * 4 > unchanged.stat().st_size
    again = opened(cache := EngineCache())
    witness = opened(cache)
    again.load(version)
    assert same(again, session)
    assert same(witness, alone)
    again.save(second := version.with_name("v00003-3.safetensors"))
    assert second.read_bytes() == version.read_bytes()


def test_a_frozen_weight_is_its_own_average(version: Path, tmp_path: Path) -> None:
    cache = EngineCache()
    session, other = opened(cache, Averaging()), opened(cache, Averaging())
    for _ in range(2):
        session.train(Batches(), last=True)
        session.evaluate(Batches(), seed=1)
    cache.part(SharedTensors).check()
    session.save(version)
    assert version.stat().st_size < WIDTH * WIDTH * 4
    session.save(whole := tmp_path / "whole.safetensors")
    for path in (version, whole):
        again = opened(EngineCache(), Averaging())
        again.load(path)
        for mine, theirs in zip(again.average, session.average, strict=True):
            assert torch.equal(mine, theirs)
        different = opened(EngineCache(), Averaging(), base=7)
        different.load(path)
        assert same(different, session)
        for mine, theirs in zip(different.average, session.average, strict=True):
            assert torch.equal(mine, theirs)
    assert not same(other, session)


def test_a_tensor_that_changes_while_it_is_written_is_refused(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()

    def write(self: shared.SharedTensor, path: Path) -> None:
        path.touch()
        edit(session)

    monkeypatch.setattr(shared.SharedTensor, "write", write)
    with pytest.raises(hop.errors.TaskError, match="while it was being saved"):
        session.save(version)


def test_clones_inherit_frozen_tensors(version: Path) -> None:
    session = opened()
    session.train(Batches(), last=True)
    session.save(version)
    clone = opened(lr=0.5)
    clone.inherit(version, opened())
    assert same(clone, session)
    assert clone.optimizers[0].param_groups[0]["lr"] == 0.5


class Lora(Task):
    """Only the adapter is in the optimizer, as people write it."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = Adapted(config["rank"], config.get("base", 0))
        model.norm = torch.nn.Identity()
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        return model, torch.optim.AdamW(trainable, lr=config["lr"])


@pytest.mark.parametrize("captures", [False, True])
def test_stacked_members_keep_their_base_unstacked(captures: bool) -> None:
    cache = EngineCache()
    if captures:
        recorded_capture(cache)
    configs = [{"rank": rank, "lr": 0.01 * n} for rank in (2, 4) for n in range(1, 5)]
    together = [opened(cache, Lora(), **config) for config in configs]
    alone = [opened(None, Lora(), **config) for config in configs]
    place = together[0].model.base.weight.data_ptr()
    for unit in range(2):
        Lora().framework.flotilla(together, fast=True).train(Batches(), last=[unit == 1] * 8)
        for one in alone:
            one.train(Batches(), last=unit == 1)
    cache.part(SharedTensors).check()
    stacks = {id(one.kept[Stack]): one.kept[Stack] for one in together}
    assert [len(stack.sessions) for stack in stacks.values()] == [4, 4]
    for stack in stacks.values():
        assert stack.weights.numel() < 4 * WIDTH * WIDTH
        assert set(stack.gradients.frozen) == {"model.base.bias"}  # too small to be shared
        assert stack.gradients.loss.model.base.weight.data_ptr() == place
    for mine, theirs in zip(together, alone, strict=True):
        assert mine.model.base.weight.data_ptr() == place
        for name, value in content(mine).items():
            torch.testing.assert_close(value, content(theirs)[name], rtol=1e-3, atol=1e-5)


class Whole(Lora):
    """The optimizer has the frozen weights, too."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, _ = super().build(config)
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])


def test_an_optimizer_with_frozen_weights_is_stacked(capsys: pytest.CaptureFixture[str]) -> None:
    cache = EngineCache()
    together, alone = ([opened(one, Whole(), lr=0.01 * n) for n in range(1, 5)] for one in (cache, None))
    for unit in range(2):
        Whole().framework.flotilla(together, fast=True).train(Batches(), last=[unit == 1] * 4)
        for one in alone:
            one.train(Batches(), last=unit == 1)
    assert "are stacked" in capsys.readouterr().err
    cache.part(SharedTensors).check()
    for mine, theirs in zip(together, alone, strict=True):
        for name, value in content(mine).items():
            torch.testing.assert_close(value, content(theirs)[name], rtol=1e-3, atol=1e-5)


def test_a_large_model_whose_optimizer_holds_frozen_weights_is_not_stacked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
    cache = EngineCache()
    together = [opened(cache, Whole(), lr=0.01 * n) for n in range(1, 5)]
    Whole().framework.flotilla(together, fast=True).train(Batches(), last=[True] * 4)
    assert "the model is large, and its optimizer holds frozen weights" in capsys.readouterr().err


@pytest.mark.parametrize("large", [False, True])
def test_captures_of_large_models_share_memory_and_take_turns(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0 if large else 1 << 40)
    cache = EngineCache()
    recorded_capture(cache)
    together = [opened(cache, Lora(), rank=rank) for rank in (2, 3, 4)]
    alone = [opened(None, Lora(), rank=rank) for rank in (2, 3, 4)]
    for unit in range(3):
        members = together[::-1] if unit == 2 else together
        Lora().framework.flotilla(members).train(Batches(), last=[unit == 1] * 3)
        for one in alone:
            one.train(Batches(), last=unit == 1)
    assert all(map(same, together, alone))
    found = [next(iter(one.kept[Steps].values())) for one in together]
    assert [one.place for one in found] == ([0, 1, 2] if large else [None] * 3)
    assert len({one.graphs[0].pool for one in found}) == 1
