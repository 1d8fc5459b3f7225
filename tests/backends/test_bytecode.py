"""Where Python has no bytecode of the framework, the fork server keeps it, in a folder that is this user's alone."""

from __future__ import annotations

import importlib
import marshal
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hopfleet.backends.local import bytecode
from hopfleet.backends.local.bytecode import bytecode_folder, lacks_bytecode
from hopfleet.backends.local.fork_server import ForkServer

HEADER = 16
"""Bytes of a .pyc file before its code: a magic number, flags, and the time and size of the source."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without bytecode, imported by a process that writes none."""
    folder = tmp_path / "site" / "tiny"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("print('from source', flush=True)\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setitem(sys.modules, "tiny", sys)  # so that the import does not outlive the test
    del sys.modules["tiny"]
    importlib.import_module("tiny")
    return folder


def cached(package: Path) -> Path:
    return package / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc"


# --------------------------------------------------------------------------------------------- whether one is needed


def test_a_folder_is_needed_where_bytecode_is_missing_and_not_written(package: Path) -> None:
    assert lacks_bytecode(["tiny.models", "hopfleet.frameworks.torch.task"])
    cached(package).parent.mkdir()
    cached(package).touch()
    assert not lacks_bytecode(["tiny.models"])


def test_python_writes_bytecode_itself_where_it_can(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not lacks_bytecode(["tiny"])
    monkeypatch.setattr(bytecode.os, "access", lambda path, _: Path(path) != package)  # root can write anywhere
    assert lacks_bytecode(["tiny"])


def test_hopfleet_counts_only_where_no_framework_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hopfleet", sys.modules["tiny"])
    assert lacks_bytecode(["hopfleet.frameworks.sklearn.task"])
    assert not lacks_bytecode(["sys", "hopfleet.frameworks.torch.task"])


@pytest.mark.parametrize("preload", [[], ["sys"], ["never.imported"]])
def test_modules_that_tell_nothing_need_no_folder(preload: list[str]) -> None:
    assert not lacks_bytecode(preload)


def test_a_source_without_the_time_of_its_writing_gets_no_folder(package: Path) -> None:
    """Its bytecode would be taken for that of another version with the same size."""
    os.utime(package / "__init__.py", (1, 1))
    assert not lacks_bytecode(["tiny"])


# ----------------------------------------------------------------------------------------------- whether one is safe


@pytest.mark.usefixtures("package")
def test_the_folder_is_private(own_home: Path) -> None:
    folder = own_home / "cache" / "bytecode"
    assert bytecode_folder(["tiny"]) == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert bytecode_folder(["tiny"]) == str(folder)


def replace_by_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("another"))
    folder.symlink_to("another")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "spoil",
    [
        replace_by_a_link,
        lambda folder: folder.chmod(0o770),
        lambda folder: folder.chmod(0o702),
        lambda folder: folder.parent.chmod(0o777),
        lambda folder: folder.parents[1].chmod(0o770),
    ],
)
def test_a_folder_that_others_can_change_is_refused(spoil: Callable[[Path], None]) -> None:
    folder = Path(bytecode_folder(["tiny"]))
    spoil(folder)
    assert bytecode_folder(["tiny"]) == ""


@pytest.mark.usefixtures("package")
def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytecode_folder(["tiny"])
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert bytecode_folder(["tiny"]) == ""


@pytest.mark.usefixtures("package")
def test_a_home_in_a_folder_of_all_users_is_fine_if_they_cannot_rename_it(own_home: Path) -> None:
    own_home.mkdir()
    own_home.chmod(0o1777)
    assert bytecode_folder(["tiny"])


@pytest.mark.usefixtures("package")
def test_without_a_home_there_is_no_folder_and_no_error(own_home: Path) -> None:
    own_home.touch()
    assert bytecode_folder(["tiny"]) == ""


# ------------------------------------------------------------------------------------------------- what it is good for


@pytest.mark.slow
@pytest.mark.usefixtures("cold")
def test_the_second_fork_server_imports_what_the_first_one_compiled(package: Path, tmp_path: Path) -> None:
    log = tmp_path / "workers.log"

    def start() -> list[str]:
        server = ForkServer(log=log, threads=1, preload=["tiny"])
        try:
            assert server._read_line() == "ready"
        finally:
            server.close()
        return log.read_text().splitlines()

    assert start() == ["from source"]
    (kept,) = tmp_path.rglob("*/tiny/**/*.pyc")
    assert kept.is_relative_to(bytecode_folder(["tiny"])) and not cached(package).parent.exists()
    other = compile("print('from bytecode', flush=True)", "tiny", "exec")
    kept.write_bytes(kept.read_bytes()[:HEADER] + marshal.dumps(other))
    assert start() == ["from source", "from bytecode"]
