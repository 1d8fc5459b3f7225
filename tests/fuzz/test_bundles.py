"""Damaged and crafted bundles: refused in words, or they predict as before."""

from __future__ import annotations

import pytest

from tests.helpers.fuzzing import fuzz
from tests.helpers.marks import LONG

TARGETS = "tests.helpers.fuzz_targets.bundles"


def test_some_damaged_bundles() -> None:
    assert fuzz(f"{TARGETS}:description", range(16)).refused > 8


@pytest.mark.slow
@pytest.mark.parametrize(("target", "count"), [("description", 1000), ("other_files", 200)])
def test_many_damaged_bundles(target: str, count: int) -> None:
    fuzz(f"{TARGETS}:{target}", range(1000, 1000 + count // (1 if LONG else 10)))
