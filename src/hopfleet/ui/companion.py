"""The page beside a run: a server in a process of its own, which ends with the process that started it."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys

from hopfleet.errors import MissingExtra
from hopfleet.monitor.terminal.live import in_notebook
from hopfleet.store.folder import RunFolder, home
from hopfleet.ui import CODES, PARENT, SOCKET
from hopfleet.ui.secrets import FRAME_SECONDS, Codes

NEEDED = (("starlette", "Starlette"), ("uvicorn", "uvicorn"))
"""Modules that the server needs, and the packages that have them."""

SCRIPT = """{
  const [place, title, src] = VALUES;
  const frame = Object.assign(document.createElement("iframe"), { title, src, style: "width:100%;height:0;border:0" });
  addEventListener("message", ({ source, data }) => {
    if (source !== frame.contentWindow || data?.hopfleet !== "ready") return;
    frame.style = "width:100%;height:640px;border:1px solid #8886;border-radius:6px";
  });
  document.getElementById(place).replaceChildren(frame);
}"""
"""Makes the frame in a notebook's output. It is seen once the page in it says that it is there.

So there is no empty frame where the browser may not show the page or cannot reach it.
"""


def suits_page() -> bool:
    """Whether this is a notebook whose browser can reach the page, and the extra is installed."""
    return in_notebook() and not _out_of_reach() and all(_installed(module) for module, _ in NEEDED)


def show_page(folder: RunFolder) -> str:
    """Start a server for a run folder, show the page in the notebook if this is one, and return what to tell."""
    port, codes = open_page(folder)
    base, place = f"http://127.0.0.1:{port}", f"#/x/{folder.name}?code="
    if in_notebook() and not _out_of_reach():
        from IPython.display import HTML, display

        display(HTML(frame(f"{base}/frame{place}{codes.issue(FRAME_SECONDS)}", folder.name)))
    return f"watch it on {base}/{place}{codes.issue()}"


def frame(address: str, name: str) -> str:
    """Return the page as a part of a notebook."""
    place = f"hopfleet-{secrets.token_hex(8)}"
    values = json.dumps([place, f"{name} in Hopfleet", address]).replace("<", "\\u003c")
    return f'<div id="{place}"></div><script>{SCRIPT.replace("VALUES", values)}</script>'


def open_page(folder: RunFolder) -> tuple[int, Codes]:
    """Start a server that shows a run folder, unless this process has one; return its port, and codes that open it."""
    for module, package in NEEDED:
        if not _installed(module):
            raise MissingExtra(package, "ui")
    place = "" if folder.path.parent == home() else str(folder.path)
    server, port, codes = _started(place, str(home()), os.getpid())
    if server.poll() is not None:
        _started.cache_clear()
        server, port, codes = _started(place, str(home()), os.getpid())
    return port, codes


@functools.cache
def _started(place: str, base: str, process: int) -> tuple[subprocess.Popen[bytes], int, Codes]:
    """Start a server for a run folder, or for all of the home folder; return it with its port and its codes.

    The socket listens before the server runs, so a browser that opens the address at once waits instead of failing.
    """
    codes = Codes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = {CODES: codes.key, PARENT: str(process), SOCKET: str(listener.fileno())}
        server = subprocess.Popen(
            [sys.executable, "-m", "hopfleet", "ui", *([place] if place else []), "--no-browser"],
            env={**os.environ, "HOPFLEET_HOME": base, **told},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
        )
        port = listener.getsockname()[1]
    atexit.register(_end, server)
    return server, port, codes


def _out_of_reach() -> bool:
    """Whether this is a notebook of Google's, whose machine a browser cannot reach."""
    return "google.colab" in sys.modules


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # hidden from imports
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait(10)
