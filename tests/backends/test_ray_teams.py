"""Teams on a real Ray cluster of three nodes of two CPUs each, all on this machine: on one node, and across nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.workers import ActorHandle
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import Event, FormTeams, PlacePartition, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.runs.verify import verify
from hopfleet.store.local import open_journal
from tests.helpers import marks
from tests.helpers.cluster.joined import Clusters

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster(clusters: Clusters) -> Iterator[Any]:
    """Three nodes of two CPUs each, which this process has joined."""
    with clusters.joined(*[{"num_cpus": 2}] * 3) as joined:
        yield joined


class Net(hop.TorchTask):
    """A small net in double precision, with a frozen layer and dropout."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16).requires_grad_(False),
            torch.nn.Tanh(),
            torch.nn.Dropout(config.get("dropout", 0.2)),
            torch.nn.Linear(16, 1),
        ).double()
        return model, torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


class Watched(Ray):
    """Keeps the places of its workers, and lets one happening come after some units.

    The first workers are reported when ``together`` of them are ready.
    """

    def __init__(self, together: int = 0, **happenings: Any) -> None:
        super().__init__()
        self.places: list[tuple[str, ...]] = []
        self._together, self._held = together, list[Event]()
        self.happenings, self.units = {int(name[1:]): act for name, act in happenings.items()}, 0

    def _note(self, handle: ActorHandle, event: Event) -> None:
        super()._note(handle, event)
        if isinstance(event, UnitFinished):
            self.units += 1
            if act := self.happenings.pop(self.units, None):
                act(self, handle)

    def receive(self, timeout: float) -> list[Event]:
        self._held += super().receive(timeout)
        if sum(isinstance(event, WorkerJoined) for event in self._held) < self._together:
            return []
        self._together, held, self._held = 0, self._held, []
        return held

    def _admit(self, handle: ActorHandle) -> None:
        before = handle.joined
        super()._admit(handle)
        if handle.joined and not before:
            self.places.append(handle.nodes)


def experiment(name: str, backend: Any, parallelism: Any, **options: Any) -> hop.Experiment:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 8))
    rows = {"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2}
    defaults: Any = {"search": hop.Grid(max_epochs=2), "workers": 1, "partitions": 2}
    defaults["space"] = {"lr": hop.choice([0.01, 0.003])}
    return hop.Experiment(
        Net(),
        train=rows,
        valid=rows,
        batch_size=16,
        name=name,
        backend=backend,
        parallelism=parallelism,
        run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device="cpu"),
        **{**defaults, **options},
    )


def digests(results: hop.Results) -> list[Any]:
    trials = results.history.trials.items()
    return [
        (name, version, saved.digest)
        for name, trial in trials
        for version, saved in trial.saved.items()
        if saved.durable
    ]


def messages(results: hop.Results, kind: Any) -> list[Any]:
    with contextlib.closing(open_journal(results.folder)) as journal:
        return [message for _, _, message in journal.read() if isinstance(message, kind)]


def test_a_team_on_one_node_has_the_bits_of_a_local_one() -> None:
    backend = Watched()
    team = experiment("team", backend, "ddp:2").fit(quiet=True)
    ((first, second),) = backend.places
    assert first == second
    assert digests(team) == digests(experiment("local", "local", "ddp:2").fit(quiet=True))
    assert {str(unit.placement) for unit in messages(team, UnitFinished)} == {"cpu+cpu (ddp)"}
    assert {trial.verdict for trial in replay(team).trials} == {"equal"}


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ps", marks=marks.long)])
def test_a_team_across_nodes_has_the_bits_of_a_local_one(strategy: str) -> None:
    backend = Watched()
    team = experiment(f"across-{strategy}", backend, f"{strategy}:3").fit(quiet=True)
    (place,) = backend.places
    assert len(set(place)) == 2
    assert digests(team) == digests(experiment(f"local-{strategy}", "local", f"{strategy}:3").fit(quiet=True))


def lose_node(cluster: Any, handle: ActorHandle) -> None:
    """Remove the node of the last member, unless this process has joined the cluster there."""
    here = ray.get_runtime_context().get_node_id()
    lost = next(node for node in reversed(handle.nodes) if node != here)
    cluster.remove_node(next(node for node in cluster.list_all_nodes() if node.node_id == lost))


def test_a_planned_team_is_on_its_nodes_until_one_is_lost(cluster: Any) -> None:
    options: Any = {"search": hop.Grid(max_epochs=3)}
    calm = experiment("planned-calm", "local", "ps/0+1:3", **options).fit(quiet=True)
    backend = Watched(_3=lambda _, handle: lose_node(cluster, handle))
    names = [node.name for node in backend.measure_links(1 << 16)[0]]
    backend.keep_to(names, cpus=None, memory=0)
    planned = experiment("planned", backend, "ps/0+1:3", **options).fit(quiet=True)
    cluster.add_node(num_cpus=2)
    first, second = backend.places
    assert len(set(first)) == 3 and len(set(second)) == 2
    assert digests(planned) == digests(calm)


def test_the_loss_of_a_member_and_of_a_node_cost_nothing_but_time(cluster: Any) -> None:
    def kill_member(backend: Watched, handle: ActorHandle) -> None:
        os.kill(handle.members[-1].pid, signal.SIGKILL)

    options: Any = {"search": hop.Grid(max_epochs=3)}
    calm = experiment("calm", "local", "ddp:3", **options).fit(quiet=True)
    backend = Watched(_2=kill_member, _5=lambda _, handle: lose_node(cluster, handle))
    shaken = experiment("shaken", backend, "ddp:3", **options).fit(quiet=True)
    cluster.add_node(num_cpus=2)
    assert digests(shaken) == digests(calm)
    first, second = messages(shaken, WorkerLost)[:2]
    assert "member 2 of its team" in first.reason
    # Whichever is noticed first: the end of the node, or that of a member there.
    assert "was lost" in second.reason or "node was terminated" in second.reason
    assert len(backend.places) == 3
    assert len(messages(shaken, WorkerJoined)) == 3


