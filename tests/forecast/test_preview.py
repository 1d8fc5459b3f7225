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
from hopfleet.domain.placement import SINGLE
from hopfleet.errors import TaskError, UsageError
from hopfleet.experiment import running
from hopfleet.forecast import rehearsal as rehearsals
from hopfleet.forecast.forecast import Forecast
from hopfleet.forecast.preview import slow as report_if_slow
from hopfleet.forecast.profiling import MOST, Profiles, from_record
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.testing.tasks import CountingTask
from tests.helpers.previews import SCALING
from tests.helpers.sample_tasks import Faulty, Plain, arrays

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_data_sets_that_exist_take_no_further_room(tmp_path: Path) -> None:
    for name, rows in (("train", arrays()), ("valid", arrays(60, seed=1))):
        hop.partition(rows, tmp_path / name, partitions=2)
    found = experiment(backend="inline", train=tmp_path / "train", valid=tmp_path / "valid").preview()
    assert found.data_bytes == 0
    assert "partitioned" not in str(found)


@pytest.mark.slow
def test_a_folder_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    experiment(backend="inline", run_options=hop.RunOptions(folder=tmp_path / "runs" / "mine")).preview()
    assert list((tmp_path / "runs").iterdir()) == []
    experiment(backend="inline", run_options=hop.RunOptions(folder=tmp_path / "others" / "deep" / "mine")).preview()
    assert not (tmp_path / "others").exists()


@pytest.mark.slow
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
    # How many devices a trial gets depends on its measured time; three trials share eight devices.
    assert when == 0.0 and len(shapes) < 8 and sum(shape.devices for shape in shapes) == 8
    assert "teams join" in str(shown) and " + ".join(map(str, shapes)) in str(shown)
    assert json.loads(json.dumps(shown.as_json()))["joined"][0] == [0.0, list(map(str, shapes))]
    assert "w1" not in shown.utilisation and 0 < max(shown.utilisation.values()) <= 1


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("generous")
def test_a_worker_that_dies_in_profiling_is_replaced() -> None:
    results = experiment(task=Faulty(), space={"fault": hop.grid_search(["none", "kill", "no"])}, backend="local").fit(
        quiet=True
    )
    states = [trial.state for trial in results.trials]
    assert states == [hop.TrialState.COMPLETED, hop.TrialState.FAILED, hop.TrialState.COMPLETED]
