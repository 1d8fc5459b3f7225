"""A preparation that is killed at any moment goes on, and the data set is the same, byte for byte."""

from __future__ import annotations

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
from hopfleet.data.etl import blocks, reading

blocks.BLOCK_BYTES = reading.BLOCK_BYTES = 4000

def slowed(row):
    return {"x": row["x"] * 2, "name": row["name"]}

hop.prepare(
    sys.argv[1], sys.argv[2], slowed, partitions=3, split={"train": 0.7, "test": 0.3}, workers=2, quiet=True,
)
"""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.csv", tmp_path / "killed" / "set"
    source.write_text("x,name\n" + "".join(f"{row},name {row}\n" for row in range(ROWS)))
    command = [sys.executable, "-c", SCRIPT, str(source)]
    subprocess.run([*command, str(tmp_path / "whole" / "set")], env=environment(), check=True)
    chance, kills = random.Random(0), 0
    while not target.exists():
        process = subprocess.Popen([*command, str(target)], env=environment())
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
