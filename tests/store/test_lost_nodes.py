"""Shared memory of nodes that were lost is given back by the next node agent of the user on that machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hopfleet.backends.ray.versions import StorageLocation
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.support.processes import identity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which processes have ended")


def test_memory_of_lost_nodes_is_swept_and_that_of_others_stays(tmp_path: Path) -> None:
    checkpoints, tmpfs = tmp_path / "checkpoints", tmp_path / "shm"
    checkpoints.mkdir()
    tmpfs.mkdir()
    lost, living, alone = (SharedMemory(checkpoints, tmpfs, node=node) for node in ("lost", "living", ""))
    lost.create(f"{identity(os.getpid())}1")
    living.create(identity(os.getppid()))
    alone.create()
    SharedMemory(tmp_path / "another", tmpfs, node="next").sweep_lost()
    assert not lost.folder.exists()
    assert living.folder.exists() and alone.folder.exists()


def test_a_node_marks_its_memory_with_its_raylet(tmp_path: Path) -> None:
    location = StorageLocation(tmp_path / "checkpoints")
    location.prepare("node")
    memory = location.local("node").memory
    assert (memory.folder / "process").read_text() == identity(os.getppid())
    location.sweep("another")
    assert memory.folder.exists()
    memory.release()
