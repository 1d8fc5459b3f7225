"""Rows to predict that fail: every line of a file is accounted for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.data.etl import blocks, reading
from hopfleet.errors import DataError, TaskError, UsageError
from hopfleet.testing.tasks import CountingTask

LINES = ["1.5,a", "oops,b", "3,c,more", "", "4,d", ",e"]
"""A good row, a text for a number, a value too many, a blank line, a good row, and a missing value."""


class Doubling(CountingTask):
    def transform(self, batch: Any, rng: Any) -> Any:
        return {"x": batch["x"]}

    def predict(self, model: Any, batch: Any) -> Any:
        return {"double": 2 * batch["x"], "pair": np.stack([batch["x"], batch["x"]], axis=1)}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hop.Results:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    recipe = hop.Tabular({"x": hop.Number(None, missing="raise")})
    data = hop.prepare({"x": [1.0, 2.0]}, tmp_path / "data", recipe, partitions=1)
    return hop.Experiment(
        Doubling(), train=data, space={"number": 1}, search=hop.Grid(max_epochs=1), batch_size=2, name="doubling",
        metric="train_loss", backend="inline",
    ).fit(quiet=True)  # fmt: skip


def csv(tmp_path: Path, lines: list[str], ending: str = "\n") -> Path:
    path = tmp_path / "new.csv"
    path.write_bytes(f"x,id\n{ending.join(lines)}\n".encode())
    return path


def test_a_row_that_fails_is_named_with_what_can_be_done(results: hop.Results, tmp_path: Path) -> None:
    remedy = r"; on_error='skip' leaves out such rows, and 'null' has missing predictions for them"
    for lines, message in [
        (LINES[1:2], r"new\.csv, line 2: column 'x': 'oops' is not of type double"),
        (LINES[:1] + LINES[2:3], r"new\.csv, line 3: has 3 values instead of 2; quote values with delimiters"),
        (["1,a", "", "2,b"], r"new\.csv, line 3: is blank"),
        (["1,a", ",b"], r"new\.csv, line 3: .*x"),
    ]:
        with pytest.raises(DataError, match=message) as raised:
            results.best.predict(csv(tmp_path, lines), keep="id")
        assert remedy[2:] in str(raised.value) or "quote values" in message
    with pytest.raises(UsageError, match="on_error='keep': must be 'raise', 'skip'"):
        results.best.predict(csv(tmp_path, LINES), on_error="keep")  # type: ignore[call-overload]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_rows_that_fail_are_left_out_or_missing(results: hop.Results, tmp_path: Path, ending: str) -> None:
    path = csv(tmp_path, [*LINES, "", "", ""], ending)  # blank lines at the end are no rows
    with pytest.warns(UserWarning, match=r"4 of 6 rows have no prediction:\n  .*new\.csv, line 3: column 'x'"):
        skipped = results.best.predict(path, keep="id", on_error="skip")
    assert skipped.to_pydict() == {"id": ["a", "d"], "double": [3.0, 8.0], "pair": [[1.5, 1.5], [4.0, 4.0]]}
    with pytest.warns(UserWarning, match="4 of 6 rows"):
        made = results.best.predict(path, keep="id", on_error="null")
    assert made.column("double").to_pylist() == [3.0, None, None, None, 8.0, None]
    assert made.column("pair").to_pylist() == [[1.5, 1.5], None, None, None, [4.0, 4.0], None]
    assert made.column("id").to_pylist() == ["a", "b", None, None, "d", "e"]
    errors = made.column("error").to_pylist()
    assert [error and error.partition(", ")[2].partition(":")[0] for error in errors] == [
        None, "line 3", "line 4", "line 5", None, "line 7",
    ]  # fmt: skip


def test_every_way_to_predict(results: hop.Results, tmp_path: Path, capsys: Any) -> None:
    path = csv(tmp_path, LINES)
    with pytest.warns(UserWarning, match="4 of 6"):
        wanted = results.best.predict(path, on_error="null", keep=["id"])
        assert pa.Table.from_batches(results.best.predict(path, on_error="null", keep=["id"], to=iter)) == wanted
        for target in ("made.parquet", "folder"):
            assert results.best.predict(path, on_error="null", keep=["id"], to=tmp_path / target) == 6
            assert pq.read_table(tmp_path / target) == wanted
        results.best.export(tmp_path / "bundle", format="bundle")
        bundle = hop.load_bundle(tmp_path / "bundle")
        assert bundle.predict(path, on_error="null", keep=["id"]) == wanted
        target = str(tmp_path / "cli.parquet")
        told = ["predict", "doubling", "--data", str(path), "--to", target, "--keep", "id", "--on-error", "null"]
        assert main(told) == 0 and "6 predictions" in capsys.readouterr().out
    assert pq.read_table(target) == wanted


def test_no_row_is_left(results: hop.Results, tmp_path: Path) -> None:
    results.best.export(tmp_path / "bundle", format="bundle")
    bundle = hop.load_bundle(tmp_path / "bundle")
    for lines in (["oops,b"], ["1,2,3"]):
        path = csv(tmp_path, lines)
        with pytest.raises(DataError, match="line 2"):
            results.best.predict(path)
        for one in (results.best, bundle):
            with pytest.warns(UserWarning, match="1 of 1 rows have no prediction"):
                assert one.predict(path, on_error="skip").num_rows == 0
                made = one.predict(path, on_error="null")
            assert made.column("double").to_pylist() == [None] and "line 2" in made.column("error")[0].as_py()
    empty = bundle.predict(csv(tmp_path, []), keep="id")
    assert empty.num_rows == 0 and empty.column_names == ["id", "double", "pair"]
    assert bundle.predict({"x": [1.0]}).schema.field("pair") == empty.schema.field("pair")


def test_a_single_column_of_text_and_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lengths(Doubling):
        def transform(self, batch: Any, rng: Any) -> Any:
            return batch

        def predict(self, model: Any, batch: Any) -> Any:
            return [len(text) for text in batch["text"]]

    def length(row: Any) -> Any:
        return {"text": row["text"] or "", "x": 1.0}

    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    data = hop.prepare({"text": ["a", "b"]}, tmp_path / "data", length, partitions=1)
    results = hop.Experiment(
        Lengths(), train=data, space={"number": 1}, search=hop.Grid(max_epochs=1), name="lengths", batch_size=1,
        metric="train_loss", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    for name, text in [("a.csv", "text\none\n\nthree\n\n"), ("a.txt", "one\n\nthree\n\n\n")]:
        (tmp_path / name).write_text(text)
        assert results.best.predict(tmp_path / name).column("prediction").to_pylist() == [3, 0, 5]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": 3}\n{"text": "five"}\n[1]\n')
    with pytest.warns(UserWarning, match="3 of 5 rows"):
        made = results.best.predict(tmp_path / "a.jsonl", on_error="null")
    assert made.column("prediction").to_pylist() == [3, None, None, 4, None]


def test_a_name_may_stand_once(results: hop.Results, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x,error\n1,a\n")
    with pytest.raises(TaskError, match="on_error='null': a column 'error' tells why"):
        results.best.predict(tmp_path / "new.csv", keep="error", on_error="null")


@pytest.mark.parametrize("seed", range(4))
def test_each_line_has_its_prediction_in_files_of_any_size(
    results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 5)
    draw = random.Random(seed)
    kinds = [draw.choice([*range(8), 8, 8]) for _ in range(draw.randrange(1, 120))]
    lines, wanted = [], list[float | None]()
    for number, kind in enumerate(kinds):
        line, double = {
            0: (f"x{number},r{number}", None),
            1: (f"{number},r{number},", None),
            2: ("", None),
            3: (f'{number},"r\n{number}"', 2.0 * number),
        }.get(kind, (f"{number},r{number}", 2.0 * number))
        lines.append(line)
        wanted.append(double)
    while lines and not lines[-1]:
        del lines[-1], wanted[-1]
    path = csv(tmp_path, [*lines, *[""] * draw.randrange(200)])
    if not any(each is not None for each in wanted):
        return
    with pytest.warns() if None in wanted else _nothing():
        made = results.best.predict(path, keep="id", on_error="null")
    assert made.column("double").to_pylist() == wanted
    bad = [each is None for each in wanted]
    assert [error is not None for error in made.column("error").to_pylist()] == bad
    good = [row for row, failed in zip(made.column("id").to_pylist(), bad, strict=True) if not failed]
    assert [name.replace("\n", "") for name in good] == [f"r{n}" for n, each in enumerate(wanted) if each is not None]
    if None in wanted:
        with pytest.warns(UserWarning):
            skipped = results.best.predict(path, on_error="skip")
        assert skipped.column("double").to_pylist() == [each for each in wanted if each is not None]


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_failed_rows_know_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,a\n2\n3,c\nx,d\n5,e\n")
    files = hop.Files(path, types={"x": "int64"})
    hop.prepare(files, tmp_path / "set", partitions=1, on_error="keep")
    rows = [json.loads(line) for line in (tmp_path / "set" / "failed.jsonl").read_text().splitlines()]
    assert [(row["line"], row["before"]) for row in rows] == [(3, 1), (5, 2)]


def test_rows_that_a_recipe_leaves_out_have_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def positive(row: Any) -> Any:
        return {"x": row["x"]} if row["x"] > 0 else []

    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    data = hop.prepare({"x": [1.0, -1.0, 2.0]}, tmp_path / "data", positive, partitions=1)
    results = hop.Experiment(
        Doubling(), train=data, space={"number": 1}, search=hop.Grid(max_epochs=1), batch_size=1, name="positive",
        metric="train_loss", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    assert data.rows == 2
    with pytest.raises(DataError, match=r"row 2: the recipe makes 0 rows of 1; rows to predict need one for each"):
        results.best.predict({"x": [1.0, -1.0]})
    with pytest.warns(UserWarning, match="1 of 3 rows"):
        made = results.best.predict({"x": [1.0, -1.0, 4.0]}, on_error="null")
    assert made.column("double").to_pylist() == [2.0, None, 8.0]
