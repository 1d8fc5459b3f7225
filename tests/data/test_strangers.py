"""Data sets from strangers: whatever manifest and files claim, the reader refuses in words."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hopfleet.data import open_dataset, partition
from hopfleet.errors import DataError


def dataset(folder: Path) -> Path:
    rows = [{"x": np.ones(3, "f4"), "text": "a" * i, "boxes": np.ones((i, 4))} for i in range(1, 9)]
    partition(rows, folder, partitions=2)
    return folder


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    del content["sha256"]
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


def change_file(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a partition's file, and make the manifest fit."""
    path = folder / "part-00000.arrow"
    path.write_bytes(content := change(path.read_bytes()))

    def fit(manifest: dict[str, Any]) -> None:
        manifest["partitions"][0] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        del manifest["fingerprint"]

    change_manifest(folder, fit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["partitions"][0].update(rows=-4), "rows: -4 must be a whole number of at least 1"),
        (lambda m: m["partitions"][0].update(rows=float("inf")), "rows: inf must be a whole number"),
        (lambda m: m["partitions"][0].update(rows=float("nan")), "rows: nan must be a whole number"),
        (lambda m: m["partitions"][0].update(rows=True), "rows: True must be a whole number"),
        (lambda m: m["partitions"][0].update(bytes=10**40), r"bytes: 1000000.* must be a whole number"),
        (lambda m: m["partitions"][0].update(bytes="1"), "bytes: '1' must be a whole number"),
        (lambda m: m["partitions"][0].update(rows=10**15), "part-00000.arrow: 10{15} rows of these columns do not fit"),
        (
            lambda m: m["partitions"][0].update(file="../../etc/passwd"),
            r"file: '\.\./\.\./etc/passwd' must be part-00000",
        ),
        (lambda m: m["partitions"][0].update(sha256="../x"), r"sha256: '\.\./x' must have 64"),
        (lambda m: m["columns"][0].update(shape=[10**9]), "do not fit into"),
        (lambda m: m["columns"][0].update(shape=[2**31]), "a row must have at most 2147483647 values"),
        (lambda m: m["columns"][0].update(shape=[-1]), "shape: -1 must be a whole number of at least 0"),
        (lambda m: m["columns"][0].update(shape=[1.5]), "shape: 1.5 must be a whole number"),
        (lambda m: m["columns"][0].update(shape=[1] * 100), "must be a list of at most 32 numbers"),
        (lambda m: m["columns"][0].update(shape=None), "shape: None must be a list"),
        (lambda m: m["columns"][0].update(dtype=["float32"]), r"unknown dtype \['float32'\]"),
        (lambda m: m["columns"][0].update(name={"x": 1}), "column name {'x': 1}: must be a non-empty str"),
        (lambda m: m["columns"][0].update(name="\ud800"), "surrogates not allowed"),
        (lambda m: m["columns"][0].update(name="text"), "each with its own name"),
        (lambda m: m["columns"][1].update(dtype="bytes"), "string cannot have dtype 'bytes'"),
        (lambda m: m["columns"][2].update(shape=[]), "must have at least one dimension"),
        (lambda m: m["columns"][0].update(dtype="int32"), "fingerprint: must be that of the columns and partitions"),
        (lambda m: m.update(columns=5), "is damaged"),
        (lambda m: m.update(columns=[]), "columns: must be at least one"),
        (lambda m: m.update(partitions=[]), "partitions: must be at least one"),
        (lambda m: m.update(partitions=[7]), "is damaged"),
        (lambda m: m.update(rows=9), "rows: 9 must be the sum over all partitions, 8"),
        (lambda m: m.update(seed=0.5), "seed: 0.5 must be an integer"),
        (lambda m: m.update(version=True), "has format version True instead of 1"),
        (lambda m: m.pop("seed"), "has no entry 'seed'"),
    ],
)
def test_a_manifest_that_cannot_be_right(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    change_manifest(folder := dataset(tmp_path / "set"), change)
    with pytest.raises(DataError, match=message):
        open_dataset(folder)


def test_a_manifest_that_is_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataset(tmp_path / "set") / "manifest.json"
    path.write_text("[" * 1_000_000)
    with pytest.raises(DataError, match="is not the manifest of a Hopfleet data set"):
        open_dataset(path.parent)
    monkeypatch.setattr("hopfleet.data.manifest.LIMIT_BYTES", 1000)
    with pytest.raises(DataError, match="has 1000000 bytes, more than any manifest"):
        open_dataset(path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"manifest.json: is not a file"):
        open_dataset(path.parent)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"manifest.json: is not a file"):
        open_dataset(path.parent)


def _again(content: bytes, *, compression: str | None = None, **columns: Any) -> bytes:
    """Return an Arrow file with some columns replaced."""
    table = pa.ipc.open_file(content).read_all()
    for name, values in columns.items():
        number = table.column_names.index(name.replace("_", "."))
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _last_offset(content: bytes) -> bytes:
    """Return a file whose last string ends far beyond its column."""
    lengths = [len(text) for text in pa.ipc.open_file(content).read_all()["text"].to_pylist()]
    offsets = np.cumsum([0, *lengths]).astype("<i8")
    start = content.index(offsets.tobytes())
    offsets[-1] += 1 << 30
    return content[:start] + offsets.tobytes() + content[start + offsets.nbytes :]


FILES: list[tuple[Callable[[bytes], bytes], str]] = [
    (_last_offset, r"is not a readable Arrow file \(.*[Oo]ffset"),
    (lambda content: _again(content, compression="zstd"), "is compressed"),
    (lambda content: _again(content, compression="lz4"), "is compressed"),
    (lambda content: _again(content, text=[None] * 4), "is missing values"),
    (lambda content: _again(content, x=[[1, None, 2]] * 4), "is missing values"),
    (lambda content: _again(content, boxes_shape=[[2**32, 2**32]] * 4), "has rows that do not fit their shapes"),
    (lambda content: _again(content, boxes_shape=[[-1, -4]] * 4), "has rows that do not fit their shapes"),
    (lambda content: content[:-700], "is not a readable Arrow file"),
    (lambda content: b"", "bytes: 0 must be a whole number of at least 1"),
]


def test_files_that_cannot_be_right(tmp_path: Path) -> None:
    """A process of its own reads the rows, because reading used to end it."""
    for number, (change, _) in enumerate(FILES):
        change_file(dataset(tmp_path / str(number)), change)
    code = f"""
from hopfleet.data import open_dataset
from hopfleet.errors import DataError
for number in range({len(FILES)}):
    try:
        for batch in open_dataset(f"{tmp_path}/{{number}}").batches(0, batch_size=2, epoch=1):
            repr(batch)
    except DataError as error:
        print(error)
    else:
        print("read")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (_, message), line in zip(FILES, done.stdout.splitlines(), strict=True):
        assert re.search(message, line), line
