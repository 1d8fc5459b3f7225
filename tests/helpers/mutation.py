"""A seeded mutator of files: damage as disks, editors and attackers cause it. The same seed causes the same damage."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NUMBERS = (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308)
"""Numbers at which programs go wrong."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "0", "../../x", "/etc/passwd", "a\0b", "\u202e", "\x1b[2J", "\ud800", "é" * 300),
    *([], {}, [[]], {"": {}}, [None], float("nan"), float("inf"), -float("inf")),
)
"""Values that take the place of others."""

WORDS = (b"", b"\0", b"\xff" * 8, b"{}", b"[]", b'"', b"nan", b"-1", b"9" * 40, b"[" * 200, b"ARROW1\0\0", b"\r\n")
"""Bytes that are spliced into files."""


class Mutator:
    """Causes one kind of damage per call. ``random`` is the generator of this seed, for choices of the caller."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def file(self, path: Path) -> None:
        """Damage a file, by its suffix: as JSON, as a database, or byte by byte."""
        if path.suffix == ".json" and self.random.random() < 0.7:
            path.write_text(json.dumps(self.json(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        elif path.suffix == ".sqlite" and self.random.random() < 0.7:
            self.database(path)
        else:
            path.write_bytes(self.bytes(path.read_bytes()))

    # ----------------------------------------------------------------------------------------------------- bytes

    def bytes(self, content: bytes) -> bytes:
        """Return damaged bytes: flipped bits, a part removed, doubled, moved or overwritten."""
        choose = self.random
        start = choose.randrange(len(content) + 1)
        # Most structure is at the beginning of a file, or at its end.
        if choose.random() < 0.4:
            start = min(len(content), choose.randrange(64))
        elif choose.random() < 0.2:
            start = max(0, len(content) - choose.randrange(64))
        length = min(len(content) - start, choose.choice((1, 2, 4, 8, 64, 4096)))
        before, part, after = content[:start], content[start : start + length], content[start + length :]
        kind = choose.randrange(8)
        if kind <= 2 and part:
            return before + self._flipped(part) + after
        if kind == 3:
            return before
        if kind == 4:
            return before + after
        if kind == 5:
            return before + part + part + after
        if kind == 6:
            return before + choose.randbytes(length) + after
        return before + choose.choice(WORDS) + after

    def _flipped(self, part: bytes) -> bytes:
        flipped = bytearray(part)
        for _ in range(self.random.choice((1, 1, 1, 3, 8))):
            flipped[self.random.randrange(len(flipped))] ^= 1 << self.random.randrange(8)
        return bytes(flipped)

    # ------------------------------------------------------------------------------------------------------ JSON

    def json(self, value: Any) -> Any:
        """Return a JSON value with one part changed, removed, doubled, renamed or moved."""
        value = copy.deepcopy(value)
        places = list(_places(value))
        if not places or self.random.random() < 0.02:
            return self.scalar(value)
        inside, key = self.random.choice(places)
        kind = self.random.randrange(8)
        if kind == 0:
            del inside[key]
        elif kind == 1 and isinstance(inside, list):
            inside.insert(self.random.randrange(len(inside) + 1), copy.deepcopy(inside[key]))
        elif kind == 1:
            inside[str(self.random.choice(VALUES))] = inside.pop(key)
        elif kind == 2:
            other, another = self.random.choice(places)
            inside[key] = copy.deepcopy(other[another])
        elif kind == 3:
            inside[key] = [inside[key]]
        else:
            inside[key] = self.scalar(inside[key])
        return value

    def scalar(self, value: Any) -> Any:
        """Return another value in place of ``value``, often of its own type."""
        choose = self.random
        if isinstance(value, int | float) and not isinstance(value, bool) and choose.random() < 0.6:
            return choose.choice((*NUMBERS, -value, value + 1, value - 1, value * 2, str(value)))
        if isinstance(value, str) and value and choose.random() < 0.6:
            return choose.choice((value[:-1], value + "0", value.swapcase(), value[::-1], "../" + value, value * 100))
        return choose.choice((*VALUES, *NUMBERS))

    # -------------------------------------------------------------------------------------------------- databases

    def database(self, path: Path, tables: Sequence[str] = ()) -> None:
        """Change, remove, double or swap rows of a SQLite file. ``tables`` limits the damage to these tables."""
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            found = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            filled = [
                name
                for name in tables or found
                if not name.startswith("sqlite_") and database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            ]
            with contextlib.suppress(sqlite3.Error):  # a table does not take every change
                self._change(database, self.random.choice(filled))

    def _change(self, database: sqlite3.Connection, table: str) -> None:
        choose = self.random
        rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}"')]
        columns = [name for _, name, *_ in database.execute(f'PRAGMA table_info("{table}")')]
        row, other, column = choose.choice(rows), choose.choice(rows), choose.choice(columns)
        kind = choose.randrange(7)
        if kind == 0:
            database.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))
        elif kind == 1:
            database.execute(f'DELETE FROM "{table}" WHERE rowid >= ?', (row,))
        elif kind == 2:
            listed = ", ".join(f'"{name}"' for name in columns[1:])
            database.execute(f'INSERT INTO "{table}" ({listed}) SELECT {listed} FROM "{table}" WHERE rowid = ?', (row,))
        elif kind == 3 and row != other:
            listed = ", ".join(f'"{name}" = (SELECT "{name}" FROM "{table}" WHERE rowid = ?)' for name in columns[1:])
            database.execute(f'UPDATE "{table}" SET {listed} WHERE rowid = ?', (*[other] * (len(columns) - 1), row))
        else:
            query = f'SELECT "{column}" FROM "{table}" WHERE rowid = ?'
            value = self._cell(database.execute(query, (row,)).fetchone()[0])
            database.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = ? WHERE rowid = ?', (value, row))

    def _cell(self, value: Any) -> Any:
        """Return another value for a column; a column with JSON stays JSON most of the time."""
        if isinstance(value, bytes):
            return self.bytes(value)
        if isinstance(value, str) and value[:1] in ("{", "["):
            if self.random.random() < 0.8:
                with contextlib.suppress(ValueError):  # damaged before
                    return json.dumps(self.json(json.loads(value)))
            return self.bytes(value.encode()).decode("latin-1")
        changed = self.scalar(value)
        if isinstance(changed, str):
            return changed.encode(errors="replace").decode()
        fits = changed is None or isinstance(changed, float) or (isinstance(changed, int) and abs(changed) < 2**63)
        return changed if fits else str(changed)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return all places in a JSON value, each as a container and a key."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for part in value.values() for place in _places(part)]
    if isinstance(value, list):
        return [(value, index) for index in range(len(value))] + [place for part in value for place in _places(part)]
    return []
