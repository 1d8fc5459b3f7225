"""Background work that a run does not wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from hopfleet.errors import describe
from hopfleet.support.logging import messages

T = TypeVar("T")


class Chores:
    """Jobs that run one after another in a thread, which ends with ``finish``. A job that fails is logged and dropped.

    The end of the context waits for all jobs, unless there was an error.
    """

    def __init__(self) -> None:
        #: None ends the thread.
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        #: Failures that were logged: each is logged once.
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.finish(wait=kind is None)

    def add(self, job: Callable[[], object]) -> None:
        """Queue a job."""
        self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="hopfleet-chores")
            self._thread.start()

    def finish(self, *, wait: bool = True) -> None:
        """End the thread after all jobs are done, and ``wait`` for the end."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if wait:
                thread.join()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception as error:
                self._tell(describe(error))

    def _tell(self, failure: str) -> None:
        if failure not in self._told:
            self._told.add(failure)
            messages().warning("what is done beside the run failed, and the run goes on without it: %s", failure)


def in_background(job: Callable[[], T]) -> Callable[[], T | None]:
    """Start a job in its own thread; return a function that returns the result, or None while there is none.

    The process may end before the thread does.
    """
    results: list[T] = []
    threading.Thread(target=lambda: results.append(job()), daemon=True, name="hopfleet-background").start()
    return lambda: results[0] if results else None
