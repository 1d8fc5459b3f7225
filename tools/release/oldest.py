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
    *("cli/test_app.py", "cli/test_demo.py", "data/test_partitioning.py", "data/etl/test_prepare.py"),
    *(
        "frameworks/test_safetensors.py",
        "frameworks/test_sklearn.py",
        "monitor/test_charts.py",
        "monitor/test_frame.py",
    ),
    *("planner/test_exact.py", "search/test_optuna.py", "store/test_remote.py", "ui/test_access.py"),
)
"""Tests that use each of the packages."""

LIBRARY = "frameworks/test_safetensors.py::test_the_library_reads_what_we_write"

NEWER = {
    "cli/test_app.py::test_every_option_and_argument_has_help": "arguments of older Typers have no attribute for help",
    "data/test_partitioning.py::test_neither_pandas_nor_torch_is_imported": "older versions of pyarrow import pandas",
    "monitor/test_charts.py::test_a_chart_can_be_shown_without_a_screen": "older versions of matplotlib are refused",
    **{
        f"{LIBRARY}[torch.{kind}]": "older versions of safetensors cannot read this type"
        for kind in ("complex64", "float8_e4m3fn", "float8_e5m2")
    },
}
"""Tests that hold for newer packages alone, with the reason."""

COSTLY = ("data/etl/test_prepare.py::test_a_process_that_dies_is_replaced",)
"""Tests that take long and use no other part of a package than those beside them."""


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
    deselected = [f"--deselect=tests/{name}" for name in (*NEWER, *COSTLY)]
    return subprocess.run([*command, "-m", "not slow", *deselected, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
