"""The live stream of one experiment: a reader for all pages that watch it, and one stream of events for each page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import TypeVar

from hopfleet.errors import HopfleetError
from hopfleet.runs.state import state_of
from hopfleet.ui.board import Board, encoded

T = TypeVar("T")

PAUSE_SECONDS = 0.25
"""Seconds between two looks into the journal while pages watch."""

SLICE_SECONDS = 0.1
"""Seconds of reading after which other requests have their turn."""

BEAT_SECONDS = 10.0
"""Seconds without an event after which a comment keeps the connection open."""


class Channel:
    """The pages that watch one experiment. The journal is read only while there are any."""

    def __init__(self, find: Callable[[], Board], executor: Executor) -> None:
        self._find = find
        self._executor = executor
        self._watching = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._board: Board | None = None  #: found last by the reader
        self._state = ""  #: of the run, which can change without a message
        self._problem = ""
        self._closed = False

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
        if self._task is not None:
            self._task.cancel()

    async def events(self, after: int) -> AsyncIterator[str]:
        """Yield the events after a number. ``reset`` tells the page to read everything again."""
        self._watching += 1
        if self._task is None or self._task.done():
            self._board = None
            self._task = asyncio.create_task(self._read())
        state = ""
        try:
            yield "retry: 1000\n\n"
            while not self._closed:
                board = self._board
                if board is None:
                    board = await self._run(self._find)
                if self._problem:
                    yield f"event: gone\ndata: {encoded({'error': self._problem})}\n\n"
                    return
                found = board.since(after) if board.complete else []
                if found is None:
                    after = board.told
                    yield f"id: {after}\nevent: reset\ndata: {{}}\n\n"
                for number, text in found or ():
                    after = number
                    yield f"id: {number}\nevent: change\ndata: {text}\n\n"
                if board.complete and self._state != state:
                    state = self._state
                    yield f"event: state\ndata: {encoded({'state': state})}\n\n"
                if not await self._wait(board, after, state):
                    yield ": still here\n\n"
        except HopfleetError as error:
            yield f"event: gone\ndata: {encoded({'error': str(error)})}\n\n"
        finally:
            self._watching -= 1

    async def _wait(self, board: Board, after: int, state: str) -> bool:
        """Return whether something may have changed, within the time of a beat."""
        try:
            async with asyncio.timeout(BEAT_SECONDS), self._changed:
                await self._changed.wait_for(
                    lambda: (
                        self._closed
                        or bool(self._problem)
                        or (board.complete and (board.told != after or self._state != state))
                    )
                )
        except TimeoutError:
            return False
        return True

    async def _read(self) -> None:
        while self._watching and not self._closed:
            more, before, advanced = False, self._state, False
            try:
                board = self._board = await self._run(self._find)
                known = board.told, board.complete
                more = await self._run(board.advance, SLICE_SECONDS)
                advanced = (board.told, board.complete) != known
                self._state = state_of(board.folder, board.history).value
                self._problem = ""
            except (HopfleetError, OSError) as error:
                self._problem = str(error)
            if self._problem or self._state != before or advanced:
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(0 if more else PAUSE_SECONDS)

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)
