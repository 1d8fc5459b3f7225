"""Recipes: statistics, ready-made steps, what travels with a data set, and new rows to predict."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

import hopfleet as hop
from hopfleet.data.etl import statistics
from hopfleet.errors import DataChanged, DataError, UsageError
from tests.helpers.tables import stored

quick = settings(max_examples=40, deadline=None)


class TestStatistics:
    @quick
    @given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), cut=st.integers(0, 50))
    def test_moments_of_parts_are_those_of_the_whole(self, values: list[float], cut: int) -> None:
        both = hop.Moments.of(values[:cut]).merge(hop.Moments.of([*values[cut:], float("nan")]))
        assert both.count == len(values)
        assert both.mean == pytest.approx(np.mean(values), abs=1e-6)
        assert both.deviation == pytest.approx(np.std(values) or 1.0, abs=1e-3, rel=1e-6)
        assert (both.least, both.greatest) == (min(values), max(values))

    def test_quantiles_are_close(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statistics, "POINTS", 200)
        values = np.random.default_rng(0).permutation(20_000).astype(float)
        both = hop.Quantiles.of(values[:9_000]).merge(hop.Quantiles.of(pa.array(values[9_000:])))
        assert len(both.values) <= 200
        for share in (0.05, 0.5, 0.9):
            assert both.at(share) == pytest.approx(share * 20_000, abs=200)
        assert hop.Quantiles.of([3.0, 1.0, 2.0]).at(0.5) == 2.0

    def test_counts_are_ordered_by_frequency(self) -> None:
        counts = hop.Counts.of(["b", "a", None, "c", "b"]).merge(hop.Counts.of(pa.array(["a", "d"])))
        assert counts.common() == ["a", "b", "c", "d"] and counts.common(1) == ["a"]

    def test_plain_values_are_merged_and_stored(self) -> None:
        one = {"rows": 2, "words": {"a"}, "counter": Counter("ab"), "sum": np.array([1.0, 2.0]), "inner": {"low": 0.5}}
        both = statistics.merged(one, {**one, "words": {"b"}, "inner": {"low": 1.0, "new": 1}})
        arrays: dict[str, Any] = {}
        again = statistics.from_json(statistics.to_json(both, arrays), arrays)
        assert again["rows"] == 4 and again["words"] == {"a", "b"} and again["counter"] == Counter("aabb")
        assert again["sum"].tolist() == [2.0, 4.0] and again["inner"] == {"low": 1.5, "new": 1}
        with pytest.raises(DataError, match="a str, which cannot be merged"):
            statistics.merged("a", "b")


class TestTabular:
    def test_numbers_categories_and_dates(self, tmp_path: Path) -> None:
        columns = {
            "n": [1.0, None, 3.0, 8.0],
            "m": ["1", "2", "4", "5"],
            "c": ["x", None, "y", "x"],
            "d": ["2024-01-01", "2024-01-03", "2023-12-31", "2024-02-29"],
            "id": [7, 8, 9, 10],
        }
        steps = {
            "n": hop.Number(missing="median"), "m": hop.Number("range"), "c": hop.Category(),
            "d": hop.Date(parts=["month", "weekday", "age"]), "id": None,
        }  # fmt: skip
        rows = stored(hop.prepare(columns, tmp_path / "set", hop.Tabular(steps), partitions=1))
        mean, deviation = np.mean([1, 3, 8]), np.std([1, 3, 8])
        assert np.allclose(rows["n"], (np.array([1, 3, 3, 8]) - mean) / deviation)
        assert np.allclose(rows["m"], [0, 0.25, 0.75, 1.0])
        assert rows["c"] == [1, 0, 2, 1] and rows["id"] == [7, 8, 9, 10]
        assert np.array_equal(rows["d"], [[1, 0, 59], [1, 2, 57], [12, 6, 60], [2, 3, 0]])

    def test_values_that_are_no_numbers_do_not_count(self, tmp_path: Path) -> None:
        columns = {"n": [1.0, np.nan, 3.0, np.inf, None]}
        recipe = hop.Tabular({"n": hop.Number(missing="mean")})
        made = hop.prepare(columns, tmp_path / "set", recipe, partitions=1, on_error="skip")
        assert stored(made)["n"] == [-1.0, 0.0, 1.0, 0.0]

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_columns_without_a_step_are_not_needed(self, tmp_path: Path, ending: str) -> None:
        rows = pa.table({"odd": [None, None, "?"], "n": [1, 2, 3], "part": ["train", "train", "test"]})
        path = tmp_path / f"rows.{ending}"
        (csv.write_csv if ending == "csv" else parquet.write_table)(rows, path)
        recipe = hop.Tabular({"n": hop.Number(None)})
        made = hop.prepare(path, tmp_path / "set", recipe, partitions=1, split=hop.Split(column="part"))
        assert stored(made["train"]) == {"n": [1.0, 2.0]}
        prepared = hop.load_recipe(made["train"])
        assert list(prepared.layout.types) == ["n"]
        assert prepared.apply(*prepared.given(pa.table({"n": [7]})))["n"].tolist() == [7.0]

    def test_texts_become_tokens(self, tmp_path: Path) -> None:
        columns = {"t": ["to be or not", "to be", "", "new words to be"], "part": ["train"] * 3 + ["test"]}
        options: dict[str, Any] = {"partitions": 1, "split": hop.Split(column="part")}
        made = hop.prepare(columns, tmp_path / "words", hop.Tabular({"t": hop.Text()}), **options)
        assert [row.tolist() for row in stored(made["train"])["t"]] == [[2, 1, 4, 3], [2, 1], []]
        assert stored(made["test"])["t"][0].tolist() == [0, 0, 2, 1]
        short = hop.Tabular({"t": hop.Text(at_most=1, length=3)})
        rows = stored(hop.prepare(columns, tmp_path / "short", short, partitions=1))["t"]
        assert [row.tolist() for row in rows] == [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]

        def tokenizer(text: str) -> dict[str, Any]:  # as those of Hugging Face
            return {"input_ids": [len(word) for word in text.split()]}

        numbers = hop.prepare(columns, tmp_path / "numbers", hop.Tabular({"t": hop.Text(tokenizer)}), **options)
        assert [row.tolist() for row in stored(numbers["train"])["t"]] == [[2, 2, 2, 3], [2, 2], []]
        with pytest.raises(DataError, match=r"row 1: column 'x': 1 is not text"):
            hop.prepare({"x": [1, 2]}, tmp_path / "none", hop.Tabular({"x": hop.Text(tokenizer)}), partitions=1)

    def test_types_decide_without_steps(self, tmp_path: Path) -> None:
        columns = {"n": [1, 2, 3], "c": ["x", "y", "x"], "flag": [True, False, True]}
        made = hop.prepare(columns, tmp_path / "set", hop.Tabular(stack="x"), partitions=1)
        assert {name: str(column) for name, column in made.columns.items()} == {
            "x": "float32[1]", "c": "int64", "flag": "int64",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("step", "values", "message"),
        [
            (hop.Number(), ["1", "two", "3"], "the source, row 2: column 'v': Failed to parse string: 'two'"),
            (hop.Number(missing="mean"), [1.0, np.inf, 3.0], "the source, row 2: column 'v': inf is not finite"),
            (hop.Number(), [1.0, np.nan, 3.0], "the source, row 2: column 'v': a value is missing"),
            (hop.Number(), [1.0, None, 3.0], "the source, row 2: column 'v': a value is missing"),
            (hop.Category(unseen="raise"), ["a", None, "a"], "the source, row 2: column 'v': a value is missing"),
            (
                hop.Date(format="%d.%m.%Y"),
                ["01.02.2024", "2024-02-01"],
                "row 2: column 'v': '2024-02-01' is not a date",
            ),
        ],
    )
    def test_a_value_that_does_not_fit_is_named(
        self, tmp_path: Path, step: Any, values: list[Any], message: str
    ) -> None:
        with pytest.raises(DataError) as caught:
            hop.prepare({"v": values}, tmp_path / "set", hop.Tabular({"v": step}), partitions=1)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: hop.Number("standart"), "did you mean 'standard'"),
            (lambda: hop.Number(missing="mode"), "missing='mode': unknown"),
            (lambda: hop.Category(unseen="no"), "unseen='no': unknown"),
            (lambda: hop.Date(parts=["mont"]), "did you mean 'month'"),
            (lambda: hop.Tabular({"x": 3}), "must be hop.Number()"),  # type: ignore[dict-item]
        ],
        ids=["scale", "missing", "unseen", "parts", "step"],
    )
    def test_a_step_that_cannot_work_is_refused(self, make: Any, message: str) -> None:
        with pytest.raises(DataError) as caught:
            make()
        assert message in str(caught.value)


class Scaled(hop.Recipe):
    labels = ("y",)

    def fit(self, batch: Any) -> Mapping[str, Any]:
        return {"most": {int(batch["x"].max())}, "sums": np.array([batch["x"].sum()])}

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> dict[str, Any]:
        made = {"x": batch["x"] / fitted["sums"][0]}
        return {**made, "y": batch["y"]} if "y" in batch else made


class TestWhatTravels:
    def test_statistics_are_those_of_the_training_rows(self, tmp_path: Path) -> None:
        columns = {"x": [1.0] * 50 + [1000.0] * 50, "y": list(range(100)), "part": ["train"] * 50 + ["test"] * 50}
        made = hop.prepare(columns, tmp_path / "set", Scaled(), partitions=2, split=hop.Split(column="part"))
        assert list(made) == ["train", "test"]
        for data in made.values():
            assert hop.load_recipe(data).fitted["sums"].tolist() == [50.0]
        assert stored(made["test"])["x"] == [20.0] * 50

    def test_new_rows_are_prepared_in_the_same_way(self, tmp_path: Path) -> None:
        columns = {"x": [1.0, 2.0, 5.0], "y": [0, 1, 0]}
        data = hop.prepare(columns, tmp_path / "set", Scaled(), partitions=1)
        prepared = hop.load_recipe(tmp_path / "set")
        table, layout = prepared.given(pa.table({"x": [4, 8]}), labelled=False)
        assert prepared.apply(table, layout)["x"].tolist() == [0.5, 1.0]
        assert prepared.fingerprint == hop.load_recipe(data).fingerprint
        with pytest.raises(DataError, match=r"lack the columns 'x' .*and has 'z' instead"):
            prepared.given(pa.table({"z": [1.0], "y": [1]}))
        with pytest.raises(DataError, match="column 'x': is string, but was double in training"):
            prepared.given(pa.table({"x": ["one"]}), labelled=False)

    def test_a_spec_knows_the_split_of_each_row(self, tmp_path: Path) -> None:
        class MyETLSpec(hop.ETLSpec):  # as in Figure 3.2 of the thesis
            def __init__(self) -> None:
                self.is_feature_download: list[Any] = []

            def initialize_worker(self) -> None:
                pass

            def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
                return f"{row['x']} {mode}", len(row)

        columns = {"x": [1, 2, 3], "part": ["train", "valid", "train"]}
        made = hop.prepare(columns, tmp_path / "set", MyETLSpec(), partitions=1, split=hop.Split(column="part"))
        assert stored(made["train"]) == {"x": ["1 train", "3 train"], "y": [2, 2]}
        assert stored(made["valid"]) == {"x": ["2 valid"], "y": [2]}
        prepared = hop.load_recipe(made["train"])
        assert prepared.apply(*prepared.given(pa.table({"x": [4], "part": ["new"]})))["x"] == ["4 test"]
        whole = hop.prepare(columns, tmp_path / "whole", MyETLSpec().recipe(mode="valid"), partitions=1)
        assert stored(whole)["x"] == ["1 valid", "2 valid", "3 valid"]

    def test_rows_to_predict_lack_the_labels_of_a_spec(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Sized(hop.ETLSpec):
            is_feature_download = ("file",)
            labels = ("label",)

            def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
                content = (Path(object_dir) / row["file"]).read_text()
                return float(len(content)), None if row["label"] is None else row["label"] * 2

        monkeypatch.chdir(tmp_path)
        for name in ("a", "bb"):
            Path(name).write_text(name)
        made = hop.prepare({"file": ["a", "bb"], "label": [1, 2]}, "set", Sized(), partitions=1)
        assert stored(made) == {"x": [1.0, 2.0], "y": [2, 4]}
        prepared = hop.load_recipe(made)
        for new in ({"file": ["bb"]}, {"file": ["bb"], "label": [5]}):
            rows = pa.table(new).select(["file"])
            assert prepared.apply(*prepared.given(rows, labelled=False)) == {"x": [2.0]}
        assert prepared.apply(*prepared.given(pa.table({"file": ["bb"], "label": [5]})))["y"] == [10]

    def test_unseen_categories(self, tmp_path: Path) -> None:
        recipe = hop.Tabular({"c": hop.Category(), "label": hop.Category(unseen="raise")}, labels="label")
        hop.prepare({"c": ["a", "b", "a"], "label": ["no", "yes", "no"]}, tmp_path / "set", recipe, partitions=1)
        prepared = hop.load_recipe(tmp_path / "set")
        table, layout = prepared.given(pa.table({"c": ["b", "new", None]}), labelled=False)
        assert prepared.apply(table, layout)["c"].tolist() == [2, 0, 0]
        table, layout = prepared.given(pa.table({"c": ["b"], "label": ["maybe"]}))
        with pytest.raises(DataError, match="'maybe' is not among the categories of the training rows, no, yes"):
            prepared.apply(table, layout)

    @pytest.mark.parametrize("kind", ["method", "partial", "spec", "step"])
    def test_code_that_changes_makes_another_recipe(self, tmp_path: Path, kind: str) -> None:
        def written(factor: int) -> Any:
            """The same names with other code, as after an edit."""
            scope: dict[str, Any] = {"hop": hop, "functools": functools}
            source = tmp_path / f"module{factor}.py"
            source.write_text(
                f"""
