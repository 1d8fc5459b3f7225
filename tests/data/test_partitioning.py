"""Partitioning: dealing rows, all kinds of rows and sources, capacities, and the target folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopfleet.data import Kind, open_dataset, partition, sources, spill
from hopfleet.errors import DataError
from tests.helpers.processes import run
from tests.helpers.tables import DTYPES, bits, every_kind, files, numbers, rows_of, stored

quick = settings(max_examples=40, deadline=None)


@pytest.fixture(params=["memory", "spilled"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with room for everything, and again with tiny chunks that all go through temporary files."""
    if request.param == "spilled":
        monkeypatch.setattr(sources, "CHUNK_BYTES", 300)
        monkeypatch.setattr(spill, "MEMORY_BYTES", 500)


class TestDealing:
    @quick
    @given(rows=st.integers(1, 300), partitions=st.integers(1, 17), seed=st.integers(0, 9), data=st.data())
    def test_is_even_and_does_not_depend_on_the_steps(
        self, rows: int, partitions: int, seed: int, data: st.DataObject
    ) -> None:
        whole = spill.Evenly(partitions, seed).deal(rows)
        counts = np.bincount(whole, minlength=partitions)
        assert counts.max() - counts.min() <= 1
        dealer, steps, left = spill.Evenly(partitions, seed), [], rows
        while left:
            step = data.draw(st.integers(1, left))
            steps.append(dealer.deal(step))
            left -= step
        assert np.array_equal(np.concatenate(steps), whole)

    def test_depends_on_the_seed(self) -> None:
        assert not np.array_equal(spill.Evenly(8, 0).deal(100), spill.Evenly(8, 1).deal(100))

    @pytest.mark.slow
    @quick
    @given(sizes=st.lists(st.integers(1, 900), min_size=1, max_size=9), seed=st.integers(0, 9), data=st.data())
    def test_by_size_is_exact_and_does_not_depend_on_the_steps(
        self, sizes: list[int], seed: int, data: st.DataObject
    ) -> None:
        rows = sum(sizes)
        whole = spill.Sized(sizes, seed).deal(rows)
        assert np.bincount(whole, minlength=len(sizes)).tolist() == sizes
        dealer, steps, left = spill.Sized(sizes, seed), [], rows
        while left:
            step = data.draw(st.integers(1, left))
            steps.append(dealer.deal(step))
            left -= step
        assert np.array_equal(np.concatenate(steps), whole)

    def test_by_size_gives_a_small_partition_rows_from_anywhere(self) -> None:
        places = [int(np.argmin(spill.Sized([1, 9999], seed).deal(10000))) for seed in range(60)]
        assert sum(place < 5000 for place in places) in range(15, 46)
        assert len(set(places)) > 50

    def test_by_size_depends_on_the_seed(self) -> None:
        assert not np.array_equal(spill.Sized([50, 50], 0).deal(100), spill.Sized([50, 50], 1).deal(100))


