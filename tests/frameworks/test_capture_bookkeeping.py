"""Bookkeeping around captures, on the CPU: what is captured, replayed, refused, evicted and freed, in which order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines import capture_backend, cuda_graphs
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked, StackedGraphs
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.recorded_capture import RecordedCapture, RecordedGraph, recorded_capture

SEVERAL = [{"lr": 0.1}, {"lr": 0.05, "dropout": 0.3}, {"lr": 0.01}]


class Batches:
    """Batches of given numbers of rows."""

    def __init__(self, *sizes: int, extra: Mapping[str, Any] | None = None) -> None:
        self.sizes, self.extra = sizes, dict(extra or {})
        self.rows = sum(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(len(self.sizes))
        for rows in self.sizes:
            x = torch.randn(rows, 4, generator=generator)
            yield {"x": x, "y": torch.randn(rows, generator=generator), **self.extra}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(4, config.get("width", 5)),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Linear(config.get("width", 5), 1),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


def several(task: hop.TorchTask, configs: list[dict[str, Any]] = SEVERAL) -> tuple[list[TorchSession], RecordedCapture]:
    cache = EngineCache()
    backend = recorded_capture(cache)
    sessions = [
        task.framework.open(config, seed=number, placement=CPU, threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]
    return sessions, backend


def bits(one: TorchSession, folder: Path) -> bytes:
    one.save(folder / "bits")
    return (folder / "bits").read_bytes()


def unit(
    sessions: list[TorchSession], alone: list[TorchSession], batches: Batches, folder: Path, last: bool = False
) -> None:
    """Train a unit together and alone, and compare sums and bits."""
    found = CudaGraphs(sessions).train(batches, last=[last] * len(sessions))
    assert found == [one.train(batches, last=last) for one in alone]
    assert [bits(one, folder) for one in sessions] == [bits(one, folder) for one in alone]


def test_the_first_step_is_eager_and_the_others_are_replays(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    unit(sessions, alone, Batches(8, 8, 8), tmp_path)
    assert backend.captures == 3
    captures = [one.kept[Steps] for one in sessions]
    # The first and the last member are of one kind: the last relies on the first one's comparison with eager steps.
    assert [capture.graphs[0].replays for kept in captures for capture in kept.values()] == [3 + 2, 3 + 2, 2]
    assert backend.unjoined() == []


def test_replays_take_turns_on_the_streams_in_the_order_of_members(monkeypatch):
    monkeypatch.setattr(capture_backend, "LANES", 2)
    sessions, backend = several(Task(), [{"lr": 0.1 / n} for n in range(1, 6)])
    CudaGraphs(sessions).train(Batches(8, 8), last=[False] * 5)
    lanes = [stream.number for stream in sessions[0].cache.part(GraphCache).streams(torch.device("cpu"))]
    replays = [f"replay on {lanes[number]}" for number in (0, 0, 0, 1, 1)]
    assert backend.log == ["replay on 0"] * 3 + replays  # three comparisons, then members 0, 2, 4 and 1, 3
    assert backend.unjoined() == []


def test_captures_are_kept_until_a_setting_changes(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    made = []
    for last in (False, False, True, False, False):
        unit(sessions, alone, Batches(8, 8, 8), tmp_path, last)
        made.append(backend.captures)
    assert made == [3, 3, 3, 6, 6]  # after an epoch, the schedule has changed the learning rates


def test_the_last_smaller_batch_is_captured_once_it_comes_again(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    made = []
    for _ in range(3):
        unit(sessions, alone, Batches(8, 8, 5), tmp_path)
        made.append(backend.captures)
    assert made == [3, 6, 6]
    assert [len(one.kept[Steps]) for one in sessions] == [2, 2, 2]


def test_a_member_keeps_captures_for_a_few_sizes_only(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    first: weakref.ref[Any] | None = None
    for rows in (8, 6, 4, 3, 8):
        unit(sessions, alone, Batches(rows, rows), tmp_path)
        if first is None:
            (capture,) = sessions[0].kept[Steps].values()
            first = weakref.ref(capture.graphs[0])
            del capture
    assert [len(one.kept[Steps]) for one in sessions] == [cuda_graphs.SIZES] * 3
    assert backend.captures == 15, "the first size was evicted, and is captured again"
    gc.collect()
    assert first is not None and first() is None


def test_weights_that_moved_are_captured_again(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    unit(sessions, alone, Batches(8, 8), tmp_path)
    sessions[1].model[0].weight.data = sessions[1].model[0].weight.data.clone()
    unit(sessions, alone, Batches(8, 8), tmp_path)
    assert backend.captures == 4


def test_a_size_in_the_middle_is_taken_eagerly(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    for _ in range(2):
        unit(sessions, alone, Batches(8, 8, 5, 8, 8), tmp_path)
    assert backend.captures == 3


def test_a_closed_cache_and_closed_sessions_free_all_captures():
    sessions, backend = several(Task())
    CudaGraphs(sessions).train(Batches(8, 8), last=[False] * 3)
    CudaGraphs(sessions).evaluate(Batches(8, 8), seed=0)
    cache = sessions[0].cache
    graphs = [weakref.ref(kept.graphs[0]) for one in sessions for some in one.kept.values() for kept in some.values()]
    inputs = [weakref.ref(value) for batch in cache.part(GraphCache).inputs.values() for value in batch.values()]
    assert len(graphs) == 6 and len(inputs) == 2, "members share the tensors of their input"
    cache.close()
    del sessions, backend
    gc.collect()
    assert not any(graph() for graph in graphs)
    assert all(value() is None for value in inputs)


# --------------------------------------------------------------------------------------------------------- refusals


class Host(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * (1 + 0.01 * float(np.random.rand()))


class Reading(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss * 2 if loss.item() > 1e9 else loss


class Scaling(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        return *super().build(config), torch.amp.GradScaler("cpu")


class Capturable(torch.optim.SGD):
    """Refuses captures as torch's own optimizers do."""

    def step(self, closure: Any = None) -> Any:
        if torch.utils._python_dispatch._get_current_dispatch_mode():
            raise RuntimeError("capturable is False")
        return super().step(closure)


