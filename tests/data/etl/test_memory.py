"""Rows that stay in memory between the stages of a preparation: the data set is the same as with files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopfleet as hop
from hopfleet.data.etl import blocks, preparation, work
from hopfleet.data.etl.memory import Memory
from hopfleet.errors import DataError
from tests.helpers.preparations import contents

ROWS = 400
HELD = "hopfleet.data.etl.pool.HELD_BYTES"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts files into many pieces."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 500)
    monkeypatch.setattr("hopfleet.data.etl.reading.BLOCK_BYTES", 500)
    monkeypatch.setattr(work, "BATCH_ROWS", 7)
    monkeypatch.setattr(work, "QUICK_SECONDS", float("inf"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows whose columns have other types in early pieces than in late ones, and gaps in some pieces only."""
    path = tmp_path / "rows.csv"
    lines = [
        f"{row if row < 200 else row / 8},{'' if row > 300 and row % 9 == 0 else row},{'abc'[row % 3]},{row % 5},"
        f"{'' if row < 100 else row % 4}"
        for row in range(ROWS)
    ]
    path.write_text("number,gaps,name,code,late\n" + "".join(f"{line}\n" for line in lines))
    return path


def recipe() -> hop.Tabular:
    return hop.Tabular(
        {
            "number": hop.Number(),
            "gaps": hop.Number("range", missing="median"),
            "name": hop.Category(),
            "code": hop.Category(unseen="raise"),
            "late": hop.Category(at_most=3),
        }
    )


class Means(hop.Recipe):
    """A recipe that gets numpy arrays, in threads."""

    threads = True

    def fit(self, batch: Any) -> Any:
        return {"gaps": hop.Moments.of(batch["gaps"]), "kind": hop.Counts.of([batch["gaps"].dtype.name])}

    def apply(self, batch: Any, fitted: Any) -> Any:
        gaps = batch["gaps"]
        filled = np.where(np.isnan(gaps), fitted["gaps"].mean, gaps)
        return {"gaps": filled, "name": batch["name"], "number": batch["number"]}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("split", [None, {"train": 0.7, "test": 0.3}])
