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
SECONDS = 60.0
"""The longest time to wait for anything."""


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

    def start(self) -> None:
        environment = {**os.environ, "HOPFLEET_HOME": str(self._home), "HOPFLEET_UI_TOKEN": TOKEN}
        command = [sys.executable, "-m", "hopfleet", "ui", "--no-browser", "--port", str(self.port), *self._arguments]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert f"?token={TOKEN}" in self.process.stdout.readline()

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
