"""How the members of a team on a cluster find each other: connections to the first member, open to members only.

The driver gives all members of a team a secret. Both sides of a connection prove that they know it before anything else
is read, so another process that finds the port can neither take the place of a member nor send anything.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from hopfleet.backends.supervision import START_SECONDS
from hopfleet.errors import UsageError
from hopfleet.frameworks.teams import MemberLost

LOOPBACK = "127.0.0.1"
"""The address of members that are all on one node."""

MAX_HELLO = 256
"""Bytes of a member's first message at most."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a process in a team on a cluster."""

    rank: int
    #: The node of each member.
    nodes: tuple[str, ...]
    #: The address of this member on the network that the members share.
    address: str
    secret: bytes
    #: The actor of the first member; None for the first member itself.
    first: Any = None

    @property
    def apart(self) -> frozenset[int]:
        """The members that are not on the node of the first one."""
        return frozenset(rank for rank, node in enumerate(self.nodes) if node != self.nodes[0])


def listen(address: str) -> socket.socket:
    """Open a port for the other members, which the system chooses."""
    return socket.create_server((address, 0))


def welcome(listener: socket.socket, seat: Seat, device: str) -> list[Connection]:
    """Wait for all other members, and return connections to them in the order of their ranks; close the port."""
    arrived: queue.SimpleQueue[tuple[int, str, Connection]] = queue.SimpleQueue()
    found: dict[int, tuple[str, Connection]] = {}
    threading.Thread(target=_accept, args=(listener, seat.secret, arrived), daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    try:
        while len(found) < len(seat.nodes) - 1:
            rank, other, link = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            found[rank] = other, link
    except queue.Empty:
        missing = [str(rank) for rank in range(1, len(seat.nodes)) if rank not in found]
        raise MemberLost(f"no word from member {', '.join(missing)} in {START_SECONDS:.0f} s") from None
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listener.close()
    _check_kinds([device, *(found[rank][0] for rank in sorted(found))])
    return [found[rank][1] for rank in sorted(found)]


def call(place: tuple[str, int], seat: Seat, device: str) -> Connection:
    """Return a connection to the first member, which listens at ``place``."""
    link = _link(socket.create_connection(place, START_SECONDS))
    try:
        answer_challenge(link, seat.secret)
        deliver_challenge(link, seat.secret)
        link.send_bytes(f"{seat.rank} {device}".encode())
    except (EOFError, OSError, AuthenticationError) as error:
        raise MemberLost(f"the first member at {place[0]}:{place[1]} does not answer") from error
    return link


def _accept(listener: socket.socket, secret: bytes, arrived: queue.SimpleQueue[tuple[int, str, Connection]]) -> None:
    """Accept connections until the port is closed. Each has a thread, since a stranger may keep silent."""
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_admit, args=(_link(accepted), secret, arrived), daemon=True).start()


def _admit(link: Connection, secret: bytes, arrived: queue.SimpleQueue[tuple[int, str, Connection]]) -> None:
    try:
        deliver_challenge(link, secret)
        answer_challenge(link, secret)
        rank, device = link.recv_bytes(MAX_HELLO).decode().split()
        arrived.put((int(rank), device, link))
    except (EOFError, OSError, AuthenticationError):
        link.close()


def _link(connection: socket.socket) -> Connection:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connection.detach())


def _check_kinds(devices: Sequence[str]) -> None:
    if len({device.partition(":")[0] for device in devices}) > 1:
        raise UsageError(
            f"the members of a team have devices of different kinds ({', '.join(devices)}); name one kind with "
            "hop.WorkerOptions(device='cpu') or device='cuda'"
        )
