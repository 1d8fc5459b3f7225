"""The built-in stores pass the suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopfleet.errors import UsageError
from hopfleet.store.base import Store, VersionStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import LocalStore, find_store, store_of
from hopfleet.store.versions.cluster import NodeVersions, RemoteVersions, link_storage, local_versions
from hopfleet.store.versions.forwarding import ForwardingVersions
from hopfleet.store.versions.local import Versions
from hopfleet.testing.stores import StoreSuite, VersionSuite
from tests.helpers.definitions import definition


class TestLocal(StoreSuite):
    def make(self) -> Store:
        return LocalStore()


class TestWithoutSharedMemory(VersionSuite):
    def versions(self, checkpoints: Path) -> VersionStore:
        return Versions(checkpoints, tmpfs=checkpoints / "absent")


class TestSharedFolderOfACluster(VersionSuite):
    """The driver's view of a folder that all nodes share, by a link in the run folder."""

    def versions(self, checkpoints: Path) -> VersionStore:
        link_storage(checkpoints, checkpoints.parent / "shared")
        return local_versions(checkpoints)


class TestNodeOfACluster(VersionSuite):
    def versions(self, checkpoints: Path) -> VersionStore:
        return local_versions(checkpoints, "n1")


@pytest.mark.parametrize("scheme", ["memory", "file"])
class TestUrl(VersionSuite):
    """The driver's view of versions behind a URL."""

    @pytest.fixture(autouse=True)
    def _scheme(self, scheme: str) -> None:
        self.scheme = scheme

    def versions(self, checkpoints: Path) -> VersionStore:
        return RemoteVersions(local_versions(checkpoints), f"{self.scheme}://{checkpoints.parent / 'remote'}")


class TestForwarding(VersionSuite):
    def versions(self, checkpoints: Path) -> VersionStore:
        return ForwardingVersions(Versions(checkpoints))


class TestNodeAndDriver(VersionSuite):
    """A node writes and the driver manages, with a URL between them."""

    def versions(self, checkpoints: Path) -> VersionStore:
        url = f"memory://{checkpoints.parent}"
        node = NodeVersions(local_versions(checkpoints.parent / "uploads", "n1"), url)
        return Written(RemoteVersions(local_versions(checkpoints), url), node)


class Written(ForwardingVersions):
    """The driver's versions; ``node`` saves them, and drops them as the driver does."""

    def __init__(self, driver: RemoteVersions, node: NodeVersions) -> None:
        super().__init__(driver)
        self._node = node

    def write(self, ref, write, *, durable, size):
        if durable:
            return self._node.write(ref, write, durable=True, size=size)
        return self._inner.write(ref, write, durable=False, size=size)

    def send(self, ref):
        self._inner.send(ref)  # a kept version lies in the run folder
        self._node.send(ref)

    def release(self):
        self._node.release()
        self._inner.release()


def test_stores_are_found_by_name(tmp_path: Path) -> None:
    assert isinstance(find_store("local"), LocalStore)
    with pytest.raises(UsageError, match="store='elsewhere': unknown; there are local"):
        find_store("elsewhere")
    run = RunFolder(tmp_path / "run")
    assert isinstance(store_of(run), LocalStore)
    run.create(definition("run", store="elsewhere"))
    with pytest.raises(UsageError, match="store='elsewhere'"):
        store_of(run)
