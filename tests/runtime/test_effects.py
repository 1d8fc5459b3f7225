"""What messages do to saved versions, on a store in memory. Simulated experiments crash between these effects."""

from __future__ import annotations

import errno

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.runtime.effects import VersionEffects, missing_versions
from hopfleet.scheduler.progress import Saved
from hopfleet.scheduler.schedule import Schedule
from hopfleet.simulation.store import MemoryVersions
from hopfleet.support.files import transfers as files
from tests.helpers.virtual.fleet import MortalChores

CURRENT, STALE, LATE = (VersionRef("t0001", 4, attempt) for attempt in (7, 8, 9))


class Bench:
    """Effects on a store with three files of one version: the current one, a stale one and a late one."""

    def __init__(self):
        self.versions, self.events, self.waited = MemoryVersions(), [], []
        for ref in (CURRENT, STALE, LATE):
            self.versions.put(ref, (), durable=True)
        self.schedule = Schedule(2, 0)
        progress = self.schedule.add(Trial("t0001", 0, {}, 0, 9))
        progress.saved[4] = Saved(CURRENT.attempt, durable=True)
        progress.stale.append((STALE.version, STALE.attempt))
        self.wanted = True
        self.saved = self.effects_with(MortalChores())

    def effects_with(self, chores):
        return VersionEffects(
            *(self.schedule, self.versions),
            chores=chores,
            copies=self,
            report=self.events.append,
            retry=lambda path, write: write(),
        )

    def add(self, copy):
        copy()

    def pause(self, seconds):
        self.waited.append(seconds)
        return self.wanted

    def act(self, message):
        self.saved.effects()[type(message)](message)

    @property
    def files(self):
        return set(self.versions.files)


def test_the_file_of_a_late_save_is_deleted_and_that_of_a_version_is_not():
    bench = Bench()
    for ref in (CURRENT, STALE, LATE):
        bench.saved.refuse(m.VersionSaved(ref, True, "", 0))
    assert bench.files == {CURRENT, STALE}
    bench.saved.refuse(m.VersionLost(CURRENT, "gone"))
    assert bench.files == {CURRENT, STALE}


def test_files_are_dropped_forgotten_and_released():
    bench = Bench()
    bench.act(m.DropVersion(STALE))
    bench.act(m.TrialEnded("t0001", TrialState.COMPLETED))
    assert bench.files == {CURRENT, LATE}
    memory = VersionRef("t0002", 1, 3)
    bench.versions.put(memory, (), durable=False)
    bench.act(m.TrialDeleted("t0001"))
    assert bench.files == {memory}
    bench.act(m.Finish(complete=True))
    assert not bench.files


class Lazy:
    """Chores that wait for the end."""

    def __init__(self):
        self.jobs = []
        self.add = self.jobs.append

    def finish(self):
        while self.jobs:
            self.jobs.pop(0)()


def test_the_end_waits_for_files_that_are_still_to_be_deleted(monkeypatch):
    bench, done = Bench(), []
    for name in ("drop", "collect", "release"):
        monkeypatch.setattr(bench.versions, name, lambda *arguments, name=name: done.append(name))
    effects = bench.effects_with(Lazy()).effects()
    for message in (m.DropVersion(STALE), m.TrialEnded("t0001", TrialState.COMPLETED), m.Finish(complete=True)):
        effects[type(message)](message)
    assert done == ["drop", "collect", "release"]


REF = VersionRef("t0002", 4, 11)


def failing(bench, monkeypatch, *errors):
    left, copy = [*errors], bench.versions.copy

    def fails(*arguments):
        if left:
            raise left.pop()
        return copy(*arguments)

    monkeypatch.setattr(bench.versions, "copy", fails)
    bench.act(m.CopyVersion(CURRENT, REF, ""))
    return bench.versions.path(REF, durable=True)


@pytest.mark.parametrize("sends", [False, True], ids=["disk", "storage"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_copy_that_waits_for_a_disk_or_a_storage_is_reported_once(error, sends, monkeypatch):
    bench = Bench()
    bench.versions.sends = sends
    path = failing(bench, monkeypatch, OSError(error, "no"), OSError(error, "no"))
    assert bench.waited == [files.FIRST_PAUSE, 2 * files.FIRST_PAUSE] and REF in bench.files
    delayed, saved = bench.events
    assert (delayed.worker, delayed.ref, delayed.on_node) == ("", REF, sends)
    assert delayed.error.startswith(f"[Errno {error}] no" if sends else f"{path}: cannot be written (no); ")
    assert saved == m.VersionSaved(REF, True, "", 0)


def test_a_copy_that_waits_ends_with_the_run(monkeypatch):
    bench = Bench()
    bench.wanted = False
    failing(bench, monkeypatch, OSError(errno.ENOSPC, "no"))
    assert [type(event) for event in bench.events] == [m.SaveDelayed] and REF not in bench.files


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EFBIG, "no"), "cannot be written (no); raise the limits of the process"),
        (OSError(errno.EMFILE, "no"), "cannot be written (no); raise the limits of the process"),
        (CheckpointError("its SHA-256 is another"), "its SHA-256 is another"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_a_copy_that_will_never_be_made_is_lost(error, reason, monkeypatch):
    bench = Bench()
    failing(bench, monkeypatch, error)
    (event,) = bench.events
    assert (event.ref, event.worker, event.attempt) == (REF._replace(attempt=None), None, 11)
    assert reason in event.reason and REF not in bench.files and not bench.waited


def test_a_copy_of_what_is_gone_is_reported():
    bench, ref = Bench(), VersionRef("t0002", 4, 11)
    bench.act(m.CopyVersion(VersionRef("t0001", 3, 1), ref, ""))
    assert bench.events == [m.VersionLost(ref._replace(attempt=None), "not found", None, 11)]


def test_a_run_begins_with_the_files_that_its_journal_names():
    bench = Bench()
    bench.schedule.trials["t0001"].saved[2] = Saved(5, durable=True)
    missing = [m.VersionLost(VersionRef("t0001", 2, 5), "not found")]
    assert list(missing_versions(bench.schedule, bench.versions)) == missing
    assert bench.files == {CURRENT}
    with pytest.raises(CheckpointError):
        bench.versions.find(STALE)