class TestRows:
    @pytest.mark.slow
    @quick
    @given(data=st.data(), rows=st.integers(1, 60), partitions=st.integers(1, 9), seed=st.integers(0, 3))
    def test_none_is_dropped_and_none_is_there_twice(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, rows: int, partitions: int, seed: int
    ) -> None:
        partitions = min(partitions, rows)
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        columns = {"id": np.arange(rows), "x": numbers(dtype, (rows, *shape), seed)}
        folder = tmp_path_factory.mktemp("data") / "set"
        dataset = partition(columns, folder, partitions=partitions, seed=seed)
        assert len(dataset) == partitions
        assert sum(dataset.partition_rows) == dataset.rows == rows
        assert max(dataset.partition_rows) - min(dataset.partition_rows) <= 1
        back = stored(open_dataset(folder))
        assert sorted(back["id"]) == list(range(rows))
        for row, value in zip(back["id"], back["x"], strict=True):
            assert bits(value) == bits(columns["x"][row])

    @pytest.mark.usefixtures("room")
    def test_of_every_kind_come_back_bit_for_bit(self, tmp_path: Path) -> None:
        columns = every_kind(50)
        dataset = partition(columns, tmp_path / "set", partitions=4)
        back = stored(dataset)
        assert sorted(back["id"]) == list(range(50))
        for name, column in columns.items():
            for row, value in zip(back["id"], back[name], strict=True):
                assert bits(value) == bits(column[row])
        kinds = {name: (column.kind, column.dtype, column.shape) for name, column in dataset.columns.items()}
        assert kinds == {
            "id": (Kind.FIXED, "int64", ()),
            "x": (Kind.FIXED, "float32", (3, 2)),
            "flag": (Kind.FIXED, "bool", ()),
            "wave": (Kind.FIXED, "complex64", (2,)),
            "tokens": (Kind.VARIABLE, "int32", (-1,)),
            "image": (Kind.VARIABLE, "float32", (-1, 2, -1)),
            "text": (Kind.STRING, "str", ()),
            "blob": (Kind.BYTES, "bytes", ()),
        }
        dataset.check(checksums=True)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_of_differing_shapes_keep_every_dtype(self, tmp_path: Path, dtype: str) -> None:
        column = [numbers(dtype, (i % 3, 2), i) for i in range(12)]
        back = stored(partition({"id": np.arange(12), "x": column}, tmp_path / "set", partitions=2))
        assert all(bits(value) == bits(column[row]) for row, value in zip(back["id"], back["x"], strict=True))

    def test_of_bfloat16_are_kept_as_their_bits(self, tmp_path: Path) -> None:
        tensor = torch.randn(10, 3).to(torch.bfloat16)
        whole = partition({"x": tensor}, tmp_path / "whole", partitions=1)
        rows = partition(({"x": row} for row in tensor), tmp_path / "rows", partitions=1)
        assert whole.columns["x"].dtype == "bfloat16"
        assert whole.fingerprint == rows.fingerprint
        (batch,) = whole.batches(0, batch_size=10)
        assert batch["x"].dtype == np.uint16
        assert torch.equal(torch.from_numpy(batch["x"]).view(torch.bfloat16), tensor)

    def test_in_the_other_byte_order_and_out_of_line_are_stored_alike(self, tmp_path: Path) -> None:
        plain = np.arange(24, dtype=np.int32).reshape(12, 2)
        odd = np.asfortranarray(plain).astype(">i4")
        first = partition({"x": plain}, tmp_path / "a", partitions=2)
        assert partition({"x": odd}, tmp_path / "b", partitions=2).fingerprint == first.fingerprint

    @pytest.mark.usefixtures("room")
    def test_of_one_shape_but_the_last_are_variable(self, tmp_path: Path) -> None:
        column = [np.full(3, i) for i in range(40)] + [np.arange(2)]
        dataset = partition(({"x": value} for value in column), tmp_path / "set", partitions=3)
        assert dataset.columns["x"].shape == (-1,)
        assert sorted(map(bits, stored(dataset)["x"])) == sorted(map(bits, column))

    def test_of_lists_take_the_dtype_of_those_that_are_not_empty(self, tmp_path: Path) -> None:
        dataset = partition({"x": [[], [1, 2], []]}, tmp_path / "set", partitions=1)
        assert dataset.columns["x"].dtype == "int64"
        assert [list(value) for value in stored(dataset)["x"]] == [[], [1, 2], []]

    def test_nan_is_a_number(self, tmp_path: Path) -> None:
        dataset = partition({"x": [1, float("nan"), 2.5]}, tmp_path / "set", partitions=1)
        assert bits(stored(dataset)["x"]) == bits([1.0, float("nan"), 2.5])


