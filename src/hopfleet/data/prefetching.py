"""Reading ahead in a background thread.

Waking a thread for each tiny batch would cost more than the batch itself. Therefore the thread fills a buffer while the
consumer works, the consumer takes the whole buffer at once, and each side is woken only while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeVar

from hopfleet.errors import DataError

T = TypeVar("T")

#: Limits in bytes and items up to which small batches are read further ahead than ``depth``.
SMALL_BYTES = 1 << 20
SMALL_ITEMS = 64


def prefetch(iterator: Iterable[T], depth: int = 4) -> Generator[T, None, None]:
    """Yield the items of ``iterator``, which runs in a background thread about ``depth`` items ahead.

    Batches of less than a megabyte in total may be read further ahead. An exception of the iterator is raised here,
    after the items before it and with its own traceback. Closing the generator stops the thread and closes the
    iterator.
    """
    if depth < 1:
        raise DataError(f"depth={depth}: must be at least 1")
    return _consume(_Buffer(max(1, depth // 2)), iterator)


class _Buffer:
    """The buffer between the two threads. It holds half of the depth; the consumer may hold the other half."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Re-entrant, because the garbage collector may close the generator in a thread that holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._items: list[Any] = []
        self._bytes = 0
        self._reader_waits = False
        self._writer_waits = False
        self._ended = False
        self._stopped = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Add an item as soon as there is room. Return False if the consumer has stopped."""
        size = _size(item)
        with self._changed:
            while not self._stopped and self._full(size):
                self._writer_waits = True
                self._changed.wait()
            self._writer_waits = False
            self._items.append(item)
            self._bytes += size
            if self._reader_waits:
                self._reader_waits = False
                self._changed.notify_all()
            return not self._stopped

    def _full(self, size: int) -> bool:
        count = len(self._items)
        return count >= self._limit and (self._bytes + size > SMALL_BYTES or count >= SMALL_ITEMS)

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self.error = error
            self._ended = True
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Wait for items and return all of them; return an empty list at the end."""
        with self._changed:
            while not self._items and not self._ended:
                self._reader_waits = True
                self._changed.wait()
            self._reader_waits = False
            items, self._items, self._bytes = self._items, [], 0
            if self._writer_waits:
                self._changed.notify_all()
            return items

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _size(item: object) -> int:
    """Return the bytes of a batch of arrays. Items of unknown size count as large."""
    if not isinstance(item, Mapping):
        return SMALL_BYTES
    return sum(getattr(value, "nbytes", SMALL_BYTES) for value in item.values())


def _produce(buffer: _Buffer, iterator: Iterable[Any]) -> None:
    error: BaseException | None = None
    try:
        source = iter(iterator)
        try:
            for item in source:
                if not buffer.put(item):
                    break
        finally:
            if close := getattr(source, "close", None):
                close()
    except BaseException as raised:
        error = raised
    buffer.end(error)


def _consume(buffer: _Buffer, iterator: Iterable[T]) -> Generator[T, None, None]:
    thread = threading.Thread(target=_produce, args=(buffer, iterator), name="hopfleet-prefetch", daemon=True)
    thread.start()
    try:
        while items := buffer.take():
            items.reverse()
            while items:
                yield items.pop()
        if buffer.error is not None:
            raise buffer.error
    finally:
        buffer.stop()
        buffer.error = None
        if thread is not threading.current_thread():
            # Wait for the item being read, but not for a source that blocks forever.
            thread.join(timeout=5)
