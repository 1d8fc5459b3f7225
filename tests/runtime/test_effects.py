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
from tests.helpers.virtual.versions import VirtualChores, VirtualVersions

CURRENT, STALE, LATE = (VersionRef("t0001", 4, attempt) for attempt in (7, 8, 9))


class Bench:
    """Effects on a store with three files of one version: the current one, a stale one and a late one."""

    def __init__(self):
        self.versions, self.events, self.waited = VirtualVersions(), [], []
        for ref in (CURRENT, STALE, LATE):
            self.versions.put(ref, (), durable=True)
        self.schedule = Schedule(2, 0)
        progress = self.schedule.add(Trial("t0001", 0, {}, 0, 9))
        progress.saved[4] = Saved(CURRENT.attempt, durable=True)
        progress.stale.append((STALE.version, STALE.attempt))
        self.saved = VersionEffects(
            self.schedule, self.versions, chores=VirtualChores(), report=self.events.append, retry=self.retry
        )

    def retry(self, path, write):
        while True:
            try:
                return write()
            except OSError as error:
                self.waited.append((path, error.errno))

    def act(self, message):
        self.saved.effects()[type(message)](message)

    @property
    def files(self):
        return set(self.versions.storage)


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
    saved = VersionEffects(bench.schedule, bench.versions, chores=Lazy(), report=bench.events.append, retry=bench.retry)
    effects = saved.effects()
    for message in (m.DropVersion(STALE), m.TrialEnded("t0001", TrialState.COMPLETED), m.Finish(complete=True)):
        effects[type(message)](message)
    assert done == ["drop", "collect", "release"]


@pytest.mark.parametrize(
    ("error", "waits"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EFBIG, False), (errno.EMFILE, False)]
)
def test_a_copy_waits_for_a_disk_but_not_for_a_limit(error, waits, monkeypatch):
    bench, errors = Bench(), [OSError(error, "no")]
    ref, copy = VersionRef("t0002", 4, 11), bench.versions.copy

    def failing(*arguments):
        if errors:
            raise errors.pop()
        return copy(*arguments)

    monkeypatch.setattr(bench.versions, "copy", failing)
    bench.act(m.CopyVersion(CURRENT, ref, ""))
    path = bench.versions.path(ref, durable=True)
    assert bench.waited == ([(path, error)] if waits else []) and (ref in bench.files) is waits
    (event,) = bench.events
    if waits:
        assert event == m.VersionSaved(ref, True, "", 0)
    else:
        assert (event.ref, event.attempt) == (ref._replace(attempt=None), 11)
        assert event.reason.startswith(f"{path}: cannot be written (no); raise the limits of the process")


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
