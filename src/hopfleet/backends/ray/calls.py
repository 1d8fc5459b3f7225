"""Calls to the cluster whose answers are heard in the thread that drives a run, and in no other."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any


class Calls:
    """What has been asked and not been heard yet."""

    def __init__(self) -> None:
        #: What has come: a result, and who is to hear of it.
        self._arrivals: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], None]]] = queue.SimpleQueue()

    def then(self, ref: Any, heard: Callable[[Any], None]) -> None:
        """Let somebody hear what comes of a call: its result, or the exception that it ended with."""
        arrivals = self._arrivals
        ref.future().add_done_callback(lambda future: arrivals.put((future, heard)))

    def then_all(self, refs: Sequence[Any], heard: Callable[[Any], None]) -> None:
        """Let somebody hear when all of these calls are done, and before that of each that fails."""
        left = len(refs)

        def one(outcome: Any) -> None:
            nonlocal left
            left -= not isinstance(outcome, Exception)
            if isinstance(outcome, Exception) or not left:
                heard(outcome)

        for ref in refs:
            self.then(ref, one)

    def hear(self, timeout: float) -> None:
        """Hear all that has come, waiting up to ``timeout`` for the first."""
        with contextlib.suppress(queue.Empty):
            future, heard = self._arrivals.get(timeout=timeout)
            while True:
                heard(future.exception() or future.result())
                future, heard = self._arrivals.get_nowait()
