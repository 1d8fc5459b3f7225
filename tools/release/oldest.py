"""Run a part of the fast tests with the oldest packages that ``pyproject.toml`` allows: ``make oldest``.

``constraints-oldest.txt`` names their versions. All other packages, PyTorch among them, are those of the environment
that runs this. Deprecations that old packages report of newer ones are no failures, so their warnings are ignored.
"""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from tools.release.environments import Environment

ROOT = Path(__file__).parents[2]
VERSIONS = ROOT / "constraints-oldest.txt"
PLACE = ROOT / "build" / "oldest"

TESTS = (
    *("cli/test_app.py", "cli/test_experiments.py", "data/test_partitioning.py", "data/test_dataset.py"),
    *("data/etl/test_prepare.py", "store/test_store.py", "store/test_remote.py", "frameworks/test_safetensors.py"),
    *("monitor", "ui/test_access.py", "frameworks/test_sklearn.py", "search/test_optuna.py", "planner/test_exact.py"),
)
"""Tests that use each of the packages."""

NEWER = {
    "cli/test_app.py::test_every_option_and_argument_has_help": "asks Typer for what older versions call otherwise",
    "data/test_partitioning.py::test_neither_pandas_nor_torch_is_imported": "older versions of pyarrow import pandas",
}
"""Tests that hold for newer packages alone, with the reason."""


def environment() -> Path:
    """Return the interpreter of the environment, which is made anew if the versions have changed."""
    made = PLACE / sha256(VERSIONS.read_bytes()).hexdigest()[:16]
    if not (made / "complete").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        new = Environment(Path(sys.executable), made)
        new.install("--only-binary", ":all:", "--requirement", str(VERSIONS))
        new.borrow([str(ROOT / "src"), *site.getsitepackages()])
        (made / "complete").touch()
    return made / "bin" / "python"


def main() -> int:
    command = [str(environment()), "-m", "pytest", "-W", "ignore::DeprecationWarning", "-p", "no:cacheprovider"]
    tests = [f"tests/{name}" for name in TESTS]
    deselected = [f"--deselect=tests/{name}" for name in NEWER]
    return subprocess.run([*command, "-m", "not slow", *deselected, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
