"""Chores of a run: records of trials beside the journal, and what waits until the workers have something to do."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import EpochEnded, Finish, RunUnit, TrialAdded, TrialDeleted
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.experiment.running import OnceAtWork
from hopfleet.runtime import records
from hopfleet.runtime.records import TrialRecords
from hopfleet.support.background import Chores


def trained(observer: TrialRecords, *trials: str) -> None:
    for number, trial in enumerate(trials):
        observer.update(0.0, TrialAdded(trial, number, {"lr": 0.1}, 0, 1))
        observer.update(0.0, EpochEnded(trial, 1, 1, {"loss": float(number)}, True))


def test_the_end_waits_for_all_records(tmp_path: Path) -> None:
    folder = tmp_path / "trials"
    with Chores() as chores:
        observer = TrialRecords(folder, chores)
        trained(observer, "t0001", "t0002")
        observer.update(0.0, Finish(True, ""))
    assert [path.name for path in sorted(folder.iterdir())] == ["t0001.json", "t0002.json"]
    assert json.loads((folder / "t0002.json").read_text())["best"]["metrics"] == {"loss": 1.0}


def test_messages_go_on_while_a_slow_disk_takes_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_SECONDS", 0.0)
    goes_on = threading.Event()

    def slow(path: Path, text: str, **more: Any) -> None:
        assert goes_on.wait(60)
        path.write_text(text, encoding="utf-8")

    monkeypatch.setattr(records, "write_text", slow)
    with Chores() as chores:
        observer = TrialRecords(tmp_path, chores)
        trained(observer, "t0001", "t0002")
        observer.refresh()
        observer.update(0.0, TrialDeleted("t0002"))
        observer.refresh()
        goes_on.set()
    assert [path.name for path in tmp_path.iterdir()] == ["t0001.json"]


def test_a_run_that_fails_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(records, "write_text", lambda path, text, **more: goes_on.wait(60))
    before = set(threading.enumerate())

    def fail() -> None:
        with Chores() as chores:
            observer = TrialRecords(tmp_path, chores)
            trained(observer, "t0001")
            observer.update(0.0, Finish(True, ""))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    (writer,) = set(threading.enumerate()) - before
    goes_on.set()
    writer.join(60)
    assert not writer.is_alive()


def test_jobs_wait_until_a_worker_has_something_to_do() -> None:
    done: list[str] = []
    with Chores() as chores:
        observer = OnceAtWork([lambda: done.append("first"), lambda: done.append("second")], chores)
        observer.update(0.0, TrialAdded("t0001", 0, {}, 0, 1))
        assert chores._thread is None
        for attempt in (1, 2):
            observer.update(0.0, RunUnit("w1", Unit("t0001", 1, 0), attempt, VersionRef("t0001", 0, None)))
    assert done == ["first", "second"]


def test_a_job_that_fails_is_logged_once(capfd: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no space left")

    with Chores() as chores:
        for job in (fail, fail, lambda: done.append(1)):
            chores.add(job)
    assert done == [1]
    assert capfd.readouterr().err.count("the run goes on without it: OSError: no space left") == 1
