"""Fixtures for all tests: no test sees the user's own experiments, or leaves any behind."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.helpers import warm

try:
    from hypothesis import settings
except ImportError:  # on machines with GPUs, which have what these tests need and little else
    pass
else:
    # The same commit gets the same verdict, from everybody; who has time looks for new examples.
    settings.register_profile("steady", derandomize=True)
    settings.load_profile("default" if os.environ.get("HOPFLEET_LONG") else "steady")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of slow tests alone if those are not wanted: they import what takes seconds, such as Ray."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    slow = re.search(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow", collection_path.read_text(), re.MULTILINE)
    return None if slow is None else True


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOPFLEET_HOME", str(home))
    monkeypatch.delenv("HOPFLEET_RESUME", raising=False)
    return home


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Iterator[None]:
    """Let tests and scripts fork processes from one that has imported PyTorch; see ``tests/helpers/warm.py``."""
    warm.session = warm.Session()
    warm.warm_fork_servers()
    yield
    warm.session.end()


@pytest.fixture(scope="session", autouse=True)
def parser() -> Iterator[None]:
    """Build the parser of command lines once: Typer builds it anew for each, as for a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes as users do, each of which imports everything itself."""
    monkeypatch.setenv(warm.ADDRESS, "")
