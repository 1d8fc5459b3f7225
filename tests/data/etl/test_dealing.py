"""Rows split and dealt, by themselves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hopfleet.data.etl.chunks import Chunk, layout_of
from hopfleet.data.etl.dealing import Dealing, deal
from hopfleet.data.etl.duplicates import Hashes, leaks
from hopfleet.data.etl.splitting import Split, as_split, assign, sizes
from hopfleet.errors import DataError
from tests.helpers.chunks import chunk_of


class TestSplits:
    def targets(
        self, split: Split, chunks: list[Chunk], folder: Path, seed: int = 0
    ) -> tuple[list[str], list[list[int]]]:
        paths = [folder / f"{number}.npy" for number in range(len(chunks))]
        names = assign(split, chunks, layout_of(chunks), seed, paths)
        return names, [np.load(path).tolist() for path in paths]

    def test_as_many_rows_as_fractions_say(self, tmp_path: Path) -> None:
        chunks = [chunk_of({"x": [*range(6)]}), chunk_of({"x": [*range(4)]})]
        names, found = self.targets(Split({"a": 0.5, "b": 0.3, "c": 0.2}), chunks, tmp_path)
        assert names == ["a", "b", "c"] and [*map(len, found)] == [6, 4]
        assert Counter(found[0] + found[1]) == {0: 5, 1: 3, 2: 2}
        assert (
            self.targets(Split({"a": 0.5, "b": 0.5}), chunks, tmp_path, 1)[1]
            != self.targets(Split({"a": 0.5, "b": 0.5}), chunks, tmp_path, 2)[1]
        )

    def test_every_split_has_a_row_if_there_are_enough(self, tmp_path: Path) -> None:
        assert sizes(10, [0.98, 0.01, 0.01]) == [8, 1, 1] and sizes(2, [0.5, 0.3, 0.2]) == [1, 1, 0]
        assert sizes(3, [0.9, 0.05, 0.05]) == [1, 1, 1]
        with pytest.raises(DataError, match="1 rows are too few"):
            self.targets(Split({"a": 0.5, "b": 0.5}), [chunk_of({"x": [1]})], tmp_path)

    def test_strata_have_their_shares_and_rows_without_a_value_are_one(self, tmp_path: Path) -> None:
        chunks = [chunk_of({"y": ["a"] * 4 + [None] * 2}), chunk_of({"y": [None] * 2 + ["a"] * 4})]
        found = self.targets(Split({"one": 0.5, "two": 0.5}, stratify="y"), chunks, tmp_path)[1]
        assert Counter(found[0][:4] + found[1][2:]) == {0: 4, 1: 4}
        assert Counter(found[0][4:] + found[1][:2]) == {0: 2, 1: 2}

    def test_small_strata_together_have_the_sizes_of_the_splits(self, tmp_path: Path) -> None:
        chunks = [chunk_of({"y": [str(number) for number in range(10)]})]
        found = self.targets(Split({"one": 0.5, "two": 0.5}, stratify="y"), chunks, tmp_path)[1]
        assert Counter(found[0]) == {0: 5, 1: 5}

    def test_groups_stay_together_and_the_large_ones_are_placed_first(self, tmp_path: Path) -> None:
        chunks = [chunk_of({"g": ["a"] * 5 + ["b"] * 3}), chunk_of({"g": ["c", "d", None, "a"]})]
        found = self.targets(Split({"one": 0.5, "two": 0.5}, group="g"), chunks, tmp_path)[1]
        homes = dict(zip(["a"] * 5 + ["b"] * 3 + ["c", "d", None, "a"], found[0] + found[1], strict=True))
        assert homes["a"] == 0 and {homes[name] for name in ("b", "c", "d", None)} == {1}
        assert Counter(found[0] + found[1]) == {0: 6, 1: 6}
        with pytest.raises(DataError, match="has 1 values, fewer than the 2 splits"):
            self.targets(Split({"one": 0.5, "two": 0.5}, group="g"), [chunk_of({"g": ["a", "a"]})], tmp_path)

    @pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("s"), pa.string()])
    def test_earlier_rows_come_into_earlier_splits(self, kind: pa.DataType, tmp_path: Path) -> None:
        times = [4, 1, 3, 3, 2]
        column = pa.array(times).cast(kind)
        found = self.targets(Split({"one": 0.6, "two": 0.4}, time="t"), [chunk_of(pa.table({"t": column}))], tmp_path)[
            1
        ]
        assert found == [[1, 0, 1, 1, 0]]  # the third of five rows begins the later split with its equals
        chunks = [chunk_of({"t": [1, None, None]})]
        with pytest.raises(DataError, match=r"rows.csv: 2 rows lack 't'"):
            self.targets(Split({"one": 0.5, "two": 0.5}, time="t"), chunks, tmp_path)

    def by_time(self, tmp_path: Path, *texts: list[str], **options: Any) -> list[int]:
        """Return the splits of rows, half of them in each, by times that are text."""
        chunks = [chunk_of(pa.table({"t": pa.array(some, pa.string())})) for some in texts]
        split = Split({"one": 0.5, "two": 0.5}, time="t", **options)
        return [target for targets in self.targets(split, chunks, tmp_path)[1] for target in targets]

    def test_dates_as_text_are_read(self, tmp_path: Path) -> None:
        months = ["12/31/2023", "01/01/2024"], ["06/30/2022", "02/01/2024"]
        assert self.by_time(tmp_path, *months, time_format="%m/%d/%Y") == [0, 1, 0, 1]
        assert self.by_time(tmp_path, ["2024-02-01", "2024-01-01T10:00"]) == [1, 0]
        assert self.by_time(tmp_path, ["2024-01-01T01:00+01:00", "2024-01-01T00:30Z"]) == [0, 1]
        assert self.by_time(tmp_path, ["10", "9"], ["8", "100"]) == [1, 0, 0, 1]
        assert self.by_time(tmp_path, ["10.5", "9"]) == [1, 0]

    def test_dates_that_cannot_be_read_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"time='t': rows\.csv, line \d+: '02/01/2024' is not a date as in 2024-05-31; "
        ):
            self.by_time(tmp_path, ["2024-01-01"], ["02/01/2024"])
        with pytest.raises(DataError, match=r"'2024-01-01' is not a date of the format '%m/%d/%Y'; correct it"):
            self.by_time(tmp_path, ["01/01/2024", "2024-01-01"], time_format="%m/%d/%Y")
        with pytest.raises(DataError, match="some rows have a time zone and others have none"):
            self.by_time(tmp_path, ["2024-01-01T00:00Z"], ["2024-01-01T00:00"])
        with pytest.raises(DataError, match="time_format='%Y': tells how to read the column of time="):
            Split({"a": 0.5, "b": 0.5}, time_format="%Y")

    def test_groups_stay_together_and_strata_have_their_shares(self, tmp_path: Path) -> None:
        users = [user for user in range(60) for _ in range(1 + user % 5)]
        labels = ["rare" if user % 6 == 0 else "common" for user in users]
        chunks = [chunk_of({"g": users[:90], "y": labels[:90]}), chunk_of({"g": users[90:], "y": labels[90:]})]
        found = self.targets(Split({"one": 0.75, "two": 0.25}, stratify="y", group="g"), chunks, tmp_path)[1]
        targets = np.array(found[0] + found[1])
        assert all(len(set(targets[np.array(users) == user])) == 1 for user in set(users))
        for label in ("rare", "common"):
            assert targets[np.array(labels) == label].mean() == pytest.approx(0.25, abs=0.04)

    def test_a_column_may_name_the_splits(self, tmp_path: Path) -> None:
        chunks = [chunk_of({"s": ["test", "train"]}), chunk_of({"s": ["valid", "more", "train"]})]
        names, found = self.targets(Split(column="s"), chunks, tmp_path)
        assert names == ["train", "valid", "more", "test"] and found == [[3, 0], [1, 2, 0]]
        for values, message in (
            (["train", None], "some rows lack the name"),
            (["train", "a b"], "cannot name splits"),
            ([f"s{number}" for number in range(21)], "cannot name splits"),
        ):
            with pytest.raises(DataError, match=message):
                self.targets(Split(column="s"), [chunk_of({"s": values})], tmp_path)
        assert len(self.targets(Split(column="s"), [chunk_of({"s": [f"s{n}" for n in range(20)]})], tmp_path)[0]) == 20

    def test_the_column_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="'lable': the rows have no such column; did you mean 'label'"):
            self.targets(Split({"a": 0.5, "b": 0.5}, stratify="lable"), [chunk_of({"label": ["a"]})], tmp_path)

    @pytest.mark.parametrize(
        ("fractions", "message"),
        [
            ({"a": 1.0}, "must have two fractions or more"),
            ({"a": 0.5, "b": 0.4}, "that sum to 1, not 0.9"),
            ({"a b": 0.5, "b": 0.5}, "must be a name"),
            ({1: 0.5, "b": 0.5}, "must be a name"),
            ({"a": True, "b": 0.5}, "must be a fraction"),
            ({"a": "0.5", "b": 0.5}, "must be a fraction"),
            ({"a": 0.0, "b": 1.0}, "must be a fraction"),
        ],
    )
    def test_fractions_are_checked(self, fractions: dict[Any, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            Split(fractions)

    def test_splits_describe_themselves(self) -> None:
        split = Split({"a": 0.5, "b": 0.5}, group="g")
        assert split.by == ["g"] and split.describe() == {"fractions": {"a": 0.5, "b": 0.5}, "group": "g"}
        assert as_split(split) is split and as_split(None) is None
        assert as_split({"a": 0.5, "b": 0.5}) == Split({"a": 0.5, "b": 0.5})
        with pytest.raises(DataError, match="must be a dict of fractions"):
            as_split(0.5)  # type: ignore[arg-type]

    def test_rows_that_an_earlier_split_has_are_leaks(self) -> None:
        one = Hashes(np.array([2, 1, 4, 3, 5, 4, 3, 1], np.uint64), [0, 2, 4, 8])
        assert leaks(["train", "valid", "test"], [one], 8) == {"test": 3}

    @pytest.mark.parametrize("at_once", [1, 7, 1000])
    def test_leaks_are_found_a_part_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
    ) -> None:
        monkeypatch.setattr("hopfleet.data.etl.duplicates.AT_ONCE", at_once)
        random = np.random.default_rng(0)
        values = np.append(random.integers(0, 2**64, 30, np.uint64), np.array([0, 2**64 - 1], np.uint64))
        chunks, splits = list[Hashes](), list[list[int]]([[], [], []])
        for number in range(5):
            bounds = [0, *sorted(random.integers(0, 21, 2).tolist()), 20]
            rows = random.choice(values, 20)
            for split in range(3):
                splits[split] += rows[bounds[split] : bounds[split + 1]].tolist()
            chunks.append(Hashes(rows, bounds))
            if number % 2:
                chunks[-1].spill(tmp_path / f"{number}.npy")
        earlier = [set(splits[0]), {*splits[0], *splits[1]}]
        wanted = {name: sum(row in earlier[n] for row in splits[n + 1]) for n, name in enumerate(["valid", "test"])}
        assert leaks(["train", "valid", "test"], chunks, 100) == wanted and min(wanted.values()) > 0


class TestDealing:
    def test_each_partition_has_its_rows(self, tmp_path: Path) -> None:
        made = deal(np.array([1, 0, 1, 2, 0]), 4, tmp_path / "rows")
        assert [made.rows(partition).tolist() for partition in range(4)] == [[1, 4], [0, 2], [3], []]

    @pytest.mark.parametrize("partitions", [256, 257, 65_536, 65_537])
    def test_any_number_of_partitions(self, tmp_path: Path, partitions: int) -> None:
        last = partitions - 1
        made = deal(np.array([last, 0, last]), partitions, tmp_path / "rows")
        assert made.rows(last).tolist() == [0, 2] and made.rows(0).tolist() == [1]

    def test_chunks_are_dealt_in_their_order(self, tmp_path: Path) -> None:
        """A deal depends on the rows before it, not on which chunk is prepared first."""
        found = []
        for number, order in enumerate([(0, 1, 2), (2, 1, 0)]):
            dealing = Dealing(tmp_path / str(number), 2, 2, 7)
            for chunk in order:
                dealing.add(chunk, (0, 3, 5))
            deals = [[[each.rows(part).tolist() for part in (0, 1)] for each in split] for split in dealing.deals]
            found.append(deals)
            for split, rows in zip(deals, (3, 2), strict=True):
                assert all(sorted(each[0] + each[1]) == [*range(rows)] for each in split)
                assert abs(sum(len(each[0]) - len(each[1]) for each in split)) <= 1
        assert found[0] == found[1]
