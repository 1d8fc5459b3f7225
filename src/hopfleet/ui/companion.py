"""The page beside a run: a server in a process of its own, which ends with the process that started it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import socket
import subprocess
import sys

from hopfleet.errors import MissingExtra
from hopfleet.store.folder import RunFolder
from hopfleet.ui import PARENT, SOCKET, TOKEN


def open_page(folder: RunFolder) -> str:
    """Start a server for a run folder, and return its address.

    The socket listens before the server runs, so a browser that opens the address at once waits instead of failing.
    """
    for module, package in (("starlette", "Starlette"), ("uvicorn", "uvicorn")):
        if not _installed(module):
            raise MissingExtra(package, "ui")
    token = secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = {TOKEN: token, PARENT: str(os.getpid()), SOCKET: str(listener.fileno())}
        server = subprocess.Popen(
            [sys.executable, "-m", "hopfleet", "ui", str(folder.path), "--no-browser"],
            env={**os.environ, **told},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
        )
    atexit.register(_end, server)
    return f"http://127.0.0.1:{port}/?token={token}#/x/{folder.name}"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # hidden from imports
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait(10)
