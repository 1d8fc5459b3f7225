"""Damaged and hostile model files: refused in words, or a model that can be used."""

from __future__ import annotations

import os

import pytest

from tests.helpers.fuzzing import fuzz

TARGET = "tests.helpers.fuzz_targets.checkpoints:checkpoint"


@pytest.mark.usefixtures("warm_compiler")
def test_some_damaged_model_files() -> None:
    assert fuzz(TARGET, range(12)).refused > 4


@pytest.mark.slow
def test_many_damaged_model_files() -> None:
    fuzz(TARGET, range(1000, 3000 if os.environ.get("HOPFLEET_LONG") else 1500))
