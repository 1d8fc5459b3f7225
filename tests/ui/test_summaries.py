"""Lines of the list that are kept in run folders: never out of date, whatever happens to the files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import HopfleetError
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.ui import shelf as shelves
from hopfleet.ui.board import Board
from hopfleet.ui.metrics import figures_of
from hopfleet.ui.notes import read_notes, write_note
from hopfleet.ui.shelf import Shelf
from hopfleet.ui.summaries import kept_summary
from tests.helpers.cli import fitted

OF_THE_LIST = ("key", "folder", "bytes")


@pytest.fixture
def base(own_home: Path) -> Path:
    """Return a folder with a run ``a`` and another run ``b``."""
    for name, numbers in (("a", [1, 2]), ("b", [3])):
        fitted(name, {"number": hop.grid_search(numbers)}, search=hop.Grid(max_epochs=2), partitions=2)
    return own_home


def truth(folder: RunFolder) -> tuple[dict[str, Any] | str, list[Any]]:
    """Return the line and the figures of an experiment as its journal tells them, or that it is damaged."""
    try:
        board = Board(folder)
        while board.advance(60.0):
            pass
        return {**board.summary(), **read_notes(folder).get("", {})}, list(figures_of(board))
    except (HopfleetError, OSError):
        return "damaged", []


def shown(shelf: Shelf) -> dict[str, tuple[dict[str, Any] | str, list[Any]]]:
    """Return the lines and the figures of a shelf by key."""
    lines = {line["key"]: line for line in shelf.summaries(60.0)}
    figures, found = shelf.figures(), {}
    for key, line in lines.items():
        known = {name: value for name, value in line.items() if name not in OF_THE_LIST}
        found[key] = ("damaged" if line["state"] == "damaged" else known, figures.get(key, []))
    return found


def flip(folder: RunFolder, draw: random.Random, path: Path) -> None:
    """Change one byte, and let the file have the same size and the same time as before."""
    before = path.stat()
    with path.open("r+b") as file:
        place = draw.randrange(before.st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def go_on(folder: RunFolder, draw: random.Random) -> None:
    """Append to the journal, as a run that is continued does."""
    journal = Journal(folder.journal_file, writable=True)
    *_, (_, time, message) = journal.read()
    journal.append(time + 1, [message])
    journal.close()


def replace(folder: RunFolder, draw: random.Random) -> None:
    shutil.rmtree(folder.path)
    shutil.copytree(draw.choice([folder.path.parent / "b", folder.path.parent / "kept"]), folder.path)


def restore(folder: RunFolder, draw: random.Random) -> None:
    """Put an earlier journal in place of the current one, with its time."""
    shutil.copy2(folder.path.parent / "kept" / "journal.sqlite", folder.journal_file)


def shorten(folder: RunFolder, draw: random.Random) -> None:
    os.truncate(folder.journal_file, draw.randrange(folder.journal_file.stat().st_size))


def forge(folder: RunFolder, draw: random.Random) -> None:
    """Change a summary, as a damaged disk does."""
    text = folder.summary_file.read_text() if folder.summary_file.exists() else "{}"
    wrong = [text.replace("finished", "interrupted"), text[: len(text) // 2], "[]", '{"line": 1}', "\0", text[::-1]]
    folder.summary_file.write_text(draw.choice(wrong))


def note(folder: RunFolder, draw: random.Random) -> None:
    write_note(folder, "", f"note {draw.random()}", [])


DEEDS: list[Callable[[RunFolder, random.Random], None]] = [
    *(go_on, replace, restore, shorten, forge, note),
    lambda folder, draw: flip(folder, draw, folder.journal_file),
    lambda folder, draw: flip(folder, draw, folder.definition_file),
    lambda folder, draw: folder.journal_file.unlink(),
]


def deeds(base: Path, seed: int, count: int) -> Iterator[str]:
    """Do something to the files of run ``a``, and yield what it was."""
    draw, folder = random.Random(seed), RunFolder(base / "a")
    for _ in range(count):
        deed = draw.choice(DEEDS)
        try:
            deed(folder, draw)
        except (HopfleetError, OSError, ValueError):  # nothing is left to do it to
            restore(folder, draw)
        yield getattr(deed, "__name__", "flip")


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 24), marks=pytest.mark.slow)])
def test_a_list_is_never_out_of_date(base: Path, seeds: range) -> None:
    shutil.copytree(base / "a", base / "kept")
    for seed in seeds:
        shelf = Shelf(base)
        for done in deeds(base, seed, 8):
            expected = {key: truth(folder) for key, folder in Shelf(base).folders().items()}
            for each, name in ((shelf, "the same server"), (Shelf(base), "another server")):
                found = shown(each)
                assert found == expected, f"seed {seed}, after {done}: {name}"


def test_files_that_have_not_changed_are_not_looked_at_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "TICK_NANOSECONDS", -(10**18))  # as if the files were old
    shelf, folder, looked = Shelf(base), RunFolder(base / "a"), list[str]()
    before, content_of = shown(shelf), shelves.content_of
    monkeypatch.setattr(shelves, "content_of", lambda folder: looked.append(folder.name) or content_of(folder))
    assert shown(shelf) == before
    assert looked == []
    changed = folder.journal_file.stat().st_ctime_ns
    while folder.journal_file.stat().st_ctime_ns == changed:  # a tick of the file system
        flip(folder, random.Random(0), folder.journal_file)
    shown(shelf)
    assert set(looked) == {"a"}


def test_a_run_keeps_its_own_line(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, folder in Shelf(base).folders().items():
        kept = kept_summary(folder)
        assert kept is not None and kept[1:] == truth(folder), key
    shutil.copytree(base / "a", base / "copy")
    expected = {key: truth(folder) for key, folder in Shelf(base).folders().items()}
    monkeypatch.setattr(Journal, "__init__", lambda *_, **__: pytest.fail("no journal is opened"))
    assert shown(Shelf(base)) == expected
    assert expected["copy"][0]["name"] == "copy"


def test_summaries_of_other_users_and_versions_do_not_count(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(base / "a")
    with monkeypatch.context() as other:
        other.setattr("hopfleet.ui.summaries.__version__", "0.0.1")
        assert kept_summary(folder) is None
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12345)
        assert kept_summary(folder) is None
    assert kept_summary(folder) is not None
    link = folder.path / "elsewhere"
    folder.summary_file.rename(link)
    folder.summary_file.symlink_to(link)
    assert kept_summary(folder) is None


def test_a_folder_with_a_summary_alone_can_be_used(own_home: Path) -> None:
    folder = RunFolder(own_home / "new")
    folder.path.mkdir(parents=True)
    folder.summary_file.write_text(json.dumps({}))
    with folder.lock():
        assert folder.new


def test_a_run_that_goes_on_while_it_is_read_is_read_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shelf = RunFolder(base / "a"), Shelf(base)
    for each in ("a", "b"):
        RunFolder(base / each).summary_file.unlink()
    monkeypatch.setattr("hopfleet.ui.board.EVERY", 1)
    shelf.scan()
    shelf.fill(0.0)
    (entry,) = (entry for key, entry in shelf._entries.items() if key == "a")
    assert not shelf._read("a", entry, 0.0), "one message at a time"
    go_on(folder, random.Random(0))
    while not shelf._read("a", entry, 0.0):
        pass
    assert entry.stamp == () and not folder.summary_file.exists()
    assert shown(shelf)["a"] == truth(folder)
