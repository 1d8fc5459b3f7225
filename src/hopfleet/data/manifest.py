"""The manifest of a data set: a readable JSON description of the folder's contents.

The manifest is written last and read first: a folder with a manifest is complete, and its files are checked against the
manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.data.columns import Column
from hopfleet.errors import DataError

FILE = "manifest.json"
FORMAT = "hopfleet-dataset"
VERSION = 1


@dataclass(frozen=True, slots=True)
class PartitionFile:
    """One partition: the name of its file and the file's expected properties."""

    name: str
    rows: int
    size: int  #: bytes
    sha256: str


def partition_name(index: int) -> str:
    return f"part-{index:05d}.arrow"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a data set without its rows."""

    columns: Mapping[str, Column]
    partitions: tuple[PartitionFile, ...]
    seed: int

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def fingerprint(self) -> str:
        """A SHA-256 that is equal for equal columns and partitions, independent of their location."""
        content = [
            [column.to_json() for column in self.columns.values()],
            [[partition.rows, partition.sha256] for partition in self.partitions],
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def changes(self, new: Manifest) -> list[str]:
        """Describe the differences between this data set and a new one; empty if both hold the same."""
        changes = self.outline_changes(new.rows, len(new.partitions), new.seed)
        mine, theirs = (", ".join(f"{c.name}: {c}" for c in each.columns.values()) for each in (self, new))
        if mine != theirs:
            changes.append(f"columns {mine} → {theirs}")
        if not changes and self.fingerprint != new.fingerprint:
            sizes = [[part.rows for part in each.partitions] for each in (self, new)]
            changes.append(
                "the contents of rows" if sizes[0] == sizes[1] else f"partition sizes {sizes[0]} → {sizes[1]}"
            )
        return changes

    def outline_changes(self, rows: int, partitions: int, seed: int) -> list[str]:
        """Describe the differences that show before the rows are read."""
        compared = (
            ("rows", self.rows, rows),
            ("partitions", len(self.partitions), partitions),
            ("seed", self.seed, seed),
        )
        return [f"{name} {mine:,} → {theirs:,}" for name, mine, theirs in compared if mine != theirs]

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.rows,
            "seed": self.seed,
            "columns": [column.to_json() for column in self.columns.values()],
            "partitions": [
                {"file": partition.name, "rows": partition.rows, "bytes": partition.size, "sha256": partition.sha256}
                for partition in self.partitions
            ],
        }
        return json.dumps(content, indent=2) + "\n"


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse the text of a manifest at ``where``. Raise DataError if the text is not a valid manifest."""
    content = _content(text)
    if content is None:
        raise DataError(f"{where}: is not the manifest of a Hopfleet data set; create one with hopfleet.data.partition")
    version = content.get("version")
    if version != VERSION:
        raise DataError(
            f"{where}: has format version {version} instead of {VERSION}; update Hopfleet or partition again"
        )
    try:
        columns = [Column.from_json(column) for column in content["columns"]]
        partitions = tuple(
            PartitionFile(str(part["file"]), int(part["rows"]), int(part["bytes"]), str(part["sha256"]))
            for part in content["partitions"]
        )
        seed, rows = int(content["seed"]), int(content["rows"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: is damaged ({type(error).__name__}: {error}); partition again") from error
    manifest = Manifest({column.name: column for column in columns}, partitions, seed)
    # Names become paths and checksums become file names of the cache, so accept only names that partition writes.
    names = [partition_name(i) for i in range(len(partitions))]
    plain = all(len(part.sha256) == 64 and set(part.sha256) <= set("0123456789abcdef") for part in partitions)
    if [part.name for part in partitions] != names or not plain or not names or not columns or manifest.rows != rows:
        raise DataError(f"{where}: is damaged (inconsistent entries); partition again")
    return manifest


def is_ours(text: str | bytes) -> bool:
    """Whether a text is a manifest of this format, in any version."""
    return _content(text) is not None


def _content(text: str | bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None
