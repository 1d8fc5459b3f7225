"""Run folders that can be read but not written, and processes that compete for one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopfleet.domain.messages import Finish, RunStarted
from hopfleet.errors import ExperimentExists, JournalError
from hopfleet.runs.results import load
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from tests.helpers.definitions import definition

OTHER = 12345
"""A user that is not root, for whom permissions count."""


@pytest.fixture
def run() -> Iterator[RunFolder]:
    """Return a run folder that any user may reach."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    folder = RunFolder(base / "run")
    folder.create(definition("run"))
    with contextlib.closing(Journal(folder.journal_file, writable=True)) as journal:
        journal.append(1.0, [RunStarted("1"), Finish(complete=True)])
    load(folder.path)  # and everything is imported, since another user may not read the packages
    yield folder
    shutil.rmtree(base)


def in_child(work: Callable[[], object]) -> bool:
    """Run a function in a forked process as another user; return whether it succeeded."""
    child = os.fork()
    if child == 0:
        try:
            os.setegid(OTHER)
            os.seteuid(OTHER)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def lend(folder: Path, mode: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER)
        path.chmod(mode if path.is_dir() else mode & 0o666)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_results_in_a_folder_that_cannot_be_written(run: RunFolder) -> None:
    lend(run.path, 0o500)
    assert in_child(lambda: load(run.path).finished or 1 / 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_journal_that_may_not_be_read_says_so(run: RunFolder) -> None:
    def refused() -> None:
        with pytest.raises(JournalError, match=r"cannot be opened.*permissions"):
            load(run.path)

    lend(run.path, 0o500)
    run.journal_file.chmod(0)
    assert in_child(refused)


def test_of_several_processes_that_begin_at_once_one_runs(tmp_path: Path) -> None:
    for attempt in range(5):
        began, done, end = os.pipe(), os.pipe(), os.pipe()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os.read(began[0], 1)
                code = 3
                with contextlib.suppress(BaseException):
                    try:
                        held = RunFolder(tmp_path / f"run{attempt}").lock()
                        code = int(held.closed)
                    except ExperimentExists:
                        code = 1
                os.write(done[1], b"x")
                os.read(end[0], 1)
                os._exit(code)
            children.append(child)
        os.write(began[1], b"x" * 4)
        for _ in range(4):
            os.read(done[0], 1)
        os.write(end[1], b"x" * 4)
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        assert codes == [0, 1, 1, 1]
        for descriptor in (*began, *done, *end):
            os.close(descriptor)
