"""The suite of stores finds what is broken. The built-in stores pass it in ``tests/store``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopfleet.store.base import JournalStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.testing.stores import JournalSuite
from hopfleet.testing.syncing import forbid_sync, in_child


class Careless(Journal):
    """A journal that leaves it to the system when its messages reach the disk."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        super().__init__(path, writable=writable)
        self._database.execute("PRAGMA synchronous = OFF")


class Suite(JournalSuite):
    def __init__(self, kind: type[Journal]) -> None:
        self.kind = kind

    def journal(self, folder: RunFolder, *, writable: bool) -> JournalStore:
        return self.kind(folder.journal_file, writable=writable)


def test_a_journal_that_never_syncs_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="although no sync to the disk was possible"):
        Suite(Careless).test_an_append_whose_sync_fails_is_not_taken_for_written(tmp_path)


def test_a_journal_that_syncs_passes(tmp_path: Path) -> None:
    Suite(Journal).test_an_append_whose_sync_fails_is_not_taken_for_written(tmp_path)


def test_syncs_fail_in_the_child_alone(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)

    def fails() -> bool:
        forbid_sync()
        try:
            os.fsync(file)
        except OSError:
            return True
        return False

    assert in_child(fails)
    os.fsync(file)
    os.close(file)


def test_an_error_in_the_child_is_no_answer() -> None:
    def broken() -> bool:
        raise ValueError("broken")

    with pytest.raises(AssertionError, match="exit code 3"):
        in_child(broken)
