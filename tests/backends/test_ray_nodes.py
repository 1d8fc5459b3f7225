"""The unified scheduler on a real cluster: nodes of several sizes, teams by the planner, partitions by capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.workers import ActorHandle
from hopfleet.domain.messages import UnitFinished
from hopfleet.runs.verify import verify
from hopfleet.scheduler.invariants import validate_history
from hopfleet.simulation.layouts import with_best_teams
from hopfleet.simulation.scenario import Scenario, SimulatedNode
from hopfleet.store.local import open_journal
from tests.helpers.cluster.joined import Clusters

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
CPUS = (4, 2, 2)


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[None]:
    """Nodes of four, two and two CPUs, which this process has joined: those of other tests, with one replaced."""
    with clusters.joined(*[{"num_cpus": 2}] * 3) as joined:
        joined.remove_node(next(iter(joined.worker_nodes)))
        large = joined.add_node(num_cpus=4)
        yield
        joined.remove_node(large)
        joined.add_node(num_cpus=2)


class Net(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


class Placed(Ray):
    """Keeps the CPUs of each worker's node."""

    def __init__(self) -> None:
        super().__init__()
        self.cpus: dict[str, float] = {}

    def _admit(self, handle: ActorHandle) -> None:
        super()._admit(handle)
        assert len(set(handle.nodes)) == 1, "no team spans nodes"
        self.cpus[handle.name] = self._nodes[handle.node].node.cpus


def planned(trials: int) -> list[str]:
    """Return the teams that dry runs choose for the nodes."""
    nodes = tuple(SimulatedNode(f"n{number}", cpus, team=0) for number, cpus in enumerate(CPUS))
    scenario = Scenario(nodes, (100.0,) * trials, 800, 3, 2, scaling=(1.0, 1.9), switch=False, sharded=True, fuse=False)
    sizes = [size for node in with_best_teams(scenario, "auto").nodes for size in node.sizes]
    return ["single" if size == 1 else f"ddp:{size}" for size in sizes]


def test_teams_on_each_node_train_partitions_of_its_size(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(160, 8))
    rows = {"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2}
    data = hop.partition(rows, tmp_path / "data", capacities=[1, 1, 2])

    def experiment(name: str, **options: Any) -> hop.Experiment:
        settings = {"run_options": hop.RunOptions(order="fixed"), "worker_options": hop.WorkerOptions(device="cpu")}
        space, search = {"lr": hop.choice([0.01, 0.003, 0.001, 0.03])}, hop.Grid(max_epochs=2)
        return hop.Experiment(
            Net(), train=data, space=space, search=search, batch_size=16, name=name, **settings, **options
        )

    backend, teams = Placed(), planned(trials=4)
    assert sum(int(team.partition(":")[2] or 1) for team in teams) == sum(CPUS)
    found = experiment("nodes", backend=backend, parallelism=teams, workers=len(teams)).fit(quiet=True)
    assert verify(found.folder).ok
    journal = open_journal(found.folder)
    messages = [message for _, _, message in journal.read()]
    journal.close()
    validate_history(messages, 3)
    units = [message for message in messages if isinstance(message, UnitFinished) and message.unit.trains]
    assert len(units) == 4 * 2 * 3
    for unit in units:
        assert (backend.cpus[unit.worker] == 4) == (unit.unit.partition == 2), "half of the rows, half of the CPUs"
    shapes = {str(unit.placement.shape) for unit in units if unit.placement is not None}
    assert shapes == set(teams), "every team has trained"

    alone = experiment("alone", backend="inline", workers=1).fit(quiet=True)
    ends = [{trial.id: trial.history[-1]["train_loss"] for trial in each.trials} for each in (found, alone)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
