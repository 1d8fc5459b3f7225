"""A board: what a page knows of an experiment, read at once or in pieces, and the changes between two looks."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hopfleet.errors import HopfleetError, NotFound, UsageError
from hopfleet.monitor.records import EpochRow, EpochRows
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import open_journal
from hopfleet.ui.application import Application
from hopfleet.ui.board import Board, encoded, thinned
from hopfleet.ui.columns import epochs_block, spans_block
from hopfleet.ui.details import chart, data_sets, predicted_spans, request_trail, trial_details
from hopfleet.ui.metrics import exposition
from hopfleet.ui.server import Options, _listen, serve
from hopfleet.ui.shelf import Shelf
from hopfleet.ui.streaming import Channel
from tests.helpers.cli import FAULTY, fitted
from tests.helpers.curve_task import curve_experiment


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import hopfleet as hop

    folder = tmp_path_factory.mktemp("runs") / "curves"
    options = hop.RunOptions(folder=folder)
    curve_experiment("curves", search=hop.ASHA(trials=9, max_epochs=4), run_options=options).fit(quiet=True)
    return folder


def read(folder: Path) -> Board:
    board = Board(RunFolder(folder))
    while board.advance(1.0):
        pass
    return board


def columns(block: bytes) -> dict[str, Any]:
    length = struct.unpack("<q", block[:8])[0]
    header: dict[str, Any] = json.loads(block[8 : 8 + length])
    offset = 8 + length
    assert offset % 8 == 0, "a browser maps numbers at multiples of their size"
    for name, kind, count in header["columns"]:
        header[f"{name}s"] = np.frombuffer(block, f"<{kind}", count, offset)
        offset += -(-header[f"{name}s"].nbytes // 8) * 8
    assert offset == len(block)
    return header


@pytest.mark.slow
def test_the_server_does_without_the_large_packages() -> None:
    """They would take more memory than the experiments that it shows."""
    heavy = {"torch", "pandas", "matplotlib", "pyarrow", "sklearn", "numpy", "cloudpickle"}
    code = f"import sys, hopfleet.ui.serving; sys.exit(', '.join({heavy!r} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_journal_that_is_written_meanwhile_arrives_piece_by_piece(finished: Path, tmp_path: Path) -> None:
    """The changes of all pieces make the same state as the whole journal."""
    with_journal = RunFolder(finished)
    journal = open_journal(with_journal)
    messages = list(journal.read())
    journal.close()
    copy = RunFolder(tmp_path / "curves")
    shutil.copytree(finished, copy.path, ignore=shutil.ignore_patterns("journal*"))
    board: Board | None = None
    trials: dict[str, Any] = {}
    epochs: dict[tuple[str, int], float] = {}
    spans: list[Any] = []
    writing = open_journal(copy, writable=True)
    board = Board(copy)
    board.advance(1.0)
    seen = board.number
    for place in range(0, len(messages), 37):
        for _, time, message in messages[place : place + 37]:
            writing.append(time, [message])
        board.advance(1.0)
        for number, text in board.since(seen) or []:
            change = json.loads(text)
            seen = number
            trials.update({trial["id"]: trial for trial in change["trials"]})
            for trial, epoch, _, metrics in change["epochs"]:
                assert (trial, epoch) not in epochs, "doubled"
                epochs[trial, epoch] = metrics["accuracy"]
            spans += change["spans"]
    writing.close()
    whole = read(finished)
    assert seen == whole.number == len(messages)
    assert trials == {trial["id"]: json.loads(encoded(trial)) for trial in whole.snapshot()["trials"]}
    assert [span[0] for span in spans] == list(range(len(whole.history.spans)))
    expected = {(trial.id, row.epoch) for trial in whole.history.trials.values() for row in trial.epochs_done}
    assert epochs.keys() == expected


def test_a_page_that_was_away_for_too_long_reads_everything_again(finished: Path) -> None:
    board = read(finished)
    assert board.since(board.number) == []
    assert board.since(3) is None
    assert board.since(10**9) is None


def test_slices_of_no_time_read_the_whole_journal_in_the_end(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.ui.board.EVERY", 16)
    board, slices = Board(RunFolder(finished)), 1
    while board.advance(0.0):
        slices += 1
        assert not board.complete
    assert board.complete
    assert slices > 3
    assert board.number == read(finished).number


def test_curves_and_spans_come_as_columns(finished: Path) -> None:
    board = read(finished)
    found = columns(epochs_block(board, "accuracy"))
    values = [row.metrics["accuracy"] for trial in board.history.trials.values() for row in trial.epochs_done]
    assert np.allclose(found["values"], values)
    assert sum(count for _, count in found["trials"]) == len(values)
    assert columns(epochs_block(board, "nothing"))["trials"] == []
    spans = columns(spans_block(board))
    assert len(spans["starteds"]) == len(board.history.spans)


def test_a_trial_is_told_in_full(finished: Path) -> None:
    board = read(finished)
    leader = board.header()["best"]
    found = json.loads(encoded(trial_details(board, leader)))
    assert found["history"]["epoch"] == [1, 2, 3, 4]
    assert set(found["history"]["metrics"]) >= {"accuracy", "loss"}
    assert "accuracy" in found["log"]["text"]
    assert any(each["best"] for each in found["checkpoints"])
    assert sorted(found["visits"][0]) == [0, 1, 2, 3]
    assert found["replay"] is None
    board.folder.keep_replays({leader: {"time": 1.0, "verdict": "equal", "versions": [4, 16], "reason": ""}})
    assert trial_details(board, leader)["replay"] == {"time": 1.0, "equal": True, "text": "equal at version 4, 16"}
    board.folder.keep_replays({leader: {"time": 2.0, "verdict": "failed", "versions": [], "reason": "no data"}})
    assert trial_details(board, leader)["replay"] == {"time": 2.0, "equal": False, "text": "failed: no data"}
    board.folder.keep_replays({leader: "damaged"})
    assert trial_details(board, leader)["replay"] is None
    with pytest.raises(NotFound, match="'t9999': no such trial"):
        trial_details(board, "t9999")
    with pytest.raises(NotFound, match="no such trial"):
        trial_details(board, "../definition")


def test_charts_data_sets_and_requests(finished: Path) -> None:
    board = read(finished)
    made = chart(board, "importance")
    assert made["metric"] == "accuracy"
    assert chart(board, "importance") is made, "nothing was read since"
    board.number += 1
    assert chart(board, "importance") is not made
    board.history.finished = None
    made = chart(board, "importance")
    board.number += 1
    assert chart(board, "importance") is made, "while it runs, a chart is not made again at once"
    assert chart(board, "rungs")["rungs"][0]["epoch"] == 1
    with pytest.raises(NotFound, match="no such chart"):
        chart(board, "../x")
    with pytest.raises(UsageError):
        chart(board, "lineage")
    data = data_sets(board)
    assert data["train"]["partition_rows"] == [100] * 4
    assert data["train"]["columns"][0]["name"] == "x"
    assert request_trail(board) == []
    assert isinstance(predicted_spans(board), list)


def test_failures_are_noticed(own_home: Path) -> None:
    fitted("faulty", FAULTY)
    board = read(own_home / "faulty")
    assert any("asked to fail" in notice["text"] for notice in board.notices)
    failed = next(trial for trial in board.snapshot()["trials"] if trial["state"] == "failed")
    assert "asked to fail" in trial_details(board, failed["id"])["traceback"]


@pytest.mark.slow
def test_a_shelf_lists_what_there_is(own_home: Path) -> None:
    fitted("first")
    fitted("second")
    (own_home / "third").mkdir()
    shutil.copytree(own_home / "first", own_home / "broken")
    (own_home / "broken" / "journal.sqlite").write_bytes(b"no journal" * 100)
    shelf = Shelf()
    lines = {line["key"]: line for line in shelf.summaries(10.0)}
    assert set(lines) == {"first", "second", "broken"}
    assert lines["first"]["state"] == "finished"
    assert lines["first"]["bytes"] > 0
    assert lines["broken"]["state"] == "damaged"
    figures = exposition(shelf.figures(), shelf.lines())
    assert 'hopfleet_units_total{experiment="first"} 24.0' in figures
    assert 'hopfleet_trials{experiment="first",state="completed"} 3.0' in figures
    board = shelf.board("first")
    assert shelf.board("first") is board
    shutil.rmtree(own_home / "first")
    with pytest.raises(NotFound, match=r"'first': no such experiment here.*deleted"):
        shelf.board("first")
    fitted("first")
    assert shelf.board("first") is not board, "another experiment in the same place"


def test_a_server_that_cannot_start_says_why(own_home: Path, tmp_path: Path) -> None:
    fitted("mine")
    said: list[str] = []
    with pytest.raises(NotFound, match="'none': no such experiment"):
        serve("none", Options(), said.append)
    with pytest.raises(UsageError, match="is no run folder and holds none"):
        serve(str(tmp_path / "home" / "mine" / "logs"), Options(), said.append)
    with pytest.raises(UsageError, match="each needs the other"):
        serve("mine", Options(certificate=tmp_path / "cert.pem"), said.append)
    with pytest.raises(UsageError, match="is not a file"):
        serve("mine", Options(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem"), said.append)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("a certificate, perhaps\n")
    with pytest.raises(UsageError, match="are no certificate in PEM format with its key"):
        serve("mine", Options(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem"), said.append)
    with pytest.raises(UsageError, match="must be between 1 and 65535"):
        serve("mine", Options(port=70000), said.append)
    with pytest.raises(UsageError, match="cannot be listened on"):
        serve("mine", Options(host="203.0.113.7"), said.append)
    listener = _listen("127.0.0.1", 0)
    with listener, pytest.raises(UsageError, match="is in use, perhaps by another hopfleet ui"):
        serve("mine", Options(port=listener.getsockname()[1]), said.append)
    assert said == []


def test_a_journal_of_another_format_is_refused(own_home: Path) -> None:
    import sqlite3

    fitted("old")
    with sqlite3.connect(own_home / "old" / "journal.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(HopfleetError, match="has format 99"):
        read(own_home / "old")


def test_values_that_are_no_numbers_become_null() -> None:
    assert encoded({"a": float("nan"), "b": [float("inf"), 1]}) == '{"a":null,"b":[null,1]}'
    assert thinned(range(100), 3) == [0, 50, 99]
    assert thinned([1.0], 3) == [1.0]


def test_rows_of_epochs_are_a_list_of_few_bytes() -> None:
    rows = EpochRows()
    for epoch in range(1, 4):
        rows.add(epoch, epoch * 4, {"a": epoch / 2, "b": 1.0}, 10.0 + epoch)
    rows.add(4, 16, {"a": 2.0}, 14.0)
    assert rows[0] == EpochRow(1, 4, {"a": 0.5, "b": 1.0}, 11.0)
    assert rows[-1].metrics == {"a": 2.0}
    assert [row.epoch for row in rows[1:3]] == [2, 3]
    rows.add(2, 8, {"a": 1.0, "b": 7.0}, 20.0)
    assert [row.epoch for row in rows] == [1, 3, 4, 2]
    assert list(rows.column("b")[2]) == [1.0, 1.0, 7.0]
    assert list(rows.column("b")[0]) == [1, 3, 2]
    assert len(rows.column("nothing")[2]) == 0
    with pytest.raises(IndexError):
        rows[4]


def test_a_page_shows_what_was_read_so_far(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leaderboard is there before the journal is read, and the server reads on between two looks."""
    monkeypatch.setattr("hopfleet.ui.board.EVERY", 16)
    monkeypatch.setattr("hopfleet.ui.application.READ_SECONDS", 0.0)
    monkeypatch.setattr("hopfleet.ui.application.SLICE_SECONDS", 0.0)
    routes = Application(Shelf(finished.parent)).routes()
    looks: list[dict[str, Any]] = []

    async def watch() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=routes), base_url="http://page") as client:
            while not looks or looks[-1]["reading"]:
                looks.append((await client.get("/api/experiments/curves")).json())

    asyncio.run(asyncio.wait_for(watch(), 60))
    first, last = looks[0], looks[-1]
    assert first["number"] == 16
    assert first["header"]["state"] == "reading"
    assert len(first["trials"]) > 0
    assert last["number"] == read(finished).number
    assert last["header"]["state"] == "finished"
    assert len(last["trials"]) == 9


