"""Profiling, the simulation that follows from it, and the preview of a whole experiment."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Config, Trial
from hopfleet.domain.unit import Work
from hopfleet.errors import TaskError, UsageError
from hopfleet.experiment import running
from hopfleet.forecast import rehearsal as rehearsals
from hopfleet.forecast.forecast import Forecast
from hopfleet.forecast.preview import slow as report_if_slow
from hopfleet.forecast.profiling import BATCHES, MOST, Profiles, from_record, profile_trials
from hopfleet.forecast.rehearsal import UNIT_SECONDS, Outline, Rehearsal, measure, predict, worth_profiling
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal
from hopfleet.testing.tasks import CountingTask
from hopfleet.worker.spec import Profile
from tests.helpers.sample_tasks import Faulty, Plain, arrays

SECOND = Profile(metrics=("loss",), seconds_per_row=0.01, size=1000)
"""A second for a partition of 100 rows."""


def outline(**changes: Any) -> Outline:
    plain = Outline(
        name="mine",
        trials=4,
        epochs=2,
        rows=(100, 100, 100),
        valid_rows=(),
        workers=2,
        policy_name="longest-remaining",
        policy=POLICIES["longest-remaining"],
        fixed_order=False,
        seed=0,
        goal=Goal("train_loss", "min"),
    )
    return dataclasses.replace(plain, **changes)


class Probing:
    """A worker that takes ``costs[number]`` seconds to try a trial, on a clock of its own."""

    def __init__(
        self, costs: dict[int, float] | None = None, *, failing: tuple[int, ...] = (), row: float | None = None
    ) -> None:
        self.costs, self.failing, self.row = costs or {}, failing, row
        self.time = 0.0
        self.tried: list[int] = []

    def __call__(self, trial: Trial, batches: int) -> Profile:
        assert batches == BATCHES
        self.tried.append(trial.number)
        self.time += self.costs.get(trial.number, 0.1)
        if trial.number in self.failing:
            return Profile(error="no luck")
        return dataclasses.replace(SECOND, seconds_per_row=self.row or 0.01 * (1 + trial.number))

    def clock(self) -> float:
        return self.time


def foresee(
    probe: Any, configs: dict[int, Config], outline: Outline, known: dict[int, Profile], *clock: Any
) -> tuple[Profiles, Rehearsal | None]:
    found = measure(probe, configs, outline, known, *clock)
    return found, predict(outline, found, *clock)


def configs(count: int) -> dict[int, Config]:
    return {number: {"number": number} for number in range(count)}


# ----------------------------------------------------------------------------------------------------------- profiling


def tried(probing: Probing, configs: dict[int, Config], budget: float = 1e9, **more: Any) -> Profiles:
    more = {"seed": 0, "known": {}, **more}
    return profile_trials(probing, configs, budget=lambda found: budget, clock=probing.clock, **more)


def test_profiling_tries_all_of_a_few_and_some_of_many() -> None:
    assert tried(Probing(), configs(3)).found.keys() == {0, 1, 2}
    many = tried(Probing(), configs(100))
    assert many.tried == len(many.found) == MOST
    # Neither the first ones nor every so-manieth: a grid would show one side of itself.
    assert max(many.found) > 2 * MOST
    assert many.found.keys() != tried(Probing(), configs(100), seed=1).found.keys()


def test_equal_configurations_are_tried_once() -> None:
    probing = Probing()
    found = tried(probing, {number: {"lr": number % 2} for number in range(50)})
    assert len(probing.tried) == found.tried == 2
    assert found.found.keys() == set(range(50))


def test_profiling_keeps_to_its_budget() -> None:
    probing = Probing()
    found = tried(probing, configs(16), budget=0.55)
    assert probing.time == pytest.approx(0.5)
    assert found.seconds == pytest.approx(0.5)
    assert found.tried == 5
    # At least one: without any nothing is known, not even what profiling may take.
    assert tried(Probing(), configs(16), budget=0.0).tried == 1


def test_the_slowest_so_far_says_whether_there_is_time_for_one_more() -> None:
    slow = dict.fromkeys(range(16), 3.0)
    assert tried(Probing(slow), configs(16), budget=5.0).tried == 1
    assert tried(Probing(slow), configs(16), budget=6.0).tried == 2


def test_what_was_found_before_is_not_tried_again() -> None:
    probing = Probing()
    found = tried(probing, configs(3), known={1: SECOND})
    assert sorted(probing.tried) == [0, 2]
    assert found.found[1] == SECOND


def test_what_fails_is_told_apart() -> None:
    found = tried(Probing(failing=(1,)), configs(3))
    assert found.found.keys() == {0, 2}
    assert found.failed.keys() == {1}
    assert found.of(1).seconds_per_row == pytest.approx(0.02)


def test_others_are_like_the_mean() -> None:
    found = Profiles({0: SECOND, 1: dataclasses.replace(SECOND, seconds_per_row=0.03, size=2001)})
    assert found.of(0) == SECOND
    assert found.of(7).seconds_per_row == pytest.approx(0.02)
    assert found.of(7).size == 1500
    assert found.of(7).metrics == ()


def test_failures_cost_no_more_than_findings() -> None:
    probing = Probing(dict.fromkeys(range(64), 0.9), failing=tuple(range(64)))
    found, rehearsal = foresee(probing, configs(64), outline(trials=64), {}, probing.clock)
    assert found.tried == 2
    assert (found.found, rehearsal) == ({}, None)


def test_a_million_trials_are_no_trouble() -> None:
    many = outline(trials=10**9)
    assert many.lower_bound(Profiles({3: SECOND, 10**10: SECOND})) == pytest.approx(10**9 / 2 * 6 * (1 + UNIT_SECONDS))


def test_a_backend_that_trains_nothing_gives_no_times() -> None:
    assert (
        profile_trials(lambda trial, batches: Profile(), configs(2), seed=0, known={}, budget=lambda found: 1.0).found
        == {}
    )


@pytest.mark.parametrize(
    ("changes", "batch_size", "worth"),
    [
        ({}, 1, True),
        ({"workers": 1}, 1, False),  # there is nothing to choose
        ({"workers": 4}, 1, False),  # every trial has a worker of its own
        ({}, 100, False),  # the whole run has few batches
    ],
)
def test_when_profiling_is_worth_it(changes: dict[str, Any], batch_size: int, worth: bool) -> None:
    assert worth_profiling(outline(**changes), batch_size) is worth


@pytest.mark.parametrize(
    ("row", "spent"),
    [
        (0.02, 1.6),  # 192 s on each worker: time for all of the 16
        (0.01, 1.0),  # and not longer than a unit
        (0.001, 0.4),  # 5% of 10 s, and not a probe more
        (0.00001, 0.1),  # the one that it takes to know
    ],
)
def test_fit_spends_a_small_part_of_the_run(row: float, spent: float) -> None:
    probing = Probing(row=row)
    found, _ = foresee(probing, configs(64), outline(trials=64, workers=4), {}, probing.clock)
    assert found.seconds == pytest.approx(spent)


def test_units_that_are_short_leave_time_for_a_prediction() -> None:
    probing = Probing(row=0.001)
    found, rehearsal = foresee(probing, configs(640), outline(trials=640), {}, probing.clock)
    assert found.tried == rehearsals.ENOUGH
    assert rehearsal is not None


@pytest.mark.parametrize(("seconds", "tried"), [(0.0, 5), (0.25, 3), (0.5, 1)])
def test_what_was_timed_already_counts(seconds: float, tried: int) -> None:
    known = {0: dataclasses.replace(SECOND, seconds_per_row=0.001, seconds=seconds)}
    probing = Probing(row=0.001)
    found, _ = foresee(probing, configs(64), outline(trials=64, workers=4), known, probing.clock)
    assert found.tried == tried


def test_too_few_findings_make_no_prediction() -> None:
    def foreseen(trials: int, cost: float) -> Rehearsal | None:
        probing = Probing(dict.fromkeys(range(64), cost), row=0.1)
        found, rehearsal = foresee(probing, configs(trials), outline(trials=trials, epochs=1), {}, probing.clock)
        assert len(found.found) < rehearsals.ENOUGH
        return rehearsal

    assert foreseen(64, 1.0) is None
    assert foreseen(4, 0.1) is not None
    assert foresee(lambda trial, batches: Profile(), configs(4), outline(), {})[1] is None


def test_too_many_units_make_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "PREDICTING", 1e9)
    assert foresee(Probing(), configs(4), outline(), {})[1] is not None
    monkeypatch.setattr(rehearsals, "SIMULATED", 23)
    assert foresee(Probing(), configs(4), outline(), {})[1] is None


# ----------------------------------------------------------------------------------------------------- the simulation


def test_equal_trials_fill_all_workers() -> None:
    rehearsal = Rehearsal(outline(), Profiles(dict.fromkeys(range(4), SECOND))).run()
    assert rehearsal.complete
    assert rehearsal.makespan == pytest.approx(12 * (1 + UNIT_SECONDS))
    assert rehearsal.makespan == pytest.approx(outline().lower_bound(Profiles({0: SECOND})))
    assert len(rehearsal.history.spans) == 24


def test_trials_in_rounds_wait_for_the_slowest() -> None:
    slow = dataclasses.replace(SECOND, seconds_per_row=0.05)
    found = Profiles({0: SECOND, 1: slow, 2: slow, 3: SECOND})
    free, rounds = (Rehearsal(outline(round_size=size), found).run() for size in (0, 2))
    assert rounds.complete
    assert rounds.makespan > 1.2 * free.makespan
    ended = {trial: max(span.ended for span in rounds.history.spans if span.trial == trial) for trial in ("t0002",)}
    assert min(span.started for span in rounds.history.spans if span.trial == "t0003") >= ended["t0002"]


def test_each_trial_takes_what_was_found_and_each_partition_its_rows() -> None:
    found = Profiles({0: SECOND, 1: dataclasses.replace(SECOND, seconds_per_row=0.05)})
    rehearsal = Rehearsal(outline(trials=2, rows=(100, 200), epochs=1), found).run()
    took = {(span.trial, span.partition): span.ended - span.started - UNIT_SECONDS for span in rehearsal.history.spans}
    assert took == pytest.approx({("t0001", 0): 1, ("t0001", 1): 2, ("t0002", 0): 5, ("t0002", 1): 10})


def test_building_evaluating_saving_and_hopping_take_time_too() -> None:
    one = outline(trials=1, epochs=1, workers=1, valid_rows=(50,), goal=Goal("loss", "min"))
    costly = dataclasses.replace(
        SECOND, open_seconds=10.0, evaluation_seconds_per_row=0.1, save_seconds=100.0, load_seconds=1000.0
    )
    rehearsal = Rehearsal(one, Profiles({0: costly})).run()
    (evaluation,) = [span for span in rehearsal.history.spans if span.work is Work.EVALUATE]
    assert evaluation.ended - evaluation.started == pytest.approx(100 + 5 + UNIT_SECONDS)
    assert rehearsal.makespan == pytest.approx(10 + 3 + 100 + 5 + 4 * UNIT_SECONDS)
    assert rehearsal.hop_bytes == 0
    assert one.lower_bound(Profiles({0: costly})) == pytest.approx(10 + 3 + 5 + 4 * UNIT_SECONDS)


def test_hops_are_counted_with_their_bytes() -> None:
    three = outline(trials=3)
    rehearsal = Rehearsal(three, Profiles({0: SECOND})).run()
    hopped = [span for span in rehearsal.history.spans if span.hopped]
    assert hopped
    assert rehearsal.history.hops == len(hopped)
    assert rehearsal.hop_bytes == 1000 * len(hopped)
    assert 0 < rehearsal.shared_bytes <= 4000


def test_the_lower_bound_knows_the_longest_trial() -> None:
    long = Profiles({0: dataclasses.replace(SECOND, seconds_per_row=1.0), 1: SECOND, 2: SECOND, 3: SECOND})
    assert outline().lower_bound(long) == pytest.approx(600 + 6 * UNIT_SECONDS)
    assert Rehearsal(outline(), long).run().makespan == pytest.approx(600 + 6 * UNIT_SECONDS)


# Two trials a second each, three partitions, one worker; what one more trial takes of its time alone.
TOGETHER = dataclasses.replace(SECOND, exact_share=0.25, fast_share=0.1)


def pair(**changes: Any) -> Outline:
    fusion = Fusion(lambda config: config.get("batch_size"), size=1)
    plain = {"trials": 2, "epochs": 1, "workers": 1, "fuse": "exact", "fusions": {"exact": fusion, "fast": fusion}}
    return outline(**{**plain, **changes})


def test_trials_that_train_together_take_a_share_each() -> None:
    for fuse, share in (("off", 1.0), ("exact", 0.25), ("fast", 0.1)):
        rehearsal = Rehearsal(pair(fuse=fuse), Profiles({0: TOGETHER})).run()
        assert rehearsal.makespan == pytest.approx(3 * (1 + share + 2 * UNIT_SECONDS))
    # It was not tried: each takes what it takes alone.
    assert Rehearsal(pair(), Profiles({0: SECOND})).run().makespan == pytest.approx(3 * (2 + 2 * UNIT_SECONDS))


def test_only_kin_train_together() -> None:
    configs: dict[int, Any] = {0: {"batch_size": 8}, 1: {"batch_size": 16}}
    rehearsal = Rehearsal(pair(configs=configs), Profiles({0: TOGETHER})).run()
    assert rehearsal.makespan == pytest.approx(3 * (2 + 2 * UNIT_SECONDS))


@pytest.mark.parametrize(
    ("fuse", "crowded", "passed_on", "seconds"),
    [
        ("off", False, False, 6 * 2),  # a second to train, two to have the batches meanwhile
        ("off", True, False, 6 * 3),
        ("off", True, True, 3 * 3 + 3),  # who comes second finds them
        ("exact", False, False, 3 * 2),
        ("exact", True, False, 3 * (1.25 + 2)),
        ("exact", True, True, 3 * (1.25 + 2)),
    ],
)
def test_batches_are_made_once_for_all(fuse: str, crowded: bool, passed_on: bool, seconds: float) -> None:
    slow = dataclasses.replace(TOGETHER, feeding_seconds_per_row=0.02, passed_on=passed_on)
    rehearsal = Rehearsal(pair(fuse=fuse, crowded=crowded), Profiles({0: slow})).run()
    assert rehearsal.makespan == pytest.approx(seconds + 6 * UNIT_SECONDS)


def test_evaluations_share_batches_too() -> None:
    slow = dataclasses.replace(TOGETHER, feeding_seconds_per_row=0.02, evaluation_seconds_per_row=0.05)
    mine = pair(rows=(100,), valid_rows=(10,), crowded=True, goal=Goal("loss", "min"))
    rehearsal = Rehearsal(mine, Profiles({0: slow})).run()
    spans = [span.ended - span.started for span in rehearsal.history.spans if span.work is Work.EVALUATE]
    assert spans == pytest.approx([2 * 10 * 0.03 + 10 * 0.02 + 2 * UNIT_SECONDS] * 2)


def test_the_lower_bound_knows_what_flotillas_bring() -> None:
    many = pair(trials=8)
    assert many.lower_bound(Profiles({0: TOGETHER})) == pytest.approx(8 * 3 * (0.25 + UNIT_SECONDS))
    assert pair().lower_bound(Profiles({0: TOGETHER})) == pytest.approx(3 + 3 * UNIT_SECONDS)
    assert pair(fuse="off").lower_bound(Profiles({0: TOGETHER})) == pytest.approx(2 * 3 * (1 + UNIT_SECONDS))


SCALING = Scaling("ddp", Rates("ddp", (1.0, 1.9)), 1.0)


def test_idle_devices_join_as_teams() -> None:
    few = outline(trials=3, workers=8, epochs=20)
    switched = dataclasses.replace(few, scaling=SCALING)
    profiles = Profiles({0: SECOND})
    stayed, joined = (Rehearsal(each, profiles).run() for each in (few, switched))
    assert stayed.joined == [] and joined.complete
    (when, first), (later, last) = joined.joined
    assert when == 0.0 and [str(shape) for shape in first] == ["ddp:3", "ddp:3", "ddp:2"]
    assert later > 20 and [str(shape) for shape in last] == ["ddp:8"], "the last trial has all devices"
    alone = 60 * (1 + UNIT_SECONDS)
    assert stayed.makespan == pytest.approx(alone)
    assert alone / SCALING.speed(3) + 1 < joined.makespan < alone / SCALING.speed(2) + 1
    assert alone / SCALING.speed(8) < switched.lower_bound(profiles) < joined.makespan


def test_figures_are_those_of_the_profiled_team() -> None:
    pairs = outline(trials=2, workers=2, teams=(TeamShape("ddp", 2),) * 2, scaling=dataclasses.replace(SCALING, most=2))
    profiles = Profiles({0: SECOND})
    rehearsal = Rehearsal(pairs, profiles).run()
    assert rehearsal.makespan == pytest.approx(6 * (1 + UNIT_SECONDS)) and not rehearsal.joined
    # Four devices that train one by one would waste nothing.
    assert pairs.lower_bound(profiles) == pytest.approx(6 * (1 + UNIT_SECONDS))
    assert dataclasses.replace(pairs, trials=40).lower_bound(profiles) == pytest.approx(
        40 * 6 * (1 + UNIT_SECONDS) / 4 * 1.9
    )


def test_a_rehearsal_gives_up_in_time() -> None:
    ticks = iter(range(1000))
    rehearsal = Rehearsal(outline(), Profiles({0: SECOND})).run(until=5, clock=lambda: next(ticks))
    assert not rehearsal.complete


def test_a_large_experiment_is_simulated_in_part() -> None:
    large = outline(trials=10_000, epochs=50, rows=(100,) * 8, workers=8)
    part = large.small_enough()
    assert part.trials * part.per_trial <= rehearsals.SIMULATED
    assert part.trials >= 4 * 8
    assert outline().small_enough() == outline()
    long = outline(trials=8, epochs=10**6).small_enough()
    assert (long.trials, long.trials * long.per_trial <= rehearsals.SIMULATED) == (8, True)


def test_the_prediction_can_be_kept() -> None:
    kept = json.loads(json.dumps(Rehearsal(outline(), Profiles({0: SECOND})).run().as_json()))
    assert kept["makespan"] == max(span[-1] for span in kept["spans"])
    assert kept["spans"][0][:5] == ["w1", "t0001", 1, 0, "train"]


# -------------------------------------------------------------------------------------------------------- the preview


def experiment(**more: Any) -> hop.Experiment:
    plain = {
        "train": arrays(),
        "valid": arrays(60, seed=1),
        "space": {"lr": hop.grid_search([0.1, 0.2, 0.3])},
        "search": hop.Grid(max_epochs=2),
        "metric": "accuracy",
        "mode": "max",
        "partitions": 4,
        "name": "mine",
        "workers": 2,
        "worker_options": hop.WorkerOptions(device="cpu"),
    }
    task = more.pop("task", None) or Plain()
    return hop.Experiment(task, **{**plain, **more})


def test_preview(own_home: Path, tmp_path: Path) -> None:
    mine = experiment()
    found = mine.preview()
    assert (found.trials, found.epochs, found.units, found.evaluations) == (3, 2, 24, 6)
    assert (found.workers, found.why, found.device) == (2, "as asked", "cpu")
    assert found.policy == "auto"
    assert found.profiled == found.as_json()["profiled"] == found.as_json()["piloted"] == 3
    with pytest.warns(FutureWarning, match=r"use Preview\.profiled"):
        assert found.piloted == 3
    assert found.makespan >= found.lower_bound > 0
    assert found.ratio == found.makespan / found.lower_bound
    assert found.start_up > 0
    assert found.finish > datetime.datetime.now().astimezone()
    assert found.utilisation.keys() == {"w1", "w2"}
    assert 0 < found.mean_utilisation <= 1
    assert found.checkpoint_bytes > 6 * 36 * 3 * 4
    assert found.fuse == "exact" and found.makespans.keys() == {"off", "exact", "fast"}
    assert found.makespans["exact"] == found.makespan
    gain = found.makespans["off"] / found.makespan
    assert f"fuse='exact'; it would take {gain:.2f} times as long with 'off' and " in str(found)
    assert found.data_bytes > 300 * 36 * 4
    assert not own_home.exists()
    found.gantt(tmp_path / "predicted.svg")
    assert "mine, predicted" in (tmp_path / "predicted.svg").read_text()
    # It has changed nothing: the experiment itself still runs.
    assert len(mine.fit(quiet=True).trials) == 3


def test_a_search_without_end_is_previewed_in_part() -> None:
    endless = experiment(backend="inline", search=hop.Random(trials=None, max_epochs=1))
    assert "any number of trials" in repr(endless)
    found = endless.preview()
    assert found.trials == 256
    assert any("continues until a budget is spent" in text for text in found.assumed)


def test_a_preview_reads_well() -> None:
    found = experiment(backend="inline", name="a<b".replace("<", "")).preview()
    text = str(found)
    assert "3 trials of 2 epochs" in text
    assert "24 units and 6 evaluations" in text
    assert "inline workers take turns" in text
    assert "a search that stops some takes less" in text
    assert "less than 0.1 s, too short to compare" in str(dataclasses.replace(found, lower_bound=0.001))
    assert "2.0 s; this is 1.500 of it" in str(dataclasses.replace(found, lower_bound=2.0, makespan=3.0, makespans={}))
    page = dataclasses.replace(found, why="a < b")._repr_html_()
    assert ">1 on cpu (a &lt; b), policy auto</td>" in page
    figures = json.loads(json.dumps(found.as_json()))
    assert figures["finish"] == found.finish.isoformat(timespec="seconds")
    assert figures["assumed"] == list(found.assumed)
    assert figures["ratio"] == found.ratio


def test_data_sets_that_exist_take_no_further_room(tmp_path: Path) -> None:
    for name, rows in (("train", arrays()), ("valid", arrays(60, seed=1))):
        hop.partition(rows, tmp_path / name, partitions=2)
    found = experiment(backend="inline", train=tmp_path / "train", valid=tmp_path / "valid").preview()
    assert found.data_bytes == 0
    assert "partitioned" not in str(found)


def test_a_folder_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    experiment(backend="inline", run_options=hop.RunOptions(folder=tmp_path / "runs" / "mine")).preview()
    assert list((tmp_path / "runs").iterdir()) == []
    experiment(backend="inline", run_options=hop.RunOptions(folder=tmp_path / "others" / "deep" / "mine")).preview()
    assert not (tmp_path / "others").exists()


def test_a_large_search_is_previewed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "SIMULATED", 60)
    found = experiment(
        backend="inline", space={"lr": hop.uniform(0, 1)}, search=hop.Random(trials=100, max_epochs=2)
    ).preview()
    assert found.units == 800
    assert found.profiled == MOST
    assert any("16 of 100 trials were profiled" in text for text in found.assumed)
    assert any("12 trials of 1 epoch" in text or "6 trials of 2 epochs" in text for text in found.assumed), (
        found.assumed
    )


def test_some_failures_are_told() -> None:
    found = experiment(
        task=Faulty(), backend="inline", space={"fault": hop.grid_search(["none", "raise", "build"])}
    ).preview()
    assert any("2 trials failed in profiling" in text for text in found.assumed)


def rows() -> Iterator[dict[str, Any]]:
    for _ in range(100):
        yield {"x": np.zeros(36, np.float32), "y": 0}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"train": rows()}, UsageError, "can be read only once"),
        ({"metric": "f1"}, UsageError, "metric='f1': metrics\\(\\) does not return it"),
        ({"batch_size": 1000}, UsageError, "batch_size=1000: is larger than the smallest partition"),
        ({"backend": "simulated", "metric": "loss"}, TaskError, "backend='simulated' trains nothing"),
        ({"task": Faulty(), "space": {"fault": "raise"}}, TaskError, "the first one raised ValueError: a bad batch"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], said: str, own_home: Path) -> None:
    with pytest.raises(error, match=said):
        experiment(**{"backend": "inline", **changes}).preview()
    assert not own_home.exists()


class Particular(hop.Inline):
    def __init__(self, place: str) -> None:
        super().__init__()


class Pretending(hop.Inline):
    """Workers in this process that count as working side by side."""

    name = "pretending"


def test_a_preview_shows_when_teams_join(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = TeamChoice((SINGLE,), "as the test says", 8, dataclasses.replace(SCALING, form_seconds=0.0))
    monkeypatch.setattr("hopfleet.experiment.forecasting.find_teams", lambda *given, **options: choice)
    shown = experiment(parallelism="auto", backend=Pretending(), workers=8).preview(quiet=True)
    (when, shapes), *_ = shown.joined
    assert when == 0.0 and shapes == tuple(TeamShape("ddp", count) for count in (3, 3, 2))
    assert "teams join" in str(shown) and "ddp:3 + ddp:3 + ddp:2" in str(shown)
    assert json.loads(json.dumps(shown.as_json()))["joined"][0] == [0.0, ["ddp:3", "ddp:3", "ddp:2"]]
    assert "w1" not in shown.utilisation and 0 < min(shown.utilisation.values()) <= 1


def test_a_backend_is_started_once() -> None:
    backend = hop.Inline()
    mine = experiment(backend=backend)
    mine.preview()
    assert mine.fit(quiet=True).finished
    with pytest.raises(UsageError, match="needs a second one of its kind"):
        experiment(backend=Particular("here")).preview()


def test_progress_is_told_only_when_it_is_slow(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with report_if_slow(False, lambda: now[0]) as tell, report_if_slow(True, lambda: now[0]) as silent:
        for text in ("one", "two", "three", "four"):
            tell(text)
            silent(text)
            now[0] += 1.1
    assert capsys.readouterr().err == "preview: three\n"


# ------------------------------------------------------------------------------------------------------------ in a run


@pytest.fixture
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiling and a prediction may take as long as they like."""
    for name in ("SHARE", "LONG_SHARE", "PREDICTING"):
        monkeypatch.setattr(rehearsals, name, 1e9)


