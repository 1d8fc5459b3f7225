"""Real runs whose teams form, grow and dissolve while others train, killed and resumed."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.backends.local.backend import Local
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import Event, FormTeams, RunStarted, UnitFinished, WorkerJoined, WorkerRetired
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.runs.verify import verify
from hopfleet.store.local import open_journal
from tests.helpers.sample_tasks import DoubleNet

SCALING = Scaling("ddp", Rates("ddp", (10.0, 17.0)), most=2)


class Together(Local):
    """Reports its workers when three are ready; leaves its run without a word, as if killed, after some units."""

    def __init__(self, units: int = 1_000_000) -> None:
        super().__init__()
        self._units = units
        self._held: list[Event] = []
        self._ready = False

    def receive(self, timeout: float) -> list[Event]:
        self._held += super().receive(timeout)
        self._ready = self._ready or sum(isinstance(event, WorkerJoined) for event in self._held) == 3
        events, self._held = (self._held, []) if self._ready else ([], self._held)
        self._units -= sum(isinstance(event, UnitFinished) for event in events)
        if self._units <= 0:
            for handle in list(self._workers.values()):
                for process in handle.team:
                    os.kill(process.pid, signal.SIGKILL)
            raise KeyboardInterrupt
        return events


def experiment(name: str, **options: Any) -> hop.Experiment:
    x = np.random.default_rng(0).normal(size=(200, 8))
    return hop.Experiment(
        DoubleNet(),
        train={"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2},
        space={"lr": hop.grid_search([0.01, 0.02])},
        search=hop.Grid(max_epochs=6),
        metric="train_loss",
        name=name,
        partitions=4,
        batch_size=16,
        parallelism="auto",
        run_options=hop.RunOptions(order="fixed"),
        **options,
    )


def messages(results: hop.Results) -> list[Any]:
    journal = open_journal(results.folder)
    try:
        return [message for _, _, message in journal.read()]
    finally:
        journal.close()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_team_forms_while_another_trial_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = TeamChoice((SINGLE,), "as the test says", 3, SCALING)
    monkeypatch.setattr("hopfleet.experiment.running.find_teams", lambda *given, **options: choice)
    with pytest.raises(KeyboardInterrupt):
        experiment("killed", backend=Together(16)).fit(quiet=True)
    results = experiment("killed", backend=Together()).fit(quiet=True)
    log = messages(results)
    assert sum(isinstance(message, RunStarted) for message in log) == 2
    first = next(number for number, message in enumerate(log) if isinstance(message, FormTeams))
    assert log[first].shapes == (TeamShape("ddp", 2),)
    retired = [message.worker for message in log[:first] if isinstance(message, WorkerRetired) and message.for_teams]
    assert len(retired) == 2, "two workers make room, and the third one stays"
    begun = {message.worker for message in log[:first] if isinstance(message, WorkerJoined)}
    (stayed,) = begun - set(retired)
    after = [message for message in log[first:] if isinstance(message, UnitFinished)]
    assert stayed in {message.worker for message in after}
    shapes = {SINGLE if message.placement is None else message.placement.shape for message in after}
    assert shapes == {SINGLE, TeamShape("ddp", 2)}
    assert verify(results.folder).ok
    assert {trial.verdict for trial in replay(results).trials} == {"equal"}, "each visit on as many devices"