def test_a_page_that_comes_back_while_the_journal_is_read_is_told_the_end(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that asks too early must not keep the reader from reading on, which would stop the whole server."""
    monkeypatch.setattr("hopfleet.ui.board.EVERY", 16)
    monkeypatch.setattr("hopfleet.ui.streaming.SLICE_SECONDS", 0.0)
    board = Board(RunFolder(finished))
    told: list[str] = []

    async def watch(channel: Channel) -> None:
        async for event in channel.events(5):
            told.append(event)
            if '"finished"' in event:
                return

    with ThreadPoolExecutor(1) as pool:
        channel = Channel(lambda: board, pool)
        watching = threading.Thread(target=lambda: asyncio.run(watch(channel)))
        watching.start()
        watching.join(30)
        channel._closed = True  # ends a stream that spins, so that the test fails instead of going on for ever
        watching.join()
    assert "event: reset" in told[1]
    assert '"finished"' in told[-1]
    assert board.complete


def test_a_list_without_time_opens_no_further_board(finished: Path) -> None:
    shelf = Shelf(finished.parent)
    (line,) = shelf.summaries(-1.0)
    assert line["reading"] and line["name"] == "curves"
    assert shelf._boards == {}
    (line,) = shelf.summaries(60.0)
    assert line["state"] == "finished" and "reading" not in line
