"""The links between the members of a team on a cluster: each member calls the first one.

The driver gives all members of a team a secret, without which no process gets a link.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hopfleet.backends.supervision import START_SECONDS
from hopfleet.errors import UsageError
from hopfleet.frameworks.teams import MemberLost
from hopfleet.support import meeting

CALL_SECONDS = 10.0
"""Seconds to reach the first member, which opens its port before it tells of it."""

LOOPBACK = "127.0.0.1"
"""The address of members that are all on one node."""


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


def welcome(listener: socket.socket, seat: Seat, device: str) -> list[Connection]:
    """Wait for all other members, and return links to them in the order of their ranks; close the port."""
    try:
        callers = meeting.welcome(listener, seat.secret, range(1, len(seat.nodes)), START_SECONDS)
    except TimeoutError as error:
        raise MemberLost(str(error)) from None
    _check_kinds([device, *(caller.about for caller in callers)])
    return [caller.link for caller in callers]


def call(place: tuple[str, int], seat: Seat, device: str) -> Connection:
    """Return a link to the first member, which listens at ``place``."""
    try:
        return meeting.call(place, seat.secret, seat.rank, device, CALL_SECONDS)
    except ConnectionError as error:
        raise MemberLost(str(error)) from error


def _check_kinds(devices: Sequence[str]) -> None:
    if len({device.partition(":")[0] for device in devices}) > 1:
        raise UsageError(
            f"the members of a team have devices of different kinds ({', '.join(devices)}); name one kind with "
            "hop.WorkerOptions(device='cpu') or device='cuda'"
        )
