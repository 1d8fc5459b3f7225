"""How processes on a network find each other: connections that only those who know a common secret can make.

Both sides of a connection prove that they know the secret before anything else is read, so another process that finds
the port can neither take the place of a member nor send anything.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Collection
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

from hopfleet.errors import UsageError

MAX_HELLO = 256
"""Bytes of a caller's first message at most."""


class Caller(NamedTuple):
    """A process that has called: its number, what it says of itself, and the connection to it."""

    rank: int
    about: str
    link: Connection


def listen(address: str) -> socket.socket:
    """Open a port, which the system chooses. Raise UsageError if there is none."""
    try:
        return socket.create_server((address, 0), backlog=64)
    except OSError as error:
        raise UsageError(
            f"no port can be opened at {address} ({error.strerror or error}), where the members of a team would meet: "
            "end what uses the ports of that machine, give it that address, or use parallelism='single'"
        ) from error


def welcome(listener: socket.socket, secret: bytes, ranks: Collection[int], seconds: float) -> list[Caller]:
    """Wait for callers with these numbers, and return them in order; close the port. Raise TimeoutError in the end."""
    arrived: queue.SimpleQueue[Caller] = queue.SimpleQueue()
    found: dict[int, Caller] = {}
    threading.Thread(target=_accept, args=(listener, secret, arrived), daemon=True).start()
    deadline = time.monotonic() + seconds
    try:
        while found.keys() != set(ranks):
            caller = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            found[caller.rank] = caller
    except queue.Empty:
        missing = ", ".join(str(rank) for rank in ranks if rank not in found)
        raise TimeoutError(f"no word from member {missing} in {seconds:.0f} s") from None
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listener.close()
    return [found[rank] for rank in sorted(found)]


def call(place: tuple[str, int], secret: bytes, rank: int, about: str, seconds: float) -> Connection:
    """Return a connection to the process that listens at ``place``. Raise ConnectionError if it is a stranger."""
    try:
        link = _link(socket.create_connection(place, seconds))
        answer_challenge(link, secret)
        deliver_challenge(link, secret)
        link.send_bytes(f"{rank} {about}".encode())
    except (EOFError, OSError, AuthenticationError) as error:
        raise ConnectionError(unreachable(*place)) from error
    return link


def unreachable(host: str, port: int) -> str:
    """Say that a member cannot be reached at its port, and what to do unless it has ended."""
    return (
        f"{host}:{port} does not answer as a member should; unless that member has ended, let the nodes open "
        "connections to each other at any port, or use teams that fit on one node"
    )


def _accept(listener: socket.socket, secret: bytes, arrived: queue.SimpleQueue[Caller]) -> None:
    """Accept connections until the port is closed. Each has a thread, since a stranger may keep silent."""
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_admit, args=(_link(accepted), secret, arrived), daemon=True).start()


def _admit(link: Connection, secret: bytes, arrived: queue.SimpleQueue[Caller]) -> None:
    try:
        deliver_challenge(link, secret)
        answer_challenge(link, secret)
        rank, _, about = link.recv_bytes(MAX_HELLO).decode().partition(" ")
        arrived.put(Caller(int(rank), about, link))
    except (EOFError, OSError, AuthenticationError):
        link.close()


def _link(connection: socket.socket) -> Connection:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connection.detach())
