"""What the simulation predicts for profiles of configurations."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from hopfleet.domain.placement import TeamShape
from hopfleet.domain.unit import Work
from hopfleet.forecast import rehearsal as rehearsals
from hopfleet.forecast.profiling import Profiles
from hopfleet.forecast.rehearsal import UNIT_SECONDS, Outline, Rehearsal
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal
from tests.helpers.previews import SCALING, SECOND, outline


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


def test_only_trials_with_equal_group_keys_train_together() -> None:
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


def test_idle_devices_join_as_teams() -> None:
    few = outline(trials=3, workers=8, epochs=20, policy_name="auto", policy=POLICIES["auto"])
    switched = dataclasses.replace(few, scaling=SCALING)
    profiles = Profiles({0: SECOND})
    stayed, joined = (Rehearsal(each, profiles).run() for each in (few, switched))
    assert stayed.joined == [] and joined.complete
    when, first = joined.joined[0]
    assert when == 0.0 and [str(shape) for shape in first] == ["ddp:3", "ddp:3", "ddp:2"]
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
