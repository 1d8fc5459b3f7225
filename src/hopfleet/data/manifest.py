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

from hopfleet.data.columns import Column, shortened, whole
from hopfleet.errors import DataError
from hopfleet.support.files import json_text, parsed_json

FILE = "manifest.json"
FORMAT = "hopfleet-dataset"
VERSION = 1

LIMIT_BYTES = 64 << 20
"""Bytes of the largest manifest that is read, enough for some 300,000 partitions."""

EMPTY_ROWS = 1 << 20
"""Rows that a partition may have if its columns hold no values, so that no file limits their number."""


@dataclass(frozen=True, slots=True)
class PartitionFile:
    """One partition: the name of its file and the file's expected properties."""

    name: str
    rows: int
    size: int  #: bytes
    sha256: str


def partition_name(index: int) -> str:
    return f"part-{index:05d}.arrow"


def fold_name(number: int) -> str:
    return f"fold-{number}"


@dataclass(frozen=True, slots=True)
class LiveItems:
    """The items of a live data set: their columns, and a checksum of some of them."""

    columns: Mapping[str, Column]
    sample: str

    def to_json(self) -> dict[str, Any]:
        return {"columns": [column.to_json() for column in self.columns.values()], "sample": self.sample}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a data set without its rows."""

    columns: Mapping[str, Column]
    partitions: tuple[PartitionFile, ...]
    seed: int
    live: LiveItems | None = None
    folds: tuple[str, ...] = ()  #: the fingerprints of the data sets in the folders ``fold_name`` of the same folder

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    @property
    def fingerprint(self) -> str:
        """A SHA-256 that is equal for equal columns and partitions, and folds, independent of their location."""
        content = [
            [column.to_json() for column in self.columns.values()],
            [[partition.rows, partition.sha256] for partition in self.partitions],
            *([] if self.live is None else [self.live.to_json()]),
            *([list(self.folds)] if self.folds else []),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def changes(self, new: Manifest) -> list[str]:
        """Describe the differences between this data set and a new one; empty if both hold the same."""
        changes = self.outline_changes(new.rows, len(new.partitions), new.seed)
        shown = [each.columns if each.live is None else each.live.columns for each in (self, new)]
        mine, theirs = (", ".join(f"{column.name}: {column}" for column in columns.values()) for columns in shown)
        if (self.live is None) != (new.live is None):
            changes.append("stored → live" if self.live is None else "live → stored")
        if mine != theirs:
            changes.append(f"columns {mine} → {theirs}")
        if not changes and self.live != new.live:
            changes.append("the contents of items")
        if len(self.folds) != len(new.folds):
            changes.append(f"folds {len(self.folds)} → {len(new.folds)}")
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
            "fingerprint": self.fingerprint,
            "columns": [column.to_json() for column in self.columns.values()],
            **({} if self.live is None else {"live": self.live.to_json()}),
            **({"folds": list(self.folds)} if self.folds else {}),
            "partitions": [
                {"file": partition.name, "rows": partition.rows, "bytes": partition.size, "sha256": partition.sha256}
                for partition in self.partitions
            ],
        }
        return json_text(content)


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse the text of a manifest at ``where``. Raise DataError if the text is not a valid manifest.

    A manifest may come from a stranger: every number is checked before anything is allocated or opened.
    """
    content = _content(text)
    if content is None:
        raise DataError(f"{where}: is not the manifest of a Hopfleet data set; make one with hop.partition")
    version = content.get("version")
    if version != VERSION or type(version) is not int:
        raise DataError(
            f"{where}: has format version {shortened(version)} instead of {VERSION}; update Hopfleet or partition again"
        )
    try:
        found = _parsed(content)
        parsed_json(text)  # its digest: last, since the messages above say more
        return found
    except KeyError as error:
        raise DataError(f"{where}: is damaged (has no entry {error}); partition again") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: is damaged ({error}); partition again") from error


def _parsed(content: dict[str, Any]) -> Manifest:
    """Return the manifest of a JSON object; raise KeyError, TypeError or ValueError if an entry cannot be right."""
    columns = _columns(content)
    partitions = tuple(_partition(index, part) for index, part in enumerate(content["partitions"]))
    if not partitions:
        raise ValueError("partitions: must be at least one")
    for part in partitions:
        _check_size(part, columns)
    # Python takes seeds of any size.
    seed = content["seed"]
    if type(seed) is not int:
        raise ValueError(f"seed: {shortened(seed)} must be an integer")
    live = content.get("live")
    items = None if live is None else LiveItems(_columns(live), _sha256("sample", live["sample"]))
    folds = tuple(_sha256("folds", fold) for fold in content.get("folds", ()))
    manifest = Manifest(columns, partitions, seed, items, folds)
    if manifest.rows != content["rows"]:
        raise ValueError(f"rows: {shortened(content['rows'])} must be the sum over all partitions, {manifest.rows}")
    # Release 0.1 wrote no fingerprint.
    if content.get("fingerprint", manifest.fingerprint) != manifest.fingerprint:
        raise ValueError("fingerprint: must be that of the columns and partitions")
    return manifest


def _columns(content: dict[str, Any]) -> dict[str, Column]:
    columns = {column.name: column for column in map(Column.from_json, content["columns"])}
    if not columns or len(columns) != len(content["columns"]):
        raise ValueError("columns: must be at least one, each with its own name")
    return columns


def _sha256(name: str, value: Any) -> str:
    if not (isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")):
        raise ValueError(f"{name}: {shortened(value)} must have 64 hexadecimal digits")
    return value


def _partition(index: int, part: dict[str, Any]) -> PartitionFile:
    # Names become paths and checksums become file names of the cache, so accept only names that partition writes.
    name, sha256 = part["file"], _sha256("sha256", part["sha256"])
    if name != partition_name(index):
        raise ValueError(f"file: {shortened(name)} must be {partition_name(index)}")
    return PartitionFile(name, whole("rows", part["rows"], least=1), whole("bytes", part["bytes"], least=1), sha256)


def _check_size(part: PartitionFile, columns: Mapping[str, Column]) -> None:
    """Raise ValueError if the rows of a partition cannot fit into its file."""
    needed = part.rows * sum(column.row_bytes for column in columns.values())
    if needed > part.size or part.rows > max(part.size, EMPTY_ROWS):
        raise ValueError(f"{part.name}: {part.rows} rows of these columns do not fit into {part.size} bytes")


def is_ours(text: str | bytes) -> bool:
    """Whether a text is a manifest of this format, in any version."""
    return _content(text) is not None


def _content(text: str | bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None
