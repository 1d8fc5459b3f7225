"""The layout of the tests: they mirror the package, share code through helpers, and select slow ones by a marker."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
#: Folders without a counterpart in ``src/hopfleet``: shared code, attacks, whole-system tests, and tests of ``tools``.
OTHERS = {"chaos", "fixtures", "fuzz", "helpers", "mistakes", "system", "tools"}


def imported(text: str, path: Path) -> set[str]:
    """Return the names of the modules, and of the names in modules, that the text of a file imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [package, node.module]))
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.slow
def test_no_module_imports_a_test_module() -> None:
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES}
    private = {name for name in modules if name.rpartition(".")[2].startswith(("test_", "conftest"))}
    assert [path for path in FILES if imported(path.read_text(), path) & private] == []


def test_imports_are_found_in_all_forms() -> None:
    text = "import tests.a.test_b\nfrom tests.a import test_c\nfrom tests.a.test_d import e\nfrom .test_f import g\n"
    seen = {name.rpartition(".")[2] for name in imported(text, TESTS / "a" / "made_up.py")}
    assert {"test_b", "test_c", "test_d", "test_f"} <= seen


def test_folders_mirror_the_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "hopfleet").glob("*/__init__.py")}
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders - OTHERS <= packages
    assert not list(TESTS.glob("test_*.py")), "tests lie in the folder of what they test"
