"""A full /dev/shm: models hop through the disk instead, and the bits stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT, environment

SCRIPT = """
import json, sys
import hopfleet as hop
from hopfleet.support.files import digest
from tests.helpers.sample_tasks import Everything, arrays

if __name__ == "__main__":
    space = {"optimizer": hop.grid_search(["sgd", "adam", "adamw"]), "schedule": "cosine"}
    results = hop.Experiment(
        Everything(), train=arrays(), valid=arrays(60, seed=1), space=space, search=hop.Grid(max_epochs=2),
        metric="accuracy", mode="max", partitions=4, batch_size=16, workers=2, name="full",
        run_options=hop.RunOptions(folder=sys.argv[1], order="fixed"), worker_options=hop.WorkerOptions(fuse="off"),
    ).fit(quiet=True)
    print(json.dumps({trial.id: digest(trial.last_checkpoint) for trial in results.trials}))
"""

FULL = "mount -t tmpfs -o size=64k tmpfs /dev/shm && (head -c 1m /dev/zero > /dev/shm/filler 2>/dev/null; true) && "


def digests(folder: Path, prefix: str) -> dict[str, str]:
    script = folder.with_suffix(".py")
    script.write_text(SCRIPT)
    run = f"{prefix}exec {sys.executable} {script} {folder}"
    command = ["unshare", "--mount", "sh", "-c", run] if prefix else ["sh", "-c", run]
    done = subprocess.run(command, cwd=ROOT, env={**environment(), "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="needs a mount namespace of its own",
)
def test_models_hop_through_the_disk() -> None:
    with tempfile.TemporaryDirectory() as folder:  # the usual folder of a test may be in /dev/shm itself
        full = digests(Path(folder) / "full", FULL)
        assert len(full) == 3
        assert full == digests(Path(folder) / "roomy", "")
