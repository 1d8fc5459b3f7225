"""The list of experiments: what it costs to make one, and what it says of folders that were copied or damaged."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

import hopfleet as hop
from hopfleet.store.journal import Journal
from hopfleet.ui import shelf as shelves
from hopfleet.ui.application import Application
from hopfleet.ui.metrics import exposition
from hopfleet.ui.shelf import OPEN, Shelf
from tests.helpers.cli import fitted
from tests.helpers.marks import long


def many(home: Path, count: int) -> Path:
    """Return a folder with copies of one small experiment."""
    made = fitted("seed", {"number": hop.grid_search([1])}, search=hop.Grid(max_epochs=1), partitions=1).folder
    base = home / "many"
    for number in range(count):
        (base / f"copy{number}").mkdir(parents=True)
        for file in (made.definition_file, made.journal_file):
            os.link(file, base / f"copy{number}" / file.name)
    return base


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts scans of folders, journals that are opened, and messages that are read."""
    found: Counter[str] = Counter()
    scan, opened, read = shelves.scanned, Journal.__init__, Journal.read

    def counted_scan(base: Path) -> Any:
        found["scans"] += 1
        return scan(base)

    def counted_open(self: Journal, *arguments: Any, **more: Any) -> None:
        found["opened"] += 1
        opened(self, *arguments, **more)

    def counted_read(self: Journal, after: int = 0) -> Any:
        for each in read(self, after):
            found["messages"] += 1
            yield each

    monkeypatch.setattr(shelves, "scanned", counted_scan)
    monkeypatch.setattr(Journal, "__init__", counted_open)
    monkeypatch.setattr(Journal, "read", counted_read)
    return found


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=[pytest.mark.slow, long])])
def test_a_list_is_one_scan_and_reads_each_journal_once(own_home: Path, counts: Counter[str], count: int) -> None:
    base = many(own_home, count)
    counts.clear()
    shelf = Shelf(base)
    assert {line["state"] for line in shelf.summaries(-1.0)} == {"reading"}
    while shelf.fill(0.01):
        assert len(shelf._boards) <= 1, "one journal at a time, however many there are"
    assert counts["scans"] == 1
    assert counts["opened"] == 2 * count, "once for the last message, and once for all"
    assert len(shelf.lines()) == count
    assert all(line["state"] == "finished" and line["bytes"] > 0 for line in shelf.lines())
    assert len(shelf._boards) <= OPEN
    text = exposition(shelf.figures(), shelf.lines())
    assert text.count("hopfleet_units_total{") == count
    assert f'hopfleet_experiments{{state="finished"}} {float(count)}' in text
    counts.clear()
    assert all("reading" not in line for line in shelf.summaries(60.0))
    assert counts == {"scans": 1}, "nothing has changed, so nothing is read again"


def test_a_board_is_found_without_a_scan(own_home: Path, counts: Counter[str]) -> None:
    base = many(own_home, 3)
    counts.clear()
    shelf = Shelf(base)
    assert shelf.board("copy1") is shelf.board("copy1")
    assert counts["scans"] == 0


def test_a_scrape_has_all_experiments_the_first_time(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.ui.application.SLICE_SECONDS", 0.0001)
    routes = Application(Shelf(many(own_home, 30))).routes()

    async def scrape() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=routes), base_url="http://page") as client:
            return (await client.get("/metrics")).text

    assert asyncio.run(scrape()).count("hopfleet_units_total{") == 30


def test_reading_a_list_closes_no_board_that_is_looked_at(own_home: Path) -> None:
    shelf = Shelf(many(own_home, 2 * OPEN))
    board = shelf.board("copy0")
    board.advance(60.0)
    shelf.summaries(60.0)
    assert shelf.board("copy0") is board


def test_a_copied_folder_has_its_own_name(own_home: Path) -> None:
    shutil.copytree(fitted("first").folder.path, own_home / "second")
    lines = {line["key"]: line for line in Shelf().summaries(60.0)}
    assert [lines["second"][name] for name in ("name", "defined")] == ["second", "first"]
    board = Shelf().board("second")
    assert board.snapshot()["header"]["name"] == "second"


def test_a_run_without_its_journal_is_damaged(own_home: Path) -> None:
    folder = fitted("mine").folder
    shelf = Shelf()
    (line,) = shelf.summaries(60.0)
    assert line["state"] == "finished"
    folder.journal_file.unlink()
    (line,) = shelf.summaries(60.0)
    assert line["state"] == "damaged"
    assert "journal.sqlite: is missing" in line["problem"] and "hopfleet recover mine" in line["problem"]
    assert 'hopfleet_experiments{state="damaged"} 1.0' in exposition(shelf.figures(), shelf.lines())
    with folder.lock():
        (line,) = shelf.summaries(60.0)
        assert line["state"] == "running", "a run that has just begun has no journal yet"
