"""WebDataset: tars in which files that share a name are the columns of a row, as bytes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from hopfleet.data.etl.blocks import BLOCK_BYTES
from hopfleet.data.etl.chunks import Parsed
from hopfleet.data.etl.listing import SourceFile, open_stream
from hopfleet.errors import DataError, describe


class _Counted:
    """A stream that knows how many bytes were read, and where the last one is that is not zero."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size = self.filled = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if kept := data.rstrip(b"\0"):
            self.filled = self.size + len(kept)
        self.size += len(data)
        return data


def samples(file: SourceFile) -> Iterator[Parsed]:
    """Yield the samples of a tar as tables of some megabytes."""
    rows: list[dict[str, Any]] = []
    size, first, number = 0, 1, 0
    try:
        with open_stream(file) as stream, tarfile.open(fileobj=(counted := _Counted(stream)), mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                if member.isdir():
                    continue
                if not member.isfile():
                    raise DataError(
                        f"{file.path}, after row {number}: {member.name} is a link or a device, not a file; pack "
                        "files, as with tar --dereference --hard-dereference"
                    )
                folder, slash, name = member.name.rpartition("/")
                key, _, column = name.partition(".")
                key = f"{folder}{slash}{key}"
                if not rows or rows[-1]["key"] != key:
                    if size > BLOCK_BYTES:
                        yield _table(rows, file.path, first), first, None, ()
                        rows, size, first = [], 0, number + 1
                    rows.append({"key": key})
                    number += 1
                if column in rows[-1]:
                    why = "is the name of the sample" if column == "key" else "is there twice"
                    raise DataError(
                        f"{file.path}, row {number}: sample {key!r}: {column!r} {why}; rename {member.name}"
                    )
                content = tar.extractfile(member)
                assert content is not None
                rows[-1][column] = content.read()
                size += member.size
            while counted.read(BLOCK_BYTES):
                pass
            if number and (counted.filled > tar.offset or counted.size < tar.offset + tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it breaks off, or there is more after its end")
    except (tarfile.TarError, OSError, EOFError) as error:
        where = f"{file.path}, after row {number}"
        raise DataError(f"{where}: is not a readable tar ({describe(error)}); restore the file") from error
    if rows:
        yield _table(rows, file.path, first), first, None, ()


def _table(rows: list[dict[str, Any]], path: str, first: int) -> pa.Table:
    names = list(rows[0])
    for number, row in enumerate(rows, first):
        if row.keys() != rows[0].keys():
            raise DataError(
                f"{path}, row {number}: sample {row['key']!r} has {sorted(row.keys() - {'key'})}, others have "
                f"{names[1:]}; give every sample the same files"
            )
    kinds = {name: pa.string() if name == "key" else pa.large_binary() for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
