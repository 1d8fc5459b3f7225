"""The processes of a team: the first member leads, the others follow its instructions, and all share a process group.

The first member is a worker like any other. It has a link, a socket, to each other member; collective operations go
through the process group. A member whose code raises reports that and waits to be ended: the end of one member is the
end of all, and the backend starts the team anew.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from hopfleet.errors import TaskError
from hopfleet.frameworks.process_settings import Around, unwatched
from hopfleet.frameworks.teams import MemberLost, Membership, Team
from hopfleet.frameworks.torch.parallel import wire
from hopfleet.support import meeting
from hopfleet.support.user_code import describe_with_place, format_traceback, interrupts

MEETING_TIMEOUT = datetime.timedelta(minutes=5)
"""Time limit for members to meet and to form further groups."""

TIMEOUT = datetime.timedelta(minutes=30)
"""Time limit of collective operations. The backend notices members that are dead or stopped long before."""

REPORT_SECONDS = 30.0
"""Seconds that the first member waits for the reason of a failure, and that a failed member waits to be ended."""

GET_ADDRESS = 0x8915
"""The system call of Linux that tells the address of a network interface."""

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that names the network interface of gloo; several have commas between them."""

GROUP_WORDS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "process group")
"""Words in the messages of collective operations that fail because another member is gone."""


class Failed(NamedTuple):
    """A member's report that its code raised."""

    description: str
    traceback: str


Instruction = tuple[list[int], str, int, tuple[wire.Value, ...]]
"""Sessions to forget, the name of a method, the number of a session, and arguments."""


