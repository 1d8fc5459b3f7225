"""Parts that adapters share: examples of a batch, and sessions whose state is numpy arrays."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import CheckpointError, TaskError
from hopfleet.frameworks.base import Framework
from hopfleet.frameworks.example import ExampleTask, example_of
from hopfleet.frameworks.host import HostSession
from hopfleet.frameworks.state import arrays
from hopfleet.testing.frameworks import FrameworkSuite


class WalkTask(ExampleTask):
    """A random walk, moved by its data and by Python's and NumPy's generators."""

    @property
    def framework(self) -> Framework:
        return WalkFramework()


class WalkFramework(Framework):
    def open(self, config, *, seed, placement, threads, cache=None):
        return WalkSession(WalkTask(), config, seed=seed, threads=threads)

    def model(self, config, checkpoint):
        session = self.open(config, seed=0, placement=None, threads=1)
        session.load(checkpoint)
        return session.place

    def devices(self):
        return "cpu", 1


class WalkSession(HostSession):
    kind = "walk-1"

    def __init__(self, task, config, **options: Any) -> None:
        super().__init__(config, **options)
        self.task = task
        with self.environment():
            self.place = np.random.normal(size=(3, 2)).T
        self.check_config(config)

    def state(self):
        return {"place": self.place}

    def restore(self, state):
        self.place = state["place"]

    def train(self, batches, *, last):
        with self.environment():
            for batch in batches:
                x, _, _ = example_of(self.task, batch)
                self.place = self.place + self.config["step"] * (x.mean() + np.random.normal() + random.random())
        self.end_unit(last=last)
        return {"train_loss": RowSum.of(float(self.place.sum()), batches.rows)}

    def evaluate(self, batches, *, seed):
        with self.environment(seed):
            rows = sum(len(batch["x"]) for batch in batches)
            return {"loss": RowSum.of(float(self.place.sum()), rows)}


class TestWalk(FrameworkSuite):
    config: ClassVar[dict[str, Any]] = {"step": 0.1}
    other: ClassVar[dict[str, Any]] = {"step": 0.2}
    bad: ClassVar[dict[str, Any]] = {"step": "far"}

    def make(self):
        return WalkTask()


def test_a_batch_without_x_or_y_says_what_to_override() -> None:
    with pytest.raises(TaskError, match=r"no column 'y', only x, label: override example\(self, batch\)"):
        WalkTask().example({"x": 1, "label": 2})


@pytest.mark.parametrize("wrong", [None, (1,), (1, 2, 3, 4)])
def test_an_example_has_two_or_three_parts(wrong: Any) -> None:
    class Wrong(WalkTask):
        def example(self, batch):
            return wrong

    with pytest.raises(TaskError, match="must be x, y or x, y, sample_weight"):
        example_of(Wrong(), {})


def test_arrays_keep_layout_type_and_shared_memory(tmp_path: Path) -> None:
    shared = np.arange(6, dtype=np.int16)
    state = {
        "shared": [shared, shared],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(3, np.uint8),
    }
    arrays.write(tmp_path / "file", *arrays.packed(state, "test-1"))
    found: list[Any] = []
    arrays.read(tmp_path / "file", "test-1", found.append)
    (loaded,) = found
    assert loaded["shared"][0] is loaded["shared"][1]
    for name in ("fortran", "complex", "empty", "scalar"):
        assert loaded[name].dtype == state[name].dtype and loaded[name].shape == state[name].shape
        assert loaded[name].tobytes() == state[name].tobytes()
    assert loaded["fortran"].flags.f_contiguous and not loaded["fortran"].flags.c_contiguous


def test_narrow_floats_are_kept(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.array([1.5, -2], dtype=ml_dtypes.bfloat16)
    arrays.write(tmp_path / "file", *arrays.packed(value, "test-1"))
    found: list[Any] = []
    arrays.read(tmp_path / "file", "test-1", found.append)
    assert found[0].dtype == ml_dtypes.bfloat16 and found[0].tobytes() == value.tobytes()


def test_text_is_refused_and_so_is_a_file_of_another_adapter(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="without pickle"):
        arrays.packed({"names": np.array(["a"])}, "test-1")
    arrays.write(tmp_path / "file", *arrays.packed({}, "test-1"))
    with pytest.raises(CheckpointError, match="is not a test-2 checkpoint"):
        arrays.read(tmp_path / "file", "test-2", lambda state: None)


def test_a_task_may_not_change_its_configuration() -> None:
    session = WalkSession(WalkTask(), {"step": 0.1}, seed=0, threads=1)
    session.config["step"] = 0.2
    with pytest.raises(TaskError, match=r"from 0\.1 to 0\.2"):
        session.check_config({"step": 0.1})
