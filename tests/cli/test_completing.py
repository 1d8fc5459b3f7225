"""Tab completion, invoked as a shell does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hopfleet.cli import main
from tests.helpers.cli import FAULTY, fitted


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def words(*line: str) -> list[str]:
        monkeypatch.setenv("_HOPFLEET_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["hopfleet", *line]))
        monkeypatch.setenv("COMP_CWORD", str(len(line)))
        with pytest.raises(SystemExit) as leave:
            main([])
        out, err = capsys.readouterr()
        assert (leave.value.code, err) == (0, "")
        return out.split()

    return words


def test_experiments_trials_and_kinds(complete: Callable[..., list[str]], own_home: Path) -> None:
    fitted("digits")
    fitted("faulty", FAULTY)
    (own_home / "not-a-run").mkdir()
    for command in ("show", "best", "plot", "resume", "stop", "verify", "replay", "extend"):
        assert complete(command, "") == ["digits", "faulty"], command
    assert complete("show", "di") == ["digits"]
    assert complete("show", "digits", "--trial", "t") == ["t0001", "t0002", "t0003"]
    assert complete("stop", "faulty", "") == ["t0001", "t0002"]
    assert complete("resume", "faulty", "t0002") == ["t0002"]
    assert complete("replay", "digits", "--trial", "") == ["t0001", "t0002", "t0003"]
    assert complete("plot", "digits", "--kind", "p") == ["parallel", "pareto"]
    assert complete("plot", "digits", "p") == ["parallel", "pareto"]


def test_nothing_to_complete(complete: Callable[..., list[str]], own_home: Path) -> None:
    assert complete("show", "") == []
    assert complete("show", "none", "--trial", "") == []
    assert complete("show", "--trial", "") == []