def function(row, plus=0):
    return {{"x": row["x"] * {factor} + plus}}

class Spec(hop.ETLSpec):
    def method(self, row):
        return function(row)

    def row_preprocessor(self, row, mode, object_dir):
        return row["x"] * {factor}, 0

def words(text):
    return text.split()[:{factor}]

recipes = {{
    "method": Spec().method, "partial": functools.partial(function, plus=1), "spec": Spec(),
    "step": hop.Tabular({{"t": hop.Text(words)}}),
}}
"""
            )
            exec(compile(source.read_text(), str(source), "exec"), scope)
            return scope["recipes"][kind]

        hop.prepare({"x": [1, 2], "t": ["a b c", "d"]}, tmp_path / "set", written(2), partitions=1)
        hop.prepare({"x": [1, 2], "t": ["a b c", "d"]}, tmp_path / "set", written(2), partitions=1)
        with pytest.raises(DataChanged, match=r"differs \(recipe\)"):
            hop.prepare({"x": [1, 2], "t": ["a b c", "d"]}, tmp_path / "set", written(3), partitions=1)

    def test_a_class_of_a_script_makes_the_same_bytes_each_time(self, tmp_path: Path) -> None:
        script = (
            "import hopfleet as hop\nSCALE = {scale}\nclass Mine(hop.Recipe):\n    def fit(self, batch):\n"
            "        return {{'x': hop.Moments.of(batch['x'])}}\n    def apply(self, batch, fitted):\n"
            "        return {{'x': (batch['x'] - fitted['x'].mean) * SCALE}}\n"
        )
        pickles, made = [], []
        for number, scale in enumerate((2, 2, 3)):
            run: dict[str, Any] = {"__name__": "__main__"}
            exec(script.format(scale=scale), run)
            made.append(hop.prepare({"x": [1.0, 3.0]}, tmp_path / f"{number}", run["Mine"](), partitions=1))
            pickles.append((tmp_path / f"{number}" / "recipe.pickle").read_bytes())
        assert pickles[0] == pickles[1] != pickles[2]
        rows = pa.table({"x": [5.0]})
        assert [hop.load_recipe(each).apply(rows)["x"].tolist() for each in made] == [[6.0], [6.0], [9.0]]

    def test_the_code_can_be_read(self, tmp_path: Path) -> None:
        hop.prepare({"x": [1.0], "y": [2]}, tmp_path / "set", Scaled(), partitions=1)
        assert 'batch[\\"x\\"].max()' in (tmp_path / "set" / "recipe.json").read_text()

    def test_a_data_set_of_partition_has_no_recipe(self, tmp_path: Path) -> None:
        data = hop.partition({"x": [1, 2]}, tmp_path / "set", partitions=1)
        with pytest.raises(DataError, match=r"only data sets that hop\.prepare made have a recipe"):
            hop.load_recipe(data)


def test_the_dtype_of_a_batch_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 5)
    (tmp_path / "b.csv").write_text("x,y\n" + ",2\n" * 5)

    def filled(batch: dict[str, Any]) -> dict[str, Any]:
        assert batch["x"].dtype == np.float64 and batch["y"].dtype == np.int64
        return {"x": np.nan_to_num(batch["x"], nan=-1.0)}

    made = hop.prepare(str(tmp_path / "*.csv"), tmp_path / "set", filled, partitions=1)
    assert stored(made)["x"] == [1.0] * 5 + [-1.0] * 5


class TestTrust:
    """Recipes and workspaces hold pickles, so only this user may be able to write to their folders."""

    def test_a_recipe_in_a_folder_that_others_can_write_to_is_not_run(self, tmp_path: Path) -> None:
        data = hop.prepare({"x": [1.0, 2.0]}, tmp_path / "set", partitions=1)
        (tmp_path / "set").chmod(0o777)
        with pytest.raises(UsageError, match="others can write to it, so no code that it names is run"):
            hop.load_recipe(data)

    def test_a_workspace_of_others_is_not_used(self, tmp_path: Path) -> None:
        workspace = tmp_path / ".set.prepare"
        workspace.mkdir()
        workspace.chmod(0o777)
        with pytest.raises(UsageError, match="others can write to it"):
            hop.prepare({"x": [1.0, 2.0]}, tmp_path / "set", partitions=1)
        assert not (tmp_path / "set").exists()
