"""Real runs that give trials numbers of devices in rounds: policy="fleet" with parallelism="auto"."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.local.backend import Local
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import DevicesAllocated, Event, RunStarted, UnitFinished
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Trial
from hopfleet.errors import UsageError
from hopfleet.experiment import teams
from hopfleet.forecast.trial_runs import TrialRun
from hopfleet.runs.verify import verify
from hopfleet.search.stopping import StoppingRule
from hopfleet.store.local import open_journal
from tests.helpers.sample_tasks import DoubleNet

SLOW, QUICK = 0.01, 0.02
"""Learning rates of a trial that counts as slow, and of one that counts as quick: the figures are made up."""


class StopsQuick(StoppingRule):
    """Stops all trials but the slow one after an epoch."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        return "" if trial.config["lr"] == SLOW else "enough"


class Halts(Local):
    """Leaves its run without a word, as if killed, after some training units."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self._units = units

    def receive(self, timeout: float) -> list[Event]:
        events = super().receive(timeout)
        self._units -= sum(isinstance(event, UnitFinished) for event in events)
        if self._units <= 0:
            for handle in list(self._workers.values()):
                for process in handle.team:
                    os.kill(process.pid, signal.SIGKILL)
            raise KeyboardInterrupt
        return events


def experiment(name: str, rates: Sequence[float] = (SLOW, QUICK), epochs: int = 4, **options: Any) -> hop.Experiment:
    x = np.random.default_rng(0).normal(size=(200, 8))
    defaults: dict[str, Any] = {
        "train": {"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2},
        "space": {"lr": hop.grid_search(list(rates))},
        "search": hop.Grid(max_epochs=epochs),
        "metric": "train_loss",
        "partitions": 2,
        "batch_size": 16,
        "workers": 3,
        "parallelism": "auto",
        "run_options": hop.RunOptions(policy="fleet", order="fixed"),
    }
    return hop.Experiment(DoubleNet(), name=name, **{**defaults, **options})


def messages(results: hop.Results) -> list[Any]:
    journal = open_journal(results.folder)
    try:
        return [message for _, _, message in journal.read()]
    finally:
        journal.close()


def sizes(results: hop.Results) -> dict[tuple[float, int], int]:
    """Return the number of devices of each visit, by learning rate and version."""
    lr = {trial.id: trial.config["lr"] for trial in results.trials}
    finished = [message for message in messages(results) if isinstance(message, UnitFinished)]
    return {
        (lr[each.trial], each.version): 1 if each.placement is None else each.placement.shape.devices
        for each in finished
    }


def digests(results: hop.Results) -> list[Any]:
    trials = results.history.trials.items()
    return [(name, version, saved.digest) for name, trial in trials for version, saved in trial.saved.items()]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[TeamShape]:
    """Trial runs have made-up rates, in which the slow trial takes twice as long, and teams take no time to form."""
    tried: list[TeamShape] = []

    def run_trials(experiment: Any, place: Any, wanted: Any, tell: Any, data: Any, **how: Any) -> Iterator[TrialRun]:
        assert how == {"every": True}
        tried.extend(wanted)
        for shape in wanted:
            for config in experiment.search.examples(64):
                rate = (1.0 if config["lr"] == SLOW else 2.0) * (1.9 if shape.devices == 2 else 1.0)
                yield TrialRun(config, shape, rate)

    monkeypatch.setattr(teams, "run_trials", run_trials)
    return tried


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_killed_run_has_the_bits_of_one_that_was_not(made_up: list[TeamShape]) -> None:
    calm = experiment("calm", stop=[StopsQuick()]).fit(quiet=True)
    assert made_up == [SINGLE, TeamShape("ddp", 2)]
    found = sizes(calm)
    assert [found[SLOW, version] for version in range(1, 9)] == [2, 2, 3, 3, 3, 3, 3, 3], "all after one was stopped"
    assert [found[QUICK, version] for version in (1, 2)] == [1, 1]
    assert verify(calm.folder).ok
    assert {trial.verdict for trial in replay(calm).trials} == {"equal"}, "as when trained alone, on as many devices"
    with pytest.raises(KeyboardInterrupt):
        experiment("killed", stop=[StopsQuick()], backend=Halts(5)).fit(quiet=True)
    again = experiment("killed", stop=[StopsQuick()]).fit(quiet=True)
    assert sum(isinstance(message, RunStarted) for message in messages(again)) == 2
    assert sizes(again) == found
    assert digests(again) == digests(calm)
    assert len(made_up) == 4, "the run folder keeps trial runs"


@pytest.mark.slow
@pytest.mark.usefixtures("made_up", "warm_compiler")
def test_fewer_devices_than_trials_and_then_more() -> None:
    rates = (SLOW, QUICK, 0.03)
    results = experiment("few", rates, epochs=3, workers=2, stop=[StopsQuick()]).fit(quiet=True)
    found = sizes(results)
    assert {found[lr, 1] for lr in rates} == {1}
    assert [found[SLOW, version] for version in (1, 3, 6)] == [1, 2, 2]
    assert next(message.teams for message in messages(results) if isinstance(message, DevicesAllocated)) == (1, 1)
    assert verify(results.folder).ok
    assert {trial.verdict for trial in replay(results).trials} == {"equal"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"backend": "inline"}, "backend='inline' has only this process", id="inline"),
        pytest.param({"workers": 1}, "there is only one", id="one device"),
        pytest.param(
            {"run_options": hop.RunOptions(policy="fleet", deterministic=True)}, "no timing may change", id="rounds"
        ),
    ],
)
def test_refused_before_anything_starts(options: dict[str, Any], said: str, own_home: Path) -> None:
    refused = experiment("refused", **options)
    with pytest.raises(UsageError) as found:
        refused.fit(quiet=True)
    assert str(found.value).startswith("policy='fleet', parallelism='auto': must form teams, but ")
    assert said in str(found.value) and "use parallelism='single'" in str(found.value)
    assert not refused.folder.path.exists()


def test_a_task_that_trains_by_itself_is_refused() -> None:
    class Own(DoubleNet):
        def train(self, *given: Any) -> Any:
            raise NotImplementedError

    rows = {"x": np.zeros((64, 1)), "y": np.zeros(64)}
    with pytest.raises(UsageError, match="must form teams, but"):
        hop.Experiment(
            Own(),
            train=rows,
            space={"lr": 0.1},
            search=hop.Grid(max_epochs=1),
            workers=2,
            parallelism="auto",
            run_options=hop.RunOptions(policy="fleet"),
        ).fit(quiet=True)
