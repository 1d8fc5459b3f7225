"""Mutated data sets: each is refused in words or read without effect, and none ends the interpreter."""

from __future__ import annotations

import pytest

from tests.helpers.fuzzing import fuzz

TARGETS = "tests.helpers.fuzz_targets.datasets"


def test_a_few_damaged_data_sets() -> None:
    assert fuzz(f"{TARGETS}:manifest", range(40)).refused > 10
    assert fuzz(f"{TARGETS}:strangers_file", range(60)).refused > 10


@pytest.mark.slow
@pytest.mark.parametrize("target", ["manifest", "live_manifest", "arrow_file", "strangers_file"])
def test_many_damaged_data_sets(target: str) -> None:
    assert fuzz(f"{TARGETS}:{target}", range(1000, 1600)).refused > 200
