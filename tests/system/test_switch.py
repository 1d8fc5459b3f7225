"""Real runs whose idle devices join as teams, and runs that choose their teams by trial runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.local.backend import Local, ProcessHandle
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import Event, FormTeams, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.experiment import teams
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.forecast.trial_runs import TrialRun
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.runs.verify import verify
from hopfleet.store.local import open_journal
from tests.helpers.sample_tasks import DoubleNet

SCALING = Scaling("ddp", Rates("ddp", (10.0, 19.0)), most=2)


class StartsTogether(Local):
    """Reports its first three workers when all of them are ready; kills members of teams after some units of theirs.

    A unit ends between two kills, so no unit is lost three times, after which its trial would fail.
    """

    def __init__(self, kills: Sequence[int] = ()) -> None:
        super().__init__()
        self._held: list[Event] = []
        self._together = False
        self._kills, self._ended = kills, 0

    def receive(self, timeout: float) -> list[Event]:
        self._held += super().receive(timeout)
        joined = sum(isinstance(event, WorkerJoined) for event in self._held)
        self._together = self._together or joined == 3
        if not self._together:
            return []
        held, self._held = self._held, []
        return held

    def _note(self, handle: ProcessHandle, event: Event) -> None:
        super()._note(handle, event)
        if handle.members and isinstance(event, UnitFinished):
            self._ended += 1
            if self._ended in self._kills:
                os.kill(handle.team[self._ended % 2].pid, signal.SIGKILL)


def data() -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(200, 8))
    return {"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2}


def experiment(name: str, **options: Any) -> hop.Experiment:
    defaults: dict[str, Any] = {
        "space": {"lr": 0.01},
        "search": hop.Grid(max_epochs=4),
        "partitions": 4,
        "batch_size": 16,
        "run_options": hop.RunOptions(order="fixed"),
    }
    return hop.Experiment(DoubleNet(), train=data(), metric="train_loss", name=name, **{**defaults, **options})


def messages(results: hop.Results) -> list[Any]:
    journal = open_journal(results.folder)
    try:
        return [message for _, _, message in journal.read()]
    finally:
        journal.close()


def shapes(results: hop.Results) -> list[TeamShape]:
    finished = [message for message in messages(results) if isinstance(message, UnitFinished)]
    return [SINGLE if unit.placement is None else unit.placement.shape for unit in finished]


def digests(results: hop.Results) -> list[Any]:
    trials = results.history.trials.items()
    return [(name, version, saved.digest) for name, trial in trials for version, saved in trial.saved.items()]


@pytest.fixture
def three_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start with three workers on one device each, and teams of two are worth while."""
    choice = TeamChoice((SINGLE,), "as the test says", 3, SCALING)
    monkeypatch.setattr("hopfleet.experiment.running.find_teams", lambda *given, **options: choice)


@pytest.mark.slow
@pytest.mark.usefixtures("three_devices")
def test_idle_devices_join_the_last_trial() -> None:
    results = experiment("switch", parallelism="auto", backend=StartsTogether()).fit(quiet=True)
    (formed,) = [message for message in messages(results) if isinstance(message, FormTeams)]
    assert formed.shapes == (TeamShape("ddp", 2),)
    assert shapes(results) == [SINGLE] + [TeamShape("ddp", 2)] * 15, "the first unit tells how long units take"
    assert verify(results.folder).ok


