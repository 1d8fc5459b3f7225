"""Attacks on the page by other users and other sites: none gets a session, and none blocks the server."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.ui import serving
from hopfleet.ui.serving import CONNECTIONS, REQUEST_SECONDS, Connection
from tests.helpers.browser import TOKEN, Server, Visitor, browser, until
from tests.helpers.cli import fitted

EAVESDROPPER = """#!{python}
import pathlib, sys, urllib.parse
pathlib.Path({seen!r}).write_text(" ".join(sys.argv))
there = urllib.parse.urlsplit(sys.argv[1])
pathlib.Path({page!r}).write_bytes(pathlib.Path(there.path).read_bytes())
"""
"""A browser that writes down its arguments and what it was shown."""


def opened(address: str, code: str) -> int:
    """Return the status of an exchange of a code."""
    own = {"origin": address.rstrip("/"), "content-type": "application/json"}
    request = urllib.request.Request(f"{address}api/session", json.dumps({"code": code}).encode(), own)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_no_argument_of_a_process_has_a_secret(tmp_path: Path, own_home: Path) -> None:
    """All users see arguments with ``ps``: those of the server and those of the browser that it opens."""
    fitted("mine")
    seen, page, script = tmp_path / "seen", tmp_path / "page", tmp_path / "browser"
    script.write_text(EAVESDROPPER.format(python=sys.executable, seen=str(seen), page=str(page)))
    script.chmod(0o700)
    environment = {**os.environ, "HOPFLEET_HOME": str(own_home), "HOPFLEET_UI_TOKEN": TOKEN, "BROWSER": str(script)}
    command = [sys.executable, "-m", "hopfleet", "ui", "mine", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        printed = server.stdout.readline()
        until(lambda: page.exists() and page.read_text(), "a browser")
        arguments = Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8") + seen.read_text()
        address, code = re.search(r"(http://127\.0\.0\.1:\d+/)#/x/mine\?code=([\w-]+)", printed).groups()  # type: ignore[union-attr]
        target = re.search(r"url=(http://127\.0\.0\.1:\d+/#/x/mine\?code=([\w-]+))", page.read_text())
        assert target is not None and target[2] != code
        for secret in (TOKEN, code, target[2], "code="):
            assert secret not in arguments
        file = Path(seen.read_text().split("file://")[1])
        assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0
        assert TOKEN not in printed + page.read_text()
        assert [opened(address, each) for each in (code, code, target[2], target[2])] == [200, 401, 200, 401]
        server.send_signal(signal.SIGINT)
        server.wait(60)
        assert not file.parent.exists()


class Neighbour(http.server.BaseHTTPRequestHandler):
    """A server of another user at another port, which writes down what browsers send."""

    heard: list[dict[str, str]]

    def do_GET(self) -> None:
        self.heard.append(dict(self.headers.items()))
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>neighbour</title><body></body>")

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def neighbour() -> Iterator[tuple[str, list[dict[str, str]]]]:
    heard: list[dict[str, str]] = []
    handler = type("Listening", (Neighbour,), {"heard": heard})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", heard
        server.shutdown()


@pytest.mark.slow
def test_a_neighbour_gets_no_usable_cookie_and_reads_and_frames_nothing(own_home: Path) -> None:
    """Browsers send cookies to all ports of a host: the cookie alone opens nothing."""
    fitted("mine")
    with Server(own_home) as server, neighbour() as (there, heard), browser() as window:
        visitor = Visitor(window, server)
        page = visitor.page
        page.wait_for_selector(".list")
        assert "code" not in page.url and TOKEN not in page.url
        (cookie,) = visitor.context.cookies()
        assert cookie["name"] == f"hopfleet-{server.port}"
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["value"] == TOKEN) == (True, "Strict", False)
        page.goto(there)
        sent = heard[0].get("Cookie", "")
        assert cookie["value"] in sent, "it is sent, as browsers do"
        assert "Referer" not in heard[0], "the others are for its own icon"
        about = urllib.request.Request(f"{server.address}api/about", headers={"cookie": sent})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(about, timeout=60)
        read = """async (address) => { try { const found = await fetch(address, { credentials: 'include' });
            return await found.text() } catch (error) { return String(error) } }"""
        for path in ("api/about", "api/experiments", "metrics"):
            assert "Failed to fetch" in page.evaluate(read, server.address + path)
        send = """async (address) => { try { await fetch(address, { method: 'POST', credentials: 'include',
            mode: 'no-cors', body: '{"request": "pause"}' }); } catch {} }"""
        page.evaluate(send, f"{server.address}api/experiments/mine/requests")
        frame = """(address) => new Promise((resolve) => { const frame = document.createElement('iframe');
            frame.onload = () => resolve(true); frame.src = address; document.body.append(frame) })"""
        page.evaluate(frame, f"{server.address}frame#/x/mine")
        inside = page.frames[-1]
        inside.wait_for_selector(".locked")
        assert inside.locator(".board").count() == 0, "a frame has no session of the tab's"
        page.goto(server.address)
        page.wait_for_selector(".list")
        visitor.go("#/x/mine/requests")
        page.wait_for_selector("text=Nothing was requested yet")
        visitor.context.close()


@pytest.mark.slow
def test_a_server_that_is_started_again_asks_once(own_home: Path) -> None:
    fitted("mine")
    with Server(own_home) as server, browser() as window:
        visitor = Visitor(window, server)
        page = visitor.page
        visitor.go("#/x/mine")
        page.wait_for_selector(".board tbody tr")
        server.kill()
        page.wait_for_selector("text=The server does not answer")
        server.start(token="another-token-than-before")
        page.wait_for_selector(".locked >> text=started again")
        page.get_by_label("Code, address or token").fill("wrong")
        page.get_by_role("button", name="Open").click()
        page.wait_for_selector("text=this code is wrong")
        page.get_by_label("Code, address or token").fill(server.printed)
        page.get_by_role("button", name="Open").click()
        page.wait_for_selector(".board tbody tr")
        other = visitor.context.new_page()
        other.goto(f"{server.address}#/x/mine")
        other.wait_for_selector(".board tbody tr")  # the same browser is not asked again
        visitor.context.close()


@pytest.mark.slow
def test_a_server_that_hangs_is_told_within_five_seconds_and_no_button_pretends(own_home: Path) -> None:
    fitted("mine")
    with Server(own_home) as server, browser() as window:
        visitor = Visitor(window, server)
        visitor.go("#/x/mine")
        page = visitor.page
        page.wait_for_selector(".board tbody tr")
        page.get_by_role("button", name="Extend…").wait_for()
        server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        page.wait_for_selector(".banner >> text=does not answer", timeout=5000)  # the promise, in real time
        assert time.monotonic() - began < 5
        for name in ("Extend…", "Add trial…"):
            assert page.get_by_role("button", name=name).is_disabled()
        server.process.send_signal(signal.SIGCONT)
        page.wait_for_selector(".banner", state="detached")
        assert page.get_by_role("button", name="Extend…").is_enabled()
        visitor.context.close()


class Loop:
    """A loop whose time is set, with the calls that are due."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[Any]()

    def time(self) -> float:
        self.now += 1
        return self.now

    def call_later(self, seconds: float, call: Any, *arguments: Any) -> Any:
        self.calls.append((seconds, call))
        return SimpleNamespace(cancel=lambda: None)


