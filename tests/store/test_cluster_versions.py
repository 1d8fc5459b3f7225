"""Versions of an experiment on several machines: from node to node, behind a URL, and back into the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, MissingExtra, UsageError
from hopfleet.store.versions import remote
from hopfleet.store.versions.cluster import (
    NodeVersions,
    RemoteVersions,
    content,
    link_storage,
    local_versions,
    receive,
)
from hopfleet.store.versions.forwarding import ForwardingVersions
from hopfleet.store.versions.remote import SLOW_BYTES, STALL_SECONDS, Remote
from tests.helpers.open_files import synced

REF, CLONE, HOP = VersionRef("t0001", 4, 7), VersionRef("t0002", 4, 8), VersionRef("t0001", 5, 9)


def write(text: str = "four") -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


class Machines:
    """A driver and two nodes, with a storage between them."""

    def __init__(self, folder: Path, scheme: str) -> None:
        self.url = f"{scheme}://{folder}/storage"
        self.driver = RemoteVersions(local_versions(folder / "run"), self.url)
        self.node, self.other = (NodeVersions(local_versions(folder / name, name), self.url) for name in ("n1", "n2"))
        self.storage = Remote(self.url)

    def save(self, ref: VersionRef, text: str = "four") -> str:
        sha, _ = self.node.write(ref, write(text), durable=True, size=4)
        self.node.send(ref)
        return sha


@pytest.fixture(params=["memory", "file"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path, request.param)
    yield made
    for versions in (made.driver, made.node, made.other):
        versions.release()


def test_a_version_that_was_sent_is_found_everywhere(machines: Machines) -> None:
    sha = machines.save(REF)
    assert machines.storage.names() == ["t0001/v00004-7.safetensors"]
    assert machines.node.find(REF, sha) == machines.node.path(REF, durable=True), "it stays where it was made"
    found = machines.driver.find(REF, sha)
    assert found == machines.driver.path(REF, durable=True) and found.read_text() == "four"
    found = machines.other.find(REF, sha)
    assert found == machines.other.path(REF, durable=False) and found.read_text() == "four", "for one use"
    with pytest.raises(CheckpointError, match=f"{machines.url}/t0001/v00004-9.safetensors: is not there"):
        machines.driver.find(REF._replace(attempt=9))


def test_a_version_that_was_damaged_in_the_storage_is_refused(machines: Machines) -> None:
    sha = machines.save(REF)
    machines.storage.put_text("t0001/v00004-7.safetensors", "fuor")
    for versions in (machines.driver, machines.other):
        with pytest.raises(CheckpointError, match="is damaged"):
            versions.find(REF, sha)


def test_a_file_that_waits_to_be_sent_waits_for_no_disk_and_one_that_stays_does(machines: Machines) -> None:
    with synced() as waited:
        for ref, durable in ((REF, True), (HOP, False)):
            machines.node.write(ref, write(), durable=durable, size=4)
        assert waited == []
        machines.driver.local.write(REF, write(), durable=True, size=4)
        machines.driver.keep(HOP._replace(version=4), 7)
    names = [name for name in waited if name.startswith(".v")]
    assert [name[: len(".v00004-7")] for name in names] == [".v00004-7", ".v00004-9"]


def test_a_clone_on_another_node_finds_the_model_of_its_parent(machines: Machines) -> None:
    sha = machines.save(REF)
    assert machines.driver.copy(REF, CLONE, sha) == (sha, 4)
    assert machines.other.find(CLONE, sha).read_text() == "four"


def test_only_the_driver_deletes_what_was_sent(machines: Machines) -> None:
    sha = machines.save(REF)
    for delete in (lambda: machines.node.drop(REF), lambda: machines.node.forget("t0001")):
        machines.node.write(REF, write("late"), durable=True, size=4)
        delete()
        assert not machines.node.path(REF, durable=True).exists()
        assert machines.storage.names() == ["t0001/v00004-7.safetensors"]
    machines.node.send(REF)
    assert machines.driver.find(REF, sha).read_text() == "four", "nothing was there to send"
    machines.driver.forget("t0001")
    machines.driver.forget("t0001")
    assert machines.storage.names() == []


def test_a_node_that_ends_leaves_nothing_on_its_machine(machines: Machines) -> None:
    machines.node.write(REF, write(), durable=True, size=4)
    machines.node.write(HOP, write(), durable=False, size=4)
    memory, folder = machines.node.local.memory.folder, machines.node.local.durable_folder
    assert memory.is_dir() and folder.is_dir()
    machines.node.release()
    assert not memory.exists() and not folder.exists()


def test_a_store_that_forwards_sends_too(machines: Machines) -> None:
    forwarding = ForwardingVersions(machines.node)
    forwarding.write(REF, write(), durable=True, size=4)
    forwarding.send(REF)
    assert machines.storage.names() == ["t0001/v00004-7.safetensors"] and forwarding.sends


def test_files_of_others_in_the_storage_stay(machines: Machines, tmp_path: Path) -> None:
    mine = ["notes.safetensors", "t0001/weights.safetensors", "shared/readme.safetensors"]
    for name in (*mine, f"shared/{'0' * 64}.safetensors"):
        (tmp_path / "file").write_text("mine")
        machines.storage.upload(tmp_path / "file", name)
    machines.save(REF)
    machines.save(CLONE)
    machines.driver.tidy([REF])
    assert sorted(machines.storage.names()) == sorted([*mine, "t0001/v00004-7.safetensors"])


# --------------------------------------------------------------------------------------------------- from node to node


def test_a_version_goes_from_the_memory_of_one_node_to_that_of_another(machines: Machines) -> None:
    machines.node.write(HOP, write("the model"), durable=False, size=9)
    found = content(machines.node.local, HOP)
    assert found.dtype == np.uint8 and found.tobytes() == b"the model"
    receive(machines.other.local, HOP, found)
    arrived = machines.other.local.find(HOP)
    assert arrived == machines.other.path(HOP, durable=False) and arrived.read_text() == "the model"
    machines.node.write(HOP, lambda path: None, durable=False, size=0)
    with pytest.raises(CheckpointError, match="cannot be read"):
        content(machines.node.local, HOP)


# ------------------------------------------------------------------------------------------- a folder that nodes share


def test_checkpoints_move_to_the_folder_that_all_nodes_share(tmp_path: Path) -> None:
    checkpoints, storage = tmp_path / "run" / "checkpoints", tmp_path / "storage" / "run"
    (checkpoints / "t0001").mkdir(parents=True)
    (checkpoints / "t0001" / "v00001.safetensors").write_text("model")
    for _ in range(2):
        link_storage(checkpoints, storage)
        assert checkpoints.is_symlink() and checkpoints.resolve() == storage
        assert (storage / "t0001" / "v00001.safetensors").read_text() == "model"
    link_storage(checkpoints, tmp_path / "elsewhere")
    assert checkpoints.resolve() == storage, "a link is left as it is"


def test_checkpoints_may_be_in_the_shared_folder_already(tmp_path: Path) -> None:
    (tmp_path / "real" / "checkpoints").mkdir(parents=True)
    (tmp_path / "real" / "checkpoints" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    link_storage(tmp_path / "real" / "checkpoints", tmp_path / "link" / "checkpoints")
    assert not (tmp_path / "real" / "checkpoints").is_symlink()
    assert (tmp_path / "real" / "checkpoints" / "file").is_file()


# ---------------------------------------------------------------------------------------------------------- the storage


def test_no_half_a_file_is_left_in_a_storage(tmp_path: Path) -> None:
    storage = Remote(f"file://{tmp_path}/storage")
    (tmp_path / "version").write_text("four")
    for _ in range(2):
        storage.upload(tmp_path / "version", "t0001/v1.safetensors")
    assert [path.name for path in (tmp_path / "storage" / "t0001").iterdir()] == ["v1.safetensors"]
    storage.download("t0001/v1.safetensors", tmp_path / "new" / "folder" / "v1.safetensors")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["v1.safetensors"]


def test_a_download_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Remote(f"file://{tmp_path}/storage")
    storage.put_text("v1.safetensors", "four")

    def half(source: str, target: str) -> None:
        Path(target).write_text("fo")
        raise PermissionError("denied in the middle")

    monkeypatch.setattr(storage._files, "get_file", half)
    with pytest.raises(OSError, match="cannot be fetched"):
        storage.download("v1.safetensors", tmp_path / "target" / "v1.safetensors")
    assert list((tmp_path / "target").iterdir()) == []


def test_large_files_have_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def noted(job: Callable[[], Any], seconds: float) -> Any:
        limits.append(seconds)
        return job()

    monkeypatch.setattr(remote, "limited", noted)
    storage = Remote(f"file://{tmp_path}/storage")
    (tmp_path / "version").write_bytes(bytes(3 * SLOW_BYTES))
    storage.upload(tmp_path / "version", "v1.safetensors")
    storage.download("v1.safetensors", tmp_path / "copy")
    assert limits == [STALL_SECONDS + 3.0, STALL_SECONDS, STALL_SECONDS + 3.0]
    monkeypatch.setattr(storage._files, "size", lambda path: None)  # some servers do not tell
    storage.download("v1.safetensors", tmp_path / "copy")
    assert storage.names() == ["v1.safetensors"]
    assert limits[3:] == [STALL_SECONDS] * 3


def test_only_versions_are_listed_and_those_of_other_machines_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, found, cached = Remote(f"file://{tmp_path}/storage"), None, []
    storage.put_text("token", "text")
    assert storage.read_text("token") == "text"
    storage.put_text("v1.safetensors", "four")
    find = storage._files.find

    def caching(path: str) -> list[str]:
        if not cached:
            cached.append(find(path))
        return cached[0]

    monkeypatch.setattr(storage._files, "find", caching)
    monkeypatch.setattr(storage._files, "invalidate_cache", cached.clear)
    for number in (1, 2):
        storage.put_text(f"v{number}.safetensors", "four")
        found = sorted(storage.names())
    assert found == ["v1.safetensors", "v2.safetensors"]


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://bucket/run"])
def test_a_storage_whose_package_is_not_installed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("install the package")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises((MissingExtra, UsageError)) as refused:
        Remote(url)
    assert isinstance(refused.value, MissingExtra) is url.startswith("s3")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="storage='nothing://run': cannot be opened"):
        Remote("nothing://run")
