"""Steps and updates that cannot be captured: what is said, and what is done instead."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.engines import cuda_graphs
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.captured_update import UpdateCapture
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.stacked.flotilla import StackedGraphs
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.bookkept import SEVERAL, Batches, Task, several, unit
from tests.helpers.recorded_capture import RecordedGraph

pytestmark = pytest.mark.usefixtures("stacked_at_once")


class Host(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * (1 + 0.01 * float(np.random.rand()))


class Reading(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss * 2 if loss.item() > 1e9 else loss


class ReadingTwice(Reading):
    """Neither the gradients nor the update can be captured."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, *rest = super().build(config)
        optimizer.register_step_post_hook(lambda *_: None)
        return model, optimizer, *rest


class Uncaptured(Reading):
    capture = False


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
    ReadingTwice: "the optimizer has step hooks, which run on the host",
    Uncaptured: "the task sets capture = False",
}


EAGER_GRADIENTS = {
    Host: "random numbers are drawn on the host (numpy); draw them with torch, on the device",
    Reading: "; compute with tensors on the device there, without .item(), float(), print or a condition on a tensor",
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


@pytest.mark.parametrize("task", EAGER_GRADIENTS)
def test_updates_are_captured_alone_after_eager_gradients(task, tmp_path, capfd):
    (sessions, backend), (alone, _) = several(task()), several(task())
    for sizes in ((8, 8, 8), (8, 8, 5), (6, 6, 6)):
        unit(sessions, alone, Batches(*sizes), tmp_path)
    said = capfd.readouterr().err
    assert said.count("only updates are captured, and the rest of each step is taken in turn: ") == 1
    assert EAGER_GRADIENTS[task] in said and "steps are not captured" not in said
    assert not any(one.kept.get(Steps) for one in sessions)
    # The update of the first batch of a unit is eager. Three replays of the first of each kind are compared.
    assert [one.kept[UpdateCapture].graph.replays for one in sessions] == [3 + 3 * 2, 3 + 3 * 2, 3 * 2]
    assert {name.split()[0] for name in backend.log} <= {"replay", "synchronize"} and backend.unjoined() == []


def test_updates_alone_are_captured_again_when_a_setting_or_a_weight_has_changed(tmp_path):
    (sessions, _), (alone, _) = several(Reading()), several(Reading())
    made = []
    for number, last in enumerate((False, True, False, False)):
        unit(sessions, alone, Batches(8, 8, 8), tmp_path, last)
        made.append([one.kept[UpdateCapture] for one in sessions])
        if number == 2:
            sessions[1].model[0].weight.data = sessions[1].model[0].weight.data.clone()
    kept = [[new is old for old, new in zip(*pair, strict=True)] for pair in itertools.pairwise(made)]
    assert kept == [[True] * 3, [False] * 3, [True, False, True]]  # after an epoch, the learning rates have changed


def test_an_update_that_a_capture_was_not_made_for_is_eager(tmp_path, capfd):
    """Batches with more than 6 rows train the first layer as well, and a norm is kept by new tensors."""

    class Moving(Reading):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            rows = len(batch["x"])
            for group in self.optimizer.param_groups:
                group["lr"] = self.config["lr"] * (1 if rows > 4 else 0.5)
            if rows == 5:
                model[2].weight.data = model[2].weight.data.renorm(2, 0, 0.1)
            first = model[0](batch["x"])
            loss = ((model[2](first if rows > 6 else first.detach()).squeeze(1) - batch["y"]) ** 2).mean()
            return loss * 2 if loss.item() > 1e9 else loss

    (sessions, _), (alone, _) = several(Moving()), several(Moving())
    unit(sessions, alone, Batches(8, 8, 8, 6, 8, 4, 8, 3, 3, 8, 5, 8, 8), tmp_path)
    # The second, third, fifth, seventh and tenth update are replayed: then a weight has moved.
    assert [one.kept[UpdateCapture].graph.replays for one in sessions] == [3 + 5, 3 + 5, 5]
    assert "only updates are captured" in capfd.readouterr().err


def test_replayed_updates_note_the_norms_of_gradients():
    class Steep(Reading):
        clip_norm = 1.0

        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            return super().loss(model, batch) * (float("nan") if len(batch["x"]) == 3 else 1)

    (sessions, _), (alone, _) = several(Steep()), several(Steep())
    found = CudaGraphs(sessions).train(Batches(8, 8, 8, 3), last=[False] * 3)
    for one, result in zip(alone, found, strict=True):
        with pytest.raises(TaskError, match="and gradients of norm") as error:
            one.train(Batches(8, 8, 8, 3), last=False)
        assert str(result) == str(error.value)


def test_a_unit_with_one_update_has_nothing_to_replay(tmp_path, capfd):
    (sessions, _), (alone, _) = several(Reading()), several(Reading())
    unit(sessions, alone, Batches(8), tmp_path)
    assert "steps are not captured, and trials train in turn" in capfd.readouterr().err
    unit(sessions, alone, Batches(8, 8), tmp_path)
    assert all(UpdateCapture in one.kept for one in sessions)


class Drawing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].data += 1e-3 * float(np.random.rand())
        return super().step(closure)


