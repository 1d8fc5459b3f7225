"""A preparation that is killed at any moment goes on, and the data set is the same, byte for byte."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hopfleet as hop
from tests.helpers.preparations import contents, done
from tests.helpers.processes import environment

pytestmark = pytest.mark.slow

KILLS = 20 if os.environ.get("HOPFLEET_LONG") else 6
ROWS = 3000 * KILLS

SCRIPT = """
import sys
import hopfleet as hop
from hopfleet.data.etl import blocks, pool, reading

blocks.BLOCK_BYTES = reading.BLOCK_BYTES = 4000

def slowed(row):
    return {"x": row["x"] * 2, "name": row["name"]}

recipe, split = slowed, {"train": 0.7, "test": 0.3}
if sys.argv[3] != "processes":
    recipe = hop.Tabular({"x": hop.Number(), "name": None})
    size = len(open(sys.argv[1]).read())
    pool.HELD_BYTES = {"files": 0, "folds": 0, "some": int(1.2 * size), "memory": 10 * size}[sys.argv[3]]
folds = 3 if sys.argv[3] == "folds" else 0
hop.prepare(sys.argv[1], sys.argv[2], recipe, partitions=3, split=split, folds=folds, workers=2, quiet=True)
"""


@pytest.mark.parametrize("way", ["processes", "files", "some", "folds"])
def test_killed_at_random_moments(tmp_path: Path, way: str) -> None:
    source, target = tmp_path / "rows.csv", tmp_path / "killed" / "set"
    source.write_text("x,name\n" + "".join(f"{row},name {row}\n" for row in range(ROWS)))

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(source), str(folder), way]

    subprocess.run(command(tmp_path / "whole" / "set"), env=environment(), check=True)
    chance, kills = random.Random(0), 0
    while not target.exists():
        process = subprocess.Popen(command(target), env=environment())
        before = done(target)
        wanted = before + chance.randint(0, 8) if kills < KILLS else sys.maxsize
        while process.poll() is None and done(target) < wanted:
            try:
                process.wait(0.002)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= KILLS
    assert contents(target) == contents(tmp_path / "whole" / "set")
    assert hop.open_dataset(target / "train").rows == ROWS * 7 // 10
    assert not list(target.parent.glob(".*"))


def test_killed_with_rows_in_memory(tmp_path: Path) -> None:
    source, target, whole = tmp_path / "rows.csv", tmp_path / "killed" / "set", tmp_path / "whole" / "set"
    source.write_text("x,name\n" + "".join(f"{row},name {row}\n" for row in range(ROWS)))
    command = [sys.executable, "-c", SCRIPT, str(source)]
    subprocess.run([*command, str(whole), "files"], env=environment(), check=True)
    space = target.parent / ".set.prepare"
    for folder in ("raw", "deals", "built"):  # each appears when a stage begins
        process = subprocess.Popen([*command, str(target), "memory"], env=environment())
        while process.poll() is None and not (space / folder).exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, str(target), "memory"], env=environment(), check=True)
    assert contents(target) == contents(whole)
    assert not list(target.parent.glob(".*"))
