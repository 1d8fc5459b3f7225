"""How long the device works for each member of a flotilla, measured in one batch of each unit.

The host queues work and goes on, so its clock does not tell how long a member takes. Two events on the stream of the
member do. They are read when the unit is over, so nothing waits for the device.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Generator, Hashable, Iterator, Sequence

from hopfleet.frameworks.torch.engines.capture_backend import CaptureBackend, Event

TIMED = 3
"""The batch of a unit that is timed. In earlier ones, steps are captured and replayed for the first time."""


class Stopwatch:
    """The seconds that the device takes for each member, in one batch of a unit."""

    def __init__(self, backend: CaptureBackend) -> None:
        self._backend = backend
        self._spans: list[tuple[Sequence[Hashable], Event, Event]] = []

    @contextlib.contextmanager
    def around(self, members: Sequence[Hashable]) -> Iterator[None]:
        """Time work on the current stream that is done for some members, the same for each."""
        begin, end = (self._backend.event(timing=True) for _ in range(2))
        stream = self._backend.current_stream()
        begin.record(stream)
        yield
        end.record(stream)
        self._spans.append((members, begin, end))

    def seconds(self) -> dict[Hashable, float]:
        """Return the seconds of each member whose work was timed and is over."""
        found: defaultdict[Hashable, float] = defaultdict(float)
        for members, begin, end in self._spans:
            for member in members:
                found[member] += (self._backend.elapsed(begin, end) or 0.0) / len(members)
        return found


class Pace:
    """The seconds that a batch of a unit takes, without the first ones, in which steps are captured."""

    def __init__(self) -> None:
        self._began, self._batches, self._aside = time.monotonic(), 0, 0

    def of(self, work: Generator[None]) -> Generator[None]:
        """Do some work, which pauses after each batch, with the same pauses."""
        for _ in work:
            self._batches += 1
            if self._batches == TIMED:
                self._began, self._aside = time.monotonic(), TIMED
            yield

    def seconds(self) -> float:
        """Return the seconds of a batch, up to now."""
        return (time.monotonic() - self._began) / max(1, self._batches - self._aside)


def completed(times: Sequence[float]) -> list[float]:
    """Return times with the mean of the others in place of those that are 0, because they were not measured."""
    known = [time for time in times if time > 0]
    return [time if time > 0 else sum(known) / len(known) for time in times] if known else [0.0] * len(times)


def shares(times: Sequence[float]) -> list[float]:
    """Return the share of each of some times in their sum; equal shares if nothing was measured."""
    total = sum(times)
    return [time / total for time in times] if total > 0 else [1 / len(times)] * len(times)
