"""Units against plain loops: units of one batch for what is fixed, and units of about a second for what grows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from hopfleet.frameworks.base import Batch, Session


class Repeated:
    """One batch, again and again."""

    def __init__(self, batch: Batch, rows: int, count: int) -> None:
        self._batch, self._count = batch, count
        self.rows = rows * count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return itertools.repeat(self._batch, self._count)


Work = Callable[[Repeated], None]


def timed(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the best processor time of each work; all are warmed up first and then take turns."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(repeats + 1):
        for work, spent in zip(works, times, strict=True):
            began = time.process_time()
            work()
            if number:
                spent.append(time.process_time() - began)
    return [min(spent) for spent in times]


def measured(
    session: Session, rows: int, works: Sequence[Work], *, seconds: float, repeats: int, columns: Any = None
) -> dict[str, Any]:
    """Return the best times of some works for one batch, and for as many as the first work trains in ``seconds``.

    The first work is the plain loop.
    """
    rng = np.random.default_rng(0)
    if columns is None:
        columns = {"x": rng.normal(size=(rows, 32)).astype("float32"), "y": rng.integers(0, 10, rows)}
    batch = session.prepare(columns, {})
    one = timed([partial(work, Repeated(batch, rows, 1)) for work in works], 3 * repeats)
    few = timed([partial(works[0], Repeated(batch, rows, 17))], repeats)[0]
    count = max(2, round(seconds / ((few - one[0]) / 16)))
    many = timed([partial(work, Repeated(batch, rows, count)) for work in works], repeats)
    return {"one": one, "many": many, "count": count}
