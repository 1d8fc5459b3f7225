"""Captured steps: the bits of eager steps, or a reason against captures.

Each test runs with CUDA where there is a GPU, and everywhere with a stand-in that captures steps on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.torch.engines import capture_backend
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Measures
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.captured_tasks import OPTIMIZERS, SOME_SLOW, Peeking, Task, needs_gpu
from tests.helpers.captures import Batches, Place, bits, compare, several


class Images(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(3),
        )
        model(torch.zeros(2, 3, 8, 8))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_the_bits_of_eager_training(place, tmp_path, name):
    configs = [{"optimizer": name, "lr": lr, "dropout": drop} for lr, drop in ((0.1, 0.5), (0.01, 0.0), (0.03, 0.2))]
    captures = compare(place, Task(place), configs, tmp_path)
    assert all(capture is not None for unit in captures for capture in unit)


def test_a_capture_holds_while_nothing_moves(place, tmp_path):
    configs = [{"optimizer": "adam", "lr": 0.1}] * 2
    members = several(place, Task(place), configs)
    Task(place).framework.flotilla(members).train(Batches(place.device), last=[False, False])
    before = [dict(one.kept[Steps]) for one in members]
    Task(place).framework.flotilla(members).train(Batches(place.device), last=[True, True])
    for one, old in zip(members, before, strict=True):
        ((size, capture),) = old.items()
        assert one.kept[Steps][size] is capture and len(one.kept[Steps]) == 2  # and the last, smaller batch
    Task(place).framework.flotilla(members).train(
        Batches(place.device), last=[True, True]
    )  # the learning rate has changed
    # On CUDA, captures read the learning rate from the device.
    kept = [one.kept[Steps][size] is old[size] for one, old in zip(members, before, strict=True)]
    assert kept == [place.on_cuda] * 2


def test_evaluations_are_captured_too(place, tmp_path):
    members = several(place, Task(place), [{"optimizer": "adam", "lr": 0.1}] * 2)
    found = [Task(place).framework.flotilla(members).evaluate(Batches(place.device), seed=seed) for seed in (1, 2)]
    assert all(Measures in one.kept for one in members)
    alone = several(place, Task(place), [{"optimizer": "adam", "lr": 0.1}] * 2)
    assert found == [[one.evaluate(Batches(place.device), seed=seed) for one in alone] for seed in (1, 2)]


@pytest.mark.parametrize("large", [False, True])
def test_a_snapshot_is_not_changed_by_training(large, place, tmp_path):
    """Copies of adapters leave the device of a large model; the file is the same."""
    (one,) = several(place, Task(place), [{"optimizer": "adam", "lr": 0.1}])
    one.large = large
    one.train(Batches(place.device), last=False)
    before, write = bits(one, tmp_path), one.snapshot()
    one.train(Batches(place.device), last=True)
    write(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == before != bits(one, tmp_path)


@pytest.mark.slow
def test_convolutions_and_batch_norm(place, tmp_path):
    captures = compare(place, Images(place), [{"lr": lr} for lr in (0.1, 0.05, 0.01, 0.2)], tmp_path, (3, 8, 8))
    assert all(capture is not None for unit in captures for capture in unit)


def test_a_member_with_nan_leaves_the_others_alone(place, tmp_path):
    configs = [{"optimizer": "adam", "lr": lr} for lr in (0.1, float("inf"), 0.01)]
    alone, together = (several(place, Task(place), configs) for _ in range(2))
    found = Task(place).framework.flotilla(together).train(Batches(place.device), last=[True] * 3)
    assert "the loss is nan" in str(found[1])
    assert [found[0], found[2]] == [alone[n].train(Batches(place.device), last=True) for n in (0, 2)]
    assert [bits(together[n], tmp_path) for n in (0, 2)] == [bits(alone[n], tmp_path) for n in (0, 2)]


class Wide(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        wide, narrow = (1000, 500) if self.cuda else (20, 10)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, wide), torch.nn.ReLU(), torch.nn.Linear(wide, narrow), torch.nn.ReLU()
        )
        model.append(torch.nn.Linear(narrow, 4))
        return model, OPTIMIZERS["fused adam"](model.parameters(), config["lr"], self.cuda)


def test_more_members_than_streams_disturb_each_other_in_nothing(place, tmp_path, monkeypatch):
    """On CUDA, the matrix products are large enough to need workspaces, and each member has its own."""
    if not place.on_cuda:
        monkeypatch.setattr(capture_backend, "LANES", 3)
    configs = [{"lr": 0.001 * (n + 1)} for n in range(40 if place.on_cuda else 5)]
    captures = compare(place, Wide(place), configs, tmp_path)
    assert all(capture is not None for unit in captures for capture in unit)


class Quick(Task):
    lr_step = "batch"


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_schedules_that_step_after_each_batch(place, tmp_path, name):
    captures = compare(place, Quick(place), [{"optimizer": name, "lr": lr} for lr in (0.1, 0.01)], tmp_path)
    assert all(capture for unit in captures for capture in unit)
    # On CUDA, captured updates read the learning rate from the device; elsewhere updates are made eagerly.
    assert all(bool(one.gradients) != place.on_cuda for unit in captures for some in unit for one in some.values())


@needs_gpu
def test_tf32_is_used_by_the_trial_alone() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).cuda()
    weights = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)).cuda()
    exact = x.double() @ weights.double()

    def error() -> float:
        return float((x @ weights - exact).abs().max())

    found = {}

    class Task(hop.TorchTask):
        precision = "tf32"

        def build(self, config: Any) -> Any:
            model = torch.nn.Linear(256, 1)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def metrics(self, model: Any, batch: Any) -> Any:
            found["inside"] = error()
            return {"loss": 0.0}

    class Batches:
        rows = 1

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            yield {"x": x[:1]}

    before = error()
    session = Task().framework.open({}, seed=0, placement=Placement.on("cuda:0"), threads=1)
    session.evaluate(Batches(), seed=0)
    assert error() == before < found["inside"] / 10


class Sized:
    """The same 100 rows in batches of some size. The last batch has 4 rows if the size divides 96."""

    rows = 100

    def __init__(self, device: str, size: int, shape: tuple[int, ...], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._size = size
        self._x = torch.randn(100, *shape, generator=generator).to(device)
        self._y = torch.randint(0, 3, (100,), generator=generator).to(device)

    def __len__(self) -> int:
        return -(-100 // self._size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        pairs = zip(self._x.split(self._size), self._y.split(self._size), strict=True)
        return ({"x": x, "y": y} for x, y in pairs)


class Failing(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if self.config.get("fails") and len(batch["y"]) == 4:
            raise ValueError("too small")
        return super().loss(model, batch)


MIXED = [
    {"optimizer": "adam", "lr": 0.1, "batch_size": 32, "dropout": 0.5},
    {"optimizer": "momentum", "lr": 0.01, "batch_size": 12, "width": 8},
    {"optimizer": "sgd", "lr": 0.03, "batch_size": 32},
    {"optimizer": "fused adam", "lr": 0.03, "batch_size": 48, "dropout": 0.2},
    {"optimizer": "rmsprop", "lr": 0.01, "batch_size": 12},
]


@pytest.mark.parametrize(("kind", "shape"), [(Task, (20,)), (Images, (3, 8, 8)), (Failing, (20,))])
def test_batches_of_different_sizes(place, tmp_path, kind, shape):
    """Members with batches of 32, 12 and 48 rows, and a last batch of 4, end with the bits that each has alone."""
    task = kind(place)
    configs = [{**config, "fails": number == 1} for number, config in enumerate(MIXED)]
    alone, together = (several(place, task, configs) for _ in range(2))
    sizes = (32, 12, 48)
    of = [sizes.index(config["batch_size"]) for config in configs]
    for unit in range(4):
        streams = [Sized(place.device, size, shape, unit) for size in sizes]
        last = [unit % 2 == 1] * len(of)
        flotilla = task.framework.flotilla(together)
        turns: list[int] = []
        flotilla.turn = turns.append
        found = flotilla.train_mixed(streams, of, last=last)
        assert sum(flotilla.shares) == pytest.approx(1) and min(flotilla.shares) > 0
        if kind is Failing and unit == 0:
            assert isinstance(found[1], ValueError) and 1 in turns
            expected = [one.train(streams[of[n]], last=last[0]) for n, one in enumerate(alone) if n != 1]
            assert [each for n, each in enumerate(found) if n != 1] == expected
            for members in (alone, together):
                del members[1]
            del of[1]
            continue
        assert found == [one.train(streams[number], last=last[0]) for one, number in zip(alone, of, strict=True)]
        assert task.framework.flotilla(together).evaluate(streams[0], seed=3) == [
            one.evaluate(streams[0], seed=3) for one in alone
        ]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert all(len(one.kept[Steps]) == 2 for one in together if "rmsprop" not in str(one.config) or place.on_cuda)


def test_parts_of_a_flotilla_have_streams_of_their_own(place):
    """Parts whose models have no convolutions run side by side; those with some are joined after each step."""
    for task, shape, expected in ((Task(place), (20,), 3), (Images(place), (3, 8, 8), 0)):
        members = several(place, task, MIXED)
        cache = members[0].cache.part(capture_backend.GraphCache)
        flotilla = task.framework.flotilla(members)
        streams = [Sized(place.device, size, shape, 0) for size in (32, 12, 48)]
        flotilla.train_mixed(streams, [0, 1, 0, 2, 1], last=[False] * 5)
        assert len(cache._streams[members[0].device]) - capture_backend.LANES == expected


def test_captures_in_shared_memory_have_the_bits_of_trials_alone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As captures of large models are."""
    monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
    configs = [{"optimizer": "momentum", "lr": 0.01 * n} for n in range(1, 4)]
    captures = compare(place, Task(place), configs, tmp_path)
    assert all(one.place is not None for some in captures[0] for one in some.values())


