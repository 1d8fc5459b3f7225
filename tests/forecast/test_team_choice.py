"""The teams that a run starts with, chosen from trial runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.forecast.team_choice import Nodes, Size, TeamChoice, choose_teams
from hopfleet.forecast.trial_runs import TrialRun

DDP, FSDP, SPILL = TeamShape("ddp", 2), TeamShape("fsdp", 2), TeamShape("spill", 1)


def run(shape: TeamShape, rate: float, model: str = "net") -> TrialRun:
    return TrialRun({"model": model}, shape, rate, 1, "" if rate else "out of memory", 0.25, 38)


def chosen(runs: list[TrialRun], *, trials: int, devices: int = 8, **size: Any) -> TeamChoice:
    usual = {"configs": [{"model": "net"}], "epochs": 4, "rows": 8000, "partitions": 4, "batch": 32}
    return choose_teams(runs, Size(trials=trials, **{**usual, **size}), Nodes({"here": devices}), 0.5)


def on_nodes(runs: list[TrialRun], *devices: int, trials: int, replicas: int = 1, **size: Any) -> TeamChoice:
    usual = {"configs": [{"model": "net"}], "epochs": 2, "rows": 8000, "partitions": 8, "batch": 32}
    nodes = Nodes({f"n{number}": count for number, count in enumerate(devices, 1)}, replicas)
    return choose_teams(runs, Size(trials=trials, **{**usual, **size}), nodes, 0.5)


def test_many_trials_have_a_device_each_and_the_last_ones_teams() -> None:
    choice = chosen([run(SINGLE, 100.0), run(DDP, 190.0)], trials=16)
    assert (choice.shapes, choice.workers) == ((SINGLE,), 8)
    assert choice.scaling is not None and choice.scaling.speed(2) == pytest.approx(1.9)
    assert choice.scaling.form_seconds == 0.5 + 0.25, "a team has to meet and to build the model"
    assert "when fewer are left, teams may form" in choice.why


def test_few_trials_start_with_teams() -> None:
    choice = chosen([run(SINGLE, 100.0), run(DDP, 190.0)], trials=3)
    assert choice.shapes == (TeamShape("ddp", 3), TeamShape("ddp", 3), TeamShape("ddp", 2))
    assert choice.workers == 3
    alone, together = choice.dry_runs.values()
    assert together < alone < 320, "even those that start alone join as teams"
    assert choice.why.startswith("a dry run takes")


NEAR = [run(SINGLE, 100.0), run(DDP, 190.0)]


def test_each_node_has_teams_of_its_own_size() -> None:
    choice = on_nodes(NEAR, 4, 2, 2, trials=1)
    assert list(zip(choice.shapes, choice.homes, strict=True)) == [
        (TeamShape("ddp", 4), "n1"),
        (DDP, "n2"),
        (DDP, "n3"),
    ]
    assert choice.workers == 3 and choice.one_node
    assert choice.scaling is not None and choice.scaling.nodes == (4, 2, 2)
    assert "teams within nodes, of 4 | 2 | 2 devices" in choice.why
    assert choice.dry_runs["one device for each trial, later teams within nodes"] > min(choice.dry_runs.values())
    assert not any("across" in name for name in choice.dry_runs), "that was not measured"


@pytest.mark.parametrize("slow", [1.0, 0.1])
def test_nodes_of_another_sort_have_the_speed_that_was_measured_there(slow: float) -> None:
    """With devices at a tenth of the speed, the run takes longer; teams are compared with one device of their sort."""
    runs = [replace(one, sort="new") for one in NEAR] + [replace(run(SINGLE, 100.0 * slow), sort="old")]
    size = Size([{"model": "net"}], trials=8, epochs=2, rows=8000, partitions=8, batch=32)
    nodes = Nodes({"n1": 2, "n2": 2}, 1, {"n1": "new", "n2": "old"})
    choice = choose_teams(runs, size, nodes, 0.5)
    equal = choose_teams(NEAR, size, Nodes({"n1": 2, "n2": 2}, 1), 0.5)
    assert choice.scaling is not None and choice.scaling.speed(2) == pytest.approx(1.9)
    assert (min(choice.dry_runs.values()) > 1.5 * min(equal.dry_runs.values())) is (slow < 1)
    assert (choice.dry_runs == equal.dry_runs) is (slow == 1)


def test_a_model_that_does_not_fit_a_device_of_one_sort_trains_on_teams() -> None:
    runs = [replace(run(SINGLE, 100.0), sort="new"), replace(run(FSDP, 90.0), sort="new")]
    choice = on_nodes([*runs, replace(run(SINGLE, 0.0), sort="old")], 2, 2, trials=8)
    assert (choice.shapes, choice.workers) == ((FSDP,), 2)
    assert "does not train on one device: out of memory" in choice.why


def test_many_trials_on_nodes_have_a_device_each() -> None:
    choice = on_nodes(NEAR, 4, 2, 2, trials=16)
    assert (choice.shapes, choice.homes, choice.workers, choice.one_node) == ((SINGLE,), (), 8, True)
    assert choice.scaling is not None and choice.scaling.nodes == (4, 2, 2), "later teams stay within nodes"


@pytest.mark.parametrize(("rate", "spans"), [(195.0, True), (104.0, False), (0.0, False)])
def test_teams_span_nodes_only_if_trial_runs_say_so(rate: float, spans: bool) -> None:
    far = replace(run(DDP, rate), apart=True)
    choice = on_nodes([*NEAR, far], 2, 2, 2, trials=1)
    assert choice.shapes == ((TeamShape("ddp", 6),) if spans else (DDP, DDP, DDP))
    assert (choice.one_node, bool(choice.homes)) == (not spans, not spans)
    assert any("across nodes" in name for name in choice.dry_runs) is spans


def test_nodes_with_one_device_each_form_teams_across_nodes_or_none() -> None:
    far = replace(run(DDP, 190.0), apart=True)
    choice = on_nodes([run(SINGLE, 100.0), far], 1, 1, trials=1)
    assert (choice.shapes, choice.one_node) == ((DDP,), False)
    choice = on_nodes([run(SINGLE, 100.0), replace(far, rows_per_second=60.0)], 1, 1, trials=1)
    assert choice.shapes == (SINGLE,) and "ddp:2 is only 0.60 times as fast" in choice.why


def test_teams_of_a_model_that_does_not_fit_one_device_are_on_one_node() -> None:
    choice = on_nodes([run(SINGLE, 0.0), run(FSDP, 90.0)], 3, 2, trials=8)
    assert (choice.shapes, choice.workers, choice.one_node) == ((FSDP,), 2, True)
    choice = on_nodes([run(SINGLE, 0.0), replace(run(FSDP, 90.0), apart=True)], 1, 1, 1, 1, trials=8)
    assert (choice.shapes, choice.workers, choice.one_node) == ((FSDP,), 2, False)


def test_teams_on_nodes_are_not_larger_than_a_batch() -> None:
    choice = on_nodes(NEAR, 4, 4, trials=1, batch=2)
    assert max(shape.devices for shape in choice.shapes) == 2


def test_no_team_is_larger_than_a_batch() -> None:
    choice = chosen([run(SINGLE, 100.0), run(DDP, 190.0)], trials=1, batch=2)
    assert choice.shapes == (DDP,)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run(SINGLE, 100.0), run(DDP, 104.0)], "ddp:2 is only 1.04 times as fast as one device"),
        ([run(SINGLE, 100.0), run(DDP, 60.0)], "ddp:2 is only 0.60 times as fast"),
        ([run(SINGLE, 100.0), run(DDP, 0.0)], "ddp:2 failed: out of memory"),
        ([run(SINGLE, 100.0)], "one device each"),
    ],
    ids=["hardly faster", "slower", "failed", "not tried"],
)
def test_teams_that_do_not_pay_are_not_formed(runs: list[TrialRun], said: str) -> None:
    choice = chosen(runs, trials=1)
    assert (choice.shapes, choice.workers, choice.scaling) == ((SINGLE,), 8, None)
    assert said in choice.why


def test_a_model_that_does_not_fit_one_device() -> None:
    runs = [run(SINGLE, 0.0), run(DDP, 0.0), run(FSDP, 90.0), run(SPILL, 40.0)]
    choice = chosen(runs, trials=16)
    assert (choice.shapes, choice.workers, choice.scaling) == ((FSDP,), 4, None)
    assert "does not train on one device: out of memory" in choice.why
    assert chosen([run(SINGLE, 0.0), run(FSDP, 60.0), run(SPILL, 40.0)], trials=16).shapes == (SPILL,)
    assert "no strategy trains every class" in chosen([run(SINGLE, 0.0), run(FSDP, 0.0)], trials=16).why


@pytest.mark.slow
def test_classes_count_by_the_time_that_they_take() -> None:
    runs = [run(SINGLE, 100.0), run(SINGLE, 10.0, "large"), run(DDP, 50.0), run(DDP, 19.0, "large")]
    choice = chosen(runs, trials=16, configs=[{"model": "net"}, {"model": "large"}])
    assert choice.scaling is not None
    assert choice.scaling.speed(2) == pytest.approx((1 / 100 + 1 / 10) / (1 / 50 + 1 / 19))


@pytest.mark.slow
def test_a_long_experiment_is_scaled_up_from_a_short_dry_run() -> None:
    runs = [run(SINGLE, 100.0), run(DDP, 190.0)]
    short, long = (chosen(runs, trials=64, epochs=epochs) for epochs in (4, 4000))
    assert long.dry_runs.keys() == short.dry_runs.keys()
    for name, seconds in short.dry_runs.items():
        assert long.dry_runs[name] == pytest.approx(1000 * seconds, rel=0.1)


def test_trial_runs_survive_json() -> None:
    for found in (run(SINGLE, 100.0), run(DDP, 190.0), run(TeamShape("fsdp", 12), 0.0)):
        assert TrialRun.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_the_choice_is_explained() -> None:
    choice = chosen([run(SINGLE, 100.0), run(DDP, 190.0), run(FSDP, 0.0)], trials=16)
    names, texts = zip(*choice.facts(), strict=True)
    assert names == ("trial runs", "", "", "dry runs", "parallelism")
    assert texts[:3] == (
        "single  380 ms a batch, 100 rows/s, 1 B (model=net)",
        "ddp:2   200 ms a batch, 190 rows/s, 1 B (model=net)",
        "fsdp:2  does not fit: out of memory (model=net)",
    )
    assert texts[3].startswith("one device for each trial: ")
    assert texts[4].startswith("single, then teams: 16 trials keep 8 devices busy")
    told = json.loads(json.dumps(choice.as_json()))
    assert (told["shapes"], told["switch"], len(told["trial_runs"])) == (["single"], True, 3)
    assert [name for name, _ in chosen([run(SINGLE, 1.0)], trials=1).facts()] == ["trial runs", "parallelism"]


@pytest.mark.slow
def test_a_class_that_takes_long_starts_with_a_team_though_trials_outnumber_devices() -> None:
    runs = [run(SINGLE, 10.0, "slow"), run(SINGLE, 100.0), run(DDP, 19.0, "slow"), run(DDP, 190.0)]
    choice = chosen(runs, trials=10, configs=[{"model": "slow"}, *[{"model": "net"}] * 9])
    assert max(shape.devices for shape in choice.shapes) > 1 and len(choice.shapes) > 1
    assert "teams of" in choice.why