class TorchTeam(Team):
    """One member's place in its team; a strategy for one device has a team of one."""

    def __init__(self, membership: Membership) -> None:
        self.rank = membership.rank
        self.size = len(membership.placement.devices)
        self.placement = membership.placement
        self.device = torch.device(membership.placement.devices[membership.rank])
        self.links: list[Connection] = list(membership.links)
        self.address, self.apart = membership.address, membership.apart
        self.broken = ""
        self.lost = False
        self._numbers = 0
        #: Sessions that the first member no longer has.
        self._forgotten: list[int] = []
        if self.size > 1:
            try:
                self._join(self._meet_on_network() if self.address else self._meet_in_file())
            except Exception as error:
                if _fails_with_others(error):
                    raise MemberLost(str(error)) from error
                raise

    def _meet_in_file(self) -> Store:
        """Meet the other members in a file that only this user's processes can open."""
        if self.rank == 0:
            file = os.memfd_create("hopfleet-team")
            for link in self.links:
                wire.send(link, f"/proc/{os.getpid()}/fd/{file}")
        else:
            file = os.open(wire.receive(self.links[0]), os.O_RDWR | os.O_CLOEXEC)
        # The file has no name. Each member keeps it open to its own end, since members form further groups in it.
        store = FileStore(f"/proc/self/fd/{file}", self.size)
        store.set_timeout(MEETING_TIMEOUT)
        return store

    def _meet_on_network(self) -> Store:
        """Meet the other members at a port that the first one opens, on the address of the team alone."""
        listener = meeting.listen(self.address) if self.rank == 0 else None
        host, port = wire.receive(self.links[0]) if listener is None else listener.getsockname()[:2]
        for link in self.links if listener is not None else ():
            wire.send(link, (host, port))
        try:
            return TCPStore(
                host,
                port,
                self.size,
                is_master=listener is not None,
                master_listen_fd=None if listener is None else listener.detach(),
                timeout=MEETING_TIMEOUT,
                wait_for_workers=False,
            )
        except distributed.DistError as error:
            raise MemberLost(meeting.unreachable(host, port)) from error

    def _join(self, store: Store) -> None:
        # NCCL refuses members that share a GPU. On several machines, GPUs of the same name are different ones.
        shared = not self.address and len(set(self.placement.devices)) < self.size
        backend = "nccl" if self.device.type == "cuda" and not shared else "gloo"
        if backend == "gloo":
            if interface := interface_of(self.address) if self.address else _loopback():
                os.environ.setdefault(INTERFACE, interface)
            _check_interface(os.environ.get(INTERFACE, ""))
        elif not distributed.is_nccl_available():
            raise TaskError(
                "teams on GPUs need NCCL, which this PyTorch lacks; use device='cpu', or parallelism='single'"
            )
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        distributed.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)

    # ------------------------------------------------------------------------------------------ the first member

    def new_number(self) -> int:
        """Return a number for a session; the other members know the session by it."""
        self._numbers += 1
        return self._numbers

    def forget(self, number: int) -> None:
        """Let the other members drop a session, with the next instruction."""
        self._forgotten.append(number)

    def tell(
        self, method: str, number: int, *arguments: wire.Value, apart: tuple[str, wire.Value] | None = None
    ) -> None:
        """Have all other members call a method of their sessions; those on other nodes the method ``apart``, if given.

        ``apart`` is a method and its argument.
        """
        if self.rank:
            return
        forgotten, self._forgotten = self._forgotten, []
        instruction: Instruction = (forgotten, method, number, arguments)
        elsewhere = instruction if apart is None else (forgotten, apart[0], number, apart[1:])
        with self.together():
            for rank, link in enumerate(self.links, 1):
                wire.send(link, elsewhere if rank in self.apart else instruction)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Do work that all members take part in. If it ends early, the team is at its end.

        Raise MemberLost if another member is gone, and the error that another member reports if it failed first.
        """
        try:
            yield
        except BaseException as error:
            self.broken = self.broken or f"{type(error).__name__}: {error}"
            if self.rank == 0 and _fails_with_others(error):
                self._raise_reason(error)
            raise

    def answers(self) -> list[wire.Value]:
        """Return one value from each other member. Raise the error of a member that failed."""
        return [self._answer(link) for link in self.links]

    def _answer(self, link: Connection) -> wire.Value:
        value = wire.receive(link)
        if isinstance(value, Failed):
            error = TaskError(f"{value.description} (in another member of the team)")
            error.add_note(value.traceback)
            raise error
        return value

    def _raise_reason(self, error: BaseException) -> None:
        """Raise what another member reports; MemberLost if one is gone."""
        for link in self.links:
            try:
                if link.poll(REPORT_SECONDS):
                    self._answer(link)
            except (EOFError, OSError):
                break
        self.lost = True
        raise MemberLost(str(error)) from error

    # --------------------------------------------------------------------------------------------- other members

    def follow(self, open_session: Callable[..., wire.Value], around: Around = unwatched) -> None:
        """Do what the first member says, until it is gone. ``open_session`` opens a session of a configuration."""
        sessions: dict[int, wire.Value] = {}
        link = self.links[0]
        with contextlib.suppress(EOFError, OSError):
            while True:
                forgotten, method, number, arguments = wire.receive(link)
                for name in forgotten:
                    sessions.pop(name, None)
                try:
                    if method == "open":
                        sessions[number] = open_session(*arguments)
                        continue
                    session = sessions[number]
                    if method == "inherit":
                        path, parent = arguments
                        arguments = path, sessions[parent]
                    with around(session.own_settings):
                        getattr(session, method)(*arguments)
                except BaseException as error:
                    if interrupts(error):
                        raise
                    wire.send(link, Failed(describe_with_place(error), format_traceback(error)))
                    _hang_up()  # collective operations of the others fail, instead of waiting
                    # The first member reports the failure, and the backend ends this process.
                    limit = time.monotonic() + REPORT_SECONDS
                    while link.poll(max(limit - time.monotonic(), 0.0)):
                        link.recv_bytes()
                    return


def _hang_up() -> None:
    """Close all connections of this process to the network, whichever objects still refer to them."""
    for path in list(Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if (
                connection.family != socket.AF_UNIX and connection.getpeername()
            ):  # a listening socket has no peer: OSError
                connection.shutdown(socket.SHUT_RDWR)


def _fails_with_others(error: BaseException) -> bool:
    """Whether an exception may come from a collective operation or a link that another member left."""
    if isinstance(error, EOFError | OSError | distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in GROUP_WORDS)


def interface_of(address: str) -> str:
    """Return the network interface with an IPv4 address; empty if there is none, or if the system does not tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(asked, GET_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


def _check_interface(names: str) -> None:
    """Raise TaskError if the user named a network interface that this machine does not have."""
    there = [name for _, name in socket.if_nameindex()]
    if missing := [name for name in names.split(",") if name and name not in there]:
        raise TaskError(
            f"{INTERFACE}={names!r}: this machine has no network interface {missing[0]!r}, over which the members of a "
            f"team would meet; it has {', '.join(there)}: name one of these, or unset {INTERFACE}"
        )


def _loopback() -> str:
    return "lo" if sys.platform == "linux" else "lo0"
