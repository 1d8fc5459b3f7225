"""Reading ahead in a background thread.

Batches are often tiny, and then waking a thread for each would cost more than the batch. So the thread adds to a shelf
while the consumer works, the consumer takes all that is there at once, and a side is woken only when it really waits.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeVar

from hopfleet.errors import DataError

T = TypeVar("T")

#: Small batches are read further ahead than ``depth``, up to this many bytes and items.
SMALL_BYTES = 1 << 20
SMALL_ITEMS = 64


def prefetch(iterator: Iterable[T], depth: int = 4) -> Generator[T, None, None]:
    """The items of ``iterator``, which runs in a background thread and is kept about ``depth`` items ahead.

    Batches that together stay below a megabyte may be read further ahead. What the iterator raises is raised here,
    after the items before it and with its own traceback. Closing the generator stops the thread and closes the
    iterator.
    """
    if depth < 1:
        raise DataError(f"depth={depth}: must be at least 1")
    return _consume(_Shelf(max(1, depth // 2)), iterator)


class _Shelf:
    """What the two threads share. Half the depth is on the shelf, and half may be in the hands of the consumer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Re-entrant: the garbage collector may close the generator within any thread, even one that holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._items: list[Any] = []
        self._bytes = 0
        self._reader_waits = False
        self._writer_waits = False
        self._ended = False
        self._stopped = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Adds an item when there is room; False when nobody wants more."""
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
        """Everything there is, after waiting for something; nothing at the end."""
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
    """The bytes of a batch of arrays; of anything else nobody knows, so that it counts as large."""
    if not isinstance(item, Mapping):
        return SMALL_BYTES
    return sum(getattr(value, "nbytes", SMALL_BYTES) for value in item.values())


def _produce(shelf: _Shelf, iterator: Iterable[Any]) -> None:
    error: BaseException | None = None
    try:
        source = iter(iterator)
        try:
            for item in source:
                if not shelf.put(item):
                    break
        finally:
            if close := getattr(source, "close", None):
                close()
    except BaseException as raised:
        error = raised
    shelf.end(error)


def _consume(shelf: _Shelf, iterator: Iterable[T]) -> Generator[T, None, None]:
    thread = threading.Thread(target=_produce, args=(shelf, iterator), name="hopfleet-prefetch", daemon=True)
    thread.start()
    try:
        while items := shelf.take():
            items.reverse()
            while items:
                yield items.pop()
        if shelf.error is not None:
            raise shelf.error
    finally:
        shelf.stop()
        shelf.error = None
        if thread is not threading.current_thread():
            # At most until the item being read; a source that blocks for good must not block the consumer too.
            thread.join(timeout=5)