@pytest.mark.parametrize("make", [recipe, Means, lambda: None])
def test_the_data_set_is_the_same_with_all_some_or_no_rows_in_memory(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, workers: int, split: Any, make: Any
) -> None:
    made = make()
    rows: Any = source if made is not None else {"x": list(range(ROWS)), "name": ["some", "text"] * (ROWS // 2)}
    found = []
    for limit in (0, 9000, 1 << 20):
        monkeypatch.setattr(HELD, limit)
        target = tmp_path / str(limit) / "set"
        hop.prepare(rows, target, made, partitions=3, split=split, workers=workers, quiet=True)
        found.append(contents(target))
    assert found[0] == found[1] == found[2]


def test_early_statistics_are_those_of_all_rows(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = hop.prepare(source, tmp_path / "early", recipe(), partitions=2)
    monkeypatch.setattr("hopfleet.data.etl.preparation.fitted_early", lambda *_: None)
    late = hop.prepare(source, tmp_path / "late", recipe(), partitions=2)
    assert early.fingerprint == late.fingerprint
    assert contents(tmp_path / "early") == contents(tmp_path / "late")


def test_categories_are_the_same_as_dictionaries_and_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, names = tmp_path / "rows.csv", ["b", "a", "", "é", "c", "a"]
    source.write_text("name,x\n" + "".join(f"{names[row % 6 if row > 90 else 0]},{row}\n" for row in range(ROWS)))
    for at_most in (None, 2):
        steps = {"name": hop.Category(at_most=at_most), "x": hop.Number()}
        for limit in (0, 1 << 20):
            monkeypatch.setattr(HELD, limit)
            hop.prepare(source, tmp_path / f"coded{at_most}{limit}", hop.Tabular(steps), partitions=2)
        with monkeypatch.context() as patch:
            patch.setattr("hopfleet.data.etl.reading.coded", lambda table, _: table)
            hop.prepare(source, tmp_path / f"text{at_most}", hop.Tabular(steps), partitions=2)
        text = contents(tmp_path / f"text{at_most}")
        assert contents(tmp_path / f"coded{at_most}0") == contents(tmp_path / f"coded{at_most}{1 << 20}") == text
    strict = hop.Tabular({"name": hop.Category(unseen="raise")})
    with pytest.raises(DataError, match=r"rows\.csv, line 94: column 'name': a value is missing"):
        hop.prepare(source, tmp_path / "none", strict, partitions=2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_dictionaries_of_any_order_count_as_text(kind: pa.DataType) -> None:
    text = pa.array(["b", "a", None, "b", "d"], kind)
    codes = pa.DictionaryArray.from_arrays(
        pa.array([2, 1, None, 2, 0], pa.int8()), pa.array(["d", "a", "b", "c"], kind)
    )
    counts, step = hop.Counts.of(codes), hop.Category()
    assert list(counts.counts.items()) == list(hop.Counts.of(text).counts.items()) == [("b", 2), ("a", 1), ("d", 1)]
    for column in (text, codes, codes.slice(1), text.slice(5), codes.slice(5)):
        assert step.apply(pa.chunked_array([column]), counts).tolist() == [1, 2, 0, 1, 3][5 - len(column) :]
    assert not hop.Counts.of(codes.slice(5)).counts


def test_no_file_is_written_between_stages(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a file was written")

    monkeypatch.setattr("hopfleet.data.etl.reading.save_table", refuse)
    monkeypatch.setattr("hopfleet.data.etl.preparation.save_table", refuse)
    monkeypatch.setattr("hopfleet.data.etl.work.write_cells", refuse)
    assert hop.prepare(source, tmp_path / "set", recipe(), partitions=2, workers=2).rows == ROWS
    assert hop.prepare({"x": [1, 2, 3]}, tmp_path / "table", partitions=2).rows == 3


@pytest.mark.parametrize("limit", [9000, 1 << 20])
@pytest.mark.parametrize("stage", ["parse", "make_chunk"])
def test_a_call_that_was_interrupted_is_made_again(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, limit: int, stage: str
) -> None:
    monkeypatch.setattr(HELD, limit)
    whole = hop.prepare(source, tmp_path / "whole", recipe(), partitions=3)
    function, calls = getattr(preparation, stage), list[int]()

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(f"hopfleet.data.etl.preparation.{stage}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hop.prepare(source, tmp_path / "set", recipe(), partitions=3)
    assert not (tmp_path / "set").exists()
    again = hop.prepare(source, tmp_path / "set", recipe(), partitions=3)
    assert again.fingerprint == whole.fingerprint
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")
    assert not (tmp_path / ".set.prepare").exists()


def test_what_a_slow_recipe_has_made_is_not_made_again(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hop.prepare(source, tmp_path / "whole", recipe(), partitions=3)
    monkeypatch.setattr(work, "QUICK_SECONDS", 0.0)
    function, made = preparation.make_chunk, list[Any]()

    def interrupted(*arguments: Any) -> Any:
        if len(made) == 5 and None not in made:
            made.append(None)
            raise KeyboardInterrupt
        made.append(arguments[5])  # the file
        return function(*arguments)

    monkeypatch.setattr("hopfleet.data.etl.preparation.make_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hop.prepare(source, tmp_path / "set", recipe(), partitions=3, backend="inline")
    again = hop.prepare(source, tmp_path / "set", recipe(), partitions=3, backend="inline")
    assert again.fingerprint == whole.fingerprint
    assert len(made) == len(set(made)), "each chunk once, and the interruption"


def test_room_is_given_back_until_there_was_too_little() -> None:
    memory = Memory(10)
    held = memory.hold("rows", 8)
    assert held is not None and held.rows == "rows"
    held.let_go()
    held.let_go()
    assert held.rows is None and memory.hold("more", 9) is not None
    assert memory.hold("too many", 2) is None and memory.hold("few", 1) is None
