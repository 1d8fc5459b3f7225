"""The page in the output of a notebook, which is a page of another port of this machine, in a real browser."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hopfleet.runs.control import Control
from hopfleet.ui.companion import show_page
from tests.helpers.browser import SECONDS, browser
from tests.helpers.cli import fitted

pytestmark = pytest.mark.slow


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook was told to show."""
    shown: list[str] = []
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, shown.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return shown


@pytest.fixture
def notebook(outputs: list[str]) -> Iterator[str]:
    """The address of a page that shows the outputs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>notebook</title>{''.join(outputs)}".encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_a_notebook_shows_the_page_and_its_buttons_work(notebook: str, outputs: list[str]) -> None:
    results = fitted("mine")
    told = show_page(results.folder)
    assert told.startswith("watch it above, or on http://localhost:")
    assert len(outputs) == 1
    with browser() as opened:
        page = opened.new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.goto(notebook)
        inside = page.frame_locator("iframe")
        inside.locator(".board tbody tr").first.wait_for()
        inside.get_by_role("button", name="Extend…").click()
        inside.get_by_label("More trials").fill("1")
        inside.get_by_role("button", name="Extend", exact=True).click()
        inside.locator(".messages", has_text="queued for the next run").wait_for()
    assert [request.request for request in Control(results.folder).requests()] == ["extend"]
