from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.data import dataset as dataset_module
from hopfleet.domain.seeds import derive
from hopfleet.errors import DataError
from hopfleet.support.cache import cache_folder
from tests.helpers.processes import run
from tests.helpers.tables import bits, every_kind, files, stored


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """50 rows of every kind in 3 partitions; not to be changed."""
    return partition(every_kind(50), tmp_path_factory.mktemp("data") / "every", partitions=3, seed=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set to be damaged."""
    partition(
        {"x": np.arange(40.0).reshape(20, 2), "s": [f"row {i}" for i in range(20)]}, tmp_path / "set", partitions=2
    )
    return tmp_path / "set"


class TestOpen:
    def test_gives_what_partition_gave(self, every: Dataset) -> None:
        opened = open_dataset(every.url)
        assert opened.url == every.url == str(Path(every.url).absolute())
        assert opened.columns == every.columns
        assert (opened.rows, opened.seed, len(opened)) == (50, 4, 3)
        assert sorted(opened.partition_rows) == [16, 17, 17]
        assert opened.fingerprint == every.fingerprint
        assert open_dataset(opened) is opened
        assert open_dataset(f"file://{every.url}").url == every.url

    def test_takes_a_relative_path(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        assert open_dataset("set").url == str(folder)

    def test_fingerprint_is_of_the_content(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "copy")
        assert open_dataset(tmp_path / "copy").fingerprint == open_dataset(folder).fingerprint
        other = partition({"x": np.arange(20)}, tmp_path / "other", partitions=2)
        assert other.fingerprint != partition({"y": np.arange(20)}, tmp_path / "renamed", partitions=2).fingerprint
        assert other.fingerprint != partition({"x": np.arange(20)}, tmp_path / "seed", partitions=2, seed=1).fingerprint

    def test_travels_light(self, every: Dataset) -> None:
        stored(every)
        for copy in (pickle.loads(pickle.dumps(every)), cloudpickle.loads(cloudpickle.dumps(every))):
            assert copy.fingerprint == every.fingerprint
            assert [bits(value) for value in stored(copy)["image"]] == [bits(value) for value in stored(every)["image"]]
        assert len(pickle.dumps(every)) < 4000

    def test_shows_itself(self, every: Dataset) -> None:
        assert "50 rows in 3 partitions" in repr(every)
        assert "image: float32[*, 2, *]" in repr(every)

    @pytest.mark.parametrize("rows", [0, 3, 40, 99])
    def test_head_gives_the_first_rows(self, every: Dataset, rows: int) -> None:
        head, expected = every.head(rows), stored(every)
        for name in every.columns:
            assert list(map(bits, head[name])) == list(map(bits, expected[name][:rows]))


class TestOrder:
    def test_depends_on_seed_epoch_and_partition_only(self, tmp_path: Path) -> None:
        one = partition({"x": np.arange(30)}, tmp_path / "one", partitions=3)
        two = partition({"y": ["a"] * 30}, tmp_path / "two", partitions=3, seed=9)
        orders = set()
        for seed in (0, 1):
            for epoch in (0, 1):
                for part in range(3):
                    order = one.order(part, seed=seed, epoch=epoch)
                    assert np.array_equal(order, two.order(part, seed=seed, epoch=epoch))
                    assert sorted(order) == list(range(10))
                    orders.add(tuple(order))
        assert len(orders) == 12

    def test_is_what_it_was_in_the_first_version(self, tmp_path: Path) -> None:
        dataset = partition({"x": np.arange(30)}, tmp_path / "set", partitions=3)
        expected = np.random.Generator(np.random.PCG64(derive(5, "order", 2, 1))).permutation(10)
        assert np.array_equal(dataset.order(1, seed=5, epoch=2), expected)


class TestBatches:
    @settings(max_examples=40, deadline=None)
    @given(
        batch_size=st.integers(1, 30),
        epoch=st.none() | st.integers(0, 3),
        part=st.integers(0, 2),
        drop_last=st.booleans(),
        block=st.sampled_from([1, 500, 1 << 20]),
    )
    def test_cover_the_order_exactly(
        self, every: Dataset, batch_size: int, epoch: int | None, part: int, drop_last: bool, block: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dataset_module, "BLOCK_BYTES", block)
            batches = list(every.batches(part, batch_size=batch_size, seed=7, epoch=epoch, drop_last=drop_last))
        rows = every.partition_rows[part]
        (whole,) = every.batches(part, batch_size=rows)
        order = np.arange(rows) if epoch is None else every.order(part, seed=7, epoch=epoch)
        order = order[: rows - rows % batch_size] if drop_last else order
        sizes = [len(batch["id"]) for batch in batches]
        assert all(size == batch_size for size in sizes[:-1])
        assert sum(sizes) == len(order)
        assert not (drop_last and sizes and sizes[-1] != batch_size)
        for name in every.columns:
            got = [bits(value) for batch in batches for value in batch[name]]
            assert got == [bits(whole[name][row]) for row in order]

    def test_are_transformed_with_a_stream_of_their_own(self, every: Dataset) -> None:
        def add(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            return {"id": batch["id"], "noise": rng.random(len(batch["id"]))}

        def noise(**options: Any) -> list[list[float]]:
            return [b["noise"].tolist() for b in every.batches(1, batch_size=4, transform=add, **options)]

        expected = np.random.default_rng(derive(3, "transform", 2, 1, 1)).random(4).tolist()
        assert noise(seed=3, epoch=2)[1] == expected
        assert noise(seed=3, epoch=2) == noise(seed=3, epoch=2)
        assert noise(seed=3) == noise(seed=3, epoch=0)
        assert noise(seed=3, epoch=1) != noise(seed=3, epoch=2)

    def test_in_stored_order_are_views_of_the_mapping(self, folder: Path) -> None:
        dataset = open_dataset(folder)
        first, second = (batch["x"] for batch in dataset.batches(0, batch_size=5))
        assert first.base is not None
        # Neighbours in memory: both are slices of one column in one mapping, which is no memory of an array.
        assert second.ctypes.data - first.ctypes.data == first.nbytes
        owner: Any = first
        while isinstance(owner, np.ndarray):
            owner = owner.base
        assert type(getattr(owner, "obj", owner)).__name__ == "mmap"

    def test_in_an_order_are_slices_of_one_gathered_block(self, folder: Path) -> None:
        first, second = (batch["x"] for batch in open_dataset(folder).batches(0, batch_size=5, epoch=0))
        assert first.base is second.base is not None
        assert not np.shares_memory(first, second)

    @pytest.mark.parametrize("epoch", [None, 0])
    def test_can_be_written_to_without_a_trace(self, every: Dataset, epoch: int | None) -> None:
        before = files(Path(every.url))
        opened = open_dataset(every.url)

        def batches() -> Iterator[dict[str, Any]]:
            return opened.batches(0, batch_size=8, epoch=epoch)

        expected = [bits(batch["x"]) for batch in batches()], [bits(v) for b in batches() for v in b["tokens"]]
        for batch in batches():
            torch.from_numpy(batch["x"]).zero_()
            batch["flag"][:] = True
            for name in ("tokens", "image"):
                for value in batch[name]:
                    value[...] = 77
        assert (
            [bits(batch["x"]) for batch in batches()],
            [bits(v) for b in batches() for v in b["tokens"]],
        ) == expected
        assert files(Path(every.url)) == before

    @pytest.mark.slow
    def test_private_memory_does_not_grow_with_the_data(self, tmp_path: Path) -> None:
        partition({"x": np.zeros((40, 1 << 20), np.uint8)}, tmp_path / "small", partitions=1)
        partition({"x": np.zeros((200, 1 << 20), np.uint8)}, tmp_path / "large", partitions=2)
        code = """
import re
from hopfleet.data import open_dataset
dataset = open_dataset(FOLDER)
peak = 0
for epoch in (None, 0):
    for part in range(len(dataset)):
        for batch in dataset.batches(part, batch_size=1, epoch=epoch):
            batch["x"].sum()
        text = open("/proc/self/smaps_rollup").read()
        peak = max(peak, int(re.search(r"Anonymous: +(\\d+) kB", text)[1]))
print(peak)
"""
        small, large = (run(code.replace("FOLDER", repr(str(tmp_path / name)))) for name in ("small", "large"))
        assert large.returncode == 0, large.stderr
        assert int(large.stdout) < int(small.stdout) + 20_000

    def test_keep_few_files_open(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dataset_module, "MAPPINGS", 3)
        dataset = partition({"x": np.arange(40)}, tmp_path / "set", partitions=20)
        seen = [v for part in range(20) for b in dataset.batches(part, batch_size=2, epoch=0) for v in b["x"]]
        assert sorted(seen) == list(range(40))
        assert len(dataset._mapped) == 3

    def test_refuse_what_cannot_work_at_once(self, every: Dataset) -> None:
        with pytest.raises(DataError, match="batch_size=0: must be at least 1"):
            every.batches(0, batch_size=0)
        for part in (-1, 3):
            with pytest.raises(DataError, match=f"partition={part}: must be from 0 to 2"):
                every.batches(part, batch_size=1)
            with pytest.raises(DataError, match=f"partition={part}: must be from 0 to 2"):
                every.order(part, seed=0, epoch=0)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def scramble(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def other_schema(path: Path) -> None:
    """A sound Arrow file of another schema; the manifest is made to agree on its size."""
    table = pa.table({"z": np.arange(10)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    fit_size(path)


def fewer_rows(path: Path) -> None:
    with pa.ipc.open_file(path.read_bytes()) as reader:
        batch = reader.get_batch(0)
    batch = pa.record_batch([column.take(pa.array([0, 1])) for column in batch.columns], schema=batch.schema)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    fit_size(path)


def fit_size(path: Path) -> None:
    manifest = path.parent / "manifest.json"
    content = json.loads(manifest.read_text())
    content["partitions"][1]["bytes"] = path.stat().st_size
    del content["sha256"]
    manifest.write_text(json.dumps(content))


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (Path.unlink, "is missing"),
            (truncate, "bytes instead of"),
            (scramble, "not a readable Arrow file"),
            (other_schema, "has the wrong schema"),
            (fewer_rows, "has 2 rows instead of 10"),
        ],
    )
    def test_of_a_partition_is_named(self, folder: Path, damage: Callable[[Path], None], message: str) -> None:
        damage(folder / "part-00001.arrow")
        dataset = open_dataset(folder)
        with pytest.raises(DataError, match=f"part-00001.arrow: .*{message}"):
            dataset.check()
        with pytest.raises(DataError, match=f"part-00001.arrow: .*{message}"):
            next(dataset.batches(1, batch_size=1))
        assert len(list(dataset.batches(0, batch_size=1))) == 10

    def test_of_a_bit_is_found_by_its_checksum(self, folder: Path) -> None:
        open_dataset(folder).check(checksums=True)
        flip(folder / "part-00001.arrow")
        with pytest.raises(DataError, match=r"part-00001.arrow: has the wrong checksum"):
            open_dataset(folder).check(checksums=True)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not json", "is not the manifest"),
            ("[]", "is not the manifest"),
            ('{"format": "other"}', "is not the manifest"),
            ('{"format": "hopfleet-dataset", "version": 99}', "format version 99"),
            ('{"format": "hopfleet-dataset", "version": 1}', "is damaged"),
        ],
    )
    def test_of_the_manifest_is_named(self, folder: Path, text: str, message: str) -> None:
        (folder / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=rf"manifest.json: .*{message}"):
            open_dataset(folder)

    @pytest.mark.parametrize(
        ("key", "value"),
        [("file", "../../secret"), ("sha256", "../../secret"), ("rows", 11), ("bytes", None), ("rows", "many")],
    )
    def test_of_the_manifest_in_detail_is_found(self, folder: Path, key: str, value: Any) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        content["partitions"][0][key] = value
        (folder / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"manifest.json: is damaged"):
            open_dataset(folder)

    def test_of_everything_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nowhere: no such folder"):
            open_dataset(tmp_path / "nowhere")
        with pytest.raises(DataError, match=r"has no manifest.json"):
            open_dataset(tmp_path)


class TestRemote:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
        yield
        memory = fsspec.filesystem("memory")
        if memory.exists("/set"):
            memory.rm("/set", recursive=True)

    @pytest.fixture
    def remote(self) -> Dataset:
        return partition({"x": np.arange(20)}, "memory://set", partitions=2)

    def test_is_fetched_once(self, remote: Dataset) -> None:
        memory = fsspec.filesystem("memory")
        opened = open_dataset("memory://set")
        assert opened.url == remote.url == "memory://set"
        opened.check()
        assert not cache_folder("data").exists()
        assert sorted(stored(opened)["x"]) == list(range(20))
        assert len(list(cache_folder("data").iterdir())) == 2
        memory.rm("/set/part-00000.arrow")
        again = pickle.loads(pickle.dumps(open_dataset("memory://set")))
        assert sorted(stored(again)["x"]) == list(range(20))
        with pytest.raises(DataError, match=r"memory://set/part-00000.arrow: is missing"):
            again.check()

    def test_is_the_same_as_local(self, remote: Dataset, tmp_path: Path) -> None:
        assert partition({"x": np.arange(20)}, tmp_path / "set", partitions=2).fingerprint == remote.fingerprint

    @pytest.mark.parametrize("damage", [truncate, Path.unlink])
    def test_is_fetched_again_when_the_cache_is_damaged(self, remote: Dataset, damage: Callable[[Path], None]) -> None:
        stored(remote)
        for path in cache_folder("data").iterdir():
            damage(path)
        assert sorted(stored(open_dataset("memory://set"))["x"]) == list(range(20))

    def test_is_checked_by_content(self, remote: Dataset) -> None:
        stored(remote)
        for path in cache_folder("data").iterdir():
            flip(path)
        remote.check(checksums=True)
        memory = fsspec.filesystem("memory")
        content = bytearray(memory.cat_file("/set/part-00001.arrow"))
        content[-1] ^= 1
        memory.pipe_file("/set/part-00001.arrow", bytes(content))
        shutil.rmtree(cache_folder("data"))
        with pytest.raises(DataError, match=r"part-00001.arrow: has the wrong checksum"):
            stored(remote)
        assert len(list(cache_folder("data").iterdir())) == 1  # the sound one, and nothing of the other
        memory.pipe_file("/set/part-00001.arrow", b"short")
        with pytest.raises(DataError, match=r"part-00001.arrow: has 5 bytes"):
            remote.check()

    def test_is_replaced_on_demand_only(self, remote: Dataset) -> None:
        with pytest.raises(DataError, match="overwrite=True"):
            partition({"x": [1]}, "memory://set", partitions=1)
        assert partition({"x": [1]}, "memory://set", partitions=1, overwrite=True).rows == 1
        assert len(open_dataset("memory://set")) == 1
        memory = fsspec.filesystem("memory")
        assert len(memory.ls("/set")) == 2
        memory.rm("/set/manifest.json")
        with pytest.raises(DataError, match="is not a Hopfleet data set"):
            partition({"x": [1]}, "memory://set", partitions=1, overwrite=True)

    def test_is_not_there_when_its_upload_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = fsspec.filesystem("memory")

        def fail(local: str, remote: str) -> None:
            if remote.endswith("part-00001.arrow"):
                raise OSError("the line is dead")
            memory.pipe_file(remote, Path(local).read_bytes())

        monkeypatch.setattr(memory, "put_file", fail)
        with pytest.raises(DataError, match=r"memory://set: cannot be written \(OSError: the line is dead"):
            partition({"x": np.arange(20)}, "memory://set", partitions=2)
        assert not memory.exists("/set")

    def test_that_is_not_there_is_named(self) -> None:
        with pytest.raises(DataError, match="memory://nowhere: no such folder"):
            open_dataset("memory://nowhere")
        with pytest.raises(DataError, match="unheard://of: cannot be opened"):
            open_dataset("unheard://of")
