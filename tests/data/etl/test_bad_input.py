"""Raw data that cannot be prepared: errors name the file, the line and the remedy, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from hopfleet.data.etl import objects
from hopfleet.errors import DataError, UsageError
from hopfleet.experiment.arguments import check_pair
from hopfleet.support.files import transfers as files
from tests.helpers.tables import stored


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x\n" + "1\n2\noops\n4\n" * 9, r"a\.csv, line 4: column 'x' has 'oops' among numbers"),
        ("a.csv", "x,y\n1,caf\xe9\n", r"a\.csv, line 2: column 'y' is not UTF-8; name the encoding, as in hop.Files"),
        ("a.csv", "x,\xe9\n1,2\n", r"a\.csv, line 1: the header is not UTF-8"),
        ("a.csv", "x;y\n1;2\n1\n", r"a\.csv, line 1: has a single column, 'x;y'; name the delimiter: .*delimiter=';'"),
        ("a.csv", 'x,y\n1,2\n3,"4\n5,6\n', r"a\.csv, line 3: a quote is never closed"),
        ("a.csv", 'x,y\n1,"' + "2\n5,6\n" * 60_000, r"a\.csv, line 2: a quote is never closed"),
        ("a.jsonl", '{"x": 1}\n{"x": "b"}\n{"x": null}\n', r"a\.jsonl, line 2: 'x' is a str, but in line 1 a number"),
        ("a.json", '[\n{"x": 1},\n3\n]\n', r"a\.json, line 3: is not a JSON object, as in"),
    ],
    ids=["mixed", "encoding", "header", "delimiter", "quote", "long quote", "mixed json", "array"],
)
def test_a_file_is_named_with_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        hop.prepare(tmp_path / name, tmp_path / "set", partitions=1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_one_of_several_saved_data_sets_must_be_named(tmp_path: Path) -> None:
    for name in ("test", "train"):
        (tmp_path / "saved" / name).mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"saved: holds the data sets test, train; name one, as in .*/saved/test"):
        hop.prepare(tmp_path / "saved", tmp_path / "set", partitions=1)


def test_quotes_inside_values_and_odd_delimiters_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,5" pipe\n2,b\n')
    made = hop.prepare(tmp_path / "a.csv", tmp_path / "set", partitions=1)
    assert stored(made) == {"x": [1, 2], "y": ['5" pipe', "b"]}
    (tmp_path / "b.csv").write_text("x;y\n1;2\n")
    one = hop.prepare(hop.Files(tmp_path / "b.csv", delimiter=","), tmp_path / "one", partitions=1)
    assert stored(one) == {"x;y": ["1;2"]}


def test_why_no_rows_are_left_is_said(tmp_path: Path) -> None:
    source = {"image": ["a.png", "b.png"], "label": ["a", "b"]}
    with pytest.raises(
        DataError, match=r"partitions=1: .* rows, 0; 2 rows failed, the first: the source, row 1: a\.png"
    ):
        hop.prepare(source, tmp_path / "set", hop.Images((2, 2)), partitions=1, on_error="skip")


def test_rows_of_another_type_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": "b"}\n{"x": 2.5}\n')
    made = hop.prepare(tmp_path / "a.jsonl", tmp_path / "set", partitions=1, on_error="skip")
    assert stored(made) == {"x": [1.0, 2.5]}


def test_parquet_files_of_two_types_need_other_remedies(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["b"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"mixes int64 in .*a\.parquet, row 1 .*; convert the files to one type"):
        hop.prepare(str(tmp_path / "*.parquet"), tmp_path / "set", partitions=1)


def one_or_other(row: dict[str, Any]) -> Any:
    return {"a": 1} if row["x"] != 37 else {"b": 1}


def number_or_text(row: dict[str, Any]) -> Any:
    return {"a": 1 if row["x"] != 37 else "text"}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda row: None, "row 1: .*returned None; return a row"),
        (one_or_other, r"row 38: does not fit the rows before: one_or_other\(\) returned the columns \['b'\]"),
        (number_or_text, "row 38: does not fit the rows before: column 'a': mixes int"),
        (hop.Images(), "the source: has no column 'image'; it has x"),
    ],
    ids=["none", "columns", "types", "images"],
)
def test_a_recipe_that_makes_no_table_is_named_with_the_row(tmp_path: Path, recipe: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hop.prepare({"x": list(range(100))}, tmp_path / "set", recipe, partitions=1, on_error="skip", error_limit=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": {"x": [1, 2], "y": [1]}}, "columns of different lengths, {'x': 2, 'y': 1}"),
        ({"source": {"x": [1, None, "b"]}}, "column 'x', row 3: mixes types"),
        ({"seed": "a"}, "seed='a': must be an integer"),
        ({"error_limit": -1}, "error_limit=-1: must be a number of rows, at least 0"),
    ],
    ids=["lengths", "types", "seed", "limit"],
)
def test_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    arguments = {"source": {"x": [1, 2]}, "partitions": 1, **arguments}
    with pytest.raises(UsageError) as caught:
        hop.prepare(arguments.pop("source"), tmp_path / "set", **arguments)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hop.Images((0, 4)), "size=(0, 4): must be a height and a width"),
        (lambda: hop.Images(32), "size=32: must be a height and a width"),  # type: ignore[arg-type]
        (lambda: hop.Images(mode="RGBB"), "mode='RGBB': unknown; did you mean 'RGB'?"),
        (lambda: hop.Text("words"), "tokenize='words': must be a function"),  # type: ignore[arg-type]
        (lambda: hop.Text(length=0), "length=0: must be an integer of at least 1"),
    ],
    ids=["size", "one size", "mode", "tokenize", "length"],
)
def test_recipes_check_their_settings(make: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert message in str(caught.value)


class Forbidden(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store to which this user has no rights."""

    protocol = "forbidden"

    def _refuse(self, *_: object, **__: object) -> Any:
        raise PermissionError("Forbidden")

    info = ls = exists = isdir = cat_file = open = _refuse


