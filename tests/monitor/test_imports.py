"""The package reads the journal's messages only, and imports what is heavy where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTING = """
import sys
import hopfleet.monitor.charts.charts, hopfleet.monitor.frame, hopfleet.monitor.terminal.live
heavy = {"rich", "matplotlib", "pandas", "numpy", "scipy", "IPython"} & set(sys.modules)
ours = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("hopfleet.")}
assert not heavy, heavy
allowed = {"domain", "errors", "monitor", "phrases", "safe_text", "support"}
assert ours <= {f"hopfleet.{name}" for name in allowed}, ours
"""

DRAWING = """
import sys
from hopfleet.monitor.charts.curves import draw_curves
from hopfleet.monitor.charts.gantt import draw_gantt
from hopfleet.monitor.history import History
history = History(metric="accuracy", mode="max", partitions=1, name="empty")
draw_curves(history), draw_gantt(history)
assert "matplotlib.pyplot" not in sys.modules
"""


def test_importing_the_views_imports_neither_libraries_nor_deciders() -> None:
    subprocess.run([sys.executable, "-c", IMPORTING], check=True)


@pytest.mark.slow
def test_drawing_does_without_pyplot() -> None:
    subprocess.run([sys.executable, "-c", DRAWING], check=True)