def shapes(results: hop.Results) -> list[TeamShape]:
    finished = [unit for unit in messages(results, UnitFinished) if unit.unit.trains]
    return [SINGLE if unit.placement is None else unit.placement.shape for unit in finished]


def losses(results: hop.Results) -> list[float]:
    return [row["loss"] for trial in results.trials for row in trial.history]


@marks.long
def test_trials_hop_between_workers_of_several_shapes() -> None:
    teams = ["single", "ddp:3", "pipeline:2"]
    backend, space = Watched(together=3), {"lr": hop.choice([0.03, 0.01, 0.003]), "dropout": 0.0}
    results = experiment("mixed", backend, teams, workers=3, space=space).fit(quiet=True)
    assert {(len(place), len(set(place))) for place in backend.places} == {(1, 1), (2, 1), (3, 2)}
    assert len(set(shapes(results))) > 1, "which worker trains when depends on the moment"
    alone = experiment("alone", "local", "single", space=space).fit(quiet=True)
    assert losses(results) == pytest.approx(losses(alone), rel=1e-9)
    assert {trial.verdict for trial in replay(results).trials} == {"equal"}


@pytest.fixture
def six_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start with six workers on one device each, and teams of three are worth while."""
    scaling = Scaling("ddp", Rates("ddp", (10.0, 19.0)), most=3)
    choice = TeamChoice((SINGLE,), "as the test says", 6, scaling)
    monkeypatch.setattr("hopfleet.experiment.running.find_teams", lambda *given, **options: choice)


@pytest.mark.usefixtures("six_devices")
def test_idle_devices_join_the_last_trial_across_nodes_and_shrink_with_them(cluster: Any) -> None:
    options: Any = {"space": {"lr": 0.01, "dropout": 0.0}, "search": hop.Grid(max_epochs=3), "partitions": 4}
    alone = experiment("alone", "local", "single", **options).fit(quiet=True)
    backend = Watched(together=6, _8=lambda _, handle: lose_node(cluster, handle))
    results = experiment("joined", backend, "auto", **options).fit(quiet=True)
    cluster.add_node(num_cpus=2)
    assert messages(results, FormTeams)[0].shapes == (TeamShape("ddp", 3),)
    trained = shapes(results)
    assert trained[:2] == [SINGLE, TeamShape("ddp", 3)] and len(trained) >= 12, "lost versions are made again"
    assert messages(results, PlacePartition), "the first member can read all partitions"
    assert losses(results) == pytest.approx(losses(alone), rel=1e-9)
    assert verify(results.folder).ok


@marks.long
def test_each_node_has_the_teams_that_were_chosen_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Watched(together=3)
    first, second, _ = backend.offer("cpu", 1).nodes
    choice = TeamChoice(
        (SINGLE, SINGLE, TeamShape("ddp", 2)), "as the test says", 3, homes=(second, second, first), one_node=True
    )
    monkeypatch.setattr("hopfleet.experiment.running.find_teams", lambda *given, **options: choice)
    results = experiment("chosen", backend, "auto", search=hop.Grid(max_epochs=1)).fit(quiet=True)
    assert [trial.state.value for trial in results.trials] == ["completed"] * 2
    pair = next(place for place in backend.places if len(place) == 2)
    others = {node for place in backend.places if len(place) == 1 for node in place}
    assert len(set(pair)) == len(others) == 1 and not others & set(pair)


@marks.long
def test_trial_runs_measure_each_sort_of_node_and_teams_across_nodes(cluster: Any) -> None:
    backend = Watched()
    small = cluster.add_node(num_cpus=1)
    tried = experiment("tried", backend, "auto", workers=7, search=hop.Grid(max_epochs=1))
    results = tried.fit(quiet=True)
    cluster.remove_node(small)
    runs = json.loads((results.folder.path / "trial_runs.json").read_text())
    assert runs["device"] == "cpu of 4 nodes of a Ray cluster"
    measured = [(run["parallelism"], run["sort"], run["apart"]) for run in runs["runs"]]
    near, other, far = [("single", "2 CPUs", False), ("ddp:2", "2 CPUs", False)], "1 CPUs", ("ddp:2", "", True)
    assert measured == [*near, ("single", other, False), far]
    assert all(run["rows_per_second"] > 0 for run in runs["runs"])
    first, pair, third, apart = backend.places[:4]
    assert [len(place) for place in (first, pair, third, apart)] == [1, 2, 1, 2]
    assert set(first) == set(pair) and third == (small.node_id,) and len(set(apart)) == 2
    assert [trial.state.value for trial in results.trials] == ["completed"] * 2


@pytest.mark.parametrize(
    ("parallelism", "options", "said"),
    [
        pytest.param("ddp:7", {}, "workers=1: only 0 fit, at 1 CPU for each of 7 members each", id="few"),
        pytest.param("pipeline:3", {}, "a team with 'pipeline' must fit on one node", id="one-node"),
        pytest.param("ddp", {}, "on a cluster, name the number of devices", id="number"),
        pytest.param(["ddp:2", "ddp:5"], {"workers": 2}, "workers=2: only 1 fit, at 1 CPU for each of 2", id="several"),
    ],
)
def test_mistakes(parallelism: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        experiment("wrong", "ray", parallelism, **options).fit(quiet=True)