class Advised(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build(config)
        return model, Capturable(model.parameters(), lr=config["lr"])


REFUSALS = {
    Host: "random numbers are drawn on the host (numpy)",
    Reading: "operation not permitted when stream is capturing",
}

EAGER_UPDATES = {
    Scaling: "operation not permitted when stream is capturing",
    Advised: "); build the optimizer with capturable=True or fused=True",
}


@pytest.mark.parametrize("task", REFUSALS)
def test_a_refusal_names_its_reason_once_and_leaves_the_bits(task, tmp_path, capfd):
    (sessions, backend), (alone, _) = several(task()), several(task())
    for _ in range(2):
        unit(sessions, alone, Batches(8, 8, 8), tmp_path)
    said = capfd.readouterr().err
    assert said.count("steps are not captured, and trials train in turn") == 1
    assert REFUSALS[task] in said
    assert not any(one.kept.get(Steps) for one in sessions)
    assert not any(work.startswith("replay") for work in backend.log)
    assert gc.isenabled() and backend.workspaces_cleared == 2 * backend.captures
    assert backend.unjoined() == [], "the device is synchronized after a failed capture"


@pytest.mark.parametrize("task", EAGER_UPDATES)
def test_updates_that_cannot_be_captured_are_made_eagerly_after_captured_gradients(task, tmp_path, capfd):
    (sessions, backend), (alone, _) = several(task()), several(task())
    for _ in range(3):
        unit(sessions, alone, Batches(8, 8, 5), tmp_path)
    said = capfd.readouterr().err
    assert said.count("only gradients are captured, and updates are made in turn") == 1
    assert EAGER_UPDATES[task] in said
    assert all(capture.gradients for one in sessions for capture in one.kept[Steps].values())
    assert [len(one.kept[Steps]) for one in sessions] == [2, 2, 2], "whole batches and the last, smaller one"
    assert backend.unjoined() == []


@pytest.mark.parametrize("shares_memory", [False, True])
def test_the_device_has_all_gradients_to_compute_before_the_host_makes_updates(shares_memory, tmp_path, monkeypatch):
    if shares_memory:  # as large models do: the next replay overwrites the gradients of the one before
        monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
    log: list[list[str]] = []

    class Hooked(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, *rest = super().build(config)
            optimizer.register_step_post_hook(lambda *_: [each.append("update") for each in log])
            return model, optimizer, *rest

    (sessions, backend), (alone, _) = several(Hooked()), several(Hooked())
    unit(sessions, alone, Batches(8, 8), tmp_path)
    log.append(backend.log)
    CudaGraphs(sessions).train(Batches(8), last=[False] * 3)
    steps = ["update" if work == "update" else "replay" for work in backend.log[-6:]]
    assert steps == (["replay", "update"] * 3 if shares_memory else ["replay"] * 3 + ["update"] * 3)


def test_large_models_use_one_memory_for_captures_comparisons_and_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    evaluated = CudaGraphs(sessions).evaluate(Batches(8, 8), seed=1)
    assert evaluated == [one.evaluate(Batches(8, 8), seed=1) for one in alone]
    unit(sessions, alone, Batches(8, 8), tmp_path)
    captures = [each for one in sessions for kept in one.kept.values() for each in kept.values()]
    assert len(captures) == 6 and backend.pools == 1
    assert {each.graphs[0].pool for each in captures} == {(0, 1)}
    # Two kinds of members are compared with eager steps, and eager steps before each capture left unused memory.
    assert backend.lent == [(0, 1)] * 4 and backend.freed == 6
    assert backend.unjoined() == []


def test_small_models_have_memory_of_their_own(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    unit(sessions, alone, Batches(8, 8), tmp_path)
    assert (backend.pools, backend.lent, backend.freed) == (0, [], 0)


def test_stacks_with_batches_of_other_sizes_have_other_memory(monkeypatch):
    """They step at the same time."""
    monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
    configs = [{"lr": 0.1 / n, "batch_size": size} for size in (4, 8) for n in range(1, 5)]
    sessions, backend = several(Task(), configs)
    StackedGraphs(sessions).train_mixed([Batches(4, 4, 4), Batches(8, 8)], [0] * 4 + [1] * 4, last=[False] * 8)
    stacks = {id(one.kept[Stack]): one.kept[Stack] for one in sessions}
    assert len(stacks) == 2 and backend.pools == 2
    assert sorted(set(backend.lent)) == [(0, 1), (0, 2)]


def test_an_update_that_raises_ends_its_member_alone(tmp_path):
    class Breaking(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, optimizer, *rest = super().build(config)
            count = [0]

            def hook(*_: object) -> None:
                count[0] += 1
                if config["lr"] == SEVERAL[1]["lr"] and count[0] > 10:
                    raise ValueError("worn out")

            optimizer.register_step_post_hook(hook)
            return model, optimizer, *rest

    (sessions, _), (alone, _) = several(Breaking()), several(Task())
    found = CudaGraphs(sessions).train(Batches(*[8] * 12), last=[False] * 3)
    assert "worn out" in str(found[1])
    for number in (0, 2):
        assert found[number] == alone[number].train(Batches(*[8] * 12), last=False)


def test_a_column_that_is_no_tensor_is_refused(tmp_path, capfd):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    unit(sessions, alone, Batches(8, 8, extra={"names": ["a"] * 8}), tmp_path)
    assert backend.captures == 0
    assert "a batch has a column that is not a tensor" in capfd.readouterr().err


def test_a_metric_that_is_no_number_on_the_device_is_refused(capfd):
    class Measured(Task):
        def metrics(self, model: Any, batch: dict[str, Any]) -> Any:
            return {"loss": self.loss(model, batch), "rows": len(batch["x"])}

    (sessions, _), (alone, _) = several(Measured()), several(Measured())
    found = CudaGraphs(sessions).evaluate(Batches(8, 8), seed=0)
    assert found == [one.evaluate(Batches(8, 8), seed=0) for one in alone]
    assert "'rows' is not a single number on the device" in capfd.readouterr().err


def test_replays_with_other_bits_are_refused_and_undone(tmp_path, monkeypatch, capfd):
    replay = RecordedGraph.replay

    def inexact(self: RecordedGraph) -> None:
        replay(self)
        with torch.no_grad():
            sessions[0].model[0].weight[0, 0] += 1e-6

    monkeypatch.setattr(RecordedGraph, "replay", inexact)
    (sessions, _), (alone, _) = several(Task(), SEVERAL[:1]), several(Task(), SEVERAL[:1])
    unit(sessions, alone, Batches(8, 8, 8), tmp_path)
    assert "replayed steps do not have the bits of eager steps" in capfd.readouterr().err
    assert Steps not in sessions[0].kept


def test_a_kind_that_was_refused_is_not_tried_again(tmp_path):
    sessions, backend = several(Reading())
    for _ in range(3):
        CudaGraphs(sessions).train(Batches(8, 8), last=[False] * 3)
    assert backend.captures == 4, "two attempts for each kind of member: whole steps, and gradients alone"


# ---------------------------------------------------------------------------------------------------------- members


class Failing(Task):
    """Raises in the members whose configuration asks for it."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        if self.config.get("fails"):
            raise ValueError("out of luck")
        return super().loss(model, batch)


def test_a_member_that_fails_leaves_the_others_alone(tmp_path):
    configs = [{"lr": 0.1, "fails": number == 1} for number in range(3)]
    (sessions, backend), (alone, _) = several(Failing(), configs), several(Failing(), configs)
    found = CudaGraphs(sessions).train(Batches(8, 8, 8), last=[True] * 3)
    assert isinstance(found[1], ValueError)
    assert [found[0], found[2]] == [alone[n].train(Batches(8, 8, 8), last=True) for n in (0, 2)]
    assert [bits(sessions[n], tmp_path) for n in (0, 2)] == [bits(alone[n], tmp_path) for n in (0, 2)]
    assert backend.captures == 2 and backend.unjoined() == []


def test_a_loss_of_nan_in_replays_is_an_error_of_its_member():
    sessions, _ = several(Task(), [{"lr": 0.1}, {"lr": float("inf")}])
    found = CudaGraphs(sessions).train(Batches(8, 8, 8), last=[True] * 2)
    assert isinstance(found[0], dict) and isinstance(found[1], TaskError)


def test_a_member_joins_later(tmp_path):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    for members in ([0, 1], [0, 1, 2], [2, 0], [1]):
        unit([sessions[n] for n in members], [alone[n] for n in members], Batches(8, 8, 8), tmp_path)
    assert backend.captures == 3, "each member is captured once, with the neighbours of that time or with others"


def test_schedules_that_step_after_each_batch(tmp_path, capfd):
    class Quick(Task):
        lr_step = "batch"

    (sessions, _), (alone, _) = several(Quick()), several(Quick())
    unit(sessions, alone, Batches(8, 8, 8), tmp_path)
    assert "the schedule changes settings on the host after each batch" in capfd.readouterr().err


def test_the_backend_decides_which_engine_captures():
    sessions, _ = several(Task())
    task = Task()
    assert type(task.framework.flotilla(sessions)) is CudaGraphs
    assert type(task.framework.flotilla(sessions, fast=True)) is StackedGraphs
    plain = [task.framework.open(SEVERAL[0], seed=0, placement=CPU, threads=1) for _ in range(2)]
    assert type(task.framework.flotilla(plain)) is Interleaved
    assert type(task.framework.flotilla(plain, fast=True)) is Stacked


def test_beside_a_stack_other_members_are_captured(tmp_path):
    configs = [{"lr": 0.1 / n} for n in range(1, 5)] + [{"lr": 0.1, "width": 6}]
    (sessions, backend), (alone, _) = several(Task(), configs), several(Task(), configs)
    for _ in range(2):
        found = StackedGraphs(sessions).train(Batches(8, 8, 8), last=[False] * 5)
        expected = [one.train(Batches(8, 8, 8), last=False) for one in alone]
        assert found[4] == expected[4] and bits(sessions[4], tmp_path) == bits(alone[4], tmp_path)
        for mine, theirs in zip(found[:4], expected[:4], strict=True):
            assert float(mine["train_loss"].mean) == pytest.approx(float(theirs["train_loss"].mean), rel=1e-5)
    assert [Steps in one.kept for one in sessions] == [False] * 4 + [True]
    assert backend.unjoined() == []
