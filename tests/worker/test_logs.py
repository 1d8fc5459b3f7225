"""What a trial prints is kept, up to a limit."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from hopfleet.worker import logs
from hopfleet.worker.logs import captured, copied


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LIMIT", 1000)


def expected(letter: str) -> str:
    return letter * 1000 + logs.NOTICE.format(1000)


def printed(letter: str, count: int = 2000) -> None:
    """Print as code of C does: tests have another ``sys.stdout``."""
    os.write(1, letter.encode() * count)


def test_a_log_that_exceeds_its_limit_ends_there_with_a_notice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.log", tmp_path / "other.log"
    for _ in range(2):
        with captured(one, other) as turn:
            printed("a")
            turn(1)
            printed("b", 100)
            turn(0)
            printed("a")
    assert one.read_text() == expected("a")
    assert other.read_text() == "b" * 200, "another log has its own limit"
    printed("c", 1)
    assert capfd.readouterr().out == "c"


def test_what_code_of_c_prints_is_stopped_while_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch looks at the file now and then; here, as soon as it is told to."""
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.001)
    cut, receive = threading.Event(), logs._Target.receive

    def noted(target: logs._Target) -> None:
        receive(target)
        if target._full:
            cut.set()

    monkeypatch.setattr(logs._Target, "receive", noted)
    with captured(tmp_path / "log"):
        os.write(1, b"a" * 2000)
        assert cut.wait(30)
        for _ in range(10):
            os.write(2, b"b" * 2000)
    assert (tmp_path / "log").read_text() == expected("a")


def test_a_copy_ends_at_its_limit_and_the_terminal_shows_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with copied(tmp_path / "log"):
            for _ in range(3):
                print("a" * 600, end="")
    assert (tmp_path / "log").read_text() == expected("a")
    assert capsys.readouterr().out == "a" * 3600


def test_a_stream_that_a_thread_has_taken_outlives_the_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with copied(tmp_path / "log"):
        taken = sys.stderr
        taken.write("during ")
    taken.write("afterwards")
    taken.flush()
    assert (tmp_path / "log").read_text() == "during "
    assert capsys.readouterr().err == "during afterwards"


def test_what_a_copy_cannot_hold_is_still_refused_during_the_turn(tmp_path: Path) -> None:
    with copied(tmp_path / "log"), pytest.raises(UnicodeEncodeError):
        sys.stderr.write("\ud800")
