"""A plugin of pytest for ``tools/steady.py``: tests run in an order that follows from a seed, and failures are listed.

Modules are shuffled, and then the tests of each module, so tests still share the costly fixtures of their module.
"""

from __future__ import annotations

import random
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run tests in the order that follows from this seed")
    parser.addoption("--failed-to", metavar="FILE", help="write the names of tests that failed to this file")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle in the same way in every process of a run, as pytest-xdist needs."""
    shuffle(items, config.getoption("shuffle"))


def shuffle(items: list[Any], seed: str) -> None:
    rng = random.Random(seed)
    modules = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    rng.shuffle(modules)
    for module in modules:
        rng.shuffle(module)
    items[:] = [item for module in modules for item in module]


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("failed_to")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(file)))


class Failures:
    """Writes the name of each test or module that failed, once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._file.write_text("".join(f"{name}\n" for name in self._failed))
