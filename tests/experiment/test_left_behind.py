"""What a run leaves behind in the process that ran it, and what a refused one leaves on the disk: nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import DataError, TaskError
from hopfleet.runtime.loop import Loop
from hopfleet.testing.tasks import CountingTask


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
