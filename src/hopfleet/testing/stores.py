"""The tests that every store must pass. Derive ``StoreSuite`` in a test file and override ``make``:

    class TestMyStore(StoreSuite):
        def make(self):
            return MyStore()

``JournalSuite``, ``RequestSuite`` and ``VersionSuite`` test one part of a store each.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import SkipTest

from hopfleet.domain.placement import CPU
from hopfleet.extend import (
    CheckpointError,
    JournalError,
    JournalStore,
    Local,
    RowSum,
    RunFolder,
    Store,
    Unit,
    VersionRef,
    VersionStore,
)
from hopfleet.extend import messages as m
from hopfleet.support.files import digest, make_folder, overwrite, remove_file
from hopfleet.testing.backends import spec, trial, unit, wait_for
from hopfleet.testing.requests import RequestSuite as RequestSuite
from hopfleet.testing.syncing import forbid_sync, in_child

MESSAGES: list[m.Message] = [
    m.RunStarted("1", 2),
    m.WorkerJoined("w1", CPU, (0, 2)),
    m.UnitFinished("w1", Unit("t0001", 1, 2), 3, 1, 1.5, 2.5, sums={"loss": RowSum.of(0.1, 7)}),
    m.VersionSaved(VersionRef("t0001", 1, 4), True, "abc", 3),
    m.VersionLost(VersionRef("t0001", 1, None), "its worker died"),
    m.EpochEnded("t0001", 1, 1, {"loss": 0.25}, True),
    m.Finish(complete=True),
]
"""One message of each sort of content."""


class JournalSuite:
    """The tests of journals.

    A journal whose appends are made durable by another process or machine, or by files that the system writes through,
    sets ``syncs`` to False.
    """

    syncs = True

    def journal(self, folder: RunFolder, *, writable: bool) -> JournalStore:
        raise AssertionError("override journal()")

    @contextlib.contextmanager
    def opened(self, path: Path, *, writable: bool = True) -> Iterator[JournalStore]:
        """Open the journal of a run folder, and close it at the end."""
        with contextlib.closing(self.journal(RunFolder(path), writable=writable)) as journal:
            yield journal

    def test_a_journal_keeps_messages_in_order_with_their_times(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as journal:
            assert journal.last() is None and list(journal.read()) == []
            journal.append(1.5, MESSAGES[:3])
            journal.append(2.5, MESSAGES[3:])
            times = [1.5] * 3 + [2.5] * (len(MESSAGES) - 3)
            expected = list(zip(range(1, len(MESSAGES) + 1), times, MESSAGES, strict=True))
            assert list(journal.read()) == expected
            for after in range(len(MESSAGES) + 1):
                assert list(journal.read(after)) == expected[after:]
            assert journal.last() == MESSAGES[-1]

    def test_readers_see_an_append_when_it_has_returned(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as journal, self.opened(tmp_path, writable=False) as reader:
            for number, message in enumerate(MESSAGES, 1):
                journal.append(1.0, [message])
                assert [found for _, _, found in reader.read(number - 1)] == [message]
                assert reader.last() == message

    def test_a_journal_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        for message in MESSAGES:
            with self.opened(tmp_path) as journal:
                journal.append(1.0, [message])
        with self.opened(tmp_path, writable=False) as reader:
            assert [(number, message) for number, _, message in reader.read()] == list(enumerate(MESSAGES, 1))

    def test_an_append_is_written_whole_or_not_at_all(self, tmp_path: Path) -> None:
        class Unexpected(Exception):
            pass

        def failing() -> Iterator[m.Message]:
            yield MESSAGES[0]
            raise Unexpected

        with self.opened(tmp_path) as journal:
            with contextlib.suppress(Unexpected):
                journal.append(1.0, failing())
            assert list(journal.read()) == []
            with contextlib.suppress(TypeError, ValueError):
                journal.append(1.0, [MESSAGES[0], m.RequestMade(object())])  # type: ignore[arg-type]
            assert list(journal.read()) == []
            journal.append(1.0, MESSAGES)
            assert [message for _, _, message in journal.read()] == MESSAGES

    def test_an_append_whose_sync_fails_is_not_taken_for_written(self, tmp_path: Path) -> None:
        """A journal that never syncs does not notice, and would lose what it has promised with the power."""
        if not self.syncs:
            raise SkipTest("another process makes the journal durable")

        def append_without_sync() -> bool:
            with self.opened(tmp_path) as journal:
                journal.append(1.0, MESSAGES[:1])
                forbid_sync()
                try:
                    journal.append(2.0, MESSAGES[1:])
                except OSError:
                    return True
                return False

        assert in_child(append_without_sync), "append() returned although no sync to the disk was possible"

    def test_a_missing_journal_is_reported(self, tmp_path: Path) -> None:
        try:
            with self.opened(tmp_path / "absent", writable=False):
                pass
        except JournalError:
            return
        raise AssertionError("opening a missing journal must raise JournalError")


class VersionSuite:
    """The tests of version stores."""

    def versions(self, checkpoints: Path) -> VersionStore:
        raise AssertionError("override versions()")

    @contextlib.contextmanager
    def opened_versions(self, path: Path) -> Iterator[VersionStore]:
        """Return the versions of a run, and release them at the end."""
        make_folder(path / "checkpoints")
        versions = self.versions(path / "checkpoints")
        try:
            yield versions
        finally:
            versions.release()

    def test_a_version_is_found_with_its_bytes(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            for ref, durable in ((VersionRef("t0001", 3, 7), False), (VersionRef("t0001", 4, 8), True)):
                sha, size = save(versions, ref, b"four", durable=durable)
                path = versions.find(ref, sha)
                assert (path.read_bytes(), size) == (b"four", 4)
                assert sha in ("", digest(path))
                assert sha or not durable, "a durable version has a checksum"
                again = self.versions(tmp_path / "checkpoints")
                assert again.find(ref, sha).read_bytes() == b"four", "another process finds it"

    def test_a_version_that_was_never_saved_is_reported(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            save(versions, VersionRef("t0001", 4, 8), b"four")
            for ref in (VersionRef("t0001", 4, 9), VersionRef("t0001", 5, 8), VersionRef("t0001", 4, None)):
                assert missing(versions, ref)
                assert refused(lambda ref=ref: versions.copy(ref, VersionRef("t0002", 4, 10)))  # type: ignore[misc]
            assert refused(lambda: versions.keep(VersionRef("t0001", 4, 9), 7))
            assert missing(versions, VersionRef("t0001", 4, 9))
            assert missing(versions, VersionRef("t0002", 4, 10))

    def test_a_late_writer_overwrites_nothing(self, tmp_path: Path) -> None:
        """A worker that was taken for dead writes after its replacement."""
        with self.opened_versions(tmp_path) as versions:
            for durable in (True, False):
                save(versions, VersionRef("t0001", 4, 8), b"good", durable=durable)
                save(versions, VersionRef("t0001", 4, 7), b"late", durable=durable)
                assert versions.find(VersionRef("t0001", 4, 8)).read_bytes() == b"good"
                versions.drop(VersionRef("t0001", 4, 7))
                assert versions.find(VersionRef("t0001", 4, 8)).read_bytes() == b"good"

    def test_many_workers_write_at_once(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            refs = [VersionRef(f"t000{trial}", 4, attempt) for trial in (1, 2) for attempt in range(1, 9)]
            threads = [
                threading.Thread(target=save, args=(self.versions(tmp_path / "checkpoints"), ref, repr(ref).encode()))
                for ref in refs
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [versions.find(ref).read_bytes() for ref in refs] == [repr(ref).encode() for ref in refs]

    def test_a_failed_write_leaves_nothing(self, tmp_path: Path) -> None:
        def half(path: Path) -> None:
            overwrite(path, [b"ha"])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with self.opened_versions(tmp_path) as versions:
            for durable in (True, False):
                ref = VersionRef("t0001", 4, 8 + durable)
                try:
                    versions.write(ref, half, durable=durable, size=4)
                except OSError:
                    assert missing(versions, ref)
                else:
                    raise AssertionError("a write that fails must raise OSError")
                save(versions, ref, b"four", durable=durable)
                assert versions.find(ref).read_bytes() == b"four"

    def test_a_damaged_file_is_never_returned(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            ref, kept, clone = VersionRef("t0001", 4, 8), VersionRef("t0001", 4, 9), VersionRef("t0002", 4, 10)
            sha, _ = save(versions, ref, b"four")
            uses: list[tuple[VersionRef, Callable[[], object]]] = [
                (ref, lambda: versions.find(ref, sha)),
                (kept, lambda: versions.keep(kept, 8, sha)),
                (clone, lambda: versions.copy(ref, clone, sha)),
            ]
            for result, use in uses:
                for damage in (b"fuur", b"", None):
                    path = versions.path(ref, durable=True)
                    make_folder(path.parent)
                    remove_file(path)
                    if damage is not None:
                        overwrite(path, [damage])
                    # A store that has another copy may use the copy.
                    assert refused(use) or versions.find(result, sha).read_bytes() == b"four"

    def test_a_kept_version_outlives_the_run(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            ref = VersionRef("t0001", 4, 9)
            sha, _ = save(versions, ref._replace(attempt=8), b"four", durable=False)
            kept = versions.keep(ref, 8, sha)
            if versions.sends:
                versions.send(ref)
            assert kept == (digest(versions.find(ref)), 4)
            versions.release()
            assert versions.find(ref, kept[0]).read_bytes() == b"four"
            assert missing(versions, ref._replace(attempt=8))

    def test_a_copy_and_its_source_outlive_each_other(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            for number, first in enumerate(("source", "clone")):
                source, clone = VersionRef(f"t000{number}", 4, 8), VersionRef(f"t001{number}", 4, 9)
                saved = save(versions, source, b"four")
                assert versions.copy(source, clone, saved[0]) == saved
                versions.forget(source.trial if first == "source" else clone.trial)
                left, gone = (clone, source) if first == "source" else (source, clone)
                assert versions.find(left, saved[0]).read_bytes() == b"four"
                assert missing(versions, gone)

    def test_dropping_deletes_one_save(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            for durable in (True, False):
                refs = [VersionRef("t0001", 4, attempt) for attempt in (7, 8)]
                for ref in refs:
                    save(versions, ref, b"four", durable=durable)
                for _ in range(2):  # the second time there is nothing to drop
                    versions.drop(refs[0])
                    assert missing(versions, refs[0])
                    assert versions.find(refs[1]).read_bytes() == b"four"

    def test_tidying_deletes_all_versions_but_the_needed_ones(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            refs = [VersionRef(f"t000{number}", version, 9) for number in (1, 2) for version in (3, 4)]
            for number, ref in enumerate(refs):
                save(versions, ref, b"four", durable=bool(number % 2))
            notes = [tmp_path / "checkpoints" / name for name in ("notes.txt", "t0001/notes.txt")]
            for note in notes:
                make_folder(note.parent)
                overwrite(note, [b"written by a user"])
            versions.tidy(refs[1:3])
            assert [missing(versions, ref) for ref in refs] == [True, False, False, True]
            assert all(note.read_text(encoding="utf-8") == "written by a user" for note in notes)

    def test_forgetting_deletes_one_trial(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            refs = [VersionRef(f"t000{number}", version, 9) for number in (1, 2) for version in (3, 4)]
            for number, ref in enumerate(refs):
                save(versions, ref, b"four", durable=bool(number % 2))
            versions.forget("t0001")
            assert [missing(versions, ref) for ref in refs] == [True, True, False, False]
            versions.forget("t0001")

    def test_durable_versions_end_in_the_run_folder(self, tmp_path: Path) -> None:
        with self.opened_versions(tmp_path) as versions:
            refs = [VersionRef("t0001", 3, 7), VersionRef("t0002", 4, 8)]
            for ref in refs:
                save(versions, ref, b"four")
            versions.collect("t0001")
            versions.release()
            versions.collect()
            for ref in refs:
                assert versions.path(ref, durable=True).read_bytes() == b"four"
                assert tmp_path in versions.path(ref, durable=True).parents


class StoreSuite(JournalSuite, RequestSuite, VersionSuite):
    """The tests of whole stores."""

    def make(self) -> Store:
        raise AssertionError("override make()")

    def journal(self, folder: RunFolder, *, writable: bool) -> JournalStore:
        return self.make().journal(folder, writable=writable)

    def versions(self, checkpoints: Path) -> VersionStore:
        return self.make().versions(checkpoints)

    def test_a_store_knows_whether_a_run_has_a_journal(self, tmp_path: Path) -> None:
        assert not self.make().has_journal(RunFolder(tmp_path))
        with self.opened(tmp_path) as journal:
            journal.append(1.0, MESSAGES)
        assert self.make().has_journal(RunFolder(tmp_path))

    def test_worker_processes_use_the_store(self, tmp_path: Path) -> None:
        store, backend = self.make(), Local()
        with self.opened_versions(tmp_path) as versions:
            backend.start(replace(spec(tmp_path), store=store), 2)
            try:
                first, second = (event.worker for event in wait_for(backend, m.WorkerJoined, 2))
                backend.send(unit(first), trial())
                wait_for(backend, m.UnitFinished)
                ref = VersionRef("t0001", 1, 7)
                backend.send(m.SaveVersion(first, ref, True), trial())
                (saved,) = wait_for(backend, m.VersionSaved)
                backend.send(unit(second, version=1, partition=1, saved=7, digest=saved.digest), trial())
                (finished,) = wait_for(backend, m.UnitFinished)
                assert finished.hopped and finished.sums["train_units"].mean == 2.0
                assert digest(versions.find(ref, saved.digest)) == saved.digest
                backend.close()
            except BaseException:
                backend.close(kill=True)
                raise


def save(versions: VersionStore, ref: VersionRef, body: bytes, *, durable: bool = True) -> tuple[str, int]:
    """Save some bytes as a version, and send the version if the store asks for that."""

    def write(path: Path) -> None:
        overwrite(path, [body])

    saved = versions.write(ref, write, durable=durable, size=len(body))
    if durable and versions.sends:
        versions.send(ref)
    return saved


def missing(versions: VersionStore, ref: VersionRef) -> bool:
    """Whether a version cannot be found."""
    return refused(lambda: versions.find(ref))


def refused(call: Callable[[], object]) -> bool:
    """Whether a call raises CheckpointError."""
    try:
        call()
    except CheckpointError:
        return True
    return False
