"""A small process that has imported the framework and forks workers from itself, in milliseconds each.

The process is started as ``python -m hopfleet.worker.fork_server FD`` with one end of a socket pair. A request carries
a worker's name and, as passed descriptors, the worker's own socket and those to the other members of its team; the
answer is the worker's process id. A request
without a descriptor is the process id of a worker that has ended; the answer is its exit status. No other process can
reach a worker, and the user's main script is never imported a second time. The fork server ends when its socket closes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

WAIT_SECONDS = 0.001
"""Seconds between checks whether a worker that closed its socket has ended."""

MAX_TEAM = 128
"""Descriptors in one request at most: one more than a team has other members."""

PATIENCE = 200
"""Checks after which a worker that has not ended is killed."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C reaches the whole terminal; the controller alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hello = json.loads(_receive_line(control))
    sys.path[:] = hello["path"]
    if hello["bytecode"]:
        # Python neither finds nor writes any beside the sources. With a prefix, it writes to this folder alone.
        sys.pycache_prefix, sys.dont_write_bytecode = hello["bytecode"], False
    gc.disable()  # imported modules stay
    for module in ("hopfleet.worker.process", *hello["preload"]):
        # A module that fails here fails again, with a good message, when a worker needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    # Workers share these objects, and their garbage collectors leave them alone.
    gc.freeze()
    gc.enable()
    control.sendall(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, MAX_TEAM)
        if not message:
            return
        if not descriptors:
            control.sendall(f"{_ending(int(message))}\n".encode())
            continue
        pid = _fork()
        if pid == 0:
            control.close()
            _become_worker(descriptors[0], descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(f"{pid}\n".encode())


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads. There are those of BLAS libraries alone, which end before a fork and start anew.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_worker(descriptor: int, links: Sequence[int]) -> None:
    code = 1
    try:
        # The last words of a process that crashes go where its output goes.
        faulthandler.enable(all_threads=False)
        from hopfleet.worker.process import serve

        serve(Connection(descriptor), [Connection(link) for link in links])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # No cleanup of what was inherited from the fork server.
        os._exit(code)


def _ending(pid: int) -> int | None:
    """Return the exit code of a worker, negative for a signal; None if unknown.

    A worker that closed its socket and is still alive is killed.
    """
    with contextlib.suppress(ChildProcessError):
        for patience in range(2 * PATIENCE):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if patience >= PATIENCE:
                os.kill(pid, signal.SIGKILL)
            time.sleep(WAIT_SECONDS)
    return None


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
    os._exit(0)  # finalizing a framework would take long
