"""The server: its address, its sockets, and its life from the first request to Ctrl-C."""

from __future__ import annotations

import contextlib
import html
import os
import signal
import socket
import ssl
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hopfleet.errors import UsageError
from hopfleet.store.folder import RunFolder, find_run
from hopfleet.support.files import temporary_folder, write_text
from hopfleet.ui import CODES, PARENT, PORT, SOCKET, TOKEN
from hopfleet.ui.access import Access, is_loopback
from hopfleet.ui.secrets import CODE_SECONDS, Codes, Sessions, checked_token
from hopfleet.ui.shelf import Shelf


@dataclass(frozen=True, slots=True)
class Options:
    """How to serve. ``browse`` opens a browser; ``metrics_port`` has the figures for Prometheus, without a session."""

    host: str = "127.0.0.1"
    port: int = PORT
    read_only: bool = False
    certificate: Path | None = None
    key: Path | None = None
    browse: bool = False
    metrics_port: int | None = None


def serve(name: str | None, options: Options, show: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, or until the process that ``PARENT`` names has ended."""
    from hopfleet.ui.application import Application  # imports Starlette and uvicorn
    from hopfleet.ui.serving import Server, configuration

    shelf, start = _shelf(name)
    token = checked_token(os.environ.get(TOKEN) or None)
    if (options.certificate is None) != (options.key is None):
        raise UsageError("--tls-cert and --tls-key: each needs the other; give both, or neither")
    for path in (options.certificate, options.key):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: is not a file; --tls-cert and --tls-key name files in PEM format")
    secure = options.certificate is not None
    if options.certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(options.certificate, options.key)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{options.certificate}, {options.key}: are no certificate in PEM format with its key ({error})"
            ) from error
    inherited = os.environ.get(SOCKET, "")
    listener = socket.socket(fileno=int(inherited)) if inherited else _listen(options.host, options.port)
    port = listener.getsockname()[1]
    listeners = [listener]
    if options.metrics_port is not None:
        listeners.append(_listen(options.host, options.metrics_port))
    metrics_port = listeners[-1].getsockname()[1] if options.metrics_port is not None else None
    application = Application(shelf, read_only=options.read_only, start=start)
    codes = Codes(os.environ.get(CODES))
    gate = Access(
        application.routes(),
        sessions=Sessions(port, token),
        codes=codes,
        host=options.host,
        port=port,
        secure=secure,
        read_only=options.read_only,
        metrics_port=metrics_port,
    )
    config = configuration(gate, options.certificate, options.key)
    host = f"[{options.host}]" if ":" in options.host else options.host
    if host in ("0.0.0.0", "[::]"):
        host = socket.gethostname()
    scheme = "https" if secure else "http"

    def address() -> str:
        return f"{scheme}://{host}:{port}/#/{f'x/{start}' if start else ''}?code={codes.issue()}"

    if not is_loopback(options.host):
        plain = "" if secure else "; the traffic is not encrypted, so use --tls-cert and --tls-key or an SSH tunnel"
        show(f"--host {options.host}: other machines can reach this server and need the code in the address{plain}")
    show(address())
    if metrics_port is not None:
        show(f"{scheme}://{host}:{metrics_port}/metrics")
    again = _renews(sys.stdin, lambda: show(address()))
    show(f"The address works once, within {CODE_SECONDS / 60:.0f} minutes{'; Enter shows a new one' if again else ''}.")
    server = Server(config, application)
    _end_with_parent(lambda: setattr(server, "should_exit", True))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        if options.browse:
            folder = stack.enter_context(temporary_folder())
            _browse(folder / "open.html", address())
        server.run(sockets=listeners)


def _browse(file: Path, address: str) -> None:
    """Open a browser with a file that leads to an address: all users can see the arguments of a browser's process."""
    target = html.escape(address)
    write_text(file, f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">\n', durable=False)
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()


def _renews(lines: TextIO, renew: Callable[[], None]) -> bool:
    """Show a new address for each line that is typed, if this is a terminal; return whether it is."""
    if lines is None or not lines.isatty():
        return False
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background, reading fails instead of stopping the server

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            for _ in lines:
                renew()

    threading.Thread(target=read, daemon=True, name="hopfleet-ui-terminal").start()
    return True


def _shelf(name: str | None) -> tuple[Shelf, str]:
    """Return the experiments to show, and the key of the first one: those at home, or in a folder of run folders."""
    if name is None:
        return Shelf(), ""
    path = Path(name).expanduser()
    is_folder = path.is_dir() and (os.sep in name or name.startswith((".", "~")))
    if is_folder and not RunFolder(path.absolute()).exists and not RunFolder(path.absolute()).damaged:
        if not any(RunFolder(inside).exists for inside in path.iterdir()):
            raise UsageError(f"{path}: is no run folder and holds none; hopfleet ls lists the experiments at home")
        return Shelf(path.absolute()), ""
    folder = find_run(name)
    return Shelf(named=folder), folder.name


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise UsageError(f"port={port}: must be between 1 and 65535, or 0 for any free port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == 98 or "in use" in str(error):
            raise UsageError(
                f"port {port}: is in use, perhaps by another hopfleet ui; choose another one with --port, or any free "
                "one with --port 0"
            ) from error
        raise UsageError(f"{host}:{port}: cannot be listened on ({error.strerror or error})") from error
    return listener


def _end_with_parent(end: Callable[[], None]) -> None:
    """Call ``end`` once the process that ``PARENT`` names is not the parent any more."""
    parent = os.environ.get(PARENT, "")
    if not parent.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            waiting.wait(0.5)
        end()

    waiting = threading.Event()
    threading.Thread(target=watch, daemon=True, name="hopfleet-ui-parent").start()
