"""Progress of a preparation: rows, rows per second, failed rows and the time left, in terminal and notebook."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class ProgressLine:
    """A line that shows how far the work is; silent with ``quiet``, and where no person looks."""

    def __init__(self, quiet: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._rows = self._failed = 0
        if not quiet and (sys.stderr.isatty() or "ipykernel" in sys.modules):
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description:<10}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s"),
                progress.TextColumn("{task.fields[failed]:,} failed"),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of ``total`` pieces of work."""
        self._rows = 0
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=total, rows=0, rate=0.0, failed=self._failed)

    def advance(self, rows: int, failed: int = 0) -> None:
        """Take note of a finished piece of work."""
        self._rows += rows
        self._failed += failed
        if self._bar is not None:
            elapsed = self._bar.tasks[-1].elapsed or 1e-9
            self._bar.update(
                self._task, advance=1, rows=self._rows, rate=self._rows / elapsed, failed=self._failed, refresh=True
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
