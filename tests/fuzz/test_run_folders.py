"""Damaged run folders: refused in words, or without effect on what a user sees."""

from __future__ import annotations

import pytest

from tests.helpers.fuzzing import fuzz
from tests.helpers.marks import LONG

SHARE = 1 if LONG else 8
"""One in ``SHARE`` inputs is tried."""

TARGETS = "tests.helpers.fuzz_targets.run_folders"


@pytest.mark.parametrize(
    ("target", "count"),
    [("journal", 30), ("definition", 30), ("old_journal", 20), ("other_files", 20), ("resumed", 10)],
)
def test_some_damaged_files(target: str, count: int) -> None:
    fuzz(f"{TARGETS}:{target}", range(count))


def test_some_damaged_requests() -> None:
    assert fuzz(f"{TARGETS}:requests", range(6)).harmless > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("journal", 1400),
        ("definition", 1500),
        ("old_journal", 500),
        ("other_files", 500),
        ("resumed", 100),
        ("requests", 100),
    ],
)
def test_many_damaged_files(target: str, count: int) -> None:
    fuzz(f"{TARGETS}:{target}", range(1000, 1000 + count // SHARE))
