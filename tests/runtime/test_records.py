"""Records beside the journal are written now and then, by the clock of the process."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.backends.base import WorkerHealth
from hopfleet.domain.messages import EpochEnded, TrialAdded, TrialEnded
from hopfleet.domain.trial import TrialState
from hopfleet.runtime import records
from hopfleet.runtime.records import HEALTH_SECONDS, RECORD_SECONDS, HealthRecord, TrialRecords, write_records
from hopfleet.support.background import Chores
from tests.helpers.open_files import synced


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(records, "clocks", SimpleNamespace(monotonic=lambda: self.now))


def test_the_health_of_workers_is_kept_at_once_and_then_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, kept = Clock(monkeypatch), list[Any]()
    health = WorkerHealth("w1", "here", pid=7, memory=5, device_memory=0, heard=1.0)
    record = HealthRecord(SimpleNamespace(keep_health=kept.append), SimpleNamespace(health=lambda: [health]))  # type: ignore[arg-type]
    for now, count in [(0.0, 1), (0.0, 1), (HEALTH_SECONDS * 0.9, 1), (HEALTH_SECONDS, 2), (HEALTH_SECONDS * 1.9, 2)]:
        clock.now = now
        record.refresh()
        assert kept == [{"w1": asdict(health)}] * count


def test_records_of_trials_are_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, chores = Clock(monkeypatch), list[Any]()
    observer = TrialRecords(tmp_path, SimpleNamespace(add=chores.append))  # type: ignore[arg-type]
    observer.update(0.0, TrialAdded("t0001", 0, {}, 0, 1))
    for now, count in [(0.0, 0), (0.9, 0), (1.0, 1), (1.9, 1), (2.0, 2)]:
        observer.update(0.0, EpochEnded("t0001", 1, 1, {"loss": now}, True))
        clock.now = now * RECORD_SECONDS
        observer.refresh()
        assert len(chores) == count
    clock.now += RECORD_SECONDS
    observer.refresh()
    assert len(chores) == 2, "nothing has changed"


def test_records_are_for_this_user_alone_and_wait_for_no_disk(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with synced() as waited:
            write_records(tmp_path / "trials", {"t0001": "{}"})
    finally:
        os.umask(before)
    assert (tmp_path / "trials" / "t0001.json").read_text() == "{}" and waited == []
    assert (tmp_path / "trials").stat().st_mode & 0o777 == 0o700


def test_a_record_tells_how_a_trial_ended_and_others_have_none(tmp_path: Path) -> None:
    with Chores() as chores:
        observer = TrialRecords(tmp_path, chores)
        observer.update(0.0, TrialAdded("t0001", 0, {}, 0, 1))
        for trial in ("t0001", "t0002"):
            observer.update(0.0, EpochEnded(trial, 1, 1, {"loss": 1.0}, False))
            observer.update(0.0, TrialEnded(trial, TrialState.STOPPED, "enough"))
        observer._write_all()
    (path,) = tmp_path.iterdir()
    told = json.loads(path.read_text())
    assert (told["trial"], told["state"], told["last"]["metrics"]) == ("t0001", "stopped", {"loss": 1.0})
    assert "best" not in told
