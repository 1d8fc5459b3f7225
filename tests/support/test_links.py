"""Links between machines, measured by transfers."""

from __future__ import annotations

import itertools
import socket

import pytest

from hopfleet.support import links


def test_a_link_to_a_server():
    server = links.LinkServer("127.0.0.1")
    try:
        assert 0 < links.seconds_per_byte("127.0.0.1", server.port, 1 << 20) < 1e-3
        # Several machines ask at once, and each is answered.
        assert all(links.seconds_per_byte("127.0.0.1", server.port, 1) > 0 for _ in range(3))
    finally:
        server.close()


def test_a_server_that_is_closed_cannot_be_reached():
    server = links.LinkServer("127.0.0.1")
    server.close()
    with pytest.raises(OSError, match="refused"):
        links.seconds_per_byte("127.0.0.1", server.port, 1)


def test_a_server_that_goes_away_is_an_error_and_not_a_rate():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        listener.accept()[0].close()
        with client, pytest.raises(ConnectionError):
            links._fetch(client, 8)


def test_within_this_machine():
    assert 0 < links.within(1 << 16) < 1e-3


@pytest.mark.parametrize("count", range(1, 10))
def test_rounds_have_every_pair_once_and_no_number_twice(count: int):
    found = list(links.rounds(count))
    for pairs in found:
        members = list(itertools.chain.from_iterable(pairs))
        assert len(members) == len(set(members))
    assert sorted(itertools.chain.from_iterable(found)) == list(itertools.combinations(range(count), 2))
    assert len(found) <= count
