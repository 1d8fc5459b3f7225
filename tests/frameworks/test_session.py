"""The PyTorch session: a saved version is complete, and errors name their cause."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hopfleet as hop
from hopfleet.domain.placement import CPU, Placement
from hopfleet.errors import CheckpointError, TaskError
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.torch.engines.capture_backend import CudaBackend
from hopfleet.frameworks.torch.session import TorchSession, WriteStreams
from tests.helpers.torch_sessions import LR, OPTIMIZERS, SCHEDULES, Batches, Task, session, trained


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_loaded_session_goes_on_bit_for_bit(tmp_path: Path, optimizer: str, schedule: str, scaler: bool) -> None:
    alone = trained(session(optimizer, schedule, scaler=scaler), 2)
    alone.save(tmp_path / "v2")
    # In another process the generators are in any state, and its session has trained something else before.
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    other = trained(session(optimizer, schedule, scaler=scaler, seed=4), 1)
    other.load(tmp_path / "v2")
    assert other.model.calls == alone.model.calls
    for one in (alone, other):
        trained(one, 2)
    alone.save(tmp_path / "alone")
    other.save(tmp_path / "other")
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_of_torch_hops(tmp_path: Path, optimizer: str) -> None:
    alone = trained(session(optimizer), 2)
    alone.save(tmp_path / "v2")
    other = session(optimizer)
    other.load(tmp_path / "v2")
    trained(alone, 1).save(tmp_path / "alone")
    trained(other, 1).save(tmp_path / "other")
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "other").read_bytes()


def test_evaluation_changes_nothing(tmp_path: Path) -> None:
    one, other = trained(session(), 1), trained(session(), 1)
    first = one.evaluate(Batches(), seed=1)
    assert first == one.evaluate(Batches(), seed=1), "evaluation has random streams of its own"
    one.model.calls.copy_(other.model.calls)
    trained(one, 1).save(tmp_path / "one")
    trained(other, 1).save(tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [*(("adam", name) for name in SCHEDULES), *((name, "none") for name in OPTIMIZERS)]
)
def test_a_snapshot_is_what_was_there_when_it_was_made(tmp_path: Path, optimizer: str, schedule: str) -> None:
    one = trained(session(optimizer, schedule, scaler=True), 1)
    one.save(tmp_path / "then")
    write = one.snapshot()
    trained(one, 1).save(tmp_path / "now")
    write(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "then").read_bytes() != (tmp_path / "now").read_bytes()


def test_a_snapshot_of_tensors_that_share_memory_or_are_of_several_kinds(tmp_path: Path) -> None:
    class Tied(hop.TorchTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            other.weight = one.weight
            model = torch.nn.Sequential(one, torch.nn.BatchNorm1d(4), other)
            model.register_buffer("none", torch.empty(0))
            model.register_buffer("part", one.bias.detach()[:2])
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

    one = Tied().framework.open({}, seed=0, placement=CPU, threads=1)
    one.save(tmp_path / "then")
    write = one.snapshot()
    with torch.no_grad():
        for tensor in [*one.model.parameters(), *one.model.buffers()]:
            tensor.add_(1)
    write(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "then").read_bytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_versions_are_fetched_on_a_stream_that_no_capture_uses() -> None:
    device = torch.device("cuda:0")
    others = {CudaBackend().stream(device).cuda_stream for _ in range(100)}
    assert len(others) < 100 and WriteStreams().of(device).cuda_stream not in others


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_versions_of_many_trials_take_the_memory_of_one(tmp_path: Path) -> None:
    class Wide(hop.TorchTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            model = torch.nn.Linear(4096, 1024)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

    one = Wide().framework.open({}, seed=0, placement=Placement.on("cuda:0"), threads=1)
    one.snapshot()(tmp_path / "first")
    before = torch.cuda.memory_reserved()
    for _ in range(20):
        one.snapshot()(tmp_path / "later")
    assert (tmp_path / "later").read_bytes() == (tmp_path / "first").read_bytes()
    assert torch.cuda.memory_reserved() < before + 3 * one.size


def test_what_is_saved_stays_as_it_is_during_an_evaluation(tmp_path: Path) -> None:
    class Plain(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            net = torch.nn.Linear(4, 1)
            return net, torch.optim.Adam(net.parameters())

        def metrics(self, model: Any, batch: dict[str, Any]) -> Mapping[str, Any]:
            one.save(tmp_path / "during")
            return {"noise": torch.rand(())}

    one = trained(Plain().framework.open({}, seed=3, placement=CPU, threads=1), 1)
    one.save(tmp_path / "before")
    assert one.steady
    one.evaluate(Batches(), seed=1)
    assert (tmp_path / "during").read_bytes() == (tmp_path / "before").read_bytes()
    assert not session().steady, "its buffer counts calls"


def test_the_callers_generators_are_left_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    trained(session(), 1)
    assert (random.random(), np.random.rand(), torch.rand(())) == expected


def test_a_state_wider_than_its_parameter_is_not_rounded(tmp_path: Path) -> None:
    one = trained(session("sgd"), 1)
    parameter = one.optimizers[0].param_groups[0]["params"][0]
    wide = torch.full_like(parameter, 1 / 3, dtype=torch.float64)
    one.optimizers[0].state[parameter]["momentum_buffer"] = wide
    one.save(tmp_path / "v")
    other = session("sgd")
    other.load(tmp_path / "v")
    first = other.optimizers[0].param_groups[0]["params"][0]
    assert torch.equal(other.optimizers[0].state[first]["momentum_buffer"], wide)


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    one = session()
    one.save(tmp_path / "v")
    content = (tmp_path / "v").read_bytes()
    large = content + bytes(safetensors.SMALL)
    for name, damage in {"cut": content[:-10], "empty": b"", "text": b"hello" * 100, "long": large}.items():
        (tmp_path / name).write_bytes(damage)
        with pytest.raises(CheckpointError, match=name):
            one.load(tmp_path / name)
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="is not a hopfleet-torch-1 checkpoint"):
        one.load(tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="absent"):
        one.load(tmp_path / "absent")


def opened(build: Any) -> TorchSession:
    class Built(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            return build()

    return Built().framework.open({}, seed=0, placement=CPU, threads=1)


def test_what_build_may_return() -> None:
    net = torch.nn.Linear(4, 1)
    assert len(opened(lambda: (net, torch.optim.SGD(net.parameters(), lr=1))).optimizers) == 1
    both = opened(lambda: (net, [torch.optim.SGD([net.weight], lr=1), torch.optim.SGD([net.bias], lr=1)]))
    assert len(both.optimizers) == 2
    with pytest.raises(TaskError, match="return model, optimizer"):
        opened(lambda: 3)
    with pytest.raises(TaskError, match="returned a value of type str after the model"):
        opened(lambda: (net, "adam"))
    with pytest.raises(TaskError, match="not the model's own"):
        opened(lambda: (net, torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1)))
    with pytest.raises(TaskError, match="returned no optimizer: return model, optimizer, or override train"):
        opened(lambda: net)
    another = torch.optim.SGD(net.parameters(), lr=1)
    with pytest.raises(TaskError, match="a StepLR of another optimizer: make the schedule for an optimizer that"):
        opened(lambda: (net, torch.optim.SGD(net.parameters(), lr=1), LR.StepLR(another, 1)))


def test_a_build_that_changes_its_mind(tmp_path: Path) -> None:
    def built(inputs: int) -> Any:
        net = torch.nn.Linear(inputs, 1)
        return net, torch.optim.SGD(net.parameters(), lr=1)

    opened(lambda: built(4)).save(tmp_path / "v")
    with pytest.raises(TaskError, match="a different model for the same"):
        opened(lambda: built(5)).load(tmp_path / "v")


def test_metrics_must_be_numbers() -> None:
    class Odd(Task):
        def metrics(self, model: Any, batch: dict[str, Any]) -> Any:
            return self.config["metrics"]

    def evaluated(metrics: Any) -> Any:
        config = {"optimizer": "sgd", "schedule": "none", "scaler": False, "metrics": metrics}
        return Odd().framework.open(config, seed=0, placement=CPU, threads=1).evaluate(Batches(), seed=0)

    assert evaluated({"a": 1})["a"].mean == 1.0
    with pytest.raises(TaskError, match="must be a dict"):
        evaluated(3)
    with pytest.raises(TaskError, match="metric 'a' is the text 'high': must be one number"):
        evaluated({"a": "high"})
    with pytest.raises(TaskError, match="metric 'a' is"):
        evaluated({"a": torch.zeros(2)})


def test_lr_schedule_by_the_batch() -> None:
    class ByBatch(Task):
        lr_step = "batch"

    config = {"optimizer": "sgd", "schedule": "multistep", "scaler": False}
    one = ByBatch().framework.open(config, seed=0, placement=CPU, threads=1)
    one.train(Batches(), last=True)
    assert one.schedulers[0].last_epoch == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "complex64"])
def test_batches_become_tensors(dtype: str) -> None:
    one = session()
    value = np.ones((2, 3)).astype(dtype)
    batch = one.prepare({"a": value, "words": ["x", "y"], "ragged": [value[0], value[1, :2]]}, {})
    assert torch.equal(batch["a"], torch.from_numpy(value))
    assert batch["words"] == ["x", "y"]
    assert [len(part) for part in batch["ragged"]] == [3, 2]
    halves = one.prepare({"b": np.array([0x3F80], dtype="uint16")}, {"b": "bfloat16"})
    assert halves["b"].dtype == torch.bfloat16
    assert float(halves["b"]) == 1.0
