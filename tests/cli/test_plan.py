"""The command plan: what a model takes, and how to train it on several nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.domain.trial import Config
from hopfleet.experiment.planning import MeasuredModel
from hopfleet.planner.dike.problem import Model, Need
from hopfleet.planner.dike.rings import Ring
from hopfleet.support.machine import Machine
from tests.helpers.cli import NET, Cli

Write = Callable[..., Path]

SCRIPT = f"""{NET}
experiment = hop.Experiment(
    Net(), train={{"x": np.ones((64, 4), np.float32)}}, space={{"width": hop.grid_search([2, 32, 8])}},
    search=hop.Grid(max_epochs=1), batch_size=16, partitions=2, worker_options=hop.WorkerOptions(device="cpu"),
)
"""

CLUSTER = {
    "gpu_flops": 1e4,  # computing takes far longer than preparing rows, however busy this machine is
    "bandwidth": 1e9,
    "nodes": [
        {"name": "a", "cpus": 4, "gpus": 2, "memory": 8e9},
        {"name": "b", "cpus": 4, "gpus": 2, "memory": 8e9},
        {"name": "c", "cpus": 2, "gpus": 0, "memory": 8e9},
    ],
}


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    return str(path)


def described(folder: Path, **changes: object) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps({**CLUSTER, **changes}))
    return str(path)


def test_plan(cli: Cli, target: str, tmp_path: Path) -> None:
    outcome = cli("plan", target, "--cluster", described(tmp_path))
    assert outcome.code == 0, outcome.err
    # The largest model, and all four devices: computing takes far longer than transfers.
    for text in ("width=32", "640 B", "3 nodes, 4 devices", "all-reduce with 4 workers: a (2), b (2)", "computing"):
        assert text in outcome.out, outcome.out
    assert not list(tmp_path.rglob("journal*"))


def test_servers_where_rings_are_slow(cli: Cli, target: str, tmp_path: Path) -> None:
    nodes = [{"name": name, "cpus": 4, "gpus": 1, "memory": 8e9} for name in "abc"]
    links = {"a": {"b": 1e9, "c": 1e9}, "b": {"c": 1.0}}
    outcome = cli("plan", target, "--json", "--cluster", described(tmp_path, nodes=nodes, links=links))
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["config"] == {"width": 32} and found["model"]["flops"] == 2 * 2 * 4 * 32
    best = found["parameter_servers"][0]
    assert best["servers"] == ["a"] and best["workers"] == {"a": 1, "b": 1, "c": 1}
    assert best["rows_per_second"] > found["all_reduce"][0]["rows_per_second"]
    assert found["chosen"]["parallelism"] == "ps/1:3" and found["chosen"]["members"] == ["a", "b", "c"]


STAR = {name: {"c": 1e9} for name in "abd"} | {"a": {"b": 1.0, "c": 1e9, "d": 1.0}, "b": {"c": 1e9, "d": 1.0}}
"""Node c reaches all others quickly, and they reach each other slowly."""


def test_a_server_on_a_node_without_workers_is_a_member_that_only_serves(cli: Cli, target: str, tmp_path: Path) -> None:
    nodes = [{"name": name, "cpus": 1, "gpus": 1, "memory": 8e9} for name in "abcd"]
    outcome = cli("plan", target, "--json", "--cluster", described(tmp_path, nodes=nodes, links=STAR))
    assert outcome.code == 0, outcome.err
    chosen = json.loads(outcome.out)["chosen"]
    assert (chosen["parallelism"], chosen["members"]) == ("ps/0+1:4", ["a", "b", "d", "c"])


def test_a_server_needs_the_place_of_a_worker(cli: Cli, target: str, tmp_path: Path) -> None:
    nodes = [{"name": name, "cpus": 1, "gpus": int(name != "c"), "memory": 8e9} for name in "abcd"]
    outcome = cli("plan", target, "--cluster", described(tmp_path, nodes=nodes, links=STAR))
    assert outcome.code == 0, outcome.err
    assert "servers   c" not in outcome.out  # which reaches all others quickly, and has no device
    assert "one worker: a (1)" in outcome.out


def test_this_machine(cli: Cli, target: str) -> None:
    outcome = cli("plan", target)
    assert outcome.code == 0, outcome.err
    assert "this machine" in outcome.out


def test_a_plan_is_trained(cli: Cli, target: str) -> None:
    """On a machine with two cores, one of them trains."""
    outcome = cli("plan", target, "--run")
    assert outcome.code == 0, outcome.err
    assert "chosen" in outcome.out and "t0003" in outcome.out


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_plan_with_a_team_is_trained_and_can_be_resumed(
    cli: Cli, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopfleet.experiment.planning.this_machine", lambda: Machine(3, 8 << 30))
    # Computing takes so long that two workers are worth their transfers.
    monkeypatch.setattr("hopfleet.experiment.planning.MeasuredModel", SlowModel)
    outcome = cli("plan", target, "--run")
    assert outcome.code == 0, outcome.err
    assert "all-reduce with 2 workers: this machine (2)" in outcome.out
    name = re.search(r"show (net-\S+)", outcome.out)
    assert name is not None
    results = hop.load(name[1])
    assert results.definition["parallelism"] == ["ddp:2"]
    assert results.definition["origin"]["overrides"] == {"parallelism": "ddp:2", "workers": 1}
    assert results.definition["origin"]["team"]["members"] == ["this machine"] * 2
    assert "already finished" in cli("resume", name[1]).out


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_plan_with_servers_is_trained(cli: Cli, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.experiment.planning.this_machine", lambda: Machine(3, 8 << 30))
    monkeypatch.setattr("hopfleet.experiment.planning.MeasuredModel", SlowModel)
    slow = [Ring((0,), (2,), Need(1, 1, 1.0), rows_per_second=1e-9)]
    monkeypatch.setattr("hopfleet.planner.dike.rings.rings", lambda cluster, model: slow)
    outcome = cli("plan", target, "--run")
    assert outcome.code == 0, outcome.err
    assert "1 parameter server on this machine, 2 workers on this machine (2)" in outcome.out
    name = re.search(r"show (net-\S+)", outcome.out)
    assert name is not None
    assert hop.load(name[1]).definition["parallelism"] == ["ps/1:2"]


class SlowModel(MeasuredModel):
    """A model on a device of one operation per second."""

    def __init__(self, config: Config, model: Model, device: str, flops: float) -> None:
        super().__init__(config, model, device, 1.0)


@pytest.mark.parametrize("other", [["--json"], ["--cluster", "nodes.json"]])
def test_training_and_other_options(cli: Cli, target: str, other: list[str]) -> None:
    outcome = cli("plan", target, "--run", *other)
    assert outcome.code == 2 and f"leave {other[0]} out" in outcome.err


def test_a_plan_for_one_node_is_a_setting(cli: Cli, target: str, tmp_path: Path) -> None:
    nodes = [{"name": "a", "cpus": 8, "gpus": 4, "memory": 8e9}]
    outcome = cli("plan", target, "--cluster", described(tmp_path, nodes=nodes))
    assert 'parallelism="ddp:4"' in outcome.out


def test_a_mistake_in_the_file_comes_before_the_model(cli: Cli, script: Write, tmp_path: Path) -> None:
    outcome = cli("plan", str(script(below="raise SystemExit(3)")), "--cluster", described(tmp_path, bandwidth=0))
    assert outcome.code == 2 and "bandwidth: 0 bytes per second" in outcome.err


def test_other_frameworks_are_refused(cli: Cli, script: Write) -> None:
    outcome = cli("plan", str(script()))
    assert outcome.code == 2 and "plans are made for PyTorch tasks" in outcome.err


def test_an_error_of_the_task_names_its_place(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT.replace("return model(", "return modle("))
    outcome = cli("plan", str(path))
    assert outcome.code == 1 and "modle" in outcome.err and "net.py" in outcome.err


def test_a_model_larger_than_any_node(cli: Cli, target: str, tmp_path: Path) -> None:
    nodes = [{"name": "a", "cpus": 4, "gpus": 2, "memory": 100}]
    outcome = cli("plan", target, "--cluster", described(tmp_path, nodes=nodes))
    assert outcome.code == 2 and "a model of 640 bytes fits no node" in outcome.err
