"""Preparing data on a Ray cluster whose drivers, workers and nodes are killed: the data set has the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cluster.joined import ENVIRONMENT, HEAD, patient
from tests.helpers.marks import long
from tests.helpers.preparations import contents, done
from tests.helpers.processes import environment

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, long, pytest.mark.filterwarnings("default")]

ROUNDS = 7
NODES = 3

SCRIPT = """
import sys
import hopfleet as hop
from hopfleet.data.etl import blocks, reading

blocks.BLOCK_BYTES = reading.BLOCK_BYTES = 8000
recipe = hop.Tabular({"x": hop.Number(), "name": hop.Category(), "part": None})
split = hop.Split({"train": 0.7, "test": 0.3}, stratify="part")
hop.prepare(sys.argv[1], sys.argv[2], recipe, partitions=3, split=split, backend=sys.argv[3], quiet=True)
"""


class Nodes:
    """Three nodes with a CPU and a folder each; a node that is killed is replaced by a new one with an empty folder."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        from ray.cluster_utils import Cluster

        self._folder, self._chance, self._made = folder, chance, 0
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **HEAD})
        self._nodes = [self._add() for _ in range(NODES)]

    def _add(self) -> Any:
        self._made += 1
        home = {"HOPFLEET_HOME": str(self._folder / str(self._made))}
        return self.cluster.add_node(num_cpus=1, env_vars=home, object_store_memory=80_000_000)

    def kill_node(self) -> None:
        victim = self._nodes.pop(self._chance.randrange(NODES))
        self.cluster.remove_node(victim, allow_graceful=False)
        self._nodes.append(self._add())

    def kill_worker(self) -> bool:
        """Kill a process that runs tasks; return whether there was one."""
        agents = {node.all_processes["raylet"][0].process.pid for node in self._nodes}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in agents and (entry / "cmdline").read_bytes().startswith((b"ray::_work", b"ray::IDLE")):
                    found.append(int(entry.name))
        if found:
            os.kill(self._chance.choice(sorted(found)), signal.SIGKILL)
        return bool(found)


def test_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name, value in (("initial_delay_ms", 1000), ("period_ms", 300), ("timeout_ms", 20_000)):
        monkeypatch.setenv(f"RAY_health_check_{name}", str(value))  # lost nodes are noticed soon, busy ones stay
    patient(monkeypatch)
    ray._raylet.Config.initialize("")  # Ray has looked at the environment when it was imported
    source = tmp_path / "rows.csv"
    lines = (f"{row},name {row % 50},{'ab'[row % 3 == 0]}\n" for row in range(20_000))
    source.write_text("x,name,part\n" + "".join(lines))
    command = [sys.executable, "-c", SCRIPT, str(source)]
    subprocess.run([*command, str(tmp_path / "whole" / "set"), "inline"], env=environment(), check=True)
    chance = random.Random(0)
    kinds = ["driver", "worker", "node"] * ROUNDS
    chance.shuffle(kinds)
    nodes, rounds = Nodes(tmp_path / "nodes", chance), 0
    try:
        while kinds:
            rounds += 1
            target = tmp_path / str(rounds) / "set"
            while not target.exists():
                _attempt([*command, str(target), "ray"], target, nodes, kinds, chance)
            assert contents(target) == contents(tmp_path / "whole" / "set")
            assert not list(target.parent.glob(".*"))
    finally:
        nodes.cluster.shutdown()


def _attempt(command: list[str], target: Path, nodes: Nodes, kinds: list[str], chance: random.Random) -> None:
    """Run a driver to its end, or until it is killed, and kill workers and nodes meanwhile."""
    env = {**environment(), "RAY_ADDRESS": nodes.cluster.address}
    with subprocess.Popen(command, env=env) as driver:
        wanted = done(target) + chance.randint(1, 12)
        while driver.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(0.002 if kinds else None)
            if not kinds or done(target) < wanted:
                continue
            kind = kinds[-1]
            if kind == "driver":
                driver.kill()
            elif kind == "node":
                nodes.kill_node()
            elif not nodes.kill_worker():
                continue
            kinds.pop()
            wanted = done(target) + chance.randint(1, 12)
