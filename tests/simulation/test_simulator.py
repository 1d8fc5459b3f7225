"""Simulated experiments: the real controller in virtual time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import WorkerLost
from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError, WorkersLost
from hopfleet.planner.balance import relax
from hopfleet.scheduler.policies import POLICIES
from hopfleet.simulation.backend import START, Failure, Simulated
from hopfleet.simulation.simulator import Workload, simulate


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("costs", ["homogeneous", "cnn", "lognormal"])
def test_every_policy_finishes_and_keeps_the_bound(policy: str, costs: str) -> None:
    run = simulate(trials=6, partitions=4, costs=costs, policy=policy, epochs=2)
    assert run.ratio >= 1 - 1e-9
    assert run.makespan == pytest.approx(max(span.ended for span in run.history.spans) - START, abs=1e-6)
    assert len(run.history.spans) == 6 * 4 * 2
    assert all(0 < busy <= 1 for busy in run.utilisation.values())
    assert set(run.as_json()) >= {"makespan", "lower_bound", "ratio", "schedule_seconds"}


@pytest.mark.parametrize("costs", ["homogeneous", "cnn"])
@pytest.mark.parametrize("partitions", [8, 16])
def test_auto_is_at_the_bound_on_the_papers_settings(costs: str, partitions: int) -> None:
    for seed in range(3):
        assert simulate(trials=16, partitions=partitions, costs=costs, seed=seed).ratio < 1.0005


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(costs="cnn", noise=0.3, policy="random", seed=4) for _ in range(2))
    assert first.history.spans == second.history.spans
    assert simulate(costs="cnn", noise=0.3, policy="random", seed=5).makespan != first.makespan


def test_fixed_orders_cost_little() -> None:
    for partitions in (4, 8):
        fixed = simulate(trials=2 * partitions, partitions=partitions, epochs=3, order="fixed")
        assert fixed.ratio <= 1.05


def test_rounds_make_trials_wait_for_the_slowest() -> None:
    free, rounds = (simulate(costs="cnn", trials=4, epochs=3, deterministic=wait) for wait in (False, True))
    for run, waits in ((free, False), (rounds, True)):
        spans = run.history.spans
        ended = max(span.ended for span in spans if span.epoch == 1)
        assert (min(span.started for span in spans if span.epoch == 2) >= ended) is waits


def test_hops_are_counted() -> None:
    history = simulate(trials=6, partitions=3, epochs=2).history
    workers = {trial.id: [span.worker for span in trial.units] for trial in history.trials.values()}
    assert history.hops == sum(one != other for visited in workers.values() for one, other in pairwise(visited)) > 0


def test_replicas_lower_the_bound() -> None:
    alone = simulate(trials=8, partitions=4, costs="cnn")
    twice = simulate(trials=8, partitions=4, costs="cnn", replicas=2)
    assert twice.lower_bound < alone.lower_bound
    everywhere = simulate(Workload([[1.0] * 3] * 6, {j: [0, 1, 2] for j in range(4)}))
    assert everywhere.lower_bound == 8.0
    assert everywhere.ratio == 1.0


@pytest.mark.parametrize("noise", [0.0, 0.4])
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_bound_is_that_of_all_units_one_by_one(replicas: int, noise: float) -> None:
    """It is made of fewer, larger pieces: here every second partition lies on the same workers."""
    times = [[1.0, 2.0, 1.5], [3.0, 1.0, 2.5], [2.0, 2.0, 0.5], [1.0, 4.0, 1.0]]
    holders = {j: sorted((j % 2 + copy) % 3 for copy in range(replicas)) for j in range(5)}
    run = simulate(Workload(times, holders, epochs=2), noise=noise, policy="random", seed=3)
    actual = {(span.trial, span.epoch, span.partition): span for span in run.history.spans}
    cells = {}
    for (trial, epoch, partition), span in actual.items():
        row = times[int(trial[1:]) - 1]
        error = (span.ended - span.started) / row[int(span.worker[1:]) - 1]
        cells[trial, 5 * epoch + partition] = {f"w{worker}": row[worker] * error for worker in holders[partition]}
    assert run.lower_bound == pytest.approx(relax(cells)[0])


def test_a_lost_worker_comes_back() -> None:
    calm = simulate(trials=8, partitions=4, policy="longest-remaining")
    hit = simulate(trials=8, partitions=4, policy="longest-remaining", failures=[Failure(2.5, "w2", back=4.0)])
    assert hit.makespan > calm.makespan


def test_partitions_of_a_worker_that_is_gone_for_good_go_to_others() -> None:
    gone = [Failure(2.5, "w2")]
    at_once = simulate(trials=8, partitions=4, failures=gone)
    slowly = simulate(trials=8, partitions=4, failures=gone, fetch=50.0)
    for run in (at_once, slowly):
        assert run.history.counts()[TrialState.COMPLETED] == 8
        assert {span.worker for span in run.history.spans if span.partition == 1 and span.ended > START + 3} != {"w2"}
    assert slowly.makespan > at_once.makespan
    with pytest.raises(WorkersLost, match="no worker is left"):
        simulate(trials=8, partitions=2, failures=[Failure(2.5, "w1"), Failure(2.5, "w2")])


def test_a_workload_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"times": [[1, 2], [2, 1]], "epochs": 2}))
    run = simulate(Workload.read(path))
    assert (run.trials, run.workers, run.lower_bound) == (2, 2, 6)
    path.write_text(json.dumps({"times": [[1, 2], [2, 1]], "replicas": {"0": [0, 1], "1": [1]}}))
    assert simulate(Workload.read(path)).history.partitions == 2
    for text, words in {
        "{": "must be JSON like",
        '{"replicas": {}}': "must be JSON like",
        '{"times": [[1, -2]]}': "-2",
        '{"times": [[1, 2], [1]]}': r"times\[1\] has 1 entries",
        '{"times": [[1]], "replicas": {"0": []}}': "partition 0: is on no worker",
        '{"times": [[1]], "replicas": {"0": [3]}}': "worker 3 must be from 0 to 0",
        '{"times": [[1]], "replicas": {"1": [0]}}': "numbered from 0",
        '{"times": [[1]], "epochs": 0}': "epochs=0",
    }.items():
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            Workload.read(path)
    with pytest.raises(UsageError, match="cannot be read"):
        Workload.read(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "best"}, "policy='best': unknown; there are auto"),
        ({"costs": "dear"}, "costs='dear': unknown"),
        ({"noise": -1}, "noise=-1"),
        ({"fetch": -1}, "fetch=-1"),
        ({"order": "any"}, "order='any'"),
        ({"trials": 0}, "trials=0"),
        ({"partitions": 0}, "partitions=0"),
        ({"replicas": 9}, "replicas=9: must be from 1 to the number of partitions"),
        ({"failures": [Failure(1.0, "w99")]}, "failure of 'w99'"),
    ],
)
def test_wrong_values_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulate(**changes)


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_pictures(tmp_path: Path, suffix: str) -> None:
    path = simulate(trials=4, partitions=2).gantt(tmp_path / f"gantt.{suffix}")
    assert path.stat().st_size > 1000
    assert [entry.name for entry in tmp_path.iterdir()] == [f"gantt.{suffix}"]


def test_those_who_join_at_once_are_told_together() -> None:
    """All workers are counted before a unit starts, so the first plan is made for all of them."""
    backend = Simulated(lambda command, trial: 1.0, failures=[Failure(0.5, "w2", back=1.0)])
    backend.start(None, 3)
    assert [event.worker for event in backend.receive(0.0)] == ["w1", "w2", "w3"]
    assert [type(event) for event in backend.receive(0.0)] == [WorkerLost]
    assert len(backend.receive(0.0)) == 1


def test_exact_estimates_give_the_bound_whatever_ties_there_are() -> None:
    """With these times, ends that are equal differ by rounding, which must not break a tie in a run or a dry run."""
    for policy in ("match-reserve", "auto"):
        assert simulate(trials=16, partitions=8, costs="cnn", policy=policy, seed=5096).ratio == pytest.approx(1.0)


def test_a_small_square_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows and columns have equal sums, and no timetable meets the bound. The solver is loaded beforehand."""
    loaded = []
    monkeypatch.setattr("hopfleet.simulation.simulator.load", lambda: loaded.append(True))
    times = [[100.0, 600.0, 300.0], [100.0, 300.0, 600.0], [800.0, 100.0, 100.0]]
    ends = {simulate(times, policy=policy).makespan for policy in ("auto", "portfolio", "exact")}
    assert ends == {1100.0} and loaded == [True] * 3