class Wire(asyncio.Transport):
    """A connection that sends nothing."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted


@pytest.fixture
def connect() -> Any:
    """Makes connections of one server that share a loop."""
    from uvicorn.server import ServerState

    config, state, loop = serving.configuration(lambda *_: None, None, None), ServerState(), Loop()  # type: ignore[arg-type, return-value]

    def connect() -> Connection:
        made = Connection(config, state, {}, _loop=loop)  # type: ignore[arg-type]
        made.connection_made(Wire())
        return made

    return connect


def test_a_request_that_never_ends_is_given_up(connect: Any) -> None:
    """However slowly its bytes come: the time counts from the first to the last."""
    slow = connect()
    ((seconds, call),) = slow.loop.calls
    assert seconds == REQUEST_SECONDS
    for piece in (b"GET / HTTP/1.1\r\n", b"host: 127.0.0.1\r\n", b"x-a: b\r\n"):
        slow.data_received(piece)
    assert len(slow.loop.calls) == 1 and slow._deadline is not None, "no byte buys more time"
    call()
    assert slow.transport.aborted


def test_connections_that_wait_make_room_for_others(connect: Any) -> None:
    first, *others = [connect() for _ in range(CONNECTIONS)]
    assert not first.transport.aborted
    connect()
    assert first.transport.aborted and not any(each.transport.aborted for each in others)


@pytest.mark.slow
def test_hundreds_of_half_open_connections_do_not_block_the_page(own_home: Path) -> None:
    with Server(own_home) as server, contextlib.ExitStack() as stack:
        for _ in range(2 * CONNECTIONS):
            open_end = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            with contextlib.suppress(OSError):
                open_end.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        for path in ("", "api/about"):
            request = urllib.request.Request(server.address + path, headers={"authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
