"""A run that waits for a disk, a storage or a cluster: what is said, what goes on meanwhile, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import threading
from types import SimpleNamespace

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.placement import TeamShape
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import Interrupted, JournalError
from hopfleet.runtime import loop as loops
from hopfleet.runtime.loop import Copies, Stopwatch
from hopfleet.scheduler.invariants import validate_history
from hopfleet.support.files import transfers as files
from tests.helpers.loop_bench import START, Bench, HungOnce, SpyBackend, SpyJournal


class FullJournal(SpyJournal):
    """A journal on a disk that is full for the first attempts; notes how often views were refreshed before each."""

    def __init__(self, bench, refusals=2):
        super().__init__(bench.journal.path, bench.log)
        self.bench, self.refusals, self.refreshed = bench, refusals, []
        bench.loop._journal = self

    def append(self, time, messages):
        if self.refusals:
            self.refusals -= 1
            self.refreshed.append(self.bench.observer.refreshed)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(time, messages)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch):
        self.now, self.slept = 0.0, []
        monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.3125)
    monkeypatch.setattr(loops, "WAIT_SECONDS", 0.125)
    clock = Clock(monkeypatch)
    with Bench(tmp_path) as bench, contextlib.closing(FullJournal(bench)) as journal:
        assert not bench.loop.stuck and bench.loop.reason == ""
        assert bench.loop.run(START) is True
        told, over = bench.of("wait")
        path = bench.journal.path
        assert told == f"{path}: cannot be written (No space left on device); make room on that disk" and over == ""
        assert clock.slept == [0.125, 0.125, 0.0625, *[0.125] * 5]
        assert journal.refreshed == [0, 3], "views go on"
        validate_history(bench.journaled(), 3)


def test_ctrl_c_ends_the_wait_for_a_full_disk(tmp_path):
    with Bench(tmp_path) as bench, contextlib.closing(FullJournal(bench)):
        bench.loop.drain()
        with pytest.raises(Interrupted, match=r"No space left on device.*, then resume: all that was journaled"):
            bench.loop.run(START)
        assert bench.journaled() == []


def test_a_storage_that_is_waited_for_is_named_by_its_error(tmp_path, monkeypatch):
    Clock(monkeypatch)
    errors = [OSError("s3://bucket: cannot be listed")]

    def release():
        if errors:
            raise errors.pop()

    with Bench(tmp_path) as bench:
        bench.versions.release = release
        assert bench.loop.run(START) is True
        assert bench.of("wait") == ["s3://bucket: cannot be listed", ""]


def test_the_run_does_not_wait_for_a_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FIRST_PAUSE", 1e-9)
    source, ref = VersionRef("t0001", 1, 7), VersionRef("t0002", 1, 8)
    goes_on, errors = threading.Event(), [OSError(errno.EIO, "no")]

    def copy(*arguments):
        assert goes_on.wait(60) and arguments == (source, ref, "abc")
        if errors:
            raise errors.pop()
        return "abc", 3

    with Bench(tmp_path) as bench:
        bench.versions.path, bench.versions.sends = (lambda ref, *, durable: tmp_path / "version"), True
        bench.versions.copy = copy
        bench.loop._driver.act(m.CopyVersion(source, ref, "abc"))
        assert bench.loop._copies.busy and bench.loop._own.empty()
        goes_on.set()
        delayed, saved = bench.loop._own.get(timeout=60), bench.loop._own.get(timeout=60)
        assert delayed == m.SaveDelayed("", ref, "[Errno 5] no", on_node=True)
        assert saved == m.VersionSaved(ref, True, "abc", 3)
        assert not bench.of("wait")


def test_copies_that_wait_for_a_disk_end_with_the_run():
    copies, done = Copies(), []
    copies.add(lambda: done.append(copies.pause(60)))
    copies.add(lambda: done.append("never begun"))
    thread = copies._chores._thread
    while not copies._waits:
        thread.join(0.001)
    assert not copies.busy
    copies.finish()
    thread.join(60)
    assert done == [False]


def test_copies_are_under_way_until_the_last_is_made():
    copies, begun, goes_on = Copies(), threading.Event(), threading.Event()
    assert not copies.busy
    copies.add(lambda: None)
    copies.add(lambda: begun.set() or goes_on.wait(60))
    thread = copies._chores._thread
    assert begun.wait(60) and copies.busy
    goes_on.set()
    copies.finish()
    thread.join(60)
    assert not copies.busy


class Patient(SpyBackend):
    """Notes how long the run would wait for an event."""

    def receive(self, timeout):
        self.log.append(("receive", timeout))
        return super().receive(timeout)


@pytest.mark.parametrize("copying", [False, True])
def test_a_run_looks_at_copies_often_and_gives_up_those_that_are_left_at_its_end(tmp_path, copying):
    ended = threading.Event()
    with Bench(tmp_path, backend=Patient) as bench:
        if copying:
            bench.loop._copies.add(lambda: ended.wait(60))
        assert bench.loop.run(START) is True
        ended.set()
        assert set(bench.of("receive")) == {loops.COPY_SECONDS if copying else loops.WAIT_SECONDS}
        assert not bench.loop._copies.pause(0.0)


def test_a_run_that_fails_does_not_wait_for_what_is_done_beside_it(tmp_path):
    """Nor does it leave a thread behind once that is done."""
    goes_on, ended, before = threading.Event(), [], set(threading.enumerate())

    class Broken(SpyJournal):
        def append(self, time, messages):
            if any(isinstance(message, m.DropVersion) for message in messages) and bench.of("act"):
                bench.loop._chores.add(lambda: ended.append(goes_on.wait(5)))
                raise JournalError("disk full")
            super().append(time, messages)

    with Bench(tmp_path) as bench, contextlib.closing(Broken(bench.journal.path, bench.log)) as journal:
        bench.loop._journal = journal
        with pytest.raises(JournalError, match="disk full"):
            bench.loop.run(START)
        (worker,) = set(threading.enumerate()) - before
        goes_on.set()
        worker.join(5)
        assert not worker.is_alive() and ended == [True]


class Unreachable(HungOnce):
    """A cluster whose network is down while its first unit hangs."""

    looks = 0

    def offer(self, device, threads, teams=(), *, spanning=()):
        raise AssertionError("no worker may be requested")

    def trouble(self):
        self.looks += 1
        return "the network is down" if self.looks < 50 else ""


def test_time_does_not_count_while_a_cluster_is_in_trouble(tmp_path):
    with Bench(tmp_path, backend=Unreachable) as bench:
        bench.controller.unit_timeout = 5.0
        now = iter(range(10_000))
        bench.loop._stopwatch = Stopwatch(lambda: float(next(now)))
        assert bench.loop.run(START) is True
        assert bench.of("wait") == ["the network is down", ""]
        (overdue,) = [place for place, (_, what) in enumerate(bench.log) if isinstance(what, m.UnitOverdue)][:1]
        assert bench.log.index(("wait", "")) < overdue, "the unit is overdue when it had its time after that"


class Joining(SpyBackend):
    """A backend whose workers join as teams."""

    form_seconds = 0.0

    def teams_blocker(self, device, threads):
        return ""

    def form_teams(self, shapes):
        self.log.append(("form", shapes))


def test_teams_are_formed_by_the_backend(tmp_path):
    with Bench(tmp_path, backend=Joining) as bench:
        command = m.FormTeams((TeamShape("ddp", 2),))
        bench.loop._driver.follow([command])
        assert bench.log == [("journal", command), ("form", command.shapes), ("show", command)]
