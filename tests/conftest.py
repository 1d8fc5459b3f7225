"""Fixtures for all tests: no test sees the user's own experiments, or leaves any behind."""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.helpers import warm
from tests.helpers.cluster.joined import Clusters

try:
    from hypothesis import HealthCheck, Phase, settings
except ImportError:  # on machines with GPUs, which have what these tests need and little else
    pass
else:
    # A commit gets the same verdict on every machine, even a busy one; the profile `long` looks for new examples.
    busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("long", busy)
    settings.register_profile("steady", busy, derandomize=True)
    settings.register_profile("few", busy, derandomize=True, max_examples=10)
    # A mutant is killed by any failure, the simplest one or not.
    settings.register_profile("mutants", busy, derandomize=True, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("long" if os.environ.get("HOPFLEET_LONG") else "steady")


# What is imported and collected stays: looking for garbage in it would be a tenth of the work of all tests.
gc.disable()


def pytest_collection_finish() -> None:
    if torch := sys.modules.get("torch"):
        torch.set_warn_always(True)  # or a warning would hit the first test alone, in whatever order they run
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files alone that have slow tests only, or none, if those are not wanted: imports take seconds."""
    wanted = config.option.markexpr
    if collection_path.suffix != ".py" or not wanted:
        return None
    text = collection_path.read_text(encoding="utf-8")
    if wanted.startswith("slow"):
        return None if "slow" in text else True
    slow = re.search(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow", text, re.MULTILINE)
    return True if wanted == "not slow" and slow else None


LONGEST = ("test_sklearns_own_tests.py", "test_site.py", "test_types.py", "test_twelve_lines.py", "test_chaos.py")
"""Files with tests of a minute and more: they begin first, so that no process waits for one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOPFLEET_HOME", str(home))
    monkeypatch.delenv("HOPFLEET_RESUME", raising=False)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)  # which Ray sets in this process
    return home


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Iterator[None]:
    """Let tests and scripts fork processes from one that has imported PyTorch; see ``tests/helpers/warm.py``."""
    warm.session = warm.Session()
    warm.warm_fork_servers()
    yield
    warm.session.end()


@pytest.fixture(scope="session")
def compiler() -> Iterator[warm.Session]:
    found = warm.Session("torch._dynamo.config")
    yield found
    found.end()


@pytest.fixture
def warm_compiler(compiler: warm.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork processes from one that has imported PyTorch's compiler.

    Otherwise each member of a team imports it, and each script that builds an optimizer, which takes seconds.
    """
    assert warm.session is not None
    monkeypatch.setenv(warm.ADDRESS, warm.session.start())
    compiler.start()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """Clusters of Ray on this machine."""
    found = Clusters()
    yield found
    found.end()


@pytest.fixture(scope="session", autouse=True)
def parser() -> Iterator[None]:
    """Build the parser of command lines once: Typer builds it anew for each, as for a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes as users do: each of them imports everything itself."""
    monkeypatch.setenv(warm.ADDRESS, "")
