"""Predictions that are killed at any moment leave nothing half-written, and go on when they are asked for again."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers.marks import long
from tests.helpers.processes import environment

pytestmark = pytest.mark.slow

KILLS = 5
ROWS = 400

SCRIPT = """
import sys, time
import numpy as np
import hopfleet as hop
from hopfleet.runs import inference
from hopfleet.testing.tasks import CountingTask

inference.PIECE_ROWS = 10

class Slow(CountingTask):
    def predict(self, model, batch):
        time.sleep(0.03)
        return 2 * np.asarray(batch["x"])

folder = sys.argv[1]
if len(sys.argv) == 3:
    data = hop.partition({"x": np.arange(int(sys.argv[2]))}, folder + "/data", partitions=1)
    options = {"space": {"number": 1}, "search": hop.Grid(max_epochs=1), "backend": "inline", "name": "killed"}
    hop.Experiment(Slow(), train=data, valid=data, **options).fit(quiet=True)
else:
    place = {"backend": sys.argv[3], "workers": 2 if sys.argv[3] == "local" else 1}
    hop.load("killed").best.predict(folder + "/data", to=sys.argv[2], task=Slow(), **place)
"""


def parts(target: Path) -> set[str]:
    """Return the files of predictions in the workspace, which may go away meanwhile."""
    with contextlib.suppress(FileNotFoundError):  # the process removes the folder at its end
        return {path.name for path in (target.parent / f".{target.name}.inference").glob("*/part-*")}
    return set()


@pytest.mark.parametrize(("name", "backend"), [pytest.param("parts", "inline", marks=long), ("made.parquet", "local")])
def test_killed_at_random_moments(tmp_path: Path, name: str, backend: str) -> None:
    variables = environment() | {"HOPFLEET_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    subprocess.run([*command, str(ROWS)], env=variables, check=True)
    target, chance, kills = tmp_path / "out" / name, random.Random(0), 0
    while not target.exists():
        before = parts(target)
        process = subprocess.Popen([*command, str(target), backend], env=variables)
        wanted = len(before) + chance.randint(1, 6) if kills < KILLS else sys.maxsize
        while process.poll() is None and len(parts(target)) < wanted:
            try:
                process.wait(0.002)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is None:
            assert before <= parts(target)  # what was done is kept
            process.send_signal(signal.SIGKILL)
            kills += 1
        else:
            assert process.returncode == 0
        process.wait()
    assert kills == KILLS
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    found = [value for file in files for value in pq.read_table(file).column("prediction").to_pylist()]
    assert found == [2 * row for row in range(ROWS)]
    record = [f".{name}.written"] if target.is_dir() else []
    assert [path.name for path in target.parent.glob(".*")] == record
