"""A flotilla whose members train in turn on batches that are read, shuffled and transformed once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hopfleet.frameworks.base import Batch, Batches, Flotilla, Result, Session
from hopfleet.support.user_code import interrupts


class InTurn(Flotilla):
    """Members that each go through the whole unit, one after another. ``copies`` is False if no member writes."""

    def __init__(self, sessions: Sequence[Session], *, copies: bool = True) -> None:
        self._sessions, self._copies = sessions, copies

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        closes = dict(zip(map(id, self._sessions), last, strict=True))
        return self._each(batches, lambda session, some: session.train(some, last=closes[id(session)]))

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        return self._each(batches, lambda session, some: session.evaluate(some, seed=seed))

    def _each(self, batches: Batches, work: Callable[[Session, Batches], Result]) -> list[Result]:
        kept = Kept(list(batches), batches.rows, self._copies)
        results: list[Result] = []
        seconds: list[float] = []
        for number, session in enumerate(self._sessions):
            began = time.perf_counter()
            self.turn(number)
            try:
                results.append({} if number in self.given_up() else work(session, kept))
            except BaseException as error:
                if interrupts(error):
                    raise
                results.append(error)
            seconds.append(time.perf_counter() - began)
        whole = sum(seconds)
        self.shares = [part / whole for part in seconds]
        return results


class Kept:
    """Batches for each member in turn, as copies if its code may write into them."""

    def __init__(self, kept: Sequence[Batch], rows: int, copies: bool) -> None:
        self._kept, self.rows, self._copies = kept, rows, copies

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Batch]:
        if not self._copies:
            return iter(self._kept)
        return ({name: _copied(value) for name, value in batch.items()} for batch in self._kept)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray | list) else value
