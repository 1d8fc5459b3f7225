"""Units that are given up halfway: the worker hears of it between two batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from hopfleet.data import Dataset
from hopfleet.frameworks.base import Batch, Session
from hopfleet.worker.feeding.stream import Stream

LISTEN_SECONDS = 0.02
"""Seconds between two checks for orders in the middle of a unit."""


class Interruption:
    """The attempts that this worker was told to give up."""

    def __init__(self, hear_orders: Callable[[], None] = lambda: None) -> None:
        #: Called between batches where no other thread hears orders; it calls ``order``.
        self.hear_orders = hear_orders
        self._attempts: set[int] = set()
        self._due = 0.0

    def order(self, attempt: int) -> None:
        """Have an attempt given up. Any thread may call this."""
        self._attempts.add(attempt)

    def ordered(self, attempts: Iterable[int]) -> set[int]:
        """Return those of the attempts that the worker was told to give up."""
        if time.monotonic() >= self._due:
            self.hear_orders()
            self._due = time.monotonic() + LISTEN_SECONDS
        return self._attempts.intersection(attempts) if self._attempts else set()

    def forget(self, attempts: Iterable[int]) -> None:
        """Note that attempts have ended."""
        self._attempts.difference_update(attempts)


class InterruptibleStream:
    """The batches of a unit, with a check before each."""

    def __init__(self, stream: Stream, check: Callable[[], None]) -> None:
        self._stream = stream
        self._check = check
        self.rows = stream.rows

    @property
    def is_resident(self) -> bool:
        return self._stream.is_resident

    def of(self, dataset: Dataset, session: Session) -> InterruptibleStream:
        return InterruptibleStream(self._stream.of(dataset, session), self._check)

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Batch]:
        return self._checked(iter(self._stream))

    def _checked(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._check()
            yield batch
