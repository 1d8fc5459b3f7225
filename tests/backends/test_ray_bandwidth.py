"""Plans for the nodes of a Ray cluster, whose links are measured.

In a process that had joined other clusters before, Ray ended actors here before they ran, for want of references. So
these tests have processes of their own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.domain.messages import UnitFinished
from hopfleet.domain.trial import Config
from hopfleet.experiment.planning import MeasuredModel
from hopfleet.planner.dike.problem import Model, Need
from hopfleet.planner.dike.rings import Ring
from hopfleet.store.folder import find_run
from tests.helpers.apart import passes_apart
from tests.helpers.cli import NET
from tests.helpers.cluster.joined import Clusters
from tests.helpers.cluster.started import messages
from tests.helpers.marks import long

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SCRIPT = f"""{NET}
experiment = hop.Experiment(
    Net(), train={{"x": np.ones((64, 4), np.float32)}}, space={{"width": hop.grid_search([2, 32])}}, backend="ray",
    search=hop.Grid(max_epochs=1), batch_size=16, partitions=2, worker_options=hop.WorkerOptions(device="cpu"),
)
"""


@long
def test_links_are_measured_and_planned_for(
    request: pytest.FixtureRequest, clusters: Clusters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if passes_apart(request, "ray"):
        return
    with clusters.joined(*({"num_cpus": cpus} for cpus in (2, 3, 1))):
        check_links(tmp_path, capsys)


def check_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, costs = hop.Ray().measure_links(1 << 20)
    assert sorted(node.cpus for node in nodes) == [1, 2, 3]
    assert [len(row) for row in costs] == [3, 3, 3]
    assert all(0 < cost < 1e-3 for row in costs for cost in row)

    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    assert main(["plan", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(node["gpus"] for node in found["cluster"]["nodes"]) == [1, 1, 2]
    assert [len(links) for links in found["cluster"]["links"].values()] == [2, 2, 2]
    # What was measured can be given back as a file.
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(found["cluster"]))
    assert main(["plan", str(path), "--cluster", str(file)]) == 0
    assert "3 nodes, 4 devices" in capsys.readouterr().out


@long
def test_a_plan_is_trained_by_a_team_on_its_nodes(
    request: pytest.FixtureRequest,
    clusters: Clusters,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if passes_apart(request, "ray"):
        return
    with clusters.joined(*[{"num_cpus": 1}] * 3):
        check_plans(tmp_path, monkeypatch, capsys)


def check_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Computing takes so long that all devices are worth their transfers.
    monkeypatch.setattr("hopfleet.experiment.planning.MeasuredModel", SlowModel)
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    assert main(["plan", str(path), "--run"]) == 0
    out = capsys.readouterr().out
    assert "all-reduce with 3 workers" in out, out
    name = re.search(r"show (net-\S+)", out)
    assert name is not None
    assert shapes(name[1]) == {("ddp", 3)}

    # One node reaches all others quickly, and they reach each other slowly: it serves, unless two of them would do as
    # well without a server.
    def star(nodes: list[Any], size: int) -> Any:
        return tuple(tuple(1e-9 if 0 in (one, other) else 1.0 for other in range(3)) for one in range(3))

    monkeypatch.setattr("hopfleet.backends.ray.bandwidth.measure", star)
    slow = [Ring((0,), (2,), Need(1, 1, 1.0), rows_per_second=1e-9)]
    monkeypatch.setattr("hopfleet.planner.dike.rings.rings", lambda cluster, model: slow)
    assert main(["plan", str(path), "--run"]) == 0
    out = capsys.readouterr().out
    assert "1 parameter server on" in out, out
    name = re.search(r"show (net-\S+)", out)
    assert name is not None
    assert {strategy for strategy, _ in shapes(name[1])} == {"ps/0+1"}, "its only core serves"

    # A resumed run returns to the nodes of its plan.
    planned = hop.load(name[1]).definition["origin"]["team"]["members"]
    kept: list[Any] = []
    keep_to = hop.Ray.keep_to

    def noted(self: hop.Ray, members: Any, **share: Any) -> None:
        kept.append(list(members))
        keep_to(self, members, **share)

    monkeypatch.setattr(hop.Ray, "keep_to", noted)
    assert main(["extend", name[1], "--epochs", "1"]) == 0
    assert main(["resume", name[1]]) == 0
    assert kept == [planned]
    assert len(messages(find_run(name[1]), UnitFinished)) == 8


def shapes(name: str) -> set[tuple[str, int]]:
    return {tuple(unit.placement.shape) for unit in messages(find_run(name), UnitFinished)}


class SlowModel(MeasuredModel):
    """A model on a device of one operation per second."""

    def __init__(self, config: Config, model: Model, device: str, flops: float) -> None:
        super().__init__(config, model, device, 1.0)
