"""The pieces of a preparation by themselves: files found, blocks cut, rows parsed, chunks divided."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopfleet as hop
from hopfleet.data.etl import blocks, csv_rows
from hopfleet.data.etl.blocks import Block, count, cut_blocks, even_size, row_ends, row_lines
from hopfleet.data.etl.chunks import ColumnTypes, Failure, divided, is_number, layout_of, rows_before
from hopfleet.data.etl.csv_header import Header, take_header
from hopfleet.data.etl.csv_rows import Expected, bad_values, parse_csv
from hopfleet.data.etl.listing import Files, SourceFile, _kind, find_files, open_stream
from hopfleet.errors import DataError
from tests.helpers.chunks import chunk_of

CSV = SourceFile("rows.csv", "csv", "", 1, "")


class TestListing:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("a.csv", ("csv", "")),
            ("a.b.TSV.gz", ("tsv", "gzip")),
            ("a.jsonl.ZST", ("json", "zstd")),
            ("a.pq", ("parquet", "")),
            ("gz", ("", "")),
            ("a.gz", ("", "gzip")),
            ("a.csv.old", ("", "")),
        ],
    )
    def test_names_tell_format_and_compression(self, name: str, kind: tuple[str, str]) -> None:
        assert _kind(name) == kind

    def test_folders_globs_and_lists(self, tmp_path: Path) -> None:
        for name in ("b.csv", "deep/a.csv", ".hidden.csv", "_part.csv", "notes.md", "c.tsv"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x\n1\n")
        (tmp_path / "c.tsv").unlink()
        found = find_files(Files(tmp_path))
        assert [Path(each.path).name for each in found] == ["b.csv", "a.csv"]
        assert {(each.format, each.compression, each.size) for each in found} == {("csv", "", 4)}
        assert found[0].version.split()[0] == str((tmp_path / "b.csv").stat().st_mtime_ns)
        assert [Path(each.path).name for each in find_files(Files(str(tmp_path / "*.md"), format="text"))] == [
            "notes.md"
        ]
        assert [Path(each.path).name for each in find_files(Files([tmp_path / "deep", tmp_path / "b.csv"]))] == [
            "a.csv",
            "b.csv",
        ]
        assert len(find_files(Files(tmp_path, format="text"))) == 3
        assert len(find_files(Files(str(tmp_path / "**" / "a.csv")))) == 1
        assert len(find_files(Files(f"file://{tmp_path / 'b.csv'}", format="csv"))) == 1

    def test_what_cannot_be_found_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty.csv").touch()
        (tmp_path / "a.odd").write_text("x")
        (tmp_path / "none").mkdir()
        for path, message in (
            ("absent.csv", "no such file or folder"),
            ("*.parquet", "no such file or folder"),
            ("none", "has no files of rows"),
            ("a.odd", "the ending of the name tells no format"),
            ("empty.csv", "is empty; remove it"),
        ):
            with pytest.raises(DataError, match=message):
                find_files(Files(tmp_path / path))
        with pytest.raises(DataError, match="names no files"):
            find_files(Files([]))

    def test_files_of_one_format_only(self, tmp_path: Path) -> None:
        for name in ("a.csv", "b.json"):
            (tmp_path / name).write_text("x")
        with pytest.raises(DataError, match=r"holds files of several formats \(csv, json\); name one kind"):
            find_files(Files(tmp_path))

    def test_a_saved_data_set_of_another_library_is_its_arrow_files(self, tmp_path: Path) -> None:
        for name in ("state.json", "info.json", "data.arrow"):
            (tmp_path / name).write_text("{}")
        assert [Path(each.path).name for each in find_files(Files(tmp_path))] == ["data.arrow"]

    def test_formats_and_delimiters_are_checked(self) -> None:
        with pytest.raises(DataError, match="format='cvs': unknown; did you mean 'csv'"):
            Files("a", format="cvs")
        for delimiter in ("::", "é"):
            with pytest.raises(DataError, match="must be one character"):
                Files("a", delimiter=delimiter)
        assert Files("a", delimiter=";").delimiter == ";"

    def test_streams_are_decompressed(self, tmp_path: Path) -> None:
        import gzip

        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))
        (tmp_path / "b.csv").write_bytes(b"y\n2\n")
        (one, other) = find_files(Files(tmp_path))
        assert open_stream(one).read() == b"x\n1\n" and open_stream(other).read() == b"y\n2\n"
        assert not one.is_remote and replace(one, path="s3://bucket/a.csv").is_remote
        (tmp_path / "b.csv").unlink()
        with pytest.raises(DataError, match="is missing; restore it"):
            open_stream(other)


class TestBlocks:
    def test_blocks_hold_whole_rows_and_know_their_lines(self) -> None:
        text = b'a\nb\n"c\nd"\ne'
        found = [*cut_blocks(io.BytesIO(text), "f", quoted=True, size=5)]
        assert [(each.start, each.line, each.data, each.last_line) for each in found] == [
            (0, 1, b"a\nb\n", 2),
            (4, 3, b'"c\nd"\n', 4),
            (10, 5, b"e", 5),
        ]
        plain = [*cut_blocks(io.BytesIO(text), "f", quoted=False, size=5)]
        assert [(each.line, each.data) for each in plain] == [(1, b"a\nb\n"), (3, b'"c\nd"\n'), (5, b"e")]

    def test_a_row_that_never_ends_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocks, "LONGEST_ROW", 8)
        assert len([*cut_blocks(io.BytesIO(b"x" * 8), "f", quoted=False, size=4)]) == 1
        with pytest.raises(DataError, match="f, line 2: a row has more than 8 bytes"):
            list(cut_blocks(io.BytesIO(b"a\n" + b"x" * 9), "f", quoted=False, size=4))

    def test_large_files_are_cut_evenly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 10)
        assert [even_size(size) for size in (1, 40, 41, 80, 81)] == [1, 10, 6, 10, 7]

    def test_letters_are_counted(self) -> None:
        assert count(b'a"b"c', '"') == 2 and count(b"", "a") == 0

    def test_line_feeds_within_quotes_end_no_row(self) -> None:
        assert row_ends(b'a\n"b\nc"\nd', quoted=True).tolist() == [1, 7]
        assert row_ends(b'a\n"b\nc"\nd', quoted=False).tolist() == [1, 4, 7]

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (b"a\nb\n", [7, 8]),
            (b"a\nb", [7, 8]),
            (b"\na\n\r\n\nb\n", [8, 11]),
            (b'"a\nb"\nc\n', [7, 9]),
            (b"\n", []),
        ],
    )
    def test_rows_begin_on_lines(self, text: bytes, lines: list[int]) -> None:
        assert row_lines(Block(0, 7, text), quoted=True).tolist() == lines


class TestHeaders:
    def taken(self, text: str, files: Files | None = None, found: SourceFile = CSV, **options: Any) -> Any:
        return take_header(Block(0, 1, text.encode(), **options), files or Files("rows.csv"), found)

    def test_the_first_row_names_the_columns(self) -> None:
        header, rest = self.taken("\ufeffx,y\n1,2\n")
        assert header.names == ("x", "y") and (rest.start, rest.line, rest.data) == (7, 2, b"1,2\n")
        header, rest = self.taken('\n"a\nb",y\n1,2\n', feeds=4)
        assert header.names == ("a\nb", "y") and (rest.start, rest.line, rest.data, rest.feeds) == (9, 4, b"1,2\n", 1)
        header, rest = self.taken("x,y", feeds=0)
        assert header.names == ("x", "y") and (rest.start, rest.line, rest.data, rest.feeds) == (3, 2, b"", 0)

    def test_the_delimiter_is_that_of_the_format_or_as_told_or_found(self) -> None:
        def names(text: str, *options: Any, **more: Any) -> Any:
            return self.taken(text, *options, **more)[0].names

        assert names("x\ty\n", found=replace(CSV, format="tsv")) == ("x", "y")
        assert names("x;y\n", Files("rows.csv", delimiter=";")) == ("x", "y")
        assert names("x;y\n", Files("rows.csv", delimiter=",")) == ("x;y",)
        assert names("x;y,z\n") == ("x;y", "z")
        assert names('x|y\n"1|1"|2\n') == ("x", "y")
        assert names("x;y;z\n1,5;2,5;3\n") == ("x", "y", "z")
        assert names("text\none; two\n") == ("text",)
        with pytest.raises(DataError, match=r"line 1: has a single column, 'x\|y'; name the delimiter"):
            self.taken("x|y\n1|2\n1\n")
        with pytest.raises(DataError, match=r"line 1: has a single column, 'x;y\|z'; name the delimiter"):
            self.taken("x;y|z\n1;2|3\n")  # either may be meant

    def test_a_file_without_a_header_is_refused_or_named(self) -> None:
        with pytest.raises(DataError, match=r"line 1: has numbers where names of columns should be, 5\.1, 3;.*header="):
            self.taken("5.1,3\n4.9,3\n")
        header, rest = self.taken("5.1,3\n", Files("rows.csv", header=["a", "b"]))
        assert header.names == ("a", "b") and (rest.start, rest.line, rest.data) == (0, 1, b"5.1,3\n")
        assert self.taken("2001,2002\n", Files("rows.csv", header=True))[0].names == ("2001", "2002")
        assert self.taken("nan,inf\n")[0].names == ("nan", "inf")
        with pytest.raises(DataError, match=r"header=\['a'\]: names 1 columns, but rows\.csv, line 1 has 2 values"):
            self.taken("5.1,3\n", Files("rows.csv", header=["a"]))
        for wrong in ("a", False, []):
            with pytest.raises(DataError, match=r"header=.*: must be the names of the columns"):
                Files("rows.csv", header=wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no header"),
            (" \n\n", "has no header"),
            ("x,x\n", "rows.csv, line 1: "),
            ("x,\n", "rows.csv, line 1: "),
        ],
    )
    def test_a_header_that_names_no_columns_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            self.taken(text)


def parsed(text: str, wanted: frozenset[str] | None = None, *, line: int = 2, **options: Any) -> Any:
    names = options.pop("names", ("x", "y"))
    texts = options.pop("texts", frozenset())
    files = Files("rows.csv", **options)
    return parse_csv(Block(0, line, text.encode()), CSV.path, files, Header(names, ","), Expected(wanted, texts))


class TestRows:
    def test_values_have_types_and_rows_have_lines(self) -> None:
        table, first, lines, failures = parsed("1,a\n\n2,b\n")
        assert table.to_pydict() == {"x": [1, 2], "y": ["a", "b"]}
        assert (first, lines.tolist(), failures) == (2, [2, 4], ())

    def test_some_columns_are_read_or_at_least_one(self) -> None:
        assert parsed("1,a\n", frozenset({"y"}))[0].to_pydict() == {"y": ["a"]}
        assert parsed("1,a\n", frozenset())[0].to_pydict() == {"x": [1]}

    def test_missing_texts_and_types_are_as_told(self) -> None:
        table = parsed("1,?\nNA,b\n", missing=["?"], types={"x": "string"})[0]
        assert table.to_pydict() == {"x": ["1", None], "y": [None, "b"]}
        assert parsed("1,2\n", texts=frozenset({"x"}))[0].to_pydict() == {"x": ["1"], "y": [2]}

    def test_rows_of_another_length_fail(self) -> None:
        table, _, lines, failures = parsed("1,a\n2\n3,c,d\n4,e\n")
        assert table.to_pydict() == {"x": [1, 4], "y": ["a", "e"]} and lines.tolist() == [2, 5]
        assert [(each.line, each.row) for each in failures] == [(3, "2"), (4, "3,c,d")]
        assert failures[0].error == "has 1 values instead of 2; quote values with delimiters"

    def test_values_of_another_type_fail(self) -> None:
        table, _, lines, failures = parsed("1,a\ntwo,b\n3,c\nfour,d\n", types={"x": "int64"})
        assert table.to_pydict() == {"x": [1, 3], "y": ["a", "c"]} and lines.tolist() == [2, 4]
        assert [(each.line, each.error) for each in failures] == [
            (3, "column 'x': 'two' is not of type int64"),
            (5, "column 'x': 'four' is not of type int64"),
        ]
        assert failures[0].row == {"x": "two", "y": "b"}

    def test_types_are_for_columns_that_are_there(self) -> None:
        with pytest.raises(DataError, match=r"types={'z': ...}: rows.csv has no such column; it has x, y"):
            parsed("1,a\n", types={"z": "int64"})
        with pytest.raises(DataError, match="'in64'}: is not a type of Arrow"):
            parsed("1,a\n", types={"x": "in64"})

    def test_a_quote_that_is_never_closed(self) -> None:
        with pytest.raises(DataError, match=r"rows.csv, line 3: a quote is never closed"):
            parsed('1,"a"\n2,"b\n3,c\n')
        assert parsed('1,a"\n')[0].to_pydict() == {"x": [1], "y": ['a"']}

    @pytest.mark.parametrize(
        ("values", "fails"),
        [
            (["1", "two", "3"], True),
            (["1", "two"], True),  # half of them
            (["1", "two", "three"], False),
            (["two"], False),
            (["1.", "-.5e-3", " +2 ", "two"], True),
            (["1x", "2e", "two"], False),
        ],
    )
    def test_texts_among_numbers_are_mistakes(self, values: list[str], fails: bool) -> None:
        table, lines = pa.table({"x": values}), np.arange(len(values)) + 2
        if fails:
            with pytest.raises(DataError, match=f"line {values.index('two') + 2}: column 'x' has 'two' among numbers"):
                csv_rows._refuse_mostly_numbers(table, set(), lines, "rows.csv", Files("rows.csv"))
        else:
            csv_rows._refuse_mostly_numbers(table, set(), lines, "rows.csv", Files("rows.csv"))
        csv_rows._refuse_mostly_numbers(table, {"x"}, lines, "rows.csv", Files("rows.csv"))

    def test_bad_values_are_found(self) -> None:
        column = pa.chunked_array([["1", "x", "3", "y", "z", None]])
        assert bad_values(column, pa.int64()) == [1, 3, 4] and bad_values(column.slice(0, 1), pa.int64()) == []


class TestChunks:
    def test_columns_of_chunks_have_one_type(self) -> None:
        def types(*kinds: pa.DataType) -> pa.DataType:
            chunks = [chunk_of(pa.table({"x": pa.array([None], kind)})) for kind in kinds]
            return layout_of(chunks).types["x"]

        assert (
            types(pa.int64(), pa.null()) == types(pa.null(), pa.int64()) == types(pa.int8(), pa.int64()) == pa.int64()
        )
        assert types(pa.int64(), pa.float32()) == types(pa.float64(), pa.int8()) == pa.float64()
        assert types(pa.date32(), pa.timestamp("s")) == types(pa.timestamp("s"), pa.date32()) == pa.timestamp("s")
        assert types(pa.string(), pa.large_string()) == pa.large_string()

    def test_types_that_do_not_fit_are_refused_with_a_row_of_each(self) -> None:
        chunks = [chunk_of({"x": [None, 1]}), chunk_of({"x": ["2", "b"]}, line=9)]
        with pytest.raises(
            DataError, match=r"mixes int64 in rows.csv, line 3 \(1\) and string in rows.csv, line 10 \('b'\)"
        ):
            layout_of(chunks)

    def test_columns_that_do_not_fit_are_named(self) -> None:
        chunks = [chunk_of({"x": [1], "y": [1]}), chunk_of({"y": [1], "z": [1]}, file="b.csv")]
        with pytest.raises(
            DataError, match=r"b.csv: lacks the columns \['x'\] and has the columns \['z'\] besides, unlike rows.csv"
        ):
            layout_of(chunks)

    def test_a_layout_keeps_some_columns(self) -> None:
        layout = layout_of([chunk_of({"x": [1, None], "y": ["a", "b"]})])
        assert layout.nulls == {"x"} and layout.only(None) is layout
        assert layout.only(["y"]) == ColumnTypes({"y": pa.string()}, frozenset())
        assert layout.only(["z"]).types == {"x": pa.int64()}, "rows are counted by one column at least"
        assert layout.to_json() == {
            "x": {"type": "int64", "missing": True}, "y": {"type": "string", "missing": False},
        }  # fmt: skip
        assert layout.cast(pa.table({"y": ["a"], "x": [1.0], "z": [0]})).to_pydict() == {"x": [1], "y": ["a"]}

    def test_large_chunks_are_divided_for_several_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hopfleet.data.etl import chunks as chunks_module

        monkeypatch.setattr(chunks_module, "SMALL_ROWS", 4)
        monkeypatch.setattr(chunks_module, "MANY", 100)
        failure = Failure("rows.csv", 1, "odd")
        big = chunk_of({"x": [*range(10)]}, failures=(failure,), home=3)
        small = chunk_of({"x": [1, 2, 3, 4]})
        found = divided([big, small], 2)
        assert [(each.start, each.rows, len(each.failures), each.home) for each in found] == [
            (0, 4, 1, 3), (4, 4, 0, 3), (8, 2, 0, 3), (0, 4, 0, 0),
        ]  # fmt: skip
        assert found[2].read().to_pydict() == {"x": [8, 9]} and found[2].line_of(1) == 2 + 8 + 1
        assert [each.home for each in divided([big, small], 3)] == [0, 1, 2, 0]
        assert rows_before(found).tolist() == [0, 4, 8, 10, 14]

    @pytest.mark.parametrize(
        ("value", "number"), [(None, True), (1, True), ("1.5", True), ("nan", True), ("x", False), ([], False)]
    )
    def test_numbers_and_texts_of_numbers(self, value: Any, number: bool) -> None:
        assert is_number(value) is number

    def test_places_are_lines_or_rows(self) -> None:
        assert (
            Failure("a.csv", 3, "").place == "a.csv, line 3" and Failure("a.parquet", 3, "").place == "a.parquet, row 3"
        )
        assert Failure("the source", 3, "").place == "the source, row 3"


def test_targets_of_the_same_call_are_found_again(tmp_path: Path) -> None:
    """A second call with the same arguments opens what is there; another one is refused with what differs."""
    source = {"x": [1, 2, 3, 4]}
    made = hop.prepare(source, tmp_path / "set", partitions=2)
    assert hop.prepare(source, tmp_path / "set", partitions=2).rows == made.rows == 4
    with pytest.raises(DataError, match=r"already holds a data set that differs \(.*partitions"):
        hop.prepare(source, tmp_path / "set", partitions=1)
    assert len(made) == 2 and len(hop.prepare(source, tmp_path / "set", partitions=1, overwrite=True)) == 1
