"""``import hopfleet`` in a fresh process: its time, and the packages it loads."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from benchmarks.row import Row, milliseconds

BAR = 0.2
HEAVY = ("torch", "pyarrow", "pandas", "matplotlib", "rich", "typer", "fsspec", "safetensors", "cloudpickle")

PROGRAM = """
import sys, time
start = time.perf_counter()
import {module}
took = time.perf_counter() - start
print(took, *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def measure(quick: bool) -> list[Row]:
    repeats = 3 if quick else 15
    ours = [_import("hopfleet") for _ in range(repeats)]
    numpy = [_import("numpy") for _ in range(repeats)]
    loaded = [name for name in HEAVY if name in ours[0][1]]
    seconds, theirs = median(took for took, _ in ours), median(took for took, _ in numpy)
    return [
        Row(
            "import",
            f"`import hopfleet` in a fresh process, median of {repeats}",
            milliseconds(seconds),
            f"{milliseconds(theirs)}: `import numpy`",
            seconds / theirs,
            "< 200 ms",
            seconds < BAR,
        ),
        Row(
            "import",
            "heavy packages loaded by it",
            ", ".join(loaded) or "none",
            f"looked for {', '.join(HEAVY)}",
            None,
            "none",
            not loaded,
        ),
    ]


def _import(module: str) -> tuple[float, set[str]]:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)], capture_output=True, text=True, check=True
    ).stdout
    took, *modules = output.split()
    return float(took), set(modules)