@pytest.fixture
def forbidden() -> None:
    fsspec.register_implementation("forbidden", Forbidden, clobber=True)


@pytest.mark.usefixtures("forbidden")
class TestWithoutRights:
    def test_a_bucket_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"forbidden://b/a\.csv: cannot be listed .*configure credentials"):
            hop.prepare("forbidden://b/a.csv", tmp_path / "set")
        assert not list(tmp_path.iterdir())

    def test_a_bucket_cannot_be_filled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
        with pytest.raises(DataError, match=r"forbidden://b/set: access is denied .*configure credentials"):
            hop.prepare({"x": [1, 2]}, "forbidden://b/set", partitions=1)
        assert not list(tmp_path.rglob("*.arrow"))

    def test_an_object_cannot_be_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
        source = {"image": ["forbidden://b/1.png"], "label": ["a"]}
        with pytest.raises(DataError, match=r"row 1: forbidden://b/1\.png: access is denied .*configure credentials"):
            hop.prepare(source, tmp_path / "set", hop.Images((2, 2)), partitions=1)


class Unplugged(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store that cannot be reached."""

    protocol = "unplugged"
    asked: ClassVar[list[str]] = []

    def cat_file(self, path: str, **_: object) -> Any:
        self.asked.append(path)
        raise ConnectionError("no route to host")


def test_a_server_that_does_not_answer_is_no_fault_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("unplugged", Unplugged, clobber=True)
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(objects, "THREADS", 1)
    source = {"image": [f"unplugged://b/{number}.png" for number in range(50)], "label": ["a"] * 50}
    with pytest.raises(
        DataError, match=r"(?m)unplugged://b/0\.png: cannot be fetched \(ConnectionError.*; check the network$"
    ):
        hop.prepare(source, tmp_path / "set", hop.Images((2, 2)), partitions=1, on_error="skip")
    assert Unplugged.asked == ["b/0.png"] * files.ATTEMPTS and not (tmp_path / "set").exists()


class TestStatisticsThatWouldLeak:
    SOURCE = {"x": [float(row) for row in range(20)]}  # noqa: RUF012

    def test_rows_are_split_before_they_are_fitted(self, tmp_path: Path) -> None:
        data = hop.prepare(self.SOURCE, tmp_path / "set", hop.Tabular(), partitions=1)
        with pytest.raises(DataError, match="was prepared with statistics of all its rows, which would leak"):
            hop.split(data, tmp_path / "parts", {"train": 0.5, "test": 0.5}, partitions=1)
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_a_data_set_is_not_prepared_twice(self, tmp_path: Path) -> None:
        data = hop.partition(self.SOURCE, tmp_path / "set", partitions=1)
        with pytest.raises(DataError, match="is a data set, prepared already"):
            hop.prepare(data, tmp_path / "again", lambda row: {"x": 2 * row["x"]}, partitions=1)

    def test_training_and_validation_share_statistics(self, tmp_path: Path) -> None:
        half = {"x": self.SOURCE["x"][:10]}
        one = hop.prepare(self.SOURCE, tmp_path / "one", hop.Tabular(), partitions=1)
        other = hop.prepare(half, tmp_path / "other", hop.Tabular(), partitions=1)
        with pytest.raises(DataError, match=r"other: was prepared with other statistics than .*one, so equal rows"):
            check_pair(one, other)
        both = hop.prepare(self.SOURCE, tmp_path / "both", hop.Tabular(), partitions=1, split={"a": 0.5, "b": 0.5})
        check_pair(both["a"], both["b"])
        plain = hop.prepare(half, tmp_path / "plain", lambda row: row, partitions=1)
        check_pair(one, plain)


def test_a_recipe_travels_through_a_split(tmp_path: Path) -> None:
    data = hop.prepare({"x": [1, 2, 3, 4]}, tmp_path / "set", lambda row: {"x": 2 * row["x"]}, partitions=1)
    made = hop.split(data, tmp_path / "parts", {"train": 0.5, "test": 0.5}, partitions=1)
    assert hop.load_recipe(made["test"]).fingerprint == hop.load_recipe(data).fingerprint


def test_labels_must_be_there_for_training(tmp_path: Path) -> None:
    recipe = hop.Tabular({"x": hop.Number(), "y": hop.Number()}, labels="y")
    with pytest.raises(DataError, match="the source: has no column 'y' for labels='y'"):
        hop.prepare({"x": [1.0, 2.0]}, tmp_path / "set", recipe, partitions=1)
