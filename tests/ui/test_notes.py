"""Notes and tags: kept in the run folder, bounded, and never a part of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from hopfleet.errors import UsageError
from hopfleet.store.folder import RunFolder
from hopfleet.ui.application import Application
from hopfleet.ui.notes import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, read_notes, write_note
from hopfleet.ui.shelf import Shelf
from tests.helpers.cli import fitted


def test_notes_are_kept_replaced_and_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_notes(folder) == {}
    write_note(folder, "", " mine ", ["good", " good ", "", "try  again"])
    write_note(folder, "t0001", "", ["odd"])
    assert read_notes(folder) == {
        "": {"note": "mine", "tags": ["good", "try again"]},
        "t0001": {"note": "", "tags": ["odd"]},
    }
    assert write_note(folder, "", "  ", []) == {"t0001": {"note": "", "tags": ["odd"]}}


@pytest.mark.parametrize(
    ("note", "tags"),
    [
        ("x" * (LONGEST_NOTE + 1), []),
        (None, []),
        ("", "tags"),
        ("", [1]),
        ("", ["x"] * (MOST_TAGS + 1)),
        ("", ["x" * (LONGEST_TAG + 1)]),
    ],
)
def test_what_is_no_note_or_too_long_is_refused(tmp_path: Path, note: Any, tags: Any) -> None:
    with pytest.raises(UsageError, match="must"):
        write_note(RunFolder(tmp_path), "", note, tags)
    assert not (tmp_path / "notes.json").exists()


def test_damaged_notes_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for text in ("", "[]", '{"t0001": 1, "t0002": {"note": 1}, "t0003": {"note": "a", "tags": [1]}}', "[" * 5000):
        folder.notes_file.write_text(text)
        assert read_notes(folder) == {}


def test_the_page_writes_notes_and_the_list_shows_tags(own_home: Path) -> None:
    fitted("mine")
    shelf = Shelf()
    shelf.summaries(60.0)
    routes = Application(shelf).routes()

    async def send(**body: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=routes), base_url="http://page") as client:
            await client.get("/api/experiments/mine")
            return await client.post("/api/experiments/mine/notes", json=body)

    assert asyncio.run(send(tags=["good"])).json() == {"": {"note": "", "tags": ["good"]}}
    assert asyncio.run(send(trial="t0002", note="why?")).status_code == 200
    for trial in ("t9999", "../x", 5):
        assert asyncio.run(send(trial=trial, note="x")).status_code == 404
    assert asyncio.run(send(note=[])).status_code == 400
    (line,) = Shelf().summaries(60.0)
    assert line["tags"] == ["good"]
    (line,) = shelf.summaries(60.0)
    assert line["tags"] == ["good"], "a list that was read before is read again"
