"""Repeated tests run in an order that follows from the seed, and what failed is listed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.shuffle import shuffle
from tools.steady import failures

TESTS = """
def test_passes(): pass
def test_fails(): assert False
"""


class Item(NamedTuple):
    path: str
    number: int


def test_modules_and_their_tests_are_shuffled() -> None:
    items = [Item(path, number) for path in "abcd" for number in range(6)]
    orders = []
    for seed in ("1", "1", "2"):
        order = list(items)
        shuffle(order, seed)
        orders.append(order)
        assert sorted(order) == items
        assert [order[place].path for place in range(0, 24, 6)] != list("abcd")
        assert all(len({item.path for item in order[place : place + 6]}) == 1 for place in range(0, 24, 6))
    assert orders[0] == orders[1] != orders[2]


def test_what_failed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    module = tmp_path / "test_one.py"
    module.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-qq", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    assert failures([*command, str(module)], 1) == ["test_one.py::test_fails"]
    assert failures([*command, f"{module}::test_passes"], 1) == []


def test_a_command_that_fails_without_a_failed_test_is_named() -> None:
    assert failures([sys.executable, "-S", "-c", "raise SystemExit(3)"], 1)[0].endswith("exit code 3")
