"""The files that a page serves: what is listed and nothing else, whatever names and links a run folder has."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import httpx
import pytest

from hopfleet.errors import NotFound
from hopfleet.store.folder import RunFolder
from hopfleet.ui.application import Application
from hopfleet.ui.details import trial_details
from hopfleet.ui.files import PLAIN, experiment_files, kind_of, open_file, trial_files
from hopfleet.ui.shelf import Shelf
from tests.helpers.cli import fitted

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
PARTS = (
    *("", ".", "..", "...", "~", "/", "\\", "\0", "%2e%2e", "best", "plots", "tests", "checkpoints", "trials", "logs"),
    *("t0001", "t0001.json", "t0001.log", "t1/..", "journal.sqlite", "experiment.json", "lock", "secret", "out", "in"),
    *("model.png", ".hidden", "data", "x" * 300, "\u202egnp.exe", "é", "\n"),
)


@pytest.fixture
def folder(own_home: Path) -> RunFolder:
    """Return a run folder with a few files, and links that lead out of it and around in it."""
    made: RunFolder = fitted("mine").folder
    (own_home / "secret").write_bytes(b"secret")
    for name in ("best", "plots", "tests"):
        place = made.path / name
        place.mkdir(exist_ok=True)
        (place / "secret").symlink_to(own_home / "secret")
        (place / "in").symlink_to(made.definition_file)
        (place / "out").symlink_to(own_home)
        (place / ".hidden").write_bytes(b"secret")
        (place / "data").mkdir(exist_ok=True)
        (place / "data" / "secret").write_bytes(b"secret")
        os.mkfifo(place / "journal.sqlite")
    (made.path / "checkpoints" / "t0009").symlink_to(own_home)
    (made.plots / "model.png").write_bytes(PNG)
    (made.plots / "drawing.png").write_bytes(SVG)
    return made


def got(folder: RunFolder, path: str | None, listed: bool = False) -> httpx.Response:
    """Return the answer of a server to a request for a file."""
    routes = Application(Shelf(folder.path.parent)).routes()

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=routes), base_url="http://page") as client:
            query = {} if path is None else {"path": path}
            return await client.get(f"/api/experiments/{folder.name}/{'files' if listed else 'file'}", params=query)

    return asyncio.run(ask())


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_other_file_is_ever_served(folder: RunFolder, count: int) -> None:
    draw = random.Random(0)
    listed = {each["path"] for each in (*trial_files(folder, "t0001"), *experiment_files(folder))}
    assert {"plots/model.png", "trials/t0001.json", "logs/t0001.log"} <= listed
    allowed = listed | {
        f"{place}/{trial}.{end}"
        for place, end in (("trials", "json"), ("logs", "log"))
        for trial in (f"t{number:04d}" for number in range(20))
    }
    for _ in range(count):
        path = "/".join(draw.choices(PARTS, k=draw.randint(1, 4)))
        try:
            file, _, _ = open_file(folder, path)
        except NotFound:
            continue
        with file:
            assert path in allowed, path
            assert b"secret" not in file.read()


def test_all_that_is_listed_is_served(folder: RunFolder) -> None:
    board = Shelf().board("mine")
    board.advance(60.0)
    files = [*trial_details(board, "t0001")["files"], *got(folder, None, listed=True).json()]
    assert any(each["path"].startswith("checkpoints/t0001/") for each in files)
    for each in files:
        answer = got(folder, each["path"])
        assert answer.status_code == 200 and answer.content == (folder.path / each["path"]).read_bytes()
        assert len(answer.content) == each["bytes"] and answer.headers["content-type"] == each["type"]
        assert answer.headers["content-disposition"] == "attachment"
    kinds = {each["path"]: each["type"] for each in files}
    assert kinds["plots/model.png"] == "image/png" and kinds["plots/drawing.png"] == PLAIN, "by content, not by name"
    for path in (None, "", "experiment.json", "plots/../experiment.json", "plots/secret", "plots/\0"):
        assert got(folder, path).status_code == 404


def test_pictures_are_told_by_their_content() -> None:
    pictures = {b"\xff\xd8\xff\xe0": "jpeg", b"GIF89a": "gif", b"GIF87a": "gif", b"RIFF\n\0\0\0WEBPVP8 ": "webp"}
    for beginning, kind in pictures.items():
        assert kind_of(beginning) == f"image/{kind}"
        assert kind_of(b" " + beginning) == PLAIN
    for other in (b"", b"<svg", b"<!doctype html>", b"RIFF\0\0\0\0WAVE", b"\x89PNG"):
        assert kind_of(other) == PLAIN


def test_a_folder_that_is_a_link_has_no_files(folder: RunFolder) -> None:
    assert trial_files(folder, "t0009") == [] and trial_files(folder, "../..") == []
    folder.plots.rename(folder.path / "elsewhere")
    folder.plots.symlink_to(folder.path / "elsewhere")
    assert not [each for each in experiment_files(folder) if each["path"].startswith("plots")]
    assert got(folder, "plots/model.png").status_code == 404