class Deep(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        layers = [torch.nn.Linear(20, 20) for _ in range(config["depth"])]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(20, 3))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


class DeepPeeking(Deep, Peeking):
    """Takes its steps eagerly. On the stand-in, only replays take time."""


@pytest.mark.parametrize("kind", [Deep, pytest.param(DeepPeeking, marks=needs_gpu)])
@pytest.mark.parametrize("engine", ["one size", "two sizes"])
def test_a_straggler_has_the_largest_share_of_the_time(place, kind, engine):
    """The host queues a replay of any length at once, so only the device can tell how long a member takes."""
    if kind is DeepPeeking and not place.on_cuda:
        pytest.skip("eager steps take no time on the stand-in")
    depths = [1, 1, 100, 1]
    configs = [{"lr": 0.01, "depth": depth, "batch_size": 32 + 16 * (n % 2)} for n, depth in enumerate(depths)]
    members = several(place, kind(place), configs)
    for unit in range(2):
        flotilla = CudaGraphs(members)
        if engine == "one size":
            flotilla.train(Sized(place.device, 16, (20,), unit), last=[False] * 4)
        else:
            streams = [Sized(place.device, size, (20,), unit) for size in (16, 24)]
            flotilla.train_mixed(streams, [0, 1, 0, 1], last=[False] * 4)
        assert sum(flotilla.shares) == pytest.approx(1) and min(flotilla.shares) > 0
        assert flotilla.shares[2] > 0.6, flotilla.shares
