"""Members of a team find each other although strangers call."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection

import pytest

from hopfleet.backends.ray import links
from hopfleet.backends.ray.links import LOOPBACK, Seat
from hopfleet.errors import UsageError
from hopfleet.frameworks.teams import MemberLost
from hopfleet.support import meeting

SECRET = b"of this team"


def seat(rank: int, secret: bytes = SECRET) -> Seat:
    return Seat(rank, ("a", "a", "b"), LOOPBACK, secret)


def called(place: tuple[str, int], *ranks: int, device: str = "cpu") -> list[Connection]:
    """Let members call; return their connections once they have some."""
    made: list[Connection] = []
    threads = [
        threading.Thread(target=lambda rank=rank: made.append(links.call(place, seat(rank), device)), daemon=True)
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    return made


def test_members_meet_in_the_order_of_their_ranks_whoever_else_calls() -> None:
    listener = meeting.listen(LOOPBACK)
    place = listener.getsockname()
    with socket.create_connection(place), socket.create_connection(place) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        stranger = threading.Thread(target=_refused, args=(place,), daemon=True)
        stranger.start()
        called(place, 2, 1)
        first, second = links.welcome(listener, seat(0), "cpu")
        stranger.join(60)
        assert not stranger.is_alive()
    del first, second
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)


def _refused(place: tuple[str, int]) -> None:
    with pytest.raises((MemberLost, OSError)):
        links.call(place, seat(1, b"guessed"), "cpu")


def test_connections_lead_to_the_right_members() -> None:
    listener = meeting.listen(LOOPBACK)
    place = listener.getsockname()
    callers = {}

    def call(rank: int) -> None:
        callers[rank] = links.call(place, seat(rank), "cpu")
        callers[rank].send(rank)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in (2, 1)]
    for thread in threads:
        thread.start()
    assert [link.recv() for link in links.welcome(listener, seat(0), "cpu")] == [1, 2]
    for thread in threads:
        thread.join()
    assert seat(0).apart == {2}


def test_a_member_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "START_SECONDS", 0.2)
    with pytest.raises(MemberLost, match="no word from member 1, 2 in 0 s"):
        links.welcome(meeting.listen(LOOPBACK), seat(0), "cpu")


def test_an_address_without_a_port() -> None:
    """Where all ports are in use, or the address is that of another machine."""
    with pytest.raises(UsageError, match=r"no port can be opened at 203\.0\.113\.1 \(.*\), where"):
        meeting.listen("203.0.113.1")


def test_devices_of_different_kinds() -> None:
    listener = meeting.listen(LOOPBACK)
    called(listener.getsockname(), 1, 2, device="cuda:0")
    with pytest.raises(UsageError, match=r"devices of different kinds \(cpu, cuda:0, cuda:0\)"):
        links.welcome(listener, seat(0), "cpu")


def test_a_stranger_in_place_of_the_first_member() -> None:
    """A member tells nothing to a process that does not know the secret."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        heard: list[bytes] = []

        def answer() -> None:
            link = meeting._link(listener.accept()[0])
            link.send_bytes(b"#CHALLENGE#{sha256}" + b"0" * 20)
            heard.append(link.recv_bytes(256))
            link.send_bytes(b"#WELCOME#")
            heard.append(link.recv_bytes(256))
            link.send_bytes(b"guessed")
            link.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MemberLost, match="does not answer as a member should"):
            links.call(listener.getsockname(), seat(1), "cpu")
        thread.join()
    assert SECRET not in b"".join(heard)