def counting(**more: Any) -> hop.Experiment:
    return hop.Experiment(
        CountingTask(),
        train={"x": np.arange(40.0)},
        valid={"x": np.arange(8.0)},
        space={"number": hop.grid_search([1, 2, 3, 4])},
        search=hop.Grid(max_epochs=2),
        **{"partitions": 4, "batch_size": 5, "workers": 2, "name": "mine", **more},
    )


@pytest.mark.usefixtures("generous")
def test_fit_keeps_its_prediction_and_draws_it(tmp_path: Path) -> None:
    results = counting().fit(quiet=True)
    prediction = results.folder.prediction()
    assert prediction is not None
    assert len(prediction["spans"]) == 4 * 2 * (4 + 1)
    figure = results.gantt(tmp_path / "gantt.svg")
    assert "predicted" in figure.texts[1].get_text()
    results.folder.prediction_file.write_text("{")
    with pytest.raises(hop.HopfleetError, match=r"prediction.json: cannot be read .*; remove it"):
        results.gantt(tmp_path / "gantt.svg")


@pytest.mark.usefixtures("generous")
@pytest.mark.parametrize("changes", [{"workers": 1}, {"backend": "inline"}, {"workers": 4}])
def test_no_profiling_where_it_brings_nothing(changes: dict[str, Any]) -> None:
    assert counting(**changes).fit(quiet=True).folder.prediction() is None


