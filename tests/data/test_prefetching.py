from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.data import prefetch, prefetching
from hopfleet.errors import DataError


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hopfleet-prefetch"]


@settings(deadline=None)
@given(count=st.integers(0, 300), depth=st.integers(1, 9), small=st.booleans())
def test_gives_every_item_in_order(count: int, depth: int, small: bool) -> None:
    items = [{"x": np.full(2, i)} if small else i for i in range(count)]
    got = list(prefetch(iter(items), depth=depth))
    assert len(got) == count
    assert all(a is b for a, b in zip(got, items, strict=True))
    assert threads() == []


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_reads_no_further_ahead_than_depth(depth: int) -> None:
    read: list[int] = []

    def source() -> Iterator[int]:
        for item in range(1, 200):
            read.append(item)
            yield item

    for item in prefetch(source(), depth=depth):
        assert read[-1] <= item + max(2, depth)


def test_reads_small_batches_further_ahead() -> None:
    reached = threading.Event()

    def source() -> Iterator[dict[str, np.ndarray]]:
        for i in range(200):
            if i == 50:
                reached.set()
            yield {"x": np.zeros(1)}

    batches = prefetch(source(), depth=2)
    next(batches)
    assert reached.wait(timeout=60)
    batches.close()


def test_raises_what_the_source_raised_after_the_items_before() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("no such row")

    items = prefetch(broken())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="no such row") as caught:
        next(items)
    assert "broken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert threads() == []


@pytest.mark.parametrize("way", ["close", "collect", "exception"])
def test_leaves_no_thread_when_it_is_left_early(way: str) -> None:
    closed_in: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    items = prefetch(endless())
    assert next(items) == 1
    if way == "close":
        items.close()
    elif way == "exception":
        with pytest.raises(ZeroDivisionError):
            items.throw(ZeroDivisionError())
    else:
        del items
        gc.collect()
    assert threads() == []
    assert closed_in == ["hopfleet-prefetch"]


def test_starts_nothing_before_the_first_item() -> None:
    items = prefetch(iter([1]))
    assert threads() == []
    items.close()


def test_takes_any_iterable() -> None:
    assert list(prefetch([1, 2, 3])) == [1, 2, 3]
    with pytest.raises(TypeError, match="not iterable"):
        list(prefetch(5))  # type: ignore[arg-type]


def test_refuses_a_depth_that_cannot_work() -> None:
    with pytest.raises(DataError, match="depth=0: must be at least 1"):
        prefetch([1], depth=0)


def test_counts_unknown_items_as_large() -> None:
    assert prefetching._size("anything") == prefetching.SMALL_BYTES
    assert prefetching._size({"x": np.zeros(3, np.uint8), "y": np.zeros(2, np.uint8)}) == 5
