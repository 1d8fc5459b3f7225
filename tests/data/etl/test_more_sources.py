"""Sources that people have at hand: objects in memory, several files, databases, sheets, arrays, folders of texts."""

from __future__ import annotations

import io
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hopfleet as hop
from hopfleet.errors import DataError, MissingExtra


def rows(source: Any, tmp_path: Path, **options: Any) -> dict[str, list[Any]]:
    data = hop.prepare(source, tmp_path / "set", partitions=1, overwrite=True, **options)
    found = data.head(data.rows)
    order = sorted(range(data.rows), key=lambda row: found[next(iter(found))][row])
    return {name: [getattr(values[row], "tolist", lambda v=values[row]: v)() for row in order]  # type: ignore[misc]
            for name, values in found.items()}  # fmt: skip


class Items:
    """A data set of PyTorch's kind."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return self.item(number)


def test_data_sets_with_items(tmp_path: Path) -> None:
    assert rows(Items(lambda n: {"n": n, "t": "a"}), tmp_path) == {"n": [0, 1, 2], "t": ["a"] * 3}
    found = rows(Items(lambda n: (np.float32(n), np.float32([n, 1]))), tmp_path)
    assert found == {"x": [0.0, 1.0, 2.0], "y": [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]}
    with pytest.raises(DataError, match=r"a value has the shape \(2, 2\); .*hop\.partition"):
        rows(Items(lambda n: {"x": np.zeros((2, 2))}), tmp_path)
    with pytest.raises(DataError, match="row 0: is a str; give each row as a dict or a tuple"):
        rows(Items(lambda n: "text"), tmp_path)
    with pytest.warns(UserWarning, match=r"is different each time row 0 is read.*hop\.live"):
        rows(Items(lambda n: {"n": n, "x": np.random.default_rng().random()}), tmp_path)


def test_functions_that_yield_rows(tmp_path: Path) -> None:
    def made() -> Iterator[dict[str, Any]]:
        for number in range(3):
            yield {"n": number}

    assert rows(made, tmp_path) == {"n": [0, 1, 2]}
    assert rows(lambda: [{"n": 1}, {"n": 2}], tmp_path) == {"n": [1, 2]}


def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"n": [1, 2, 3], "t": ["a", "b", "c"]})
    assert rows(made, tmp_path) == {"n": [1, 2, 3], "t": ["a", "b", "c"]}
    assert rows(made.select([2, 0]), tmp_path)["n"] == [1, 3]  # its table still has all rows
    with pytest.raises(DataError, match=r"holds the data sets train, test; give one, source\['train'\]"):
        rows(datasets.DatasetDict(train=made, test=made), tmp_path)


def test_frames(tmp_path: Path) -> None:
    assert rows(pd.DataFrame({"c": pd.Categorical(["a", "b", "b"])}), tmp_path) == {"c": ["a", "b", "b"]}
    with pytest.raises(DataError, match=r"column 'c', row 3: mixes types \(.*\); convert all to one type"):
        rows(pd.DataFrame({"n": [1, 2, 3], "c": ["a", None, 1]}), tmp_path)


def test_several_files(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"part-{number:02d}.csv").write_text(f"n\n{number}\n")
    assert rows([tmp_path / "part-01.csv", str(tmp_path / "part-03.csv")], tmp_path) == {"n": [1, 3]}
    assert rows(str(tmp_path / "part-{08..11}.csv"), tmp_path) == {"n": [8, 9, 10, 11]}
    assert rows(str(tmp_path / "part-{00,07}.csv"), tmp_path) == {"n": [0, 7]}
    (tmp_path / "odd{1..2}.csv").write_text("n\n5\n")
    assert rows(tmp_path / "odd{1..2}.csv", tmp_path) == {"n": [5]}
    with pytest.raises(DataError, match=r"part-12\.csv: no such file"):
        rows(str(tmp_path / "part-{11..12}.csv"), tmp_path)
    with pytest.raises(DataError, match=r"\{9\.\.1\} must be a first and a last number"):
        rows(str(tmp_path / "part-{9..1}.csv"), tmp_path)


def test_shards_of_tars(tmp_path: Path) -> None:
    for shard in range(3):
        with tarfile.open(tmp_path / f"s-{shard:03d}.tar", "w") as tar:
            for number in range(2):
                info = tarfile.TarInfo(f"{shard}{number}.cls")
                info.size = 1
                tar.addfile(info, io.BytesIO(str(number).encode()))
    assert rows(str(tmp_path / "s-{000..001}.tar"), tmp_path)["key"] == ["00", "01", "10", "11"]


def test_arrays_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, n=np.arange(3), x=np.arange(6.0).reshape(3, 2), t=np.array(["a", "b", "c"]))
    assert rows(path, tmp_path) == {"n": [0, 1, 2], "x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "t": ["a", "b", "c"]}
    np.savez(path, n=np.arange(3), one=np.float64(1))
    with pytest.raises(DataError, match=r"a\.npz: 'one' is a single value, not an array of rows"):
        rows(path, tmp_path)
    np.savez(path, n=np.array([{}, {}], object))
    with pytest.raises(DataError, match=r"a\.npz: cannot be read as arrays"):
        rows(path, tmp_path)
    np.savez(path, n=np.arange(3), m=np.arange(2))
    with pytest.raises(DataError, match=r"a\.npz: source: columns of different lengths"):
        rows(path, tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a\.npz: cannot be read as arrays"):
        rows(path, tmp_path)


def test_sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")

    def written(*lines: list[Any]) -> Path:
        book = openpyxl.Workbook()
        for line in lines:
            book.active.append(line)
        book.save(tmp_path / "a.xlsx")
        return tmp_path / "a.xlsx"

    path = written(["n", "t", "x"], [1, "a", 0.5], [2, "b", 2], [None, None, None])
    assert rows(path, tmp_path) == {"n": [1, 2], "t": ["a", "b"], "x": [0.5, 2.0]}
    for lines, message in [
        ([["n", None, "x"], [1, 2, 3]], "row 1: must have a name of its own for each column"),
        ([["n", "n"], [1, 2]], "row 1: must have a name of its own"),
        ([["n"], [1], [1, 2]], "row 3: has more values than row 1 has names, 1"),
        ([["n"], [1], ["b"]], r"column 'n', row 3: mixes types"),
    ]:
        with pytest.raises(DataError, match=rf"a\.xlsx.*{message}"):
            rows(written(*lines), tmp_path)
    with pytest.raises(DataError, match=r"a\.xlsx, row 3: .*missing"):
        rows(written(["n"], [1.5], [None], [2.5]), tmp_path, recipe=hop.Tabular({"n": hop.Number(missing="raise")}))
    path.write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(DataError, match=r"a\.xlsx: cannot be read as a workbook"):
        rows(path, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(MissingExtra, match=r"pip install 'hopfleet\[excel\]'; or save the sheet as a CSV file"):
        rows(path, tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("create table sold (n int, t text)")
        connection.executemany("insert into sold values (?, ?)", [(2, "b"), (1, "a")])
    connection.close()
    return tmp_path / "shop.db"


def test_databases_by_url(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"n": [1, 2], "t": ["a", "b"]}
    monkeypatch.chdir(tmp_path)
    for url in (f"sqlite:///{shop}", "sqlite:///shop.db", f"sqlite+pysqlite:///{shop}"):
        assert rows(hop.Query(url, "select * from sold order by n"), tmp_path) == wanted
    with pytest.raises(DataError, match=r"connection='sqlite:///none\.db': none\.db is no file"):
        rows(hop.Query("sqlite:///none.db", "select 1"), tmp_path)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(DataError, match=r"failed \(OperationalError: .*readonly"):
        rows(hop.Query("sqlite:///shop.db", "delete from sold"), tmp_path)
    with pytest.raises(DataError, match=r"must be a URL .*the query comes second"):
        hop.Query("select * from sold", "sqlite:///shop.db")
    with pytest.raises(DataError, match="cannot be opened") as raised:
        rows(hop.Query("postgresql+none://me:secret@localhost/a", "select 1"), tmp_path)
    assert "secret" not in str(raised.value) and "secret" not in repr(hop.Query("pg://me:secret@localhost/a", ""))
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"hopfleet\[sql\]"):
        rows(hop.Query("postgresql://localhost/a", "select 1"), tmp_path)


def test_folders_of_texts(tmp_path: Path) -> None:
    for label, name, text in [("pos", "1", "good\nfilm"), ("neg", "1", ""), ("neg", "2", "bad")]:
        (tmp_path / "raw" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / label / f"{name}.txt").write_text(text)
    (tmp_path / "raw" / "neg" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "raw" / "neg" / ".ipynb_checkpoints" / "a.txt").write_text("hidden")
    found = rows(tmp_path / "raw", tmp_path)
    assert (found["text"], found["label"]) == (["", "bad", "good\nfilm"], ["neg", "neg", "pos"])
    assert [Path(name).name for name in found["file"]] == ["1.txt", "2.txt", "1.txt"]
    (tmp_path / "raw" / "neg" / "1.txt").write_text("worst")
    assert rows(hop.Files(tmp_path / "raw", format="text"), tmp_path) == {"text": ["bad", "film", "good", "worst"]}
    (tmp_path / "raw" / "pos" / "2.txt").write_bytes("schön".encode("latin-1"))
    with pytest.raises(DataError, match=r"pos/2\.txt: is not UTF-8 .*encoding='latin-1'"):
        rows(tmp_path / "raw", tmp_path)
    assert "schön" in rows(hop.Files(tmp_path / "raw", encoding="latin-1"), tmp_path)["text"]
    (tmp_path / "raw" / "readme.txt").write_text("about")  # not in a class, so these are lines
    assert set(rows(hop.Files(tmp_path / "raw", encoding="latin-1"), tmp_path)) == {"text"}


def test_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n;t\n" + "".join(f"{n};text {n} of this long file\n" for n in range(9)))
    found = hop.first_rows(path, rows=2)
    assert (found.format, found.delimiter, dict(found.columns)) == ("csv", ";", {"n": "int64", "t": "string"})
    assert found.rows == [{"n": n, "t": f"text {n} of this long file"} for n in range(2)]
    assert repr(found).splitlines()[:2] == ["csv, values divided by ';'", "n  int64   0  1"]
    assert all(len(line) < 110 for line in repr(hop.first_rows(path)).splitlines())
    for source, kind in [({"n": [1]}, "memory"), (lambda: [{"n": 1}], "memory"), (path.with_suffix(".npz"), "npz")]:
        np.savez(path.with_suffix(".npz"), n=np.arange(1, 3))
        assert (hop.first_rows(source).format, hop.first_rows(source, 1).rows) == (kind, [{"n": 1}])
    pd.DataFrame({"n": [1]}).to_parquet(tmp_path / "a.parquet")
    assert hop.first_rows(tmp_path / "a.parquet").rows == [{"n": 1}]
    data = hop.prepare({"n": [1]}, tmp_path / "set", partitions=1)
    assert (hop.first_rows(data).format, hop.first_rows(data).rows) == ("dataset", [{"n": 1}])
    with pytest.raises(DataError, match="rows=0: must be at least 1"):
        hop.first_rows(path, rows=0)
    with pytest.raises(DataError, match="the source has no rows"):
        hop.first_rows({"n": []})


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_arrays_of_several_dimensions_keep_their_shape(dtype: str, tmp_path: Path) -> None:
    pictures = np.arange(12 * 3 * 4 * 5).reshape(12, 3, 4, 5).astype(dtype)
    labels = np.arange(12) % 3

    def check(data: hop.Dataset, column: str = "x") -> None:
        (found,) = data.batches(0, batch_size=12)
        assert found[column].dtype == dtype and found[column].shape[1:] == (3, 4, 5)
        assert sorted(map(bytes, found[column])) == sorted(map(bytes, pictures))

    source = {"x": pictures, "y": labels}
    check(hop.prepare(source, tmp_path / "plain", partitions=1, quiet=True))
    check(hop.prepare((pictures, labels), tmp_path / "pair", partitions=1, quiet=True))
    parts = hop.split(source, tmp_path / "split", {"train": 0.5, "valid": 0.5}, stratify="y", partitions=1, quiet=True)
    assert parts["train"].columns["x"].shape == (3, 4, 5) and parts["train"].rows + parts["valid"].rows == 12

    def of_row(row: Any) -> Any:
        assert row["x"].shape == (3, 4, 5)
        return {"z": row["x"], "y": row["y"]}

    def of_batch(batch: Any) -> Any:
        assert batch["x"].shape[1:] == (3, 4, 5)
        return {"z": batch["x"], "y": batch["y"]}

    check(hop.prepare(source, tmp_path / "row", of_row, partitions=1, quiet=True), "z")
    check(hop.prepare(source, tmp_path / "batch", of_batch, partitions=1, quiet=True), "z")
