"""Data sets and model versions on a real S3 server, on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.ray.nodes import Token
from hopfleet.backends.ray.versions import StorageLocation
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, DataError, UsageError
from hopfleet.store.versions.cluster import NodeVersions, RemoteVersions, content, local_versions, receive
from hopfleet.support.files import digest as digest_of_file
from hopfleet.support.files import transfers as files

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not (find_spec("s3fs") and find_spec("moto")), reason="needs s3fs and moto"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket, with credentials in the environment, as people have them."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.01)
    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem()
    store.mkdir("data")
    yield "s3://data"
    store.rm("data", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_data_set_is_written_and_fetched(bucket: str) -> None:
    hop.partition({"x": np.arange(20)}, f"{bucket}/set", partitions=2)
    opened = hop.open_dataset(f"{bucket}/set")
    opened.check(checksums=True)
    found = np.concatenate([batch["x"] for part in range(2) for batch in opened.batches(part, batch_size=4)])
    assert sorted(found) == list(range(20))


def test_what_is_missing_is_named(bucket: str) -> None:
    import s3fs

    with pytest.raises(DataError, match=r"s3://data/nothing: no such folder, or no manifest.json in it"):
        hop.open_dataset(f"{bucket}/nothing")
    hop.partition({"x": np.arange(20)}, f"{bucket}/set", partitions=2)
    s3fs.S3FileSystem().rm("data/set/part-00001.arrow")
    with pytest.raises(DataError, match=r"s3://data/set/part-00001.arrow: is missing"):
        hop.open_dataset(f"{bucket}/set").probe()


def test_objects_that_rows_name(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    class Spec(hop.ETLSpec):
        is_feature_download = ("object",)

        def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
            return np.frombuffer((Path(object_dir) / row["object"]).read_bytes(), np.uint8), 0

    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    store, asked, request = s3fs.S3FileSystem(), list[str](), s3fs.S3FileSystem._call_s3
    store.pipe({f"data/{number}.bin": bytes([number] * 3) for number in range(4)})

    async def counted(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        asked.append(method)
        return await request(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    source = {"object": [f"{bucket}/{number}.bin" for number in range(4)]}
    made = hop.prepare(source, tmp_path / "set", Spec(), partitions=1)
    assert [row.tolist() for batch in made.batches(0, batch_size=4) for row in batch["x"]] == [
        [n] * 3 for n in range(4)
    ]
    assert asked == ["get_object"] * 4
    source["object"][1:3] = [f"{bucket}/absent.bin", f"{bucket}/[0].bin"]
    with pytest.raises(
        DataError,
        match=r"the source, row 2: s3://data/absent\.bin: no such object; "
        r"upload it, or correct the row; hop\.prepare\(on_error='skip'\) leaves out",
    ):
        hop.prepare(source, tmp_path / "other", Spec(), partitions=1)


def test_without_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match=r"s3://data/set: .*credentials"):
        hop.open_dataset(f"{bucket}/set")


def test_a_transfer_that_breaks_off_is_tried_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hop.partition({"x": np.arange(20)}, f"{bucket}/set", partitions=1)
    opened = hop.open_dataset(f"{bucket}/set")
    calls: list[float] = []
    monkeypatch.setattr(files.time, "sleep", calls.append)
    broken = [ConnectionResetError("broken off"), ValueError("whatever a library raises")]
    store, _ = opened._folder.filesystem()  # type: ignore[union-attr]
    get = store.get_file

    def get_file(*arguments: object, **options: object) -> object:
        if broken:
            raise broken.pop()
        return get(*arguments, **options)

    monkeypatch.setattr(store, "get_file", get_file)
    opened.fetch(0)
    assert calls == [0.01, 0.02]


def test_versions_go_to_the_bucket_and_come_back(bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/kept/run"
    first, second, third = (NodeVersions(local_versions(tmp_path / name, name), url) for name in ("n1", "n2", "n3"))
    driver = RemoteVersions(local_versions(tmp_path / "run"), url)
    one, two, clone = VersionRef("t0001", 4, 7), VersionRef("t0002", 1, 9), VersionRef("t0003", 4, 10)
    digest, size = first.write(one, lambda path: path.write_bytes(b"four"), durable=True, size=4)
    first.send(one)
    assert (size, digest_of_file(second.find(one, digest))) == (4, digest)
    assert first.find(one, digest) == first.path(one, durable=True), "the node keeps its copy"
    receive(first.local, two._replace(attempt=8), np.frombuffer(b"one", np.uint8))
    assert content(first.local, two._replace(attempt=8)).tobytes() == b"one"
    assert first.keep(two, 8)[1] == 3
    first.send(two)
    first.send(two)  # it is there already
    assert driver.copy(one, clone) == (digest, 4)
    assert second.find(clone, digest).read_bytes() == b"four"
    with pytest.raises(CheckpointError, match="is damaged"):
        third.find(clone, "another digest")
    for versions in (driver, second):
        versions.drop(one)
    with pytest.raises(CheckpointError, match=r"s3://data/kept/run/t0001/v00004-7.safetensors: is not there"):
        second.find(one)
    driver.collect("t0003")
    assert driver.path(clone, durable=True).read_bytes() == b"four"
    driver.tidy([two])
    driver.collect()
    assert [path.name for path in (tmp_path / "run").rglob("*.safetensors")] == ["v00001-9.safetensors"]
    assert driver.path(two, durable=True).read_bytes() == b"one"
    for versions in (first, second, third, driver):
        versions.release()


def test_what_is_at_hand_is_found_and_dropped_without_asking_the_bucket(bucket: str, tmp_path: Path) -> None:
    node = NodeVersions(local_versions(tmp_path / "n1", "n1"), f"{bucket}/kept/run")
    receive(node.local, VersionRef("t0001", 1, 2), np.frombuffer(b"one", np.uint8))
    assert node.find(VersionRef("t0001", 1, 2)).read_bytes() == b"one"
    with pytest.raises(CheckpointError, match="is not saved anywhere"):
        node.find(VersionRef("t0001", 2, None))
    node.drop(VersionRef("t0001", 1, 2))
    node.release()
    assert "_remote" not in vars(node), "loading what talks to it takes long, and a worker would stand still"


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    import s3fs

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(DataError, match=r"s3://data/set: cannot be read"):
            hop.open_dataset("s3://data/set")


def test_a_mistyped_bucket_is_refused_and_not_created(bucket: str, tmp_path: Path) -> None:
    import s3fs

    with pytest.raises(DataError, match=r"s3://mistyped/set: there is no such bucket; create the bucket, or correct"):
        hop.partition({"x": [1.0, 2.0]}, "s3://mistyped/set", partitions=1)
    with pytest.raises(UsageError, match=r"storage='s3://mistyped/run': there is no such bucket; create"):
        Token(StorageLocation(tmp_path, "s3://mistyped/run"))
    assert [name.rstrip("/") for name in s3fs.S3FileSystem().ls("")] == ["data"]
