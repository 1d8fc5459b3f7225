"""Folds with statistics of their own: the rows of a fold have the bits that the other rows alone give them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import hopfleet as hop
from hopfleet.data.etl.recipe import shared_statistics
from hopfleet.data.etl.statistics import to_json
from hopfleet.data.unseen import unseen
from hopfleet.errors import DataChanged, DataError, UsageError

ROWS, PARTS, FOLDS = 240, 6, 3


class Ranks:
    """A step of the user's with statistics."""

    def fit(self, values: Any) -> Mapping[str, Any]:
        return {"sum": float(np.nansum(values)), "some": set(values[:1].tolist())}

    def apply(self, values: Any, fitted: Mapping[str, Any]) -> Any:
        return (values / fitted["sum"]).astype(np.float32)


RECIPE = hop.Tabular(
    {
        "id": None,
        "plain": hop.Number(),
        "range": hop.Number("range", missing="median", indicator=True),
        "log": hop.Number("log", missing="mean"),
        "quantile": hop.Number("quantile"),
        "kind": hop.Category(),
        "hot": hop.Category(one_hot=True, at_most=3),
        "when": hop.Date(["year", "month", "age"]),
        "words": hop.Text(str.split, length=3),
        "own": Ranks(),
    },
    stack="x", labels=["price", "verdict", "tags"],
)  # fmt: skip


