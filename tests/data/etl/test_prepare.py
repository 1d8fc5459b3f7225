"""Preparing data: sources, determinism, failing rows, going on after a kill, and the target folder."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from hopfleet.data.etl import blocks, work
from hopfleet.errors import DataChanged, DataError
from tests.helpers.processes import environment
from tests.helpers.tables import stored


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts files into many pieces."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 200)
    monkeypatch.setattr("hopfleet.data.etl.reading.BLOCK_BYTES", 200)


def table(rows: int = 60) -> dict[str, list[Any]]:
    return {
        "number": [row * 3 for row in range(rows)],
        "share": [row / 8 for row in range(rows)],
        "name": ["plain", "with, comma", 'with "quotes"', "two\nlines"][0:4] * (rows // 4),
    }


def write_csv(path: Path, columns: dict[str, list[Any]], separator: str = ",") -> Path:
    pd.DataFrame(columns).to_csv(path, index=False, sep=separator)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder that must not depend on how they were made."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "recipe.pickle")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


class TestSources:
    @pytest.fixture(autouse=True)
    def pieces(self, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(work, "BATCH_ROWS", 7)

    def expect(self, made: Any, columns: dict[str, list[Any]], folder: Path) -> None:
        """The rows must be in the partitions into which hop.partition puts them."""
        same = hop.partition(columns, folder, partitions=len(made), seed=made.seed)
        assert made.fingerprint == same.fingerprint
        assert stored(made).keys() == columns.keys()

    @pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "csv.bz2", "csv.zst"])
    def test_csv(self, tmp_path: Path, ending: str) -> None:
        columns = table()
        plain = write_csv(tmp_path / "plain", columns, "\t" if ending == "tsv" else ",").read_bytes()
        path = tmp_path / f"rows.{ending}"
        pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
        path.write_bytes(pack.get(ending.rpartition(".")[2], bytes)(plain))
        self.expect(hop.prepare(path, tmp_path / "set", partitions=3, seed=4), columns, tmp_path / "same")

    def test_windows_text_with_a_mark_and_blank_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,x\r\n\r\n2,y\r\n3,z")
        made = hop.prepare(path, tmp_path / "set", partitions=1)
        assert stored(made) == {"a": [1, 2, 3], "b": ["x", "y", "z"]}

    def test_several_files_whose_types_differ(self, tmp_path: Path) -> None:
        write_csv(tmp_path / "a.csv", {"x": [1, 2, 3]})
        write_csv(tmp_path / "b.csv", {"x": [0.5, 1.5]})
        for source in (tmp_path, str(tmp_path / "*.csv"), [tmp_path / "a.csv", tmp_path / "b.csv"]):
            made = hop.prepare(hop.Files(source), tmp_path / "out" / "set", partitions=1, overwrite=True)
            assert stored(made) == {"x": [1.0, 2.0, 3.0, 0.5, 1.5]}

    def test_json_lines(self, tmp_path: Path) -> None:
        columns = {"x": list(range(50)), "tokens": [[row, row + 1] for row in range(50)]}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.expect(hop.prepare(tmp_path / "rows.jsonl", tmp_path / "set", partitions=2), columns, tmp_path / "same")

    @pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
    def test_columnar_files(self, tmp_path: Path, kind: str) -> None:
        columns = {"x": list(range(40)), "text": [f"é{row}" for row in range(40)]}
        rows = pa.table(columns)
        path = tmp_path / ("rows.parquet" if kind == "parquet" else "rows.arrow")
        if kind == "parquet":
            pq.write_table(rows, path, row_group_size=9)
        else:
            make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with pa.OSFile(str(path), "wb") as file, make(file, rows.schema) as writer:
                writer.write_table(rows, max_chunksize=9)
        self.expect(hop.prepare(path, tmp_path / "set", partitions=3), columns, tmp_path / "same")

    def test_text(self, tmp_path: Path) -> None:
        lines = [f"line {number}" for number in range(40)]
        (tmp_path / "rows.txt").write_text("\n".join(lines))
        self.expect(hop.prepare(tmp_path / "rows.txt", tmp_path / "set", partitions=2), {"text": lines}, tmp_path / "s")

    def test_sql(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "rows.db") as connection:
            connection.execute("create table rows (x integer, name text)")
            connection.executemany("insert into rows values (?, ?)", [(row, f"n{row}") for row in range(20)])
        query = hop.Query(lambda: sqlite3.connect(tmp_path / "rows.db"), "select * from rows order by x")
        columns = {"x": list(range(20)), "name": [f"n{row}" for row in range(20)]}
        self.expect(hop.prepare(query, tmp_path / "set", partitions=2), columns, tmp_path / "same")
        with pytest.raises(DataError, match="no such table"):
            hop.prepare(hop.Query(query.connection, "select * from absent"), tmp_path / "none")
        connection.close()

    def test_tables_in_memory_and_data_sets(self, tmp_path: Path) -> None:
        columns = {"x": list(range(20)), "y": [row / 2 for row in range(20)]}
        rows = [{"x": x, "y": y} for x, y in zip(*columns.values(), strict=True)]
        same = hop.partition(columns, tmp_path / "same", partitions=2)
        for number, source in enumerate((columns, pd.DataFrame(columns), pa.table(columns), iter(rows))):
            made = hop.prepare(source, tmp_path / f"set{number}", partitions=2)
            assert made.fingerprint == same.fingerprint
        again = hop.prepare(same, tmp_path / "again", partitions=3)
        assert sorted(stored(again)["x"]) == columns["x"]

    def test_webdataset(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "rows.tar", "w") as tar:
            for number in range(30):
                for ending, data in (("txt", b"text %d" % number), ("cls", b"%d" % (number % 3))):
                    info = tarfile.TarInfo(f"a/{number:03d}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

        def decoded(row: dict[str, Any]) -> dict[str, Any]:
            return {"text": row["txt"].decode(), "label": int(row["cls"])}

        made = hop.prepare(tmp_path / "rows.tar", tmp_path / "set", decoded, partitions=2)
        columns = {"text": [f"text {number}" for number in range(30)], "label": [number % 3 for number in range(30)]}
        self.expect(made, columns, tmp_path / "same")

    def test_images(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        for number in range(6):
            folder = tmp_path / "pictures" / ["cat", "dog"][number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((5, 4, 3), number, np.uint8)).save(folder / f"{number}.png")
        made = hop.prepare(tmp_path / "pictures", tmp_path / "set", hop.Images(size=(3, 2)), partitions=1)
        rows = stored(made)
        assert [image[0, 0, 0] for image in rows["image"]] == [0, 2, 4, 1, 3, 5]
        assert rows["image"][0].shape == (3, 2, 3) and rows["label"] == [0, 0, 0, 1, 1, 1]
        (tmp_path / "pictures" / "cat" / "0.png").write_bytes(b"no image")
        with pytest.raises(DataError, match=r"0\.png: cannot be decoded"):
            hop.prepare(tmp_path / "pictures", tmp_path / "set", hop.Images(size=(3, 2)), partitions=1, overwrite=True)

    def test_objects_behind_urls_are_fetched_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import fsspec

        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
        memory = fsspec.filesystem("memory")
        for number in range(4):
            memory.pipe_file(f"/etl/{number}.bin", bytes([number] * 3))

        class Spec(hop.ETLSpec):
            def __init__(self) -> None:
                self.is_feature_download = [True, False]

            def initialize_worker(self) -> None:
                self.ready = True

            def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
                content = (Path(object_dir) / row["object"]).read_bytes()
                assert self.ready and mode == "train"
                return np.frombuffer(content, np.uint8), row["label"]

        columns = {"object": [f"memory://etl/{number}.bin" for number in range(4)], "label": [0, 1, 0, 1]}
        made = hop.prepare(columns, tmp_path / "set", Spec(), partitions=1)
        assert [row.tolist() for row in stored(made)["x"]] == [[number] * 3 for number in range(4)]
        memory.rm("/etl", recursive=True)
        hop.prepare(columns, tmp_path / "again", Spec(), partitions=1)
        columns["object"][2] = "memory://etl/absent.bin"
        with pytest.raises(DataError, match=r"the source, row 3: memory://etl/absent\.bin: no such object"):
            hop.prepare(columns, tmp_path / "third", Spec(), partitions=1)


def test_the_data_set_does_not_depend_on_the_number_of_workers(tmp_path: Path, small: None) -> None:
    path = write_csv(tmp_path / "rows.csv", {**table(200), "label": ["ab"[row % 2] for row in range(200)]})
    recipe = hop.Tabular({"number": hop.Number(), "share": hop.Number("range"), "label": hop.Category()}, stack="x")
    split = {"train": 0.7, "test": 0.3}
    for workers in (1, 2, 5):
        hop.prepare(path, tmp_path / str(workers) / "set", recipe, partitions=3, split=split, workers=workers)
    one, two, five = (contents(tmp_path / workers / "set") for workers in ("1", "2", "5"))
    assert one == two == five and len(one) == 2 * (3 + 1 + 1) + 1


@pytest.mark.parametrize("kind", ["csv", "table"])
def test_rows_with_much_work_are_shared_in_small_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    columns = {"x": list(range(50)), "name": ["plain", "two\nlines"] * 25}
    path = write_csv(tmp_path / "rows.csv", columns)
    calls: list[int] = []

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["x"]))
        if (batch["x"] == 37).any():
            raise ValueError("no 37")
        return batch

    source = path if kind == "csv" else columns
    whole = hop.prepare(source, tmp_path / "whole", partitions=2, seed=1)
    monkeypatch.setattr("hopfleet.data.etl.chunks.SMALL_ROWS", 10)
    where = r"rows\.csv, line 57" if kind == "csv" else "the source, row 38"
    with pytest.raises(DataError, match=f"{where}: ValueError: no 37"):
        hop.prepare(source, tmp_path / "none", counted, partitions=2)
    assert calls[:3] == [10, 10, 10]

    def same(row: dict[str, Any]) -> dict[str, Any]:
        return row

    made = hop.prepare(source, tmp_path / "set", same, partitions=2, seed=1, backend="inline")
    assert made.fingerprint == whole.fingerprint


@pytest.mark.slow
def test_tables_are_prepared_without_pandas(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", {**table(20), "day": ["2024-01-01"] * 20})
    script = """
        import sys
        import hopfleet as hop
        hop.prepare("rows.csv", "set", hop.Tabular(), partitions=2, split={"train": 0.5, "test": 0.5}, quiet=True)
        assert "pandas" not in sys.modules
    """
    run = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(run, cwd=tmp_path, env=environment(), check=True)


class TestFailingRows:
    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        path = tmp_path / "rows.csv"
        path.write_text("x,name\n" + "".join(f'{row},"two\nlines"\n' for row in range(20)) + "20\n21,last\n")
        return path

    @staticmethod
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] % 10 == 3:
            raise ValueError(f"I dislike {row['x']}")
        return {"x": row["x"]}

    def test_name_file_and_line(self, tmp_path: Path, broken: Path, small: None) -> None:
        with pytest.raises(DataError, match=r"rows\.csv, line 42: has 1 values instead of 2"):
            hop.prepare(broken, tmp_path / "set", partitions=1)
        broken.write_text(broken.read_text(encoding="utf-8").replace("20\n21", "21"), encoding="utf-8")
        with pytest.raises(DataError, match=r"rows\.csv, line 8: ValueError: I dislike 3;.*\n\nTraceback"):
            hop.prepare(broken, tmp_path / "set", self.odd, partitions=1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]

    def test_are_left_out_or_kept(self, tmp_path: Path, broken: Path, small: None) -> None:
        skipped = hop.prepare(broken, tmp_path / "skipped", self.odd, partitions=1, on_error="skip")
        assert stored(skipped)["x"] == [row for row in (*range(20), 21) if row % 10 != 3]
        assert not (tmp_path / "skipped" / "failed.jsonl").exists()
        kept = hop.prepare(broken, tmp_path / "kept", self.odd, partitions=1, on_error="keep")
        assert kept.fingerprint == skipped.fingerprint
        lines = [json.loads(line) for line in (tmp_path / "kept" / "failed.jsonl").read_text().splitlines()]
        assert sorted(line["line"] for line in lines) == [8, 28, 42]
        assert "ValueError: I dislike 3" in next(line["traceback"] for line in lines if line["line"] == 8)
        assert next(line["row"] for line in lines if line["line"] == 28) == {"x": 13, "name": "two\nlines"}

    def test_may_not_be_too_many(self, tmp_path: Path, broken: Path) -> None:
        with pytest.raises(DataError, match="more than 1 rows failed; the first"):
            hop.prepare(broken, tmp_path / "set", self.odd, partitions=1, on_error="skip", error_limit=1)

    def test_of_json(self, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").write_text('{"x": 1}\n{"x": \n{"x": 3}\n[4]\n')
        with pytest.raises(DataError, match=r"rows\.jsonl, line 2: is not a JSON object"):
            hop.prepare(tmp_path / "rows.jsonl", tmp_path / "set", partitions=1)
        made = hop.prepare(tmp_path / "rows.jsonl", tmp_path / "set", partitions=1, on_error="skip")
        assert stored(made) == {"x": [1, 3]}

    def test_of_a_given_type(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("x,zip\n1,007\nbad,008\n3,009\n")
        files = hop.Files(tmp_path / "rows.csv", types={"x": "int64", "zip": "string"})
        with pytest.raises(DataError, match=r"rows\.csv, line 3: column 'x': 'bad' is not of type int64"):
            hop.prepare(files, tmp_path / "set", partitions=1)
        made = hop.prepare(files, tmp_path / "set", partitions=1, on_error="skip")
        assert stored(made) == {"x": [1, 3], "zip": ["007", "009"]}


class TestMistakes:
    @pytest.mark.parametrize(
        ("files", "message"),
        [
            (
                {"a.csv": "x\n1\n2\n", "b.csv": "x\nyes\n"},
                r"column 'x': mixes int64 in .*a\.csv, line 2 \(1\) and string in .*b\.csv, line 2 \('yes'\)",
            ),
            ({"a.csv": "x\n" + "1\n" * 30 + "oops\n"}, r"a\.csv, line 32: column 'x' has 'oops' among numbers"),
            (
                {"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"},
                r"b\.csv: lacks the columns \['y'\] and has the columns \['z'\] besides",
            ),
            ({"a.csv": "x,x\n1,2\n"}, r"a\.csv, line 1: column name 'x': used twice"),
            ({"a.csv": "x,when\n1,2024-01-01\n"}, r"a\.csv, line 2: column 'when': dtype date32.* cannot be stored"),
            ({"a.csv": "x,y\n1,2\n,3\n"}, r"a\.csv, line 3: column 'x': .* missing a value"),
            ({"a.csv": ""}, r"a\.csv: is empty"),
            ({"a.csv": "x\n"}, "the source has no rows"),
            ({"a.parquet": "text"}, r"a\.parquet: cannot be read as a Parquet file"),
            ({"a.csv.gz": "text"}, r"a\.csv\.gz.*: cannot be read"),
            ({"a.tar": "text"}, r"a\.tar, after row 0: is not a readable tar"),
            ({"a.csv": "x\n1\n", "b.txt": "2\n"}, "files of several formats"),
            ({"a.xyz": "1"}, "has no files of rows"),
        ],
        ids=[
            *("mixed files", "mixed column", "other columns", "a name twice", "a date", "missing", "empty", "no rows"),
            *("parquet", "gzip", "tar", "formats", "unknown format"),
        ],
    )
    def test_in_files_are_named(self, tmp_path: Path, files: dict[str, str], message: str) -> None:
        folder = tmp_path / "raw"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        with pytest.raises(DataError, match=message):
            hop.prepare(folder, tmp_path / "set", partitions=1)
        assert [path.name for path in tmp_path.iterdir()] == ["raw"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"source": "absent.csv"}, "absent.csv: no such file or folder"),
            ({"on_error": "kep"}, "did you mean 'keep'"),
            ({"partitions": 0}, "partitions=0: must be an integer of at least 1"),
            ({"partitions": 9}, "partitions=9: must be at most the number of rows, 4"),
            ({"workers": 0}, "workers=0: must be 'auto'"),
            ({"backend": "slurm"}, "backend='slurm': unknown; there are local"),
            ({"recipe": 3}, "recipe=3: must be a function"),
            ({"recipe": hop.Tabular}, "recipe=Tabular: must be an instance"),
            ({"split": {"train": 0.5}}, "two fractions or more that sum to 1"),
            ({"split": {"train": 0.5, "a/b": 0.5}}, "must be a name such as 'train'"),
            ({"split": hop.Split({"a": 0.5, "b": 0.5}, group="z")}, "'z': the rows have no such column"),
            ({"recipe": hop.Tabular({"z": hop.Number()})}, "the source: has no column 'z' for columns={'z': ...}"),
            ({"source": 5}, "source=5: cannot be prepared"),
        ],
    )
    def test_in_arguments_are_named(self, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
        arguments = {"source": {"x": [1, 2, 3, 4]}, "partitions": 1, **arguments}
        with pytest.raises(DataError) as caught:
            hop.prepare(arguments.pop("source"), tmp_path / "set", **arguments)
        assert message in str(caught.value)
        assert not list(tmp_path.iterdir())


class TestTheTarget:
    def test_is_made_once(self, tmp_path: Path) -> None:
        path, target = write_csv(tmp_path / "rows.csv", table()), tmp_path / "set"
        made = hop.prepare(path, target, partitions=2)
        before = (target / "manifest.json").stat().st_mtime_ns
        assert hop.prepare(path, target, partitions=2).fingerprint == made.fingerprint
        assert (target / "manifest.json").stat().st_mtime_ns == before
        with pytest.raises(DataChanged, match=r"differs \(partitions, seed\)"):
            hop.prepare(path, target, partitions=3, seed=1)
        with pytest.raises(DataChanged, match=r"differs \(recipe\)"):
            hop.prepare(path, target, TestFailingRows.odd, partitions=2)
        assert len(hop.prepare(path, target, partitions=3, overwrite=True)) == 3

    def test_holds_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "mine.txt").write_text("keep me")
        with pytest.raises(DataError, match="is not a Hopfleet data set, so it is not overwritten"):
            hop.prepare(table(), tmp_path / "set", overwrite=True)

    def test_may_be_remote(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
        columns = {"x": list(range(10))}
        for _ in range(2):
            made = hop.prepare(columns, "memory://etl-target/set", partitions=2, split={"train": 0.5, "test": 0.5})
            assert made["test"].rows == 5
            made["test"].check(checksums=True)


def test_a_call_that_was_interrupted_goes_on(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.data.etl.pool.HELD_BYTES", 0)  # all rows are in files between stages
    path = write_csv(tmp_path / "rows.csv", table(100))
    whole = hop.prepare(path, tmp_path / "whole", partitions=3, split={"a": 0.5, "b": 0.5})
    made = work.make_chunk
    calls: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr("hopfleet.data.etl.preparation.make_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hop.prepare(path, tmp_path / "set", partitions=3, split={"a": 0.5, "b": 0.5})
    assert not (tmp_path / "set").exists()
    chunks = len(list((tmp_path / ".set.prepare" / "read").glob("*.pickle")))
    again = hop.prepare(path, tmp_path / "set", partitions=3, split={"a": 0.5, "b": 0.5})
    assert len(calls) == chunks + 1
    assert again.keys() == whole.keys() and contents(tmp_path / "set") == contents(tmp_path / "whole")
    assert not (tmp_path / ".set.prepare").exists()


def test_a_process_that_dies_is_replaced(tmp_path: Path, small: None) -> None:
    path = write_csv(tmp_path / "rows.csv", {"x": list(range(300))})
    flag, driver = tmp_path / "died", os.getpid()

    def deadly(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 250 and not flag.exists() and os.getpid() != driver:
            flag.touch()
            os._exit(9)
        return row

    made = hop.prepare(path, tmp_path / "set", deadly, partitions=2, workers=2)
    assert flag.exists() and made.rows == 300

    def always(row: dict[str, Any]) -> dict[str, Any]:
        assert os.getpid() != driver
        os._exit(9)

    with pytest.raises(DataError, match=r"3 processes died over the same rows \(exit status 9\)"):
        hop.prepare(path, tmp_path / "none", always, partitions=2, workers=2)