class Rows:
    """A map-style data set."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.usefixtures("room")
class TestSources:
    def columns(self, rows: int = 41) -> dict[str, Any]:
        random = np.random.default_rng(3)
        return {
            "x": random.random((rows, 4)).astype(np.float32),
            "y": random.integers(0, 9, rows),
            "flag": random.random(rows) > 0.5,
            "text": [f"row {i} ü" for i in range(rows)],
            "tokens": [random.integers(0, 9, i % 4) for i in range(rows)],
        }

    def test_of_every_kind_give_the_same_bytes(self, tmp_path: Path) -> None:
        columns = self.columns()
        frame = pd.DataFrame({name: list(column) if name == "x" else column for name, column in columns.items()})
        table = pa.table({name: list(column) for name, column in columns.items()})
        (tmp_path / "parquet").mkdir()
        pq.write_table(table.slice(0, 20), tmp_path / "parquet" / "a.parquet")
        pq.write_table(table.slice(20), tmp_path / "parquet" / "b.parquet", row_group_size=5)
        pq.write_table(table, tmp_path / "one.parquet")
        tensors = {
            name: torch.tensor(columns[name]) if name in ("x", "y", "flag") else columns[name] for name in columns
        }
        made = {
            "dict": columns,
            "tensors": tensors,
            "lists": {name: list(column) for name, column in columns.items()},
            "frame": frame,
            "nullable": frame.convert_dtypes(),
            "series": {name: frame[name] for name in frame},
            "table": table,
            "sliced table": pa.concat_tables([table.slice(0, 13), table.slice(13)]),
            "parquet file": str(tmp_path / "one.parquet"),
            "parquet folder": tmp_path / "parquet",
            "parquet url": f"file://{tmp_path}/parquet",
            "map": Rows(list(rows_of(columns))),
            "iterator": rows_of(columns),
            "keys in another order": (
                dict(reversed(row.items())) if i else row for i, row in enumerate(rows_of(columns))
            ),
        }
        expected = None
        for name, source in made.items():
            partition(source, tmp_path / name, partitions=4, seed=5)
            content = files(tmp_path / name)
            expected = expected or content
            assert content == expected, name

    def test_of_tuples_are_named_by_position(self, tmp_path: Path) -> None:
        pairs = [(np.full(2, i), i) for i in range(6)]
        triples = [(i, i, i) for i in range(6)]
        assert list(partition(Rows(pairs), tmp_path / "a", partitions=2).columns) == ["x", "y"]
        assert list(partition(iter(pairs), tmp_path / "b", partitions=2).columns) == ["x", "y"]
        assert list(partition(iter(triples), tmp_path / "c", partitions=2).columns) == ["0", "1", "2"]
        assert list(partition(range(6), tmp_path / "d", partitions=2).columns) == ["x"]
        assert list(partition(np.ones((6, 2)), tmp_path / "e", partitions=2).columns) == ["x"]
        x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
        whole = partition({"x": x, "y": y}, tmp_path / "f", partitions=2)
        rows = partition(torch.utils.data.TensorDataset(x, y), tmp_path / "g", partitions=2)
        assert whole.fingerprint == rows.fingerprint

    def test_of_a_torch_stream_are_iterated(self, tmp_path: Path) -> None:
        class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
            def __iter__(self) -> Iterator[Any]:
                return iter([{"x": i} for i in range(6)])

            def __len__(self) -> int:
                return 6

        assert partition(Stream(), tmp_path / "a", partitions=2).rows == 6

    def test_of_arrow_lists_of_lists_are_arrays(self, tmp_path: Path) -> None:
        table = pa.table(
            {
                "square": pa.array([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.int16()))),
                "varying": pa.array([[[1, 2]] * i for i in range(1, 5)], pa.large_list(pa.list_(pa.int16(), 2))),
                "blob": pa.array([b"a", b"b", b"", b"cc"]),
                "pair": pa.array([b"ab", b"cd", b"ef", b"gh"], pa.binary(2)),
                "category": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
                "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 3, 2)),
            }
        )
        dataset = partition(table, tmp_path / "set", partitions=1)
        types = {name: str(column) for name, column in dataset.columns.items()}
        assert types == {
            "square": "int16[2, 2]",
            "varying": "int16[*, 2]",
            "blob": "bytes",
            "pair": "bytes",
            "category": "str",
            "tensor": "float64[3, 2]",
        }
        back = stored(dataset)
        assert [value.tolist() for value in back["varying"]] == table["varying"].to_pylist()
        assert (back["blob"], back["pair"]) == (table["blob"].to_pylist(), table["pair"].to_pylist())
        assert back["category"] == ["a", "b", "a", "b"]
        assert np.array_equal(back["tensor"], np.arange(24.0).reshape(4, 3, 2))

    def test_tell_their_progress(self, tmp_path: Path) -> None:
        seen: list[int] = []
        partition(rows_of(self.columns()), tmp_path / "set", partitions=2, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == 41


class TestCapacities:
    @pytest.mark.parametrize(
        ("capacities", "rows"),
        [([1, 2, 1], [10, 20, 10]), ([1.0], [40]), ([1e-9, 1e9], [1, 39]), (np.array([3, 1]), [30, 10])],
    )
    def test_sizes_are_proportional_and_no_row_is_lost(self, tmp_path: Path, capacities: Any, rows: list[int]) -> None:
        made = partition({"x": np.arange(40)}, tmp_path / "set", capacities=capacities)
        assert list(made.partition_rows) == rows
        assert sorted(stored(made)["x"]) == list(range(40))
        made.check(checksums=True)

    @pytest.mark.usefixtures("room")
    def test_any_source_gives_the_same_data_set(self, tmp_path: Path) -> None:
        columns = every_kind(50)
        whole = partition(columns, tmp_path / "whole", capacities=[1, 3, 2], seed=4)
        stream = partition(rows_of(columns), tmp_path / "stream", partitions=3, capacities=(1.0, 3.0, 2.0), seed=4)
        assert whole.fingerprint == stream.fingerprint
        assert files(tmp_path / "whole") == files(tmp_path / "stream")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["stream", "whole"]
        other = partition(columns, tmp_path / "other", capacities=[1, 3, 2], seed=5)
        assert other.partition_rows == whole.partition_rows
        assert other.fingerprint != whole.fingerprint

    @pytest.mark.parametrize(
        ("capacities", "message"),
        [
            ([], r"partitions=0: must be an integer of at least 1"),
            ([1, 2, 3], r"capacities=\[1, 2, 3\]: must have one number for each of partitions=2; leave"),
            ([1, 0], r"capacities\[1\]=0: must be a finite number above 0"),
            ([-1.0, 1], r"capacities\[0\]=-1.0: must be"),
            ([float("nan"), 1], r"capacities\[0\]=nan: must be"),
            ([1, float("inf")], r"capacities\[1\]=inf: must be"),
            (["1", 1], r"capacities\[0\]='1': must be"),
        ],
    )
    def test_what_is_no_capacity_is_refused(self, tmp_path: Path, capacities: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            partition(
                {"x": np.arange(9)}, tmp_path / "set", partitions=2 if capacities else None, capacities=capacities
            )
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("source", [{"x": [1, 2]}, iter([1, 2])])
    def test_fewer_rows_than_partitions_are_refused(self, tmp_path: Path, source: Any) -> None:
        with pytest.raises(DataError, match="partitions=3: must be at most the number of rows, 2"):
            partition(source, tmp_path / "set", capacities=[1, 1, 1])
        assert list(tmp_path.iterdir()) == []


def test_neither_pandas_nor_torch_is_imported(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": [True] * 4, "s": ["a"] * 4, "l": [[1], [2, 3]] * 2}), tmp_path / "a.parquet")
    code = f"""
import sys, numpy as np
from hopfleet.data import partition
def check(dataset):
    list(dataset.batches(0, batch_size=2, epoch=0))
    assert not {{"pandas", "torch"}} & set(sys.modules)
folder = {str(tmp_path)!r}
check(partition({{"x": np.ones(4), "s": list("abcd"), "l": [[1], []] * 2}}, folder + "/1", partitions=1))
check(partition(iter([(np.ones(i), b"x") for i in range(4)]), folder + "/2", partitions=1))
check(partition(folder + "/a.parquet", folder + "/3", partitions=1))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "pair",
    [
        lambda x, y: (x, y),
        lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
        lambda x, y: (x, y.tolist()),
        lambda x, y: (pd.DataFrame(x, columns=["a", "b"]), pd.Series(y)),
    ],
)
def test_a_pair_of_arrays_is_x_and_y(tmp_path: Path, pair: Any) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    expected = partition({"x": x, "y": y}, tmp_path / "dict", partitions=2)
    assert partition(pair(x, y), tmp_path / "pair", partitions=2).fingerprint == expected.fingerprint
    three = partition((x, y, y), tmp_path / "three", partitions=2)
    assert list(three.columns) == ["0", "1", "2"]
