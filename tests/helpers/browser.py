"""A browser for tests of the page: Chromium of the system, driven by Playwright; and a server in its own process."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

TOKEN = "the-token-of-the-tests"
SECONDS = 120.0
"""The longest time to wait for anything."""

PICTURES = Path(os.environ.get("HOPFLEET_PICTURES", Path(__file__).parents[2] / "build" / "pictures"))
"""Where screenshots are kept, for people to look at."""


def chromium() -> str:
    """Return the path of the browser. Skip the test if there is none, except in continuous integration."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and not os.environ.get("HOPFLEET_CI"):
        pytest.skip("no Chromium is installed: apt-get install chromium")
    assert found is not None, "no Chromium is installed: apt-get install chromium"
    return found


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


class Server:
    """``hopfleet ui`` in its own process, on a port that stays the same when it is started again."""

    def __init__(self, home: Path, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._home, self._arguments = home, arguments
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self, token: str = TOKEN) -> None:
        environment = {**os.environ, "HOPFLEET_HOME": str(self._home), "HOPFLEET_UI_TOKEN": token}
        command = [sys.executable, "-m", "hopfleet", "ui", "--no-browser", "--port", str(self.port), *self._arguments]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline().strip()
        assert "?code=" in self.printed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def until(condition: Any, what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


class Visitor:
    """One browser window that remembers every error of its console."""

    def __init__(self, opened: Any, server: Server, **options: Any) -> None:
        self.server = server
        self.context = opened.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SECONDS * 1000)
        self.problems: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.page.goto(f"{server.address}#/?code={TOKEN}")
        self.page.wait_for_selector("#content")

    def _note(self, said: Any) -> None:
        """Keep an error or a warning, unless it is about ``drawn``, which reads the pixels of a chart."""
        if said.type in ("error", "warning") and "Multiple readback operations" not in said.text:
            self.problems.append(said.text)

    def go(self, place: str) -> None:
        """Go to another view. The charts of the view before do not count as drawn any more."""
        forget = "for (const frame of document.querySelectorAll('.frame')) delete frame.dataset.drawn;"
        self.page.evaluate(f"place => {{ {forget} location.hash = place }}", place)

    def drawn(self) -> None:
        """Wait for a chart, and check that there is something on it."""
        self.page.wait_for_selector(".frame[data-drawn]")
        colours = """() => { const canvas = document.querySelector('.frame canvas');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const pixels = new Uint32Array(data.buffer); return new Set(pixels).size }"""
        until(lambda: self.page.evaluate(colours) > 3, "a chart with colours")

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path)
        assert path.stat().st_size > 5000

    def says(self, text: str) -> None:
        self.page.locator(".messages", has_text=text).wait_for()
