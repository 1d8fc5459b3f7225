"""What a run leaves behind in the process that ran it, and what a refused one leaves on the disk: nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.inline import Inline
from hopfleet.errors import DataError, TaskError, UsageError
from hopfleet.experiment import preparation
from hopfleet.runtime.loop import Loop
from hopfleet.testing.tasks import CountingTask
from hopfleet.worker.spec import WorkerSpec


def experiment() -> hop.Experiment:
    space, search = {"number": hop.grid_search([1, 2])}, hop.Grid(max_epochs=2)
    asked = {"partitions": 2, "batch_size": 8, "backend": "inline", "name": "e"}
    return hop.Experiment(CountingTask(), train={"x": np.arange(40.0)}, space=space, search=search, **asked)


def test_a_run_leaves_no_thread() -> None:
    before = threading.enumerate()
    experiment().fit(quiet=True)
    assert threading.enumerate() == before


def test_a_run_that_fails_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.enumerate()

    def refresh(loop: Loop) -> None:
        if any(progress.version > 2 for progress in loop._controller.schedule.trials.values()):
            raise TaskError("cannot go on")

    monkeypatch.setattr(Loop, "_refresh", refresh)
    with pytest.raises(TaskError):
        experiment().fit(quiet=True)
    for thread in set(threading.enumerate()) - set(before):
        thread.join(60)
    assert threading.enumerate() == before


class Warm(Inline):
    """Notes when it begins to load a framework, when that ends and when workers start."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    @contextlib.contextmanager
    def warmed_up(self, modules: Sequence[str], threads: int, logs: Path) -> Iterator[None]:
        assert (list(modules), threads) == (list(CountingTask.preload), 1)
        self.notes.append(f"warm {logs.is_dir()}")
        try:
            yield
        finally:
            self.notes.append(f"cold {logs.is_dir()}")

    def start(self, spec: WorkerSpec, workers: int) -> None:
        self.notes.append("start")
        super().start(spec, workers)


def test_the_framework_is_loaded_while_the_data_is_prepared(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def noted(*args: Any, **more: Any) -> Any:
        notes.append("data")
        return open_data(*args, **more)

    open_data = preparation.open_data
    monkeypatch.setattr(preparation, "open_data", noted)
    asked: dict[str, Any] = {"train": {"x": np.arange(40.0)}, "space": {"lr": 0.1}, "search": hop.Grid(max_epochs=1)}

    def fit(**changes: Any) -> list[str]:
        notes.clear()
        hop.Experiment(CountingTask(), **{**asked, "backend": Warm(notes), "name": "e", **changes}).fit(quiet=True)
        return notes

    assert fit() == ["warm True", "data", "start", "cold True"]
    assert fit() == ["data"]  # it is finished
    assert fit(name="other", parallelism="auto") == ["data", "start"]
    with pytest.raises(UsageError):
        fit(name="none", batch_size=100, worker_options=hop.WorkerOptions(drop_last=True))
    assert notes == ["warm True", "data", "cold True"]
    assert not (own_home / "none").exists()


@pytest.mark.parametrize("parallelism", ["single", "auto"])
def test_a_damaged_file_is_noticed_before_anything_trains_and_leaves_no_folder(
    parallelism: str, own_home: Path, tmp_path: Path
) -> None:
    hop.partition({"x": np.arange(400.0)}, tmp_path / "data", partitions=4)
    file = sorted((tmp_path / "data").glob("*.arrow"))[2]
    content = bytearray(file.read_bytes())
    content[-600] ^= 1
    file.write_bytes(content)
    damaged = hop.Experiment(
        CountingTask(), train=tmp_path / "data", space={"lr": 0.1}, metric="train_loss", mode="min", name="damaged",
        search=hop.Grid(max_epochs=1), backend="inline", parallelism=parallelism,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"part-00002.arrow: has the wrong checksum"):
        damaged.fit(quiet=True)
    assert not (own_home / "damaged").exists()
