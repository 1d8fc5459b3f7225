"""The shared memory of an experiment: where it is, when it has room, and when it is given back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopfleet.domain.version_ref import SHARED, VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.store import shared_memory
from hopfleet.store.shared_memory import KEY, KEY_LENGTH, RESERVE_BYTES, SharedMemory
from hopfleet.store.versions.cluster import local_versions
from hopfleet.store.versions.local import MOST_SPARE_BYTES, SPARE_BYTES, SPARES, Versions
from hopfleet.support.processes import identity


def refuse(path: Path, **options: int) -> None:
    raise OSError("busy")


@pytest.fixture
def memory(tmp_path: Path) -> SharedMemory:
    (tmp_path / "shm").mkdir()
    return SharedMemory(tmp_path / "checkpoints", tmp_path / "shm")


def test_what_is_no_folder_is_no_memory(tmp_path: Path, memory: SharedMemory) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "absent"):
        elsewhere = SharedMemory(tmp_path / "checkpoints", place)
        assert elsewhere.in_memory is False
        assert elsewhere.folder == Path(tempfile.gettempdir()) / memory.folder.name
    assert memory.in_memory is True and memory.folder.parent == tmp_path / "shm"


def test_each_node_of_a_machine_has_its_own_folder(tmp_path: Path, memory: SharedMemory) -> None:
    checkpoints = tmp_path / "checkpoints"
    nodes = [SharedMemory(checkpoints, tmp_path / "shm", node=node) for node in ("n1", "n2")]
    assert [node.folder.name for node in nodes] == [f"{memory.folder.name}-n1", f"{memory.folder.name}-n2"]
    own = [local_versions(checkpoints, node).shared_folder.name for node in ("", "n1")]
    assert own == [f"{memory.folder.name}-driver", f"{memory.folder.name}-n1"]


def test_room_is_four_times_the_file_and_a_reserve(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    for size in (0, 1000):
        free = 4 * size + RESERVE_BYTES
        assert memory.has_room(size) is False
        free += 1
        assert memory.has_room(size) is True


def test_batches_are_shared_where_there_is_memory_with_room(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = RESERVE_BYTES + 1
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert memory.batches("run") == memory.folder / "batches-run"
    assert SharedMemory(tmp_path / "checkpoints", tmp_path / "absent").batches("run") is None
    free = RESERVE_BYTES
    assert memory.batches("run") is None


def test_batches_of_earlier_runs_are_cleared_and_versions_stay(memory: SharedMemory) -> None:
    memory.clear_batches()
    memory.create()
    for name in ("batches-one", "batches-two", "t0001"):
        (memory.folder / name).mkdir()
        (memory.folder / name / "file").touch()
    memory.folder.chmod(0o777)
    memory.clear_batches()
    assert (memory.folder / "batches-one").exists(), "others could have put links there"
    memory.folder.chmod(0o700)
    memory.clear_batches()
    assert sorted(path.name for path in memory.folder.iterdir()) == ["owner", "t0001"]


def test_shared_files_of_versions_in_memory_are_on_the_disk(tmp_path: Path, memory: SharedMemory) -> None:
    memory.create()
    assert not (memory.folder / SHARED).exists()
    (tmp_path / "checkpoints" / SHARED).mkdir()
    for _ in range(2):
        memory.create()
    assert (memory.folder / SHARED).resolve() == tmp_path / "checkpoints" / SHARED


def test_memory_that_cannot_be_deleted_is_left(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(tmp_path / "checkpoints", tmp_path / "shm")
    versions.write(VersionRef("t0001", 1, 1), lambda path: path.write_bytes(b"four") and None, durable=False, size=4)
    memory.create(f"{identity(os.getpid())}1")
    (memory.folder / "batches-run").mkdir()
    gone = SharedMemory(tmp_path / "gone", tmp_path / "shm")
    gone.create()
    (tmp_path / "gone" / KEY).unlink()
    (tmp_path / "gone").rmdir()

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        for delete in (memory.clear_batches, memory.sweep, memory.sweep_lost, memory.release):
            delete()
        versions.forget("t0001")
    assert memory.folder.is_dir() and gone.folder.is_dir()
    memory.release()
    assert not memory.folder.exists()


@pytest.mark.parametrize("delete", ["sweep_lost", "release"])
def test_all_memory_that_can_be_given_back_is(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch, delete: str
) -> None:
    memory.create(f"{identity(os.getpid())}1")
    files = [memory.folder / name / "file" for name in ("t0001", "t0002", "t0003")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    monkeypatch.setattr(os, "rmdir", refuse)
    getattr(memory, delete)()
    assert not [file for file in files if file.exists()]


def test_dropped_files_are_written_over(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)

    def fill(path: Path) -> None:
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(bytes(SPARE_BYTES))
            file.truncate()

    first = versions.write(VersionRef("t1", 1, 1), fill, durable=False, size=SPARE_BYTES)
    inode = versions.find(VersionRef("t1", 1, 1)).stat().st_ino
    versions.drop(VersionRef("t1", 1, 1))
    with pytest.raises(CheckpointError):
        versions.find(VersionRef("t1", 1, 1))
    assert versions.write(VersionRef("t2", 5, 2), fill, durable=False, size=SPARE_BYTES) == first
    assert versions.find(VersionRef("t2", 5, 2)).stat().st_ino == inode
    for number in range(2 * SPARES):
        versions.write(VersionRef("t3", number, 3), fill, durable=False, size=SPARE_BYTES)
    for number in range(2 * SPARES):
        versions.drop(VersionRef("t3", number, 3))
    spares = versions.shared_folder / "spare"
    assert len(list(spares.iterdir())) == SPARES
    # ... nor more bytes than that.
    for file in spares.iterdir():
        file.unlink()
    for number in range(2):
        sparse = versions.path(VersionRef("t4", number, 3), durable=False)
        sparse.parent.mkdir(exist_ok=True)
        with sparse.open("wb") as file:
            file.truncate(MOST_SPARE_BYTES // 2 + 1)
        versions.drop(VersionRef("t4", number, 3))
    assert [file.name for file in spares.iterdir()] == ["t4-v00000-3.safetensors"]
    os.truncate(spares / "t4-v00000-3.safetensors", MOST_SPARE_BYTES - SPARE_BYTES)
    versions.write(VersionRef("t5", 1, 3), lambda path: os.truncate(path, SPARE_BYTES), durable=True, size=SPARE_BYTES)
    versions.find(VersionRef("t5", 1, 3)).rename(versions.path(VersionRef("t4", 5, 3), durable=False))
    versions.drop(VersionRef("t4", 5, 3))
    assert len(list(spares.iterdir())) == 2, "but as many"


# ------------------------------------------------------------------------------------------------------------- the key


def test_a_key_that_another_process_is_writing_is_waited_for(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, texts = tmp_path / "checkpoints" / KEY, ["short", "0" * KEY_LENGTH]
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(shared_memory.time, "sleep", lambda seconds: path.write_text(texts.pop(0)))
    assert memory.folder == SharedMemory(tmp_path / "checkpoints", tmp_path / "shm").folder and texts == []


def test_without_a_key_the_folder_is_private_all_the_same(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory.time, "sleep", lambda seconds: None)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / KEY).write_text("never longer")
    without = memory.folder
    (tmp_path / "checkpoints" / KEY).unlink()
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").touch()
    again = SharedMemory(tmp_path / "checkpoints", tmp_path / "shm")
    assert again.folder == without
    again.create()
    assert again.is_private()
