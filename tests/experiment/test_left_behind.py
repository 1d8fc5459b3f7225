"""What a run leaves behind in the process that ran it: nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import TaskError
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
