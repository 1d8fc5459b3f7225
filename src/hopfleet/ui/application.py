"""The routes of the server: the page and its files, what the page reads, its live streams, and its requests."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from hopfleet.domain.bounds import excess
from hopfleet.errors import HopfleetError, MissingExtra, NotFound, UsageError
from hopfleet.runs.control import Control
from hopfleet.ui import details
from hopfleet.ui.board import encoded
from hopfleet.ui.columns import epochs_block, spans_block
from hopfleet.ui.files import experiment_files, open_file, pieces
from hopfleet.ui.metrics import exposition
from hopfleet.ui.notes import read_notes, write_note
from hopfleet.ui.shelf import Shelf
from hopfleet.ui.streaming import SLICE_SECONDS, Channel
from hopfleet.ui.words import in_words
from hopfleet.version import __version__

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtra("Starlette", "ui") from error

STATIC = Path(__file__).parent / "static"

TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}

READ_SECONDS = 0.3
"""Seconds for which one request reads a journal, before it answers with what was read so far."""

SCRAPE_SECONDS = 5.0
"""Seconds for which a scrape waits for journals that were not read before."""

ANSWER_SECONDS = 10.0
"""Seconds for which a request waits for the answer of a running experiment."""

REMEMBERED = 256
"""Answers to the latest requests, for those that come twice."""

REQUESTS = {
    name: [*inspect.signature(getattr(Control, name)).parameters][1:]
    for name in ("add", "clone", "delete", "extend", "pause", "prioritise", "proceed", "resume", "stop", "workers")
}
"""The requests that a page can make, with the names of their arguments: the methods of a control."""

T = TypeVar("T")


class Application:
    """The state behind the routes. One thread reads all journals, so that no reading sees another one half done."""

    def __init__(self, shelf: Shelf, *, who: str | None = None, read_only: bool = False, start: str = "") -> None:
        self._shelf = shelf
        self._who = who
        self._read_only = read_only
        self._start = start  #: the experiment that the page shows first
        self._reader = ThreadPoolExecutor(1, "hopfleet-ui-reader")
        self._askers = ThreadPoolExecutor(8, "hopfleet-ui-asker")
        self._channels: dict[str, Channel] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}  #: by key, while a journal is read for the first time
        self._id = secrets.token_hex(8)
        self._answers: OrderedDict[tuple[str, str], asyncio.Future[Response]] = OrderedDict()  #: by experiment and id
        self._filling: asyncio.Task[None] | None = None  #: reads the journals of the list

    def routes(self) -> Starlette:
        """Return the application without its gate."""
        files = [Route(f"/static/{name}", _file(path)) for name, path in _files()]
        base = "/api/experiments/{key}"
        return Starlette(
            routes=[
                Route("/", _file(STATIC / "index.html")),
                Route("/frame", _file(STATIC / "index.html")),
                *files,
                Route("/api/about", self._about),
                Route("/api/pulse", self._pulse),
                Route("/api/experiments", self._experiments),
                Route(base, self._snapshot),
                Route(f"{base}/epochs", self._epochs),
                Route(f"{base}/spans", self._spans),
                Route(f"{base}/predicted", self._predicted),
                Route(f"{base}/charts/{{kind}}", self._chart),
                Route(f"{base}/trials/{{trial}}", self._trial),
                Route(f"{base}/notices", self._notices),
                Route(f"{base}/requests", self._requests),
                Route(f"{base}/requests", self._ask, methods=["POST"]),
                Route(f"{base}/notes", self._note, methods=["POST"]),
                Route(f"{base}/data", self._data),
                Route(f"{base}/workers", self._workers),
                Route(f"{base}/load", self._load),
                Route(f"{base}/files", self._files),
                Route(f"{base}/file", self._file),
                Route(f"{base}/events", self._events),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={
                404: _not_found,
                405: _not_allowed,
                HopfleetError: _failed,
                OSError: _failed,
                Exception: _broken,
            },
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if self._start:
            self._read_ahead(self._start)
        yield
        for reader in [*self._readers.values(), *filter(None, [self._filling])]:
            reader.cancel()
        await self.end_streams()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._askers.shutdown(wait=False, cancel_futures=True)

    async def end_streams(self) -> None:
        """End all live streams, so that the server can stop."""
        for channel in self._channels.values():
            await channel.close()

    def _read_ahead(self, key: str) -> None:
        """Read a journal to its end, in slices between which other requests have their turn."""

        async def read() -> None:
            with contextlib.suppress(HopfleetError, OSError):  # the page that asks next is told
                while await self._read(lambda: self._shelf.board(key).advance(SLICE_SECONDS)):
                    await asyncio.sleep(0)
            del self._readers[key]

        if key not in self._readers:
            self._readers[key] = asyncio.create_task(read())

    async def _read(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, job)

    # -------------------------------------------------------------------------------------------------- reading

    async def _about(self, request: Request) -> Response:
        facts = {"version": __version__, "place": self._shelf.place, "start": self._start}
        return _json(encoded({**facts, "read_only": self._read_only}))

    async def _pulse(self, request: Request) -> Response:
        """Tell that the server is there, and whether it is still the same."""
        return _json(encoded({"server": self._id}))

    async def _experiments(self, request: Request) -> Response:
        text = await self._read(lambda: encoded(self._shelf.summaries(READ_SECONDS)))
        self._fill()
        return _json(text)

    def _fill(self) -> None:
        """Read the journals of a list to their ends, in slices between which other requests have their turn."""

        async def fill() -> None:
            while await self._read(lambda: self._shelf.fill(SLICE_SECONDS)):
                await asyncio.sleep(0)

        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(fill())

    async def _snapshot(self, request: Request) -> Response:
        key = request.path_params["key"]

        def read() -> tuple[bool, str]:
            board = self._shelf.board(key)
            if key not in self._readers:
                board.advance(READ_SECONDS)
            place = {"key": key, "folder": str(board.folder.path), "notes": read_notes(board.folder)}
            return board.complete, encoded({**place, **board.snapshot()})

        complete, text = await self._read(read)
        if not complete:
            self._read_ahead(key)
        return _json(text)

    async def _epochs(self, request: Request) -> Response:
        key, metric = request.path_params["key"], request.query_params.get("metric", "")
        return _binary(await self._read(lambda: epochs_block(self._shelf.board(key), metric)))

    async def _spans(self, request: Request) -> Response:
        key = request.path_params["key"]
        return _binary(await self._read(lambda: spans_block(self._shelf.board(key))))

    async def _predicted(self, request: Request) -> Response:
        return await self._board_json(request, details.predicted_spans)

    async def _chart(self, request: Request) -> Response:
        kind, metric = request.path_params["kind"], request.query_params.get("metric")
        return await self._board_json(request, lambda board: details.chart(board, kind, metric))

    async def _trial(self, request: Request) -> Response:
        trial = request.path_params["trial"]
        return await self._board_json(request, lambda board: details.trial_details(board, trial))

    async def _notices(self, request: Request) -> Response:
        return await self._board_json(request, lambda board: list(board.notices))

    async def _requests(self, request: Request) -> Response:
        return await self._board_json(request, details.request_trail)

    async def _data(self, request: Request) -> Response:
        return await self._board_json(request, details.data_sets)

    async def _workers(self, request: Request) -> Response:
        return await self._board_json(request, details.worker_health)

    async def _load(self, request: Request) -> Response:
        return await self._board_json(request, details.worker_load)

    async def _files(self, request: Request) -> Response:
        return await self._board_json(request, lambda board: experiment_files(board.folder))

    async def _file(self, request: Request) -> Response:
        key, path = request.path_params["key"], request.query_params.get("path", "")
        file, size, kind = await self._read(lambda: open_file(self._shelf.folder(key), path))
        headers = {"content-length": str(size), "content-disposition": "attachment", "cache-control": "no-store"}
        return StreamingResponse(pieces(file, size), media_type=kind, headers=headers)

    async def _board_json(self, request: Request, describe: Callable[..., Any]) -> Response:
        key = request.path_params["key"]
        return _json(await self._read(lambda: encoded(describe(self._shelf.board(key)))))

    async def _metrics(self, request: Request) -> Response:
        await self._read(self._shelf.scan)
        self._fill()
        assert self._filling is not None
        await asyncio.wait([self._filling], timeout=SCRAPE_SECONDS)
        text = await self._read(lambda: exposition(self._shelf.figures(), self._shelf.lines()))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _events(self, request: Request) -> Response:
        key = request.path_params["key"]
        after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise UsageError(f"after={after[:40]!r}: must be the number of a message")
        await self._read(lambda: self._shelf.folder(key))
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(lambda: self._shelf.board(key), self._reader)
        return StreamingResponse(
            channel.events(int(after)), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    # ------------------------------------------------------------------------------------------------- steering

    async def _note(self, request: Request) -> Response:
        given = await _given(request)
        key, trial = request.path_params["key"], given.get("trial", "")

        def write() -> str:
            board = self._shelf.board(key)
            if trial and (not isinstance(trial, str) or trial not in board.history.trials):
                raise NotFound(f"{str(trial)[:40]!r}: no such trial; it may have been deleted")
            return encoded(write_note(board.folder, trial or "", given.get("note", ""), given.get("tags", [])))

        return _json(await self._read(write))

    async def _ask(self, request: Request) -> Response:
        given = await _given(request)
        name, arguments = given.get("request"), given.get("arguments", {})
        if not isinstance(name, str) or name not in REQUESTS or not isinstance(arguments, dict):
            known = ", ".join(sorted(REQUESTS))
            return _json(encoded({"error": f"request: must be one of {known}, with an object of arguments"}), 400)
        if unknown := sorted(arguments.keys() - set(REQUESTS[name])):
            takes = ", ".join(REQUESTS[name]) or "no arguments"
            return _json(encoded({"error": f"{unknown[0]}: unknown; {name} takes {takes}"}), 400)
        for argument, value in arguments.items():
            if problem := excess(value, argument):
                return _json(encoded({"error": problem}), 400)
        once = given.get("id")
        if once is not None and not (isinstance(once, str) and 0 < len(once) <= 64):
            return _json(encoded({"error": "id: must be a text of at most 64 characters"}), 400)
        return await self._once(request.path_params["key"], once, lambda key: self._answer(key, name, arguments))

    async def _once(self, key: str, once: str | None, answer: Callable[[str], Awaitable[Response]]) -> Response:
        """Answer a request; a request that comes again with the same id gets the same answer, and is not made again."""
        if once is None:
            return await answer(key)
        known = self._answers.get((key, once))
        if known is None:
            known = self._answers[key, once] = asyncio.ensure_future(answer(key))
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return await asyncio.shield(known)

    async def _answer(self, key: str, name: str, arguments: dict[str, Any]) -> Response:
        def ask() -> Any:
            """Make the request without a turn at the journals, which may be long in reading."""
            control = Control(self._shelf.folder(key), who=self._who, wait=ANSWER_SECONDS)
            return getattr(control, name)(**arguments)

        try:
            text = await asyncio.get_running_loop().run_in_executor(self._askers, ask)
        except UsageError as refusal:
            return _json(encoded({"granted": False, "text": in_words(str(refusal))}))
        except TypeError:  # a required argument is missing
            takes = ", ".join(REQUESTS[name])
            return _json(encoded({"error": f"{name} takes {takes}; the first is missing"}), 400)
        return _json(encoded({"granted": True, "text": text}))


async def _given(request: Request) -> dict[str, Any]:
    """Return the body of a request. Raise UsageError unless it is an object in JSON."""
    try:
        given = json.loads(await request.body())
    except (ClientDisconnect, ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise UsageError("the body is no object in JSON of an acceptable size")
    return given


def _files() -> list[tuple[str, Path]]:
    """Return the files of the page by their names in addresses. No other file is ever served."""
    found = [path for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES and path.name != "index.html"]
    return [(path.relative_to(STATIC).as_posix(), path) for path in found]


def _file(path: Path) -> Callable[[Request], Any]:
    content = path.read_bytes()

    async def serve(request: Request) -> Response:
        return Response(content, media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})

    return serve


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, {"cache-control": "no-store"}, "application/json")


def _binary(content: bytes) -> Response:
    return Response(content, 200, {"cache-control": "no-store"}, "application/octet-stream")


async def _not_found(request: Request, error: Exception) -> Response:
    return _json(encoded({"error": "there is nothing at this address"}), 404)


async def _not_allowed(request: Request, error: Exception) -> Response:
    return _json(encoded({"error": "this address does not take such a request"}), 405)


async def _broken(request: Request, error: Exception) -> Response:
    """Answer after an error of the server's own, which its terminal shows in full."""
    return _json(encoded({"error": "the server failed to answer; the terminal where it runs shows why"}), 500)


async def _failed(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, UsageError) else 500
    return _json(encoded({"error": str(error)}), status)
