"""Fuzzing targets for data sets: damaged manifests and Arrow files, and those that a stranger has made to fit."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hopfleet as hop
from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.support.files import parsed_json
from tests.helpers.mutation import NUMBERS, Mutator


@functools.cache
def original() -> Path:
    """Make a data set with all kinds of columns, once per process."""
    rows = [
        {
            "number": i,
            "image": np.full((2, 3), i, "f4"),
            "flag": bool(i % 2),
            "wave": complex(i, -i),
            "tokens": np.arange(i % 4, dtype="i2"),
            "boxes": np.ones((i % 3, 4)),
            "text": "é" * (i % 5),
            "raw": bytes(range(i)),
        }
        for i in range(9)
    ]
    folder = Path(tempfile.mkdtemp()) / "set"
    partition(rows, folder, partitions=2)
    return folder


def read(dataset: Dataset) -> list[Any]:
    """Return every row of a data set, in stored order and in the order of an epoch."""
    dataset.head(3)
    return [
        {name: [np.asarray(value).tolist() for value in values] for name, values in batch.items()}
        for index in range(len(dataset))
        for batch in (
            *dataset.batches(index, batch_size=2),
            *dataset.batches(index, batch_size=2, epoch=1),
            dataset.picker(index, batch_size=2, epoch=1)(0),
        )
    ]


@functools.cache
def expected() -> str:
    return repr(read(open_dataset(original())))


@functools.cache
def live() -> Path:
    """Make a live data set, once per process."""
    folder = Path(tempfile.mkdtemp()) / "set"
    partition(hop.live([(float(i), i) for i in range(9)]), folder, partitions=2)
    return folder


def live_manifest(mutator: Mutator, folder: Path) -> None:
    """Damage the manifest of a live data set. It is refused, or every item is as before."""
    shutil.copytree(live(), folder / "set")
    mutator.file(folder / "set" / "manifest.json")
    dataset = open_dataset(folder / "set").made_by(hop.live([(float(i), i) for i in range(9)]))
    dataset.check(checksums=True)
    assert repr(read(dataset)) == repr(read(open_dataset(live()).made_by(hop.live([(float(i), i) for i in range(9)]))))


def manifest(mutator: Mutator, folder: Path) -> None:
    """Damage the manifest. The data set is refused, or every row is as before."""
    shutil.copytree(original(), folder / "set")
    path = folder / "set" / "manifest.json"
    for _ in range(mutator.random.choice((1, 1, 2, 5))):
        try:
            mutator.file(path)
        except ValueError:  # no JSON after the first damage
            path.write_bytes(mutator.bytes(path.read_bytes()))
    dataset = open_dataset(folder / "set")
    dataset.check(checksums=True)
    assert repr(read(dataset)) == expected(), "other rows"


def arrow_file(mutator: Mutator, folder: Path) -> None:
    """Damage a partition file. The checksum finds every difference."""
    shutil.copytree(original(), folder / "set")
    mutator.file(folder / "set" / "part-00001.arrow")
    dataset = open_dataset(folder / "set")
    dataset.check(checksums=True)
    assert repr(read(dataset)) == expected(), "other rows"


def strangers_file(mutator: Mutator, folder: Path) -> None:
    """Damage a partition file, and make size and checksum in the manifest fit: reading is refused or works."""
    shutil.copytree(original(), folder / "set")
    path = folder / "set" / "part-00001.arrow"
    kind = mutator.random.randrange(4)
    if kind == 0:
        _write_again(mutator, path)
    elif kind == 1:
        path.write_bytes(_with_number(mutator, path.read_bytes()))
    else:
        for _ in range(mutator.random.choice((1, 1, 2, 3))):
            mutator.file(path)
    text = parsed_json((folder / "set" / "manifest.json").read_text())
    content = path.read_bytes()
    text["partitions"][1] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    del text["fingerprint"]
    if mutator.random.random() < 0.1:
        text = mutator.json(text)
    (folder / "set" / "manifest.json").write_text(json.dumps(text))
    dataset = open_dataset(folder / "set")
    dataset.check(checksums=True)
    read(dataset)


def _with_number(mutator: Mutator, content: bytes) -> bytes:
    """Return a file with an aligned number replaced: a length, an offset, or a value."""
    width = mutator.random.choice((4, 8))
    start = width * mutator.random.randrange(len(content) // width)
    number = mutator.random.choice([number for number in NUMBERS if isinstance(number, int)])
    return content[:start] + (number % 2 ** (8 * width)).to_bytes(width, "little") + content[start + width :]


def _write_again(mutator: Mutator, path: Path) -> None:
    """Write a file with the same rows in another form: compressed, cut, with nulls, or as several record batches."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    kind = mutator.random.randrange(4)
    options = pa.ipc.IpcWriteOptions(compression=mutator.random.choice(("lz4", "zstd")) if kind == 0 else None)
    if kind == 1:
        table = table.slice(mutator.random.randrange(4))
    elif kind == 2:
        number = mutator.random.randrange(table.num_columns)
        nulls = pa.nulls(table.num_rows, table.schema.field(number).type)
        table = table.set_column(number, table.schema.field(number), nulls)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2 if kind == 3 else None)
