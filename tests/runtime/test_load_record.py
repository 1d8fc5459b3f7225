"""The load of workers: bounded however long a run takes, exact where nothing was merged, and never in the way."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.backends.base import WorkerHealth
from hopfleet.backends.supervision import health_of
from hopfleet.monitor.load import (
    MOST_SAMPLES,
    MOST_WORKERS,
    Sample,
    decode_samples,
    encode_sample,
    series,
    thinned,
)
from hopfleet.runtime import load_record
from hopfleet.runtime.load_record import LoadRecord, load
from hopfleet.store.folder import RunFolder
from hopfleet.support import gpu_load as gpus
from hopfleet.support.background import Chores
from hopfleet.ui.board import Board
from hopfleet.ui.details import worker_load
from hopfleet.worker.protocol import Beat
from tests.helpers.cli import fitted
from tests.helpers.open_files import synced


class Workers:
    """A backend whose workers use half a core."""

    def __init__(self, count: int) -> None:
        self.count, self.now = count, 0.0

    def health(self) -> list[WorkerHealth]:
        beat = Beat(100, 7, self.now / 2, self.now, 0.25)
        return [health_of(f"w{number}", "here", 10 + number, 0.0, [beat]) for number in range(self.count)]


class Restarting(Workers):
    """The last worker is another process at each look."""

    def health(self) -> list[WorkerHealth]:
        *others, last = super().health()
        return [*others, replace(last, pid=int(self.now))]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Yield a clock that tests set."""
    clock = SimpleNamespace(at=100.0)
    monkeypatch.setattr(load_record, "clocks", SimpleNamespace(monotonic=lambda: clock.at))
    monkeypatch.setattr(load_record.clock, "now", lambda: 1e9 + clock.at)
    yield clock


def sampled(file: Path, now: SimpleNamespace, seconds: int, backend: Workers | None = None) -> list[Sample]:
    """Run for some seconds, and return the samples in the file."""
    backend = backend or Workers(2)
    with Chores() as chores:
        record = LoadRecord(file, backend, chores)
        for _ in range(seconds):
            now.at += 1.0
            backend.now = now.at
            record.refresh()
            if chores._thread is not None:
                chores.finish()  # as a run does between two samples
    return decode_samples(file.read_bytes())


def test_a_run_of_any_length_has_a_bounded_number_of_samples(tmp_path: Path, now: SimpleNamespace) -> None:
    file = tmp_path / "load"
    found = sampled(file, now, MOST_SAMPLES - 1)
    assert [sample.time for sample in found] == [1e9 + 102 + place for place in range(MOST_SAMPLES - 2)]
    assert all(dict(sample.workers) == dict.fromkeys(("w0", "w1"), (0.5, 100, 0.25, 7)) for sample in found)
    file.chmod(0o644)
    with synced() as waited:
        found = sampled(file, now, 3 * MOST_SAMPLES)  # a run that is continued
    assert waited == [], "a record waits for no disk"
    assert file.stat().st_mode & 0o777 == 0o600
    assert MOST_SAMPLES // 2 <= len(found) < MOST_SAMPLES
    times = [sample.time for sample in found]
    assert times == sorted(set(times)) and times[0] == 1e9 + 102 + 2**3 - 1 and times[-1] > 1e9 + now.at - 16
    assert all(each[0] == 0.5 for sample in found for each in sample.workers.values())


def test_a_sample_has_a_bounded_number_of_workers(tmp_path: Path, now: SimpleNamespace) -> None:
    assert len(sampled(tmp_path / "load", now, 2, Workers(1000))[0].workers) == MOST_WORKERS


def test_a_sample_has_the_workers_that_were_measured(tmp_path: Path, now: SimpleNamespace) -> None:
    now.at = 100.12345
    found = sampled(tmp_path / "load", now, 3, Restarting(2))
    assert [sample.time for sample in found] == [1e9 + 102.12, 1e9 + 103.12]
    assert [list(sample.workers) for sample in found] == [["w0"], ["w0"]]


def test_lines_that_are_damaged_are_left_out(tmp_path: Path, now: SimpleNamespace) -> None:
    file, draw = tmp_path / "load", random.Random(0)
    whole = sampled(file, now, 40)
    content = file.read_bytes()
    for _ in range(200):
        wrong = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            wrong[draw.randrange(len(wrong))] = draw.choice(b"\0\n\xff {[0,")
        assert all(sample in whole for sample in decode_samples(bytes(wrong)))
    for text in ("", "[]", "[1]", '[1,{"w1":[1]}]', '[1,{"w1":[NaN,1,null,1]}]', '["x",{}]', "[" * 9999, "[1,2]"):
        line = f"{text} {encode_sample(whole[0]).decode().rsplit(' ', 1)[1]}"
        assert decode_samples(f"{text}\n{line}".encode()) == []
    file.write_bytes(content[:-9])  # killed while it wrote
    found = sampled(file, now, 2)
    assert found[:-1] == whole[:-1] and found[-1].time == 1e9 + now.at


