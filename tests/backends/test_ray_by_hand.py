"""A cluster as people start it, with ``ray start``, and jobs that are submitted as deploy/jobs.md says.

A job is killed, then its whole cluster is lost; submitted again each time, it goes on where it was. Takes one to three
minutes: HOPFLEET_LONG=1 runs it.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hopfleet.domain.messages import Finish, RunStarted, UnitFinished
from hopfleet.store.folder import RunFolder
from tests.helpers.cluster.started import PATIENCE, RAY, Nodes, fingerprints, kill, messages, wait_until
from tests.helpers.marks import long
from tests.helpers.processes import ROOT

pytest.importorskip("ray")
pytest.importorskip("opencensus", reason="jobs need ray[default]")
pytestmark = [long, pytest.mark.slow, pytest.mark.filterwarnings("default")]

DEPLOY = ROOT / "deploy"
TRIALS, EPOCHS, PARTITIONS = 4, 12, 2

FILES = {
    "experiment.py": f"""
        import hopfleet as hop
        from task import SPACE, Mine, train, valid

        experiment = hop.Experiment(
            Mine(), train=train, valid=valid, space=SPACE, search=hop.Random(trials={TRIALS}, max_epochs={EPOCHS}),
            metric="accuracy", mode="max", partitions={PARTITIONS}, name="job", workers=2,
            run_options=hop.RunOptions(order="fixed"), worker_options=hop.WorkerOptions(device="cpu"),
        )
    """,
    "task.py": """
        from hopfleet.demo import SPACE, Digits, data

        train, valid = data()


        class Mine(Digits):
            \"\"\"Nowhere but in the folder that the job brings along.\"\"\"
    """,
}


def documented(nodes: Nodes, storage: Path) -> list[str]:
    """The line of deploy/jobs.md, with this cluster's address and a folder of the test."""
    (line,) = re.findall(r"^ray (job submit .*)$", (DEPLOY / "jobs.md").read_text(), re.MULTILINE)
    line = line.replace("http://127.0.0.1:8265", f"http://127.0.0.1:{nodes.board}").replace("/storage", str(storage))
    submit, dashes, entry = line.partition(" -- ")
    return [*RAY, *shlex.split(submit), "--no-wait", dashes.strip(), *shlex.split(entry)]


def started(home: Path, token: str) -> Nodes:
    """A head and another node, each with one CPU, as deploy/by-hand.md says."""
    nodes = Nodes(home, token)
    nodes.head("--num-cpus=1")
    nodes.start(f"--address={nodes.address}", "--node-ip-address=127.0.0.1", "--num-cpus=1")
    wait_until(lambda: nodes.doctor().count("; same versions as here") == 2)
    return nodes


def drivers(nodes: Nodes) -> list[int]:
    """The processes of jobs that run the documented command."""
    found = []
    for pid in nodes.pids():
        with contextlib.suppress(OSError):
            if b"run\0experiment.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_job_goes_on_after_it_was_killed_and_after_its_cluster_was_lost(own_home: Path, tmp_path: Path) -> None:
    work, storage = tmp_path / "work", tmp_path / "storage"
    work.mkdir()
    for name, text in FILES.items():
        (work / name).write_text(textwrap.dedent(text))
    folder, alone = RunFolder(storage / "job"), RunFolder(own_home / "job")

    def done() -> int:
        return sum(message.unit.trains for message in messages(folder, UnitFinished))

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(started(own_home, "a token of the first"))
        first.run(documented(first, storage), cwd=work)
        wait_until(lambda: done() >= 6)
        for pid in drivers(first):
            kill(pid)
        wait_until(lambda: not drivers(first))
        killed = done()
        first.run(documented(first, storage), cwd=work)
        wait_until(lambda: done() >= killed + 6)
        first.lose()
        lost = done()
        second = stack.enter_context(started(own_home, "a token of the second"))
        second.run(documented(second, storage), cwd=work)
        wait_until(lambda: bool(messages(folder, Finish)))
    assert len(messages(folder, RunStarted)) == 3
    assert messages(folder, Finish)[-1].complete
    assert lost < done() <= TRIALS * EPOCHS * PARTITIONS + 2 * TRIALS, "what was done counts"
    words = [sys.executable, "-m", "hopfleet", "run", "experiment.py", "--quiet"]
    subprocess.run(words, cwd=work, env=second.environment, check=True, timeout=PATIENCE)
    assert fingerprints(folder) == fingerprints(alone)
