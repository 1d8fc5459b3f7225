"""The process that forks workers of this machine, started before the backend knows all that workers need."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hopfleet.backends.local import fork_server
from hopfleet.backends.local.backend import Local
from hopfleet.domain.messages import WorkerJoined
from hopfleet.testing.backends import spec, wait_for


def server_of(backend: Local) -> int:
    assert backend._fork_server is not None
    return backend._fork_server.pid


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("suits", [True, False])
def test_workers_come_from_a_fork_server_that_was_started_ahead_if_it_suits(tmp_path: Path, suits: bool) -> None:
    asked, backend = spec(tmp_path), Local()
    with backend.warmed_up(list(asked.task.preload), asked.threads if suits else 7, asked.logs):
        ahead = server_of(backend)
        backend.start(asked, 1)
        assert (server_of(backend) == ahead) is suits
        assert lives(ahead) is suits
        wait_for(backend, WorkerJoined)
        backend.close()
    assert not lives(ahead)


def test_a_fork_server_that_was_started_in_vain_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "STOPPED_SECONDS", 60.0)
    asked, backend = spec(tmp_path), Local()
    with backend.warmed_up(["torch"], 1, asked.logs):
        assert lives(server_of(backend))
        assert backend._fork_server is not None
        process = backend._fork_server._process
    assert process.returncode == -signal.SIGKILL, "it was not asked to end by itself, which takes an import"
    assert backend._fork_server is None  # workers that are started later have another
