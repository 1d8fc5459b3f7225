"""Bookkeeping around captures, on the CPU: what is captured, replayed, refused, evicted and freed, in which order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.engines import capture_backend, cuda_graphs
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.captured_update import UpdateCapture
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.engines.stacked import widths
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked, StackedGraphs
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.bookkept import SEVERAL, Batches, Task, bits, several, unit
from tests.helpers.recorded_capture import RecordedCapture

pytestmark = pytest.mark.usefixtures("stacked_at_once")


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


@pytest.mark.slow
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


def test_beside_a_stack_other_members_are_captured(tmp_path, monkeypatch):
    monkeypatch.setattr(widths, "WORTH", 0)  # otherwise the last one would be padded
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


# ------------------------------------------------------------------------------------------------------------- rates


class Deep(Task):
    """Models of different depths: on the stand-in, a replay takes as long as it has operations."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(config["depth"])], torch.nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


DEPTHS = [{"lr": 0.1, "depth": depth} for depth in (1, 30, 2)]


def operations(sessions: list[TorchSession]) -> list[float]:
    """The number of operations in the captured step of each session, for whole batches."""
    return [len(next(iter(one.kept[Steps].values())).graphs[0]._recording.operations) for one in sessions]


def test_shares_follow_the_time_on_the_device():
    sessions, backend = several(Deep(), DEPTHS)
    flotilla = CudaGraphs(sessions)
    flotilla.train(Batches(8, 8, 8, 8), last=[False] * 3)
    counts = operations(sessions)
    assert flotilla.shares == pytest.approx([count / sum(counts) for count in counts])
    assert flotilla.shares[1] > 0.8 and backend.measured == 3 * 2, "one batch is timed: the replay, and what follows it"
    flotilla = CudaGraphs(sessions)
    flotilla.evaluate(Batches(8, 8), seed=0)
    assert flotilla.shares[1] > 0.7 and sum(flotilla.shares) == pytest.approx(1)


def test_shares_are_equal_if_nothing_was_measured():
    sessions, backend = several(Deep(), DEPTHS)
    flotilla = CudaGraphs(sessions)
    flotilla.train(Batches(8), last=[False] * 3)
    assert flotilla.shares == [1 / 3] * 3 and backend.measured == 0, "the first batch is not replayed"
    backend.ready = False
    flotilla = CudaGraphs(sessions)
    flotilla.train(Batches(8), last=[False] * 3)
    assert flotilla.shares == [1 / 3] * 3 and backend.measured > 0


def test_members_without_a_capture_are_timed_too():
    backend: list[RecordedCapture] = []

    class Slow(Deep):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            if wait := self.config.get("wait"):
                backend[0].now += wait
                return super().loss(model, batch) * (1 + float(np.random.rand()))
            return super().loss(model, batch)

    sessions, recorded = several(Slow(), [*DEPTHS[::2], {"lr": 0.1, "depth": 1, "wait": 1000}])
    backend.append(recorded)
    flotilla = CudaGraphs(sessions)
    flotilla.train(Batches(8, 8, 8, 8), last=[False] * 3)
    update = len(sessions[2].kept[UpdateCapture].graph._recording.operations)
    times = [*operations(sessions[:2]), 1000 + update]
    assert flotilla.shares == pytest.approx([time / sum(times) for time in times])


def test_parts_of_a_flotilla_count_by_the_time_on_the_device():
    sessions, _ = several(Deep(), [{**config, "batch_size": 4 * n} for n, config in enumerate(DEPTHS, 1)])
    flotilla = CudaGraphs(sessions)
    streams = [Batches(*[4] * 6), Batches(*[8] * 3), Batches(*[12] * 2)]
    flotilla.train_mixed(streams, [0, 1, 2], last=[False] * 3)
    times = [count * batches for count, batches in zip(operations(sessions), (6, 3, 2), strict=True)]
    assert flotilla.shares == pytest.approx([time / sum(times) for time in times])
    flotilla = CudaGraphs(sessions)
    streams[2] = Batches(11)  # is not captured, so the host's clock has to do
    flotilla.train_mixed(streams, [0, 1, 2], last=[False] * 3)
    assert sum(flotilla.shares) == pytest.approx(1) and min(flotilla.shares) > 0


def test_members_of_a_stack_share_its_time():
    configs = [{"lr": 0.1 / n, "depth": 3} for n in range(1, 5)] + [{"lr": 0.1, "depth": 9}]
    sessions, _ = several(Deep(), configs)
    flotilla = StackedGraphs(sessions)
    flotilla.train(Batches(8, 8, 8, 8), last=[False] * 5)
    (stacked,) = {id(one.kept[Stack]): one.kept[Stack] for one in sessions[:4]}.values()
    (capture,) = stacked.captures.values()
    times = [len(capture._graph._recording.operations) / 4] * 4 + operations(sessions[4:])
    assert flotilla.shares == pytest.approx([time / sum(times) for time in times])
