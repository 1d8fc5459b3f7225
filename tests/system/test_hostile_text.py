"""Text from configurations, errors, metrics and logs: it drives no terminal and breaks no file, whatever shows it."""

from __future__ import annotations

import io
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli import completing, main
from hopfleet.domain.messages import TrialEnded, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config, TrialState
from hopfleet.forecast.preview import slow
from hopfleet.frameworks.base import Batches, Session
from hopfleet.monitor.charts.charts import draw_chart
from hopfleet.monitor.terminal.live import NotebookView, PlainView, TerminalView
from hopfleet.runs.bundle import Bundle
from hopfleet.support.logging import messages
from hopfleet.testing.tasks import CountingSession, CountingTask
from tests.helpers.searched_runs import history_of

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\x08\u202e[red]&<b>[link=http://x]$a$</b>--> "
"""Escape sequences of both widths, a title, a line that overwrites itself, reordering, markup, HTML and a formula."""

UNSAFE = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MOVES = re.compile(r"\x1b\[(\?25[lh]|\d*A|2K|0m)|\r")
"""What rich writes itself: moves of the cursor, and whether it is shown."""


class EvilSession(CountingSession):
    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        return {f"m{EVIL}": RowSum.of(1.0, 1), **super().evaluate(batches, seed=seed)}


class Evil(CountingTask):
    """A task with hostile metrics, errors and output."""

    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        sys.stdout.write(f"{EVIL}\nprinted{EVIL}\n")
        if config["number"] == 3:
            raise ValueError(f"no{EVIL}")
        return EvilSession(config)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def evil(own_home: Path) -> hop.Results:
    space = {"number": hop.grid_search([1, 2, 3]), f"key{EVIL}": f"value{EVIL}", "path": f"/tmp/{EVIL}"}
    return hop.Experiment(
        Evil(),
        train={"x": np.arange(40.0)},
        valid={"x": np.arange(8.0)},
        space=space,
        search=hop.Grid(max_epochs=2),
        partitions=2,
        batch_size=5,
        backend="inline",
        name="evil",
    ).fit(quiet=True)


def harmless(text: str) -> None:
    rest = COLOURS.sub("", text)
    assert not UNSAFE.search(rest), repr(rest)
    assert "\x1b" not in rest, repr(rest)


COMMANDS = [
    ("ls",),
    ("show", "evil"),
    ("show", "evil", "--all"),
    ("show", "evil", "--trial", "1"),
    ("show", "evil", "--trial", "3"),
    ("show", "evil", "--trial", "3", "--json"),
    ("show", "evil", "--json"),
    ("best", "evil"),
    ("best", "evil", "--json"),
    ("export", "evil", "--csv", "-"),
    ("verify", "evil"),
    ("resume", "evil"),
    ("requests", "evil"),
    ("clone", "evil", "1", "--set", f"number={EVIL}"),
    ("clone", "evil", "1", "--set", f"{EVIL}=3"),
    ("stop", "evil", f"t{EVIL}"),
    ("show", f"none{EVIL}"),
    ("show", "evil", f"--{EVIL}"),
    ("plot", "evil", "--kind", f"k{EVIL}"),
    ("plot", "evil", "--metric", f"m{EVIL}?"),
    ("plot", "evil", "--kind", "curves", "--json"),
    ("--debug", "show", f"none{EVIL}"),
]


@pytest.mark.parametrize("terminal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_command_lets_it_through(evil: hop.Results, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for command in COMMANDS:
        streams = [Terminal() if terminal else io.StringIO() for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            patch.setenv("HOPFLEET_DEBUG", "0")
            main(command)
        for stream in streams:
            if command[0] != "export" or terminal:
                harmless(stream.getvalue())
        assert any(stream.getvalue() for stream in streams), command


def test_no_view_lets_it_through(evil: hop.Results) -> None:
    history = evil.history
    for view, stream in ((TerminalView(history, s := Terminal()), s), (PlainView(history, s := Terminal()), s)):
        with view:
            view.warn(f"warned{EVIL}")
            view.note(f"noted{EVIL}")
            view.update(0.0, TrialEnded("t0003", TrialState.FAILED, f"failed{EVIL}"))
            view.update(0.0, WorkerLost("w0", f"lost{EVIL}"))
        harmless(MOVES.sub("", stream.getvalue()))
        assert "\\x1b]0;owned" in stream.getvalue()
    notebook = NotebookView(history)
    notebook._above.append(("warning ", "bold", f"warned{EVIL}"))
    page = notebook._html()
    harmless(page)
    assert "<b>" not in page


def test_no_message_lets_it_through(capsys: pytest.CaptureFixture[str]) -> None:
    messages().warning("%s", EVIL)
    with slow(False, iter([0.0, 100.0, 100.0]).__next__) as tell:
        tell(EVIL)
    text = capsys.readouterr().err
    harmless(text)
    assert text.count("\\x1b]0;owned") == 2


def test_nothing_of_a_hostile_name_is_completed(evil: hop.Results) -> None:
    shutil.copytree(evil.folder.path, evil.folder.path.with_name(f"evil{EVIL.replace('/', '')}"))
    assert completing.experiments("") == ["evil"]


@pytest.mark.parametrize("draw", ["curves", "gantt", "importance", "parallel", "pareto"])
def test_no_chart_breaks(evil: hop.Results, tmp_path: Path, draw: str) -> None:
    options = {"metrics": ["loss", f"m{EVIL}"], "modes": ["min", "max"]} if draw == "pareto" else {}
    for suffix in ("svg", "png"):
        evil.plot(draw, tmp_path / f"chart.{suffix}", **options)
    page = (tmp_path / "chart.svg").read_text()
    ElementTree.fromstring(page)
    harmless(page)
    assert "<b>" not in page


def test_a_repr_is_harmless(evil: hop.Results, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless(repr(Bundle(Path(EVIL), {"experiment": EVIL, "models": []}, Evil(), [], False)))
    for shown in (evil, evil.best, evil["t0003"]):
        harmless(repr(shown))
        page = shown._repr_html_()
        harmless(page)
        ElementTree.fromstring(page)
        assert "&lt;b&gt;" in page
    monkeypatch.setitem(evil.definition, "name", EVIL)  # as a stranger may have written it
    harmless(repr(evil))


@pytest.mark.parametrize("kind", ["parallel", "importance"])
def test_no_axis_breaks(tmp_path: Path, kind: str) -> None:
    history = history_of(*(({f"p{EVIL}": f"{n % 3}{EVIL}"}, {"accuracy": n / 9}) for n in range(12)))
    draw_chart(history, kind, tmp_path / "chart.svg")
    page = (tmp_path / "chart.svg").read_text()
    ElementTree.fromstring(page)
    harmless(page)
