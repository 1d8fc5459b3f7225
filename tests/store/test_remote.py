"""A storage that stalls: operations end in time, and nothing counts as lost while there is no answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError
from hopfleet.store.versions import cluster, remote
from hopfleet.store.versions.cluster import NodeVersions, RemoteVersions, local_versions
from hopfleet.store.versions.remote import Remote
from hopfleet.support.files import transfers as files
from hopfleet.support.logging import STORAGE, messages
from hopfleet.worker.records import RecordReporter

REF = VersionRef("t0001", 4, 7)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A file system in memory that answers nothing until the event is set."""
    from fsspec.implementations.memory import MemoryFileSystem

    answers = threading.Event()
    monkeypatch.setattr(remote, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(files, "FIRST_PAUSE", 0.0625)
    for name in ("put_file", "get_file", "size", "find", "cat_file"):
        before = getattr(MemoryFileSystem, name)

        def wait(self: Any, *arguments: Any, before: Any = before, **options: Any) -> Any:
            answers.wait(60)
            return before(self, *arguments, **options)

        monkeypatch.setattr(MemoryFileSystem, name, wait)
    yield answers
    answers.set()


def test_operations_end_in_time(stalled: threading.Event, tmp_path: Path) -> None:
    storage = Remote(f"memory://{tmp_path}")
    (tmp_path / "file").write_bytes(b"four")
    with pytest.raises(OSError, match=r"/t0001/v.safetensors: cannot be sent \(TimeoutError: no answer within"):
        storage.upload(tmp_path / "file", "t0001/v.safetensors")
    with pytest.raises(OSError, match=r"cannot be fetched \(TimeoutError: no answer within"):
        storage.download("t0001/v.safetensors", tmp_path / "copy")
    with pytest.raises(OSError, match=r"cannot be listed \(TimeoutError: no answer within"):
        storage.names()
    with pytest.raises(TimeoutError):
        storage.read_text("token")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left of the attempts"


def test_a_node_waits_for_a_version_and_the_driver_says_so(
    stalled: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{tmp_path}/storage"
    node, writer = (NodeVersions(local_versions(tmp_path / name, name), url) for name in ("n1", "n2"))
    driver = RemoteVersions(local_versions(tmp_path / "run"), url)
    stalled.set()
    monkeypatch.setattr(remote, "STALL_SECONDS", 60.0)
    writer.write(REF, lambda path: path.write_bytes(b"four"), durable=True, size=4)
    writer.send(REF)
    stalled.clear()
    monkeypatch.setattr(remote, "STALL_SECONDS", 0.05)
    assert writer.find(REF).read_bytes() == b"four", "no storage is needed where the version was made"
    with pytest.raises(OSError, match="cannot be fetched"):
        driver.find(REF)
    with pytest.raises(OSError, match="cannot be listed"):
        driver.collect()
    reported: list[str] = []
    reporter = RecordReporter(lambda trial, text: reported.append(text))
    messages(STORAGE).addHandler(reporter)
    pauses: list[tuple[float, int]] = []
    said = BufferingHandler(100)  # records may also reach the root, whose handlers pytest has
    messages(STORAGE).addHandler(said)

    def sleep(seconds: float) -> None:
        pauses.append((seconds, len(said.buffer)))
        if len(pauses) == 3:
            stalled.set()
            monkeypatch.setattr(remote, "STALL_SECONDS", 60.0)

    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=sleep))
    assert node.find(REF).read_bytes() == b"four"
    for handler in (reporter, said):
        messages(STORAGE).removeHandler(handler)
    assert pauses == [(0.0625, 1), (0.125, 1), (0.25, 1)], "it says so at once, and once"
    assert len(reported) == 1 and "cannot be fetched" in reported[0] and "waiting for the storage" in reported[0]
    with pytest.raises(CheckpointError, match="is not there"):
        node.find(REF._replace(version=5))
    for versions in (node, writer):
        versions.release()


def test_a_job_that_ends_in_time() -> None:
    assert files.limited(lambda: 1, 10.0) == 1
    with pytest.raises(ZeroDivisionError):
        files.limited(lambda: 1 / 0, 10.0)
    with pytest.raises(TimeoutError, match="of its own"):
        files.limited(lambda: (_ for _ in ()).throw(TimeoutError("of its own")), 10.0)