class DrawingInVain(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        torch.rand(1)
        return super().step(closure)


class Growing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        weight = self.param_groups[0]["params"][0]
        if "momentum_buffer" in self.state[weight]:  # from the second update on
            self.state[weight].setdefault("slow", weight.detach().clone())
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Drawing, "replayed steps do not have the bits of eager steps"),
        (DrawingInVain, "the update draws random numbers"),
        (Growing, "the update makes tensors for later ones"),
    ],
)
def test_an_update_that_is_refused_leaves_no_trace(kind, reason, tmp_path, capfd):
    class Strange(Reading):
        def build(self, config: Mapping[str, Any]) -> Any:
            model, *_ = super().build(config)
            return model, kind(model.parameters(), lr=config["lr"], momentum=0.9)

    (sessions, backend), (alone, _) = several(Strange(), SEVERAL[:1]), several(Strange(), SEVERAL[:1])
    unit(sessions, alone, Batches(8, 8, 8), tmp_path)
    assert "steps are not captured, and trials train in turn" in capfd.readouterr().err
    assert reason in sessions[0].cache.part(GraphCache).verdicts.values()
    assert UpdateCapture not in sessions[0].kept and backend.unjoined() == []


def test_updates_of_large_models_and_with_sparse_gradients_are_not_captured_alone(tmp_path, monkeypatch):
    class Sparse(Task):
        def build(self, config: Mapping[str, Any]) -> Any:
            model = torch.nn.Embedding(9, 4, sparse=True)
            return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            loss = (model(batch["x"].argmax(1)) * batch["x"]).mean()
            return loss * 2 if loss.item() > 1e9 else loss

    for task, large in ((Sparse(), False), (Reading(), True)):
        if large:
            monkeypatch.setattr("hopfleet.frameworks.torch.session.LARGE", 0)
        (sessions, _), (alone, _) = several(task), several(task)
        unit(sessions, alone, Batches(8, 8, 8), tmp_path)
        assert not any(UpdateCapture in one.kept for one in sessions)


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


def test_with_a_column_that_is_no_tensor_only_updates_are_captured(tmp_path, capfd):
    (sessions, backend), (alone, _) = several(Task()), several(Task())
    unit(sessions, alone, Batches(8, 8, extra={"names": ["a"] * 8}), tmp_path)
    assert not any(one.kept.get(Steps) for one in sessions) and backend.captures == 3
    assert f"{cuda_graphs.ONLY_UPDATES}: a batch has a column that is not a tensor" in capfd.readouterr().err


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
    assert backend.captures == 4 + 3, "two attempts for each kind: whole steps and gradients; an update of each member"
