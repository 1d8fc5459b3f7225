"""Live views of a run: a table in a terminal or a notebook, or plain lines in a log.

``open_view`` picks a view. A view reads a history that another observer updates, and shows it. Views start no threads,
so they draw only when called, and an error in a display never ends the run.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time as clocks
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from hopfleet.domain.messages import (
    RELEASED,
    Finish,
    Message,
    PartitionsMissing,
    RunStarted,
    TrialEnded,
    UnitOverdue,
    WorkerLost,
)
from hopfleet.domain.trial import TrialState
from hopfleet.monitor.history import History
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.terminal.tables import header, leaderboard_table, workers_line
from hopfleet.monitor.wording import duration, number, one_line, overdue, waiting_for
from hopfleet.safe_text import visible
from hopfleet.support.logging import messages

if TYPE_CHECKING:
    from rich.console import RenderableType

Clock = Callable[[], float]

_LEISURE = 20  #: pause after a drawing, as a multiple of the drawing's duration: drawing takes at most 5% of the time

FAILURES = 8  #: failed trials whose reason a drawn view shows; a log shows all


class LiveView(Observer, ABC):
    """A view of a run: an observer that shows a history, and texts through ``warn`` and ``note``.

    The history comes before the view in the list of observers, so that the view finds every message applied.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._warned: set[str] = set()

    def update(self, time: float, message: Message) -> None:
        """Show a message that the history contains already."""
        self._guard(lambda: self._show(message))

    def refresh(self) -> None:
        """Draw again if a drawing is due, so that clocks advance while no message arrives."""
        self._guard(self._refresh)

    def warn(self, text: str) -> None:
        """Show a warning, unless the same text was shown before."""
        if text not in self._warned:
            self._warned.add(text)
            self._guard(lambda: self._show_warning(text))

    def note(self, text: str) -> None:
        """Show a note."""
        self._guard(lambda: self._show_note(text))

    def __enter__(self) -> Self:
        self._guard(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._guard(self._close)

    @staticmethod
    def _guard(draw: Callable[[], None]) -> None:
        """Draw, ignoring errors: a closed pipe or a broken terminal must not end a run of many hours."""
        try:
            draw()
        except Exception:
            return

    @abstractmethod
    def _show(self, message: Message) -> None: ...

    @abstractmethod
    def _show_warning(self, text: str) -> None: ...

    @abstractmethod
    def _show_note(self, text: str) -> None: ...

    def _open(self) -> None:
        return

    def _refresh(self) -> None:
        return

    def _close(self) -> None:
        return


class QuietView(LiveView):
    """A view that shows warnings alone."""

    def _show(self, message: Message) -> None:
        return

    def _show_warning(self, text: str) -> None:
        messages().warning(text)

    def _show_note(self, text: str) -> None:
        return


class PlainView(LiveView):
    """Lines for a log: one every few seconds of the journal's time, one per ended trial, one per problem."""

    def __init__(self, history: History, stream: TextIO, *, every: float = 5.0) -> None:
        super().__init__(history)
        self._stream = stream
        self._every = every
        self._next = 0.0

    def _show(self, message: Message) -> None:
        match message:
            case RunStarted() if self.history.runs > 1:
                self._line(f"resumed, run {self.history.runs}")
            case WorkerLost(worker=worker, reason=reason) if reason == RELEASED:
                self._line(f"worker {worker} released")
            case WorkerLost(worker=worker, reason=reason):
                self._line(f"worker {worker} lost: {one_line(reason)}")
            case UnitOverdue():
                self._line(overdue(message))
            case PartitionsMissing(partitions=partitions, valid=valid):
                self._line(waiting_for(partitions, valid) or "all partitions are available again")
            case TrialEnded():
                self._line(self._ended(message))
            case Finish(complete=complete):
                self._line(f"{'finished' if complete else 'drained'}  {self._standing()}")
            case _ if self.history.trials and self.history.elapsed >= self._next:
                self._line(self._standing())

    def _show_warning(self, text: str) -> None:
        self._write(f"warning: {text}")

    def _show_note(self, text: str) -> None:
        self._write(text)

    def _ended(self, message: TrialEnded) -> str:
        trial = self.history.trials[message.trial]
        facts = [f"{trial.id} {trial.state.value}", f"{trial.epochs_trained}/{trial.epochs} epochs"]
        value = self.history.value(trial)
        if trial.best and value is not None:
            facts.append(f"{self.history.metric}={number(value)} at epoch {trial.best.epoch}")
        return "  ".join(facts) + (f": {one_line(trial.reason)}" if trial.reason else "")

    def _standing(self) -> str:
        """Return ``34/96 units  eta 20s  best t0007 accuracy=0.9667``, and schedule the next such line."""
        self._next = self.history.elapsed + self._every
        progress, leader = self.history.progress(), self.history.best()
        facts = [progress.units()]
        if self.history.finished is None and progress.remaining():
            facts.append(progress.remaining())
        if leader is not None:
            facts.append(f"best {leader.id} {self.history.metric}={number(self.history.value(leader) or 0.0)}")
        return "  ".join(facts)

    def _line(self, text: str) -> None:
        self._write(f"[{duration(self.history.elapsed):>7}] {text}")

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(visible(text).encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


class _DrawnView(LiveView):
    """The common part of the terminal's and the notebook's view: the schedule and the content of drawings."""

    def __init__(self, history: History, *, clock: Clock, pause: float) -> None:
        super().__init__(history)
        self._clock = clock
        self._pause = pause  #: minimum seconds between two drawings
        self._failures = 0  #: failed trials since the view was opened
        self._due = float("-inf")  #: earliest time of the next drawing
        self._heard = clock()

    @abstractmethod
    def _draw(self) -> None: ...

    def _show(self, message: Message) -> None:
        self._heard = self._clock()
        if isinstance(message, UnitOverdue):
            self._show_note(overdue(message))
        elif isinstance(message, TrialEnded) and message.state is TrialState.FAILED:
            self._show_failure(message)
        self._refresh()

    def _show_failure(self, message: TrialEnded) -> None:
        """Show why a trial failed, for the first few."""
        self._failures += 1
        if self._failures <= FAILURES:
            self._show_note(f"{message.trial} failed: {one_line(message.reason)}")
        elif self._failures == FAILURES + 1:
            self._show_note("more trials failed; hopfleet show lists them all")

    def _refresh(self) -> None:
        began = self._clock()
        if began >= self._due:
            self._draw()
            cost = self._clock() - began
            self._due = began + max(self._pause, _LEISURE * cost)

    def _picture(self, rows: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        running = self.history.finished is None
        ticks = running and self.history.runs and not self.history.held
        elapsed = self.history.elapsed + (self._clock() - self._heard if ticks else 0.0)
        parts: list[RenderableType] = [header(self.history, elapsed)]
        if rows > 0 and self.history.trials:
            parts += [Text(), leaderboard_table(self.history, rows)]
        if running:
            parts += [Text(), workers_line(self.history)]
        return Group(*parts)


class TerminalView(_DrawnView):
    """A table at the bottom of the terminal; other output scrolls above it."""

    def __init__(self, history: History, stream: TextIO, *, clock: Clock = clocks.monotonic) -> None:
        from rich.live import Live

        from hopfleet.monitor.terminal.screen import Screen

        super().__init__(history, clock=clock, pause=1 / 8)
        self._console = Screen(file=stream, force_terminal=True)
        self._live = Live(console=self._console, auto_refresh=False)

    def _open(self) -> None:
        self._live.start()

    def _draw(self) -> None:
        taken = 10  # the header, the head of the table, blank lines and the workers
        self._live.update(self._picture(min(10, self._console.size.height - taken)), refresh=True)

    def _show_warning(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(("warning ", "bold yellow"), text))

    def _show_note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style="dim"))

    def _close(self) -> None:
        try:
            self._draw()
        finally:
            self._live.stop()


class NotebookView(_DrawnView):
    """An HTML output of the running notebook cell, updated in place."""

    _FORMAT = '<pre style="white-space:pre;overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'
    _ADDRESS = r"http://127\.0\.0\.1:[\w/?=#.~-]+"
    """An address of the page. It becomes a link, so it must have no characters with a meaning in HTML."""

    _CODE = re.compile(r"(?<=#/x/)([\w.-]+)\?code=[\w-]+")
    """The code in an address, which is not for a saved notebook."""

    def __init__(self, history: History, *, clock: Clock = clocks.monotonic) -> None:
        super().__init__(history, clock=clock, pause=1 / 2)
        self._handle: Any = None
        self._above: list[tuple[str, str, str]] = []  #: a word, its style, and the text after it

    def _draw(self) -> None:
        from IPython.display import HTML, display

        html = HTML(self._html())
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)

    def _html(self) -> str:
        from rich.style import Style
        from rich.text import Text

        from hopfleet.monitor.terminal.screen import Screen

        console = Screen(record=True, file=io.StringIO(), width=110, force_jupyter=False)
        for word, style, text in self._above:
            line = Text.assemble((word, style), text)
            line.highlight_regex(self._ADDRESS, lambda address: Style(link=address))
            console.print(line)
        console.print(self._picture(10))
        html = console.export_html(inline_styles=True, code_format=self._FORMAT)
        return html.replace("<a href=", '<a target="_blank" href=')

    def _show_warning(self, text: str) -> None:
        self._above.append(("warning ", "bold yellow", text))
        self._draw()

    def _show_note(self, text: str) -> None:
        self._above.append(("", "", text))
        self._draw()

    def _close(self) -> None:
        self._above = [(word, style, self._CODE.sub(r"\1", text)) for word, style, text in self._above]
        self._draw()


def open_view(history: History, *, quiet: bool, stream: TextIO | None = None) -> LiveView:
    """Return the view, a context manager, that suits ``stream``, which defaults to standard output."""
    if quiet:
        return QuietView(history)
    if stream is None and in_notebook():
        return NotebookView(history)
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalView(history, stream)
    return PlainView(history, stream)


def in_notebook() -> bool:
    """Whether an IPython kernel runs this process. An IPython shell in a terminal has no kernel."""
    shells: ModuleType | None = sys.modules.get("IPython")
    return shells is not None and getattr(shells.get_ipython(), "kernel", None) is not None
