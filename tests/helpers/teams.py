"""Teams for tests: processes forked from the test's own, which itself never joins a process group."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache, Membership, Task

SECONDS = 120.0
"""Seconds that a team has for a test; on a busy machine, processes wait for each other."""


def with_team(task: Task, size: int, work: Callable[[EngineCache, list[int]], Any]) -> Any:
    """Form a team on the CPU and do some work in its first member; return what ``work`` returns, or raise its error.

    ``work`` takes the engine cache of the first member and the process ids of the others.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_lead, args=(task, size, work, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(SECONDS), "the team does not answer"
        done, value = ours.recv()
    finally:
        process.kill()
        process.join()
    if done:
        return value
    raise value


def _lead(task: Task, size: int, work: Callable[[EngineCache, list[int]], Any], answer: Connection) -> None:
    placement = Placement(("cpu",) * size)
    pairs = [socket.socketpair() for _ in range(size - 1)]
    pids = [_follow(task, rank, placement, pairs) for rank in range(1, size)]
    links = []
    for mine, theirs in pairs:
        theirs.close()
        links.append(Connection(mine.detach()))
    cache = EngineCache()
    try:
        cache.team = task.framework.join(Membership(0, placement, links))
        answer.send((True, work(cache, pids)))
    except BaseException as error:
        answer.send((False, error))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _follow(task: Task, rank: int, placement: Placement, pairs: list[tuple[socket.socket, socket.socket]]) -> int:
    """Fork another member; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number, (mine, theirs) in enumerate(pairs, 1):
            mine.close()
            if number != rank:
                theirs.close()
        framework = task.framework
        framework.follow(framework.join(Membership(rank, placement, [Connection(pairs[rank - 1][1].detach())])))
    finally:
        os._exit(0)
