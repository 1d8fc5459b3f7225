"""Preparing data on a Ray cluster of three nodes, each with files of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import hopfleet as hop
from hopfleet.errors import DataError
from tests.helpers.cluster.joined import Clusters

ray = pytest.importorskip("ray")
pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

NODES = 3
ROWS = 60_000


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory, clusters: Clusters) -> Iterator[list[Path]]:
    """The folders of three nodes with a CPU each; this process is on a fourth, which has none. All reach a bucket."""
    import s3fs
    from moto.server import ThreadedMotoServer

    folder = tmp_path_factory.mktemp("homes")
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*store.get_host_and_port()))
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        found = [folder / str(number) for number in range(NODES)]
        small = {"num_cpus": 1, "object_store_memory": 100_000_000}
        nodes = ({**small, "env_vars": {"HOPFLEET_HOME": str(home)}} for home in found)
        with clusters.joined({"num_cpus": 0}, *nodes):
            yield found
    store.stop()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is cut into about ten pieces."""
    from hopfleet.data.etl import blocks, reading

    size = 120_000
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    monkeypatch.setattr(reading, "BLOCK_BYTES", size)
    path = tmp_path / "rows.csv"
    lines = (f"{row},{row / 7:.3f},{'abc'[row % 3]}\n" for row in range(ROWS))
    path.write_text("number,share,kind\n" + "".join(lines))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "recipe.pickle")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def kept(home: Path) -> set[str]:
    return {path.name for path in (home / "cache" / "data").glob("*")}


RECIPE = hop.Tabular({"number": hop.Number(), "share": hop.Number(missing="mean"), "kind": hop.Category()})


def test_partitions_are_those_of_one_machine_and_lie_on_their_nodes(
    homes: list[Path], source: Path, tmp_path: Path
) -> None:
    split = hop.Split({"train": 0.7, "test": 0.3}, stratify="kind")
    options: dict[str, Any] = {"partitions": 6, "split": split, "quiet": True}
    one = hop.prepare(source, tmp_path / "one", RECIPE, backend="inline", **options)
    many = hop.prepare(source, tmp_path / "many", RECIPE, backend="ray", **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "many") and one.keys() == many.keys()
    for data in many.values():
        # Each node keeps two of the six partitions, and no partition is kept twice.
        names = [part.sha256 for part in data.manifest.partitions]
        held = [[name for name in names if name in kept(home)] for home in homes]
        assert sorted(map(len, held)) == [2, 2, 2] and sorted(itertools.chain(*held)) == sorted(names)
    assert not [path for home in homes for path in (home / "cache" / "prepare").glob("*")]


def test_functions_of_rows_run_on_the_nodes(homes: list[Path], source: Path, tmp_path: Path) -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        if row["number"] == 40_000:
            raise ValueError("I dislike it")
        return {"x": row["number"] * 2}

    with pytest.raises(DataError, match=r"rows\.csv, line 40002: ValueError: I dislike it"):
        hop.prepare(source, tmp_path / "set", odd, backend="ray", partitions=3, quiet=True)
    assert not (tmp_path / "set").exists()
    made = hop.prepare(source, tmp_path / "set", odd, backend="ray", partitions=3, quiet=True, on_error="skip")
    assert made.rows == ROWS - 1


def test_tables_travel_to_the_nodes(homes: list[Path], tmp_path: Path) -> None:
    columns = {"x": list(range(100)), "name": [f"name {row}" for row in range(100)]}
    one = hop.prepare(columns, tmp_path / "one", partitions=2, backend="inline")
    many = hop.prepare(columns, tmp_path / "many", partitions=2, backend="ray", quiet=True)
    assert one.fingerprint == many.fingerprint


def test_what_a_node_has_lost_is_made_again(
    homes: list[Path], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopfleet.backends.ray import preparing

    one = hop.prepare(source, tmp_path / "one", RECIPE, partitions=3, backend="inline")
    before, lost = preparing.RayPool.run, list[str]()

    def losing(pool: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        # Between stages, files go and folders stay: a task may be running in its folder already.
        for home in homes[:2]:
            for path in (home / "cache" / "prepare").rglob("*"):
                if path.is_file():
                    lost.append(path.name)
                    path.unlink(missing_ok=True)
        return before(pool, function, *arguments, **options)

    monkeypatch.setattr(preparing.RayPool, "run", losing)
    many = hop.prepare(source, tmp_path / "many", RECIPE, partitions=3, backend="ray", quiet=True)
    assert one.fingerprint == many.fingerprint and lost


def test_nodes_fill_a_bucket(homes: list[Path], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hop.prepare(source, tmp_path / "one", RECIPE, partitions=3, backend="inline")
    raw = f"s3://bucket/{tmp_path.name}/rows.csv"
    files = fsspec.filesystem("s3")
    files.put_file(str(source), raw)
    target = f"s3://bucket/{tmp_path.name}/set"
    files.pipe_file(f"{target}/preparing.json", b"{}")  # as an interrupted call leaves it, among other files
    files.pipe_file(f"{target}/partition-00009.arrow", b"half")
    many = hop.prepare(raw, target, RECIPE, partitions=3, backend="ray", quiet=True)
    # The file is read by one task, as a whole, but rows and partitions are the same.
    assert many.rows == one.rows and [part.rows for part in many.manifest.partitions] == [ROWS // 3] * 3
    many.check(checksums=True)
    names = sorted(Path(path).name for path in files.find(target))
    assert "preparing.json" not in names and len([name for name in names if name.endswith(".arrow")]) == 3
    assert all(any(part.sha256 in kept(home) for home in homes) for part in many.manifest.partitions)