@pytest.mark.slow
@pytest.mark.usefixtures("three_devices", "warm_compiler")
def test_the_loss_of_a_member_costs_its_unit_alone() -> None:
    alone = experiment("alone", workers=1).fit(quiet=True)
    calm = experiment("calm", parallelism="auto", backend=StartsTogether()).fit(quiet=True)
    losses = [[row["train_loss"] for row in each.trials[0].history] for each in (calm, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert {trial.verdict for trial in replay(calm).trials} == {"equal"}
    backend = StartsTogether(kills=(1, 4, 5))
    killed = experiment("killed", parallelism="auto", backend=backend).fit(quiet=True)
    lost = [message for message in messages(killed) if isinstance(message, WorkerLost) and message.replaced]
    assert any("SIGKILL" in message.reason for message in lost)
    assert shapes(killed)[:1] == [SINGLE] and set(shapes(killed)[1:]) == {TeamShape("ddp", 2)}
    assert digests(killed) == digests(calm)
    assert verify(killed.folder).ok


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_trial_runs_choose_the_teams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are made up; that they are measured on real workers is tested with the trial runs themselves."""
    tried: list[TeamShape] = []

    def run_trials(
        experiment: Any, place: Any, wanted: Sequence[TeamShape], tell: Any, data: Any, **how: Any
    ) -> Iterator[TrialRun]:
        tried.extend(wanted)
        return iter([TrialRun({"lr": 0.01}, shape, 10.0 * shape.devices, batch=2) for shape in wanted])

    monkeypatch.setattr(teams, "run_trials", run_trials)
    chosen = experiment("chosen", parallelism="auto", workers=2, batch_size=2)
    preview = chosen.preview(quiet=True)
    assert "trial runs" in str(preview) and "dry runs" in str(preview)
    assert "single  200 ms a batch, 10 rows/s" in str(preview)
    assert preview.as_json()["parallelism"]["shapes"] == ["ddp:2"]
    assert not chosen.folder.path.exists(), "a preview leaves nothing behind"
    tried.clear()
    results = chosen.fit(quiet=True)
    assert set(shapes(results)) == {TeamShape("ddp", 2)}
    assert tried == [SINGLE, TeamShape("ddp", 2)]
    assert results.definition["parallelism"] == ["auto"]
    hop.control("chosen").extend(epochs=1)
    chosen.fit(quiet=True)
    assert tried == [SINGLE, TeamShape("ddp", 2)], "the run folder keeps trial runs"
    assert len(shapes(hop.load("chosen"))) == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"backend": "inline"}, "backend='inline' has only this process", id="inline"),
        pytest.param({"workers": 1}, "there is only one", id="one device"),
        pytest.param(
            {"run_options": hop.RunOptions(deterministic=True), "workers": 2}, "no timing may change", id="rounds"
        ),
    ],
)
def test_one_device_each_where_no_team_can_form(
    options: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    single = experiment("single", parallelism="auto", search=hop.Grid(max_epochs=1), **options)
    assert set(shapes(single.fit())) == {SINGLE}
    assert said in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_strategies_by_configuration() -> None:
    space = {"lr": hop.choice([0.01, 0.02])}
    mapped = experiment("mapped", space=space, workers=1, parallelism={"lr": {0.02: "ddp:2"}}).fit(quiet=True)
    searched = {"lr": 0.02, "parallelism": hop.choice(["single", "ddp:2"])}
    results = [mapped, experiment("searched", space=searched, workers=1).fit(quiet=True)]
    for each, key in zip(results, ("lr", "parallelism"), strict=True):
        found = [message for message in messages(each) if isinstance(message, UnitFinished)]
        configs = {trial.id: trial.config[key] for trial in each.trials}
        teams = {(configs[unit.trial], None if unit.placement is None else unit.placement.shape) for unit in found}
        first, second = (0.01, 0.02) if key == "lr" else ("single", "ddp:2")
        assert teams == {(first, None), (second, ("ddp", 2))}
    (team,) = [trial.id for trial in mapped.trials if trial.config["lr"] == 0.02]
    again = mapped.refit(team, on=data(), workers=1, quiet=True)
    assert set(shapes(again)) == {TeamShape("ddp", 2)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(["auto", "ddp:2"], "'auto' chooses for all workers", id="auto in a list"),
        pytest.param({"lrr": {0.01: "ddp:2"}}, "did you mean 'lr'", id="unknown key"),
        pytest.param({"lr": {0.5: "ddp:2"}}, "is not a value of", id="unknown value"),
        pytest.param({"lr": "ddp:2"}, "as in {'width': {512: 'ddp:2'}}", id="no mapping"),
        pytest.param({"lr": {0.01: "ddp:2", 0.02: "fsdp:3"}}, "have different numbers of devices", id="numbers"),
        pytest.param({"lr": {0.01: "dpp:2"}}, "did you mean 'ddp'", id="unknown strategy"),
    ],
)
def test_mistakes(given: Any, said: str) -> None:
    with pytest.raises(UsageError) as found:
        experiment("wrong", space={"lr": hop.choice([0.01, 0.02])}, parallelism=given)
    assert said in str(found.value)
