"""A small process that has imported the framework and forks workers from itself, in milliseconds each.

It is started as ``python -m hopfleet.worker.zygote FD`` with one end of a socket pair. A request carries a worker's
name and, as a passed descriptor, that worker's own socket; the answer is its process id. Nobody else can reach a
worker, and the user's main script is never imported a second time. When the socket closes, the zygote ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C reaches the whole terminal; the controller alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    hello = json.loads(_receive_line(control))
    sys.path[:] = hello["path"]
    for module in ("hopfleet.worker.process", *hello["preload"]):
        # A module that fails here fails again, with a good message, when a worker needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    control.sendall(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(descriptors[0])
        os.close(descriptors[0])
        control.sendall(f"{pid}\n".encode())


def _become_worker(descriptor: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        from hopfleet.worker.process import serve

        serve(Connection(descriptor))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # No cleanup of what was inherited from the zygote.
        os._exit(code)


def _receive_line(control: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = control.recv(65536)
        if not piece:
            raise SystemExit(0)
        line += piece
    return line


if __name__ == "__main__":
    main()