def raw(rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = {name: rng.normal(3, 2, rows).tolist() for name in ("plain", "range", "quantile", "own", "price")}
    numbers["range"][5] = numbers["range"][7] = None
    rare = [f"rare {row}" if row % 50 == 0 else "abc"[row % 3] for row in range(rows)]
    return pa.table({
        "id": range(rows), **numbers,
        "log": [None if row % 19 == 0 else float(row * row) for row in range(rows)],
        "kind": rare, "hot": rare,
        "when": [f"20{row % 30 + 10}-0{row % 9 + 1}-15" for row in range(rows)],
        "words": [f"w{row % 7} w{row % 40} w{row}" for row in range(rows)],
        "verdict": rng.choice(["yes", "no", "perhaps"], rows).tolist(),
        "tags": [["a"] if row % 2 else ["b", "a"] for row in range(rows)],
    })  # fmt: skip


def prepared(source: Any, folder: str | Path, recipe: Any = RECIPE, **more: Any) -> Any:
    return hop.prepare(source, folder, recipe, **{"partitions": PARTS, "folds": FOLDS, "quiet": True, **more})


def ids(data: hop.Dataset, part: int) -> list[int]:
    (batch,) = data.batches(part, batch_size=ROWS)
    return list(batch["id"].tolist())


def statistics(folder: Any) -> str:
    arrays: dict[str, Any] = {}
    return json.dumps([to_json(hop.load_recipe(folder).fitted, arrays), {n: a.tolist() for n, a in arrays.items()}])


def by_id(data: hop.Dataset) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for part in range(len(data)):
        (batch,) = data.batches(part, batch_size=ROWS)
        found |= {int(row): {name: batch[name][place] for name in batch} for place, row in enumerate(batch["id"])}
    return found


@pytest.mark.parametrize("source", ["memory", "csv", "parquet"])
def test_a_fold_has_the_bits_of_its_other_rows_alone(tmp_path: Path, source: str) -> None:
    table, given = raw(), tmp_path / f"raw.{source}"
    if source == "csv":
        table = table.set_column(table.schema.get_field_index("tags"), "tags", pa.array(["a", "b"] * (ROWS // 2)))
        pa.csv.write_csv(table, given)
    elif source == "parquet":
        pa.parquet.write_table(table, given, row_group_size=70)
    data = prepared(table if source == "memory" else given, tmp_path / "data")
    whole = prepared(table if source == "memory" else given, tmp_path / "whole", folds=0)
    assert len(data.folds) == FOLDS
    assert statistics(data) == statistics(whole)
    assert [part.sha256 for part in data.manifest.partitions] == [part.sha256 for part in whole.manifest.partitions]
    for number, fold in enumerate(data.folds[: None if source == "memory" else 1]):
        assert [ids(fold, part) for part in range(PARTS)] == [ids(data, part) for part in range(PARTS)]
        files = []
        for part in range(PARTS):
            if part % FOLDS != number:
                files.append(tmp_path / f"{number}-{part}.arrow")
                with pa.ipc.new_file(files[-1], table.schema) as writer:
                    writer.write_table(table.take(ids(data, part)).combine_chunks())
        alone = prepared([str(file) for file in files], tmp_path / f"alone-{number}", folds=0, partitions=2)
        assert statistics(fold) == statistics(alone) != statistics(data)
        mine, theirs = by_id(fold), by_id(alone)
        assert len(theirs) == ROWS * 2 // 3
        for row, values in theirs.items():
            assert all(np.array_equal(mine[row][name], value) for name, value in values.items())
        recipe = hop.load_recipe(alone)  # the rows of the fold itself are prepared as new rows are
        some = table.take([row for row in mine if row not in theirs])
        made = recipe.apply(recipe.layout.cast(some.select(list(recipe.layout.types))))
        for place, row in enumerate(some["id"].to_pylist()):
            assert all(np.array_equal(mine[row][name], made[name][place]) for name in made if name != "id")
    labels = hop.load_recipe(data.folds[0]).outcomes
    assert labels["verdict"].names == ("no", "perhaps", "yes")
    assert sum(labels["verdict"].counts) == ROWS * 2 // 3


@pytest.mark.slow
def test_workers_and_calls_that_were_killed_make_no_difference(tmp_path: Path) -> None:
    one, other = (prepared(raw(), tmp_path / f"{count}", workers=count) for count in (1, 2))
    assert one.fingerprint == other.fingerprint
    assert prepared(raw(), tmp_path / "1").fingerprint == one.fingerprint  # found
    with pytest.raises(DataChanged, match="folds"):
        prepared(raw(), tmp_path / "1", folds=2)
    again = prepared(raw(), tmp_path / "1", folds=2, overwrite=True)
    assert len(again.folds) == 2 and not (tmp_path / "1" / "fold-2").exists()
    assert len(prepared(raw(), tmp_path / "1", folds=0, overwrite=True).folds) == 0


def test_only_rows_for_training_are_prepared_in_folds(tmp_path: Path) -> None:
    split = hop.Split({"valid": 0.3, "train": 0.7}, stratify="verdict")
    data = prepared(raw(), tmp_path / "data", split=split, partitions=3)
    assert (len(data["train"].folds), data["valid"].folds) == (3, ())
    assert [ids(data["train"].folds[1], part) for part in range(3)] == [ids(data["train"], part) for part in range(3)]


def test_rows_that_fail_are_in_no_fold(tmp_path: Path) -> None:
    table = raw().set_column(1, "plain", pa.array([None if row == 9 else float(row) for row in range(ROWS)]))
    data = prepared(table, tmp_path / "data", on_error="keep", seed=1)
    assert data.rows == ROWS - 1
    assert 9 not in by_id(data.folds[0]) and len(by_id(data.folds[0])) == ROWS - 1


def test_unseen_rows_are_those_of_the_folds_they_belong_to(tmp_path: Path) -> None:
    data = prepared(raw(), tmp_path / "data")
    rows = unseen(data)
    rows.check(checksums=True)
    for part in range(PARTS):
        (mine,), (theirs,) = (each.batches(part, batch_size=99) for each in (rows, data.folds[part % FOLDS]))
        assert np.array_equal(mine["x"], theirs["x"])
        assert rows.file(part) == data.folds[part % FOLDS].file(part)
    assert rows.copied().fingerprint == rows.fingerprint != data.fingerprint
    plain = prepared(raw(), tmp_path / "plain", folds=0)
    assert unseen(plain) is plain
    next((tmp_path / "data" / "fold-1").glob("*.arrow")).unlink()
    for check in (rows.check, rows.probe):
        with pytest.raises(DataError, match="is missing"):
            check()


def test_names_of_classes_alone_make_no_copies(tmp_path: Path) -> None:
    class Ranked(hop.Recipe):
        def fit(self, batch: Any) -> Mapping[str, Any]:
            return {"names": set(batch["y"])}

        def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Any:
            return {"y": np.array([sorted(fitted["names"]).index(name) for name in batch["y"]])}

    data = prepared({"y": ["a", "b"] * 60}, tmp_path / "data", Ranked())
    assert data.folds == () and len(data.manifest.folds) == FOLDS
    assert (tmp_path / "data/fold-0/part-00000.arrow").samefile(tmp_path / "data/part-00000.arrow")
    stored = prepared({"y": ["a", "b"] * 60}, tmp_path / "stored", None)
    assert stored.manifest.folds == ()  # without statistics, there is nothing to divide


def test_statistics_that_folds_share_are_found_wherever_the_rows_are(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "data"), "memory://folds/data"):
        for number, (recipe, folds, name) in enumerate(
            [(RECIPE, 0, "Tabular"), (RECIPE, 2, ""), (None, 0, ""), (hop.Tabular({"id": None}), 0, "")]
        ):
            rows = raw() if recipe else {"id": range(ROWS)}
            data = prepared(rows, f"{folder}-{number}", recipe, partitions=2, folds=folds)
            assert shared_statistics(data) == name
            assert len(data.folds) == folds
            if folds:
                unseen(data).check(checksums=True)


def test_a_fold_that_is_another_is_refused(tmp_path: Path) -> None:
    data = prepared(raw(), tmp_path / "data")
    (tmp_path / "data/fold-1").rename(tmp_path / "away")
    (tmp_path / "data/fold-0").rename(tmp_path / "data/fold-1")
    (tmp_path / "away").rename(tmp_path / "data/fold-0")
    with pytest.raises(DataError, match="fold-0: differs from what was prepared"):
        hop.open_dataset(data.url).folds  # noqa: B018


class TestWhatGoesWrong:
    def test_in_the_arguments(self, tmp_path: Path) -> None:
        for folds in (1, -1, "5"):
            with pytest.raises((UsageError, TypeError), match="folds"):
                prepared(raw(), tmp_path / "data", folds=folds)
        with pytest.raises(DataError, match="folds=7: needs at least 7 partitions, not 6"):
            prepared(raw(), tmp_path / "data", folds=7)
        with pytest.raises(DataError, match="folds=2: clusters do not prepare folds"):
            prepared(raw(), tmp_path / "data", folds=2, backend="ray")

    def test_a_class_that_one_fold_has_alone(self, tmp_path: Path) -> None:
        names = ["cat" if row else "bird" for row in range(30)]
        with pytest.raises(DataError, match=r"'y': the labels of all rows are 2 classes, and outside of fold \d 1"):
            prepared({"x": range(30), "y": names}, tmp_path / "data", hop.Tabular(labels="y"))
        with pytest.raises(
            DataError, match=r"only fold \d has 'bird'; leave such rows out, or use fewer folds, or say"
        ):
            prepared({"x": range(30), "y": names}, tmp_path / "data", hop.Tabular(labels="y"))

    def test_a_kind_of_label_that_needs_all_rows(self, tmp_path: Path) -> None:
        values = [row % 6 for row in range(60)]
        with pytest.raises(DataError, match=r"of all rows are 6 classes, and outside of fold 0 a number; leave"):
            prepared({"y": values}, tmp_path / "data", hop.Tabular(labels="y"))

    def test_a_category_that_widens_the_rows(self, tmp_path: Path) -> None:
        recipe = hop.Tabular({"hot": hop.Category(one_hot=True)})
        with pytest.raises(
            DataError, match=r"'hot': is float32\[9\] with the statistics of all rows, and float32\[7\]"
        ):
            prepared(raw(), tmp_path / "data", recipe)

    def test_a_row_that_fails_in_a_fold(self, tmp_path: Path) -> None:
        (tmp_path / "raw.csv").write_text("kind\n" + "".join("b\n" if row == 3 else "a\n" for row in range(30)))
        for hop_on in ("raise", "skip"):
            with pytest.raises(DataError, match=r"raw.csv, line 5: with the statistics of all folds but \d: .*'b' is"):
                prepared(
                    tmp_path / "raw.csv", tmp_path / "data", hop.Tabular({"kind": hop.Category("raise")}),
                    on_error=hop_on,
                )  # fmt: skip

    def test_recipes_whose_rows_depend_on_statistics(self, tmp_path: Path) -> None:
        class Many(hop.Recipe):
            repeats = 2

            def fit(self, batch: Any) -> Mapping[str, Any]:
                return {"x": hop.Moments.of(batch["x"])}

            def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Any:
                from hopfleet.data.etl.recipe import ORIGIN

                origins = np.arange(len(batch["x"])).repeat(self.repeats)
                origins = origins[batch["x"][origins] <= fitted["x"].greatest] if self.repeats == 1 else origins
                return {"x": batch["x"][origins], ORIGIN: origins}

        with pytest.raises(DataError, match="makes several rows of one, which may be in several folds"):
            prepared({"x": np.arange(60.0)}, tmp_path / "data", Many())
        Many.repeats = 1
        with pytest.raises(DataError, match=r"with the statistics of all folds but \d, the recipe makes other rows"):
            prepared({"x": np.arange(60.0)}, tmp_path / "data", Many())