def test_a_disk_that_takes_nothing_is_ignored(
    tmp_path: Path, now: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "load").mkdir()
    with pytest.raises(IsADirectoryError):
        sampled(tmp_path / "load", now, 3)
    assert not caplog.records


def test_load_is_measured_between_two_reports_of_one_process() -> None:
    first = health_of("w1", "here", 1, 0.0, [Beat(1, 1, 10.0, 100.0), Beat(2, 2, 20.0, 7.0, 0.5)])
    later = health_of("w1", "here", 1, 0.0, [Beat(4, 1, 11.0, 102.0, 0.25), Beat(2, 3, 22.0, 9.0, 0.75)])
    assert load(first, later) == (1.5, 6, 0.5, 4), "processes of a team count together"
    assert load(first, replace(later, processor=30.0)) == (0.0, 6, 0.5, 4), "an idle worker"
    assert load(first, replace(later, processor=31.0, clock=first.clock + 3.0)) == (0.333, 6, 0.5, 4), "in few digits"
    assert load(first, first) is None, "nothing was heard"
    assert load(first, replace(later, pid=2)) is None, "another process of the same name"
    assert load(later, replace(first, clock=110.0)) is None


def test_thinning_keeps_means_of_shares_and_the_highest_memory() -> None:
    samples = [
        Sample(1.0, {"w1": (0.5, 10, None, 1)}),
        Sample(2.0, {"w1": (1.0, 5, 0.5, 2), "w2": (0.1, 1, None, 0)}),
        Sample(3.0, {"w2": (0.2, 1, None, 0)}),
    ]
    assert thinned(samples) == [
        Sample(2.0, {"w1": (0.75, 10, 0.5, 2), "w2": (0.1, 1, None, 0)}),
        Sample(3.0, {"w2": (0.2, 1, None, 0)}),
    ]
    assert series(samples)["w2"] == {"time": [2.0, 3.0], "processor": [0.1, 0.2], "memory": [1, 1]}


def test_the_page_has_the_load_of_a_run_and_of_none(own_home: Path) -> None:
    folder: RunFolder = fitted("mine").folder
    folder.load_file.unlink(missing_ok=True)
    board = Board(folder)
    board.advance(60.0)
    assert worker_load(board) == {}
    assert board.history.started is not None
    folder.load_file.write_bytes(encode_sample(Sample(board.history.started + 2.0, {"w1": (0.5, 10, None, 0)})))
    assert worker_load(board) == {"w1": {"time": [2.0], "processor": [0.5], "memory": [10.0]}}
    folder.load_file.rename(own_home / "elsewhere")
    folder.load_file.symlink_to(own_home / "elsewhere")
    assert worker_load(board) == {}, "no link is followed"


def test_a_run_in_this_process_tells_its_load(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_record, "SAMPLE_SECONDS", 0.0)
    folder: RunFolder = fitted("mine", {"number": hop.grid_search([1, 2])}).folder
    found = decode_samples(folder.load_file.read_bytes())
    assert found and all(sample.workers["w1"][1] > 1e6 for sample in found)


@pytest.mark.parametrize(("visible", "named"), [(None, 1), ("3,5", 5), ("GPU-a,GPU-b", "GPU-b"), ("2", None)])
def test_the_load_of_a_gpu(monkeypatch: pytest.MonkeyPatch, visible: str | None, named: Any) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked: list[Any] = []
    library = SimpleNamespace(
        NVMLError=KeyError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetUtilizationRates=lambda handle: asked.append(handle) or SimpleNamespace(gpu=40),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    gpus._handle.cache_clear()
    try:
        assert gpus.gpu_load("cpu") is None
        assert gpus.gpu_load("cuda:1") == (None if named is None else 0.4)
        assert asked == ([] if named is None else [named])
        monkeypatch.setitem(sys.modules, "pynvml", None)
        gpus._handle.cache_clear()
        assert gpus.gpu_load("cuda:1") is None, "the library is not installed"
    finally:
        gpus._handle.cache_clear()
