"""Passwords of URLs stay out of everything that a preparation writes and says."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import hopfleet as hop
from hopfleet.errors import DataError

URL = "memory://user:open-sesame@shelf/{}"


def test_a_password_is_neither_stored_nor_shown(tmp_path: Path) -> None:
    with fsspec.open(URL.format("a.csv"), "w") as file:
        file.write("x\n" + "\n".join(map(str, range(20))))
    made = hop.prepare(URL.format("a.csv"), tmp_path / "data", partitions=2, workers=1)
    assert made.rows == 20
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"sesame" in path.read_bytes()]
    assert hop.prepare(URL.format("a.csv"), tmp_path / "data", partitions=2, workers=1).fingerprint == made.fingerprint
    with pytest.raises(DataError) as caught:
        hop.prepare(URL.format("none.csv"), tmp_path / "other", partitions=2)
    assert "sesame" not in str(caught.value) and "user:***@" in str(caught.value)
    with pytest.raises(DataError, match="passwords of URLs are not stored"):
        hop.open_dataset("memory://user:***@shelf/data")
