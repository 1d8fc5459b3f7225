"""Files that versions share: they go where the versions go, and end with the last version that refers to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from hopfleet.domain.version_ref import SHARED, VersionRef
from hopfleet.store.versions.cluster import NodeVersions, RemoteVersions, local_versions
from hopfleet.store.versions.local import LONGEST_HEADER, Versions, named_in, references

CONTENTS = {letter: save({"tensor": np.full(4, ord(letter))}) for letter in "ab"}
NAMES = {letter: hashlib.sha256(content).hexdigest() for letter, content in CONTENTS.items()}
FIRST, SECOND = VersionRef("t0001", 1, 1), VersionRef("t0002", 1, 2)


def writer(versions: Versions, *letters: str) -> Callable[[Path], None]:
    """Return a function that writes a version and the files that it shares, as a framework does."""

    def write(path: Path) -> None:
        for letter in letters:
            (path.parent.parent / SHARED / f"{NAMES[letter]}.safetensors").write_bytes(CONTENTS[letter])
        save_file({"x": np.zeros(2)}, path, metadata={SHARED: " ".join(NAMES[letter] for letter in letters)})

    (versions.durable_folder / SHARED).mkdir(parents=True, exist_ok=True)
    return write


def shared_files(folder: Path) -> list[str]:
    names = {f"{name}.safetensors": letter for letter, name in NAMES.items()}
    return sorted(names.get(path.name, path.name) for path in (folder / SHARED).iterdir())


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "hopping"])
def test_a_shared_file_stays_until_no_version_needs_it(tmp_path: Path, durable: bool) -> None:
    versions = Versions(tmp_path / "checkpoints")
    for ref, letters in ((FIRST, "a"), (SECOND, "ab")):
        versions.write(ref, writer(versions, *letters), durable=durable, size=100)
    assert references(versions.find(SECOND)) == [NAMES["a"], NAMES["b"]]
    folder = versions.durable_folder
    (folder / SHARED / f".{NAMES['b']}.safetensors.17").write_bytes(b"half")
    (folder / SHARED / "notes.txt").write_text("mine")
    versions.tidy([FIRST, SECOND])
    assert shared_files(folder) == ["a", "b", "notes.txt"]
    versions.drop(SECOND)
    versions.tidy([FIRST])
    assert shared_files(folder) == ["a", "notes.txt"]
    versions.tidy([])
    assert shared_files(folder) == ["notes.txt"]
    versions.release()
    assert shared_files(folder) == ["notes.txt"]


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\x05\0\0\0\0\0\0\0[1,2]", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0{}"],
    ids=["empty", "short", "list", "long", "without"],
)
def test_a_file_without_a_header_refers_to_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "version").write_bytes(content)
    assert references(tmp_path / "version") == []
    assert references(tmp_path / "missing") == []


def test_a_version_that_is_a_link_refers_to_what_its_file_names(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints")
    versions.write(FIRST, writer(versions, "a"), durable=True, size=100)
    path = versions.find(FIRST).rename(tmp_path / "elsewhere")
    versions.path(FIRST, durable=True).symlink_to(path)
    versions.tidy([FIRST])
    assert shared_files(versions.durable_folder) == ["a"]


@pytest.mark.parametrize(("length", "names"), [(LONGEST_HEADER, ["abc"]), (LONGEST_HEADER + 1, [])])
def test_a_header_that_no_library_reads_is_not_read(length: int, names: list[str]) -> None:
    header = b'{"__metadata__": {"shared": "abc"}}'
    assert named_in(lambda start, end: header if start else length.to_bytes(8, "little")) == names


def test_shared_files_travel_with_the_versions_of_a_cluster(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}/storage"
    node, other = (NodeVersions(local_versions(tmp_path / name, name), url) for name in ("n1", "n2"))
    driver = RemoteVersions(local_versions(tmp_path / "run"), url)
    for ref, letters in ((FIRST, "a"), (SECOND, "ab")):
        node.write(ref, writer(node.local, *letters), durable=True, size=100)
        node.send(ref)
    (tmp_path / "n2" / SHARED).mkdir(parents=True)
    other.find(FIRST)
    assert shared_files(tmp_path / "n2") == ["a"]
    driver.tidy([FIRST, SECOND])
    driver.collect("t0001")
    assert shared_files(tmp_path / "run") == ["a", "b"]
    assert driver.find(FIRST) == tmp_path / "run" / "t0001" / "v00001-1.safetensors"
    driver.drop(SECOND)
    driver.tidy([FIRST])
    assert shared_files(tmp_path / "run") == ["a"]
    assert sorted(driver._remote.names()) == [f"{SHARED}/{NAMES['a']}.safetensors", "t0001/v00001-1.safetensors"]
    for each in (node, other):
        each.release()