@pytest.mark.usefixtures("generous")
def test_the_policy_hears_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    real = running._controller

    def controller(definition: Any, forecast: Any, found: Profiles, *more: Any) -> Any:
        heard.append(found)
        return real(definition, forecast, found, *more)

    monkeypatch.setattr(running, "_controller", controller)
    results = counting().fit(quiet=True)
    assert [len(found.found) for found in heard] == [len(results.trials)]


@pytest.mark.usefixtures("generous")
def test_what_was_measured_is_kept_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = counting(name="kept").fit(quiet=True).folder
    record = folder.profile()
    mine = counting(name="kept")
    known = dict(enumerate(mine.search.examples(99)))
    profiles = from_record(record, known, "cpu").found
    assert profiles and all(profile.seconds_per_row > 0 and profile.memory > 0 for profile in profiles.values())
    assert profiles.keys() == known.keys()
    assert from_record(record, known, "cuda").found == {}
    assert from_record({**record, "hopfleet": "0.0"}, known, "cpu").found == {}
    # A preview tries none of them again.
    probed: list[int] = []
    monkeypatch.setattr(hop.Local, "probe", lambda self, trial, batches=0: probed.append(trial.number))
    monkeypatch.setattr(Forecast, "_first_look", lambda self, batches: {})
    assert mine.preview(quiet=True).profiled == len(profiles)
    assert probed == []
    folder.profile_file.write_text("[1]")
    assert folder.profile() == {}
    folder.profile_file.write_text("{")
    assert folder.profile() == {} and from_record(folder.profile(), known, "cpu").found == {}


@pytest.mark.usefixtures("generous")
def test_a_worker_that_dies_in_profiling_is_replaced() -> None:
    results = experiment(task=Faulty(), space={"fault": hop.grid_search(["none", "kill", "no"])}, backend="local").fit(
        quiet=True
    )
    states = [trial.state for trial in results.trials]
    assert states == [hop.TrialState.COMPLETED, hop.TrialState.FAILED, hop.TrialState.COMPLETED]
