"""The live view in a terminal, in a notebook and in a log."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hopfleet.domain.messages import Message, RunHeld, TrialAdded, TrialEnded
from hopfleet.domain.trial import TrialState
from hopfleet.monitor.history import History
from hopfleet.monitor.terminal.live import (
    FAILURES,
    LiveView,
    NotebookView,
    PlainView,
    QuietView,
    TerminalView,
    open_view,
)

Records = list[tuple[float, Message]]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def records(simulate: Callable[..., Records]) -> Records:
    return simulate(eventful=True)


@pytest.fixture
def history() -> History:
    return History(metric="accuracy", mode="max", partitions=4, name="digits")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An IPython kernel that lists what its one output shows."""
    shown: list[str] = []

    def display(html: str, display_id: bool) -> SimpleNamespace:
        assert display_id and not shown, "an output is made once and then updated"
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    yield shown


def told(view: LiveView, time: float, message: Message) -> None:
    """Tell the observers of a run: the history first, then the view that reads it."""
    for observer in (view.history, view):
        observer.update(time, message)


def failures(count: int) -> Records:
    added = [(0.0, TrialAdded(f"t{number}", number, {"lr": 0.1}, 0, 1)) for number in range(count)]
    ended = [
        (1.0, TrialEnded(f"t{number}", TrialState.FAILED, "ValueError: too small (task.py:12)"))
        for number in range(count)
    ]
    return [*added, *ended]


def test_a_terminal_shows_why_the_first_trials_failed(history: History) -> None:
    stream = Terminal()
    follow(TerminalView(history, stream), failures(FAILURES + 2))
    shown = stream.getvalue()
    assert "t0 failed: ValueError: too small (task.py:12)" in shown
    assert f"t{FAILURES - 1} failed: " in shown and f"t{FAILURES} failed: " not in shown
    assert shown.count("more trials failed; hopfleet show lists them all") == 1


def test_a_notebook_shows_why_a_trial_failed(history: History, notebook: list[str]) -> None:
    follow(NotebookView(history), failures(1))
    assert "t0 failed: ValueError: too small (task.py:12)" in notebook[-1]


def follow(view: LiveView, records: Records) -> None:
    with view:
        for time, message in records:
            told(view, time, message)


def plain_lines(history: History, records: Records) -> list[str]:
    stream = io.StringIO()
    follow(open_view(history, quiet=False, stream=stream), records)
    return stream.getvalue().splitlines()


def test_a_view_only_reads_its_history(history: History, records: Records) -> None:
    with open_view(history, quiet=False, stream=io.StringIO()) as view:
        for time, message in records[:3]:
            view.update(time, message)
    assert history.updated is None
    follow(open_view(history, quiet=True), records)
    assert history.finished and history.counts()[TrialState.COMPLETED] == 7


