"""What only processes can do: die, fall silent, and be replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hopfleet.backends import local
from hopfleet.backends.local import Local
from hopfleet.domain.messages import UnitFinished, WorkerJoined, WorkerLost
from hopfleet.errors import WorkersLost
from hopfleet.testing.backends import job, trial, unit, wait_for


def test_a_killed_worker_is_reported_and_replaced(tmp_path: Path) -> None:
    backend = Local()
    backend.start(job(tmp_path), 1)
    (joined,) = wait_for(backend, WorkerJoined)
    os.kill(backend._members[joined.worker].pid, signal.SIGKILL)
    (lost,) = wait_for(backend, WorkerLost)
    assert lost.worker == joined.worker
    (fresh,) = wait_for(backend, WorkerJoined)
    assert fresh.worker != joined.worker
    # A command for the dead one is swallowed; its loss has been told already.
    backend.send(unit(joined.worker), trial())
    backend.send(unit(fresh.worker), trial())
    wait_for(backend, UnitFinished)
    backend.close()


def test_a_stopped_worker_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SILENCE_SECONDS", 3.0)
    backend = Local()
    backend.start(job(tmp_path), 1)
    (joined,) = wait_for(backend, WorkerJoined)
    os.kill(backend._members[joined.worker].pid, signal.SIGSTOP)
    (lost,) = wait_for(backend, WorkerLost)
    assert "silent" in lost.reason
    wait_for(backend, WorkerJoined)
    backend.close()


def test_workers_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.sys, "executable", "/bin/false")
    backend = Local()
    with pytest.raises(WorkersLost, match=r"could not be started.*workers\.log"):
        backend.start(job(tmp_path), 1)
    backend.close(kill=True)
