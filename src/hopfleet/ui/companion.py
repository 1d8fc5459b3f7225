"""The page beside a run: a server in a process of its own, which ends with the process that started it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
from html import escape

from hopfleet.errors import MissingExtra
from hopfleet.monitor.terminal.live import in_notebook
from hopfleet.store.folder import RunFolder
from hopfleet.ui import FRAMED, PARENT, SOCKET, TOKEN


def show_page(folder: RunFolder) -> str:
    """Start a server for a run folder, show the page in the notebook if this is one, and return what to tell."""
    if not in_notebook():
        return f"watch it on {open_page(folder)}"
    from IPython.display import HTML, display

    address = open_page(folder, framed=True)
    display(HTML(frame(address, folder.name)))
    return f"watch it above, or on {address}"


def frame(address: str, name: str) -> str:
    """Return the page as a part of a notebook."""
    style = "width:100%;height:640px;border:1px solid #8886;border-radius:6px"
    return f'<iframe src="{escape(address)}" title="{escape(name)} in Hopfleet" style="{style}"></iframe>'


def open_page(folder: RunFolder, *, framed: bool = False) -> str:
    """Start a server for a run folder, and return its address.

    The socket listens before the server runs, so a browser that opens the address at once waits instead of failing.
    A page that is ``framed`` can be shown by other pages of this machine. Its address has the name under which a
    notebook has its own, because browsers keep the cookie from a frame of another site.
    """
    for module, package in (("starlette", "Starlette"), ("uvicorn", "uvicorn")):
        if not _installed(module):
            raise MissingExtra(package, "ui")
    token = secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = {
            TOKEN: token,
            PARENT: str(os.getpid()),
            SOCKET: str(listener.fileno()),
            **({FRAMED: "1"} if framed else {}),
        }
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
    return f"http://{'localhost' if framed else '127.0.0.1'}:{port}/?token={token}#/x/{folder.name}"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # hidden from imports
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait(10)