def test_a_quiet_view_shows_warnings_and_nothing_else(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    with open_view(history, quiet=True) as view:
        view.note("a note")
        view.warn("wrong")
        view.warn("wrong")
    assert capsys.readouterr() == ("", "hopfleet: wrong\n")


def test_plain_lines_say_how_far_the_run_is(history: History, records: Records) -> None:
    lines = plain_lines(history, records)
    standing = [line for line in lines if re.fullmatch(r"\[ *\S.*s\] \d+/12\d units(  eta .+?)?(  best .+)?", line)]
    assert 8 <= len(standing) <= history.elapsed / 5
    assert any(re.search(r"eta (\d+m )?\d+s  best t\d+ accuracy=0\.\d+$", line) for line in standing)


def test_plain_lines_tell_of_every_end_and_every_trouble(history: History, records: Records) -> None:
    lines = plain_lines(history, records)
    text = "\n".join(lines)
    assert len(re.findall(r"t\d+ completed  4/4 epochs  accuracy=", text)) == 7
    assert len(re.findall(r"t0001 failed  2/4 epochs .*: RuntimeError: CUDA out of memory", text)) == 1
    assert "worker w1 lost: no heartbeat" in text
    assert "resumed, run 2" in text
    assert re.search(r"finished  120/120 units  best t\d+ accuracy=", lines[-1])


def test_a_stream_that_knows_only_ascii_still_gets_lines(history: History) -> None:
    raw = io.BytesIO()
    view = PlainView(history, io.TextIOWrapper(raw, encoding="ascii"))
    view.warn("schön")
    assert raw.getvalue() == b"warning: sch?n\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_warning_is_shown_once(history: History, stream: io.StringIO) -> None:
    with open_view(history, quiet=False, stream=stream) as view:
        view.warn("key 'dropout' is never read")
        view.warn("key 'dropout' is never read")
    assert stream.getvalue().count("key 'dropout' is never read") == 1


def test_the_terminal_shows_the_table(history: History, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    stream = Terminal()
    view = open_view(history, quiet=False, stream=stream)
    assert isinstance(view, TerminalView)
    follow(view, records[:100])
    last = stream.getvalue().rpartition("digits")[2]
    assert "units" in last and "accuracy" in last and re.search(r"w\d:", last)


@pytest.mark.parametrize("columns, lines", [("1", "1"), ("20", "5"), ("40", "12")])
def test_a_tiny_terminal_is_no_trouble(
    history: History, records: Records, monkeypatch: pytest.MonkeyPatch, columns: str, lines: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", lines)
    monkeypatch.setattr(LiveView, "_guard", staticmethod(lambda draw: draw()))
    follow(TerminalView(history, Terminal(), clock=Clock()), records)


def test_the_terminal_is_drawn_at_most_eight_times_a_second(
    history: History, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, drawn = Clock(), []
    view = TerminalView(history, Terminal(), clock=clock)
    monkeypatch.setattr(view, "_draw", lambda: drawn.append(clock.now))
    for time, message in records[:100]:
        clock.now += 1 / 64
        told(view, time, message)
    assert len(drawn) == 13 and min(later - sooner for sooner, later in pairwise(drawn)) >= 1 / 8


def test_a_slow_terminal_is_drawn_less_often(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, drawn = Clock(), []
    view = TerminalView(history, Terminal(), clock=clock)

    def draw_slowly() -> None:
        drawn.append(clock.now)
        clock.now += 0.1

    monkeypatch.setattr(view, "_draw", draw_slowly)
    for _ in range(400):
        clock.now += 0.01
        view.refresh()
    assert [later - sooner for sooner, later in pairwise(drawn)] == pytest.approx([2.0, 2.0], abs=0.011)


def test_the_clock_ticks_while_no_message_comes(
    history: History, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    clock, stream = Clock(), Terminal()
    with TerminalView(history, stream, clock=clock) as view:
        for time, message in records[:40]:
            told(view, time, message)
        clock.now += 3600
        view.refresh()
        assert " 1h 00m" in stream.getvalue()
        told(view, records[40][0], RunHeld(True))
        clock.now += 3600 * 9
        view.refresh()
        assert " 10h 00m" not in stream.getvalue(), "it stands still while the run is paused"


@pytest.mark.parametrize("kind", [PlainView, TerminalView])
def test_a_broken_display_does_not_break_the_run(
    history: History, records: Records, kind: Callable[[History, io.StringIO], LiveView]
) -> None:
    view = kind(history, BrokenPipe())
    follow(view, records)
    view.warn("unseen")
    assert history.finished


@pytest.mark.slow
def test_a_notebook_shows_one_output_and_updates_it(history: History, records: Records, notebook: list[str]) -> None:
    clock = Clock()
    with NotebookView(history, clock=clock) as view:
        for time, message in records:
            clock.now += 0.1
            told(view, time, message)
        view.warn("key 'dropout' is never read")
    assert len(records) / 10 < len(notebook) < len(records) / 4
    assert notebook[-1].startswith("<pre") and "120/120 units" in notebook[-1]
    assert "is never read" in notebook[-1]


def test_the_address_of_the_page_is_a_link_and_nothing_else_is(history: History, notebook: list[str]) -> None:
    with NotebookView(history) as view:
        view.warn("watch it on http://127.0.0.1:8643/?token=a-b_c#/x/mine")
        view.warn('http://127.0.0.1:1/"onclick=alert(1) http://evil.example/ <a href="http://evil.example">')
    places = re.findall(r'<a target="_blank" href="http://127\.0\.0\.1:([^"]*)">', notebook[-1])
    assert places == ["8643/?token=a-b_c#/x/mine", "1/"]
    assert notebook[-1].count("<a ") == 2


@pytest.mark.usefixtures("notebook")
def test_a_notebook_is_detected(history: History) -> None:
    assert isinstance(open_view(history, quiet=False), NotebookView)
    assert isinstance(open_view(history, quiet=False, stream=io.StringIO()), PlainView)
    assert isinstance(open_view(history, quiet=True), QuietView)


def test_an_ipython_shell_in_a_terminal_is_no_notebook(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not isinstance(open_view(history, quiet=False), NotebookView)


def test_a_dumb_terminal_gets_lines(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_view(history, quiet=False, stream=Terminal()), PlainView)
