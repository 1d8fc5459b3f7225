"""What is known about teams before a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.base import Offer
from hopfleet.backends.local.backend import Local
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.experiment import teams
from hopfleet.experiment.previewing import scratch_data, scratch_folder
from hopfleet.experiment.teams import _form_seconds, find_teams
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.forecast.trial_runs import TrialRun
from tests.helpers.sample_tasks import DoubleNet


def test_the_time_to_form_teams_is_measured_where_processes_start_anew() -> None:
    alone, pair = (
        TrialRun({}, shape, 1.0, start_seconds=4.0 * shape.devices) for shape in (SINGLE, TeamShape("ddp", 2))
    )
    assert _form_seconds(hop.Ray(), [alone, pair]) == 8.0
    assert _form_seconds(hop.Ray(), [alone]) == hop.Ray.form_seconds
    assert _form_seconds(Local(), [alone, pair]) == Local.form_seconds


class Cluster(Local):
    """A cluster of three nodes, as far as it concerns what is asked before a run."""

    def __init__(self, **nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.sorts: dict[str, str] = {}

    def offer(self, device: str, threads: int, teams: Any = (SINGLE,), *, spanning: Any = ()) -> Offer:
        return Offer(sum(self.nodes.values()), f"{len(self.nodes)} nodes", self.nodes, 1, self.sorts)

    def trouble(self) -> str:
        return ""


def found(backend: Cluster, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[TeamChoice, list[Any]]:
    """Return the choice for one trial, and the trial runs that were asked for: a team is nearly twice as fast."""
    asked = []

    def run_trials(
        experiment: Any, place: Any, shapes: Any, *given: Any, apart: bool = False, on: Any = ("", "")
    ) -> Iterator[TrialRun]:
        for shape in shapes:
            asked.append((str(shape), apart, *filter(None, [on[1]])))
            rate = 100.0 if shape == SINGLE else 120.0 if apart else 190.0
            rate /= 10 if on[0] == "old" else 1
            yield TrialRun({"lr": 0.1}, shape, rate, apart=apart, start_seconds=1.0, sort=on[0])

    monkeypatch.setattr(teams, "run_trials", run_trials)
    rows = {"x": np.zeros((4096, 1)), "y": np.zeros(4096)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = hop.Experiment(
            DoubleNet(),
            train=rows,
            space={"lr": 0.1},
            search=hop.Grid(max_epochs=1),
            partitions=4,
            backend=backend,
            parallelism="auto",
            **options,
        )
    definition = experiment.definition
    with scratch_folder(definition) as place:
        choice = find_teams(definition, backend, scratch_data(definition, place), lambda text: None, keep=False)
    assert choice is not None
    return choice, asked


def test_each_node_of_a_cluster_has_teams_of_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, asked = found(Cluster(a=4, b=2, c=2), monkeypatch)
    assert asked == [("single", False), ("ddp:2", False), ("ddp:2", True)]
    assert [(str(shape), home) for shape, home in zip(choice.shapes, choice.homes, strict=True)] == [
        ("ddp:4", "a"),
        ("ddp:2", "b"),
        ("ddp:2", "c"),
    ]
    assert choice.one_node


def test_each_sort_of_node_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(a=2, b=2, c=4, d=4)
    cluster.sorts = {"a": "old", "b": "old", "c": "new", "d": "new"}
    choice, asked = found(cluster, monkeypatch)
    assert asked == [("single", False, "c"), ("ddp:2", False, "c"), ("single", False, "a"), ("ddp:2", True)]
    assert [(run.sort, run.rows_per_second) for run in choice.runs][:3] == [("new", 100), ("new", 190), ("old", 10)]
    assert any(", on old (" in value for _, value in choice.facts())


def test_devices_of_a_cluster_are_as_many_as_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, _ = found(Cluster(a=4, b=2, c=2), monkeypatch, workers=6)
    assert sorted(zip(choice.homes, choice.shapes, strict=True)) == [(name, TeamShape("ddp", 2)) for name in "abc"]


def test_nodes_with_one_device_try_a_team_across_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, asked = found(Cluster(a=1, b=1), monkeypatch)
    assert asked == [("single", False), ("ddp:2", True)]
    assert (choice.shapes, choice.homes) == ((TeamShape("ddp", 2),), ())
