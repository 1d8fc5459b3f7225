"""Calls to the cluster whose callbacks run in the thread that drives a run, and in no other."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any


class Calls:
    """The pending calls."""

    def __init__(self) -> None:
        #: Results that have arrived, each with its callback.
        self._arrivals: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], None]]] = queue.SimpleQueue()
        #: Functions to call later, and when.
        self._due: list[tuple[float, Callable[[], None]]] = []

    def then(self, ref: Any, heard: Callable[[Any], None]) -> None:
        """Call ``heard`` with the result of a call, or with the exception that ended it."""
        arrivals = self._arrivals
        ref.future().add_done_callback(lambda future: arrivals.put((future, heard)))

    def then_all(self, refs: Sequence[Any], heard: Callable[[Any], None]) -> None:
        """Call ``heard`` when all of these calls are done, and before that for each call that fails."""
        left = len(refs)

        def one(outcome: Any) -> None:
            nonlocal left
            left -= not isinstance(outcome, Exception)
            if isinstance(outcome, Exception) or not left:
                heard(outcome)

        for ref in refs:
            self.then(ref, one)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` in the thread that drives the run, after some seconds."""
        self._due.append((time.monotonic() + seconds, act))

    def hear(self, timeout: float) -> None:
        """Run the callbacks of all arrived results, waiting up to ``timeout`` for the first."""
        with contextlib.suppress(queue.Empty):
            future, heard = self._arrivals.get(timeout=timeout)
            while True:
                heard(future.exception() or future.result())
                future, heard = self._arrivals.get_nowait()
        now = time.monotonic()
        due = [act for when, act in self._due if when <= now]
        self._due = [(when, act) for when, act in self._due if when > now]
        for act in due:
            act()
