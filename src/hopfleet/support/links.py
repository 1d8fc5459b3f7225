"""How fast bytes travel between machines, measured with TCP connections of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from statistics import median

ROUNDS = 3
"""Transfers that are timed, after one that is not; their median counts."""

LEAST, MOST = 1 << 16, 1 << 24
"""Bytes of a transfer, at least and at most."""

WORD = 8
"""Bytes of a request: the number of bytes to send."""

TIMEOUT = 60.0
"""Seconds without a byte after which a link counts as broken."""


class LinkServer:
    """A server that sends as many bytes as it is asked for, until it is closed."""

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True, name="hopfleet-links").start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=_answer, args=(connection,), daemon=True, name="hopfleet-link").start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _answer(connection: socket.socket) -> None:
    connection.settimeout(TIMEOUT)
    with connection, contextlib.suppress(OSError):
        while len(request := connection.recv(WORD, socket.MSG_WAITALL)) == WORD:
            connection.sendall(bytes(min(MOST, int.from_bytes(request, "big"))))


def seconds_per_byte(address: str, port: int, size: int) -> float:
    """Fetch about ``size`` bytes from a ``LinkServer`` several times; return the seconds of each byte.

    Raise OSError if the server cannot be reached.
    """
    size = max(LEAST, min(MOST, size))
    with socket.create_connection((address, port), TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _fetch(connection, size)
        return median(_fetch(connection, size) for _ in range(ROUNDS)) / size


def _fetch(connection: socket.socket, size: int) -> float:
    began = time.perf_counter()
    connection.sendall(size.to_bytes(WORD, "big"))
    left, room = size, bytearray(1 << 18)
    while left:
        got = connection.recv_into(room)
        if not got:
            raise ConnectionError("the other side has closed the connection")
        left -= got
    return time.perf_counter() - began


def within(size: int) -> float:
    """Return the seconds of each byte between two processes of this machine."""
    server = LinkServer("127.0.0.1")
    try:
        return seconds_per_byte("127.0.0.1", server.port, size)
    finally:
        server.close()


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all pairs of different numbers below ``count`` in rounds, each number at most once in a round."""
    ring: Sequence[int] = range(count + count % 2)
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if max(pair) < count]
        ring = [ring[0], ring[-1], *ring[1:-1]]
