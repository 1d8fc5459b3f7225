"""Replays: the same bits on other workers, and a difference where there is one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import Replay, replay
from hopfleet.domain.messages import (
    Event,
    Message,
    RunUnit,
    SaveFailed,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    VersionLost,
)
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import Interrupted, NotFound, UsageError
from hopfleet.runtime.loop import Loop
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from hopfleet.worker.worker import Worker
from tests.helpers.killable import experiment as killable
from tests.helpers.killing import run_and_signal
from tests.helpers.sample_tasks import Everything, Faulty, KillOnce, Plain, arrays
from tests.helpers.steered import Steered


def fitted(task: hop.TorchTask, space: Mapping[str, Any], **more: Any) -> hop.Results:
    return hop.Experiment(
        task,
        train=arrays(),
        valid=arrays(60, seed=1),
        space=dict(space),
        **{
            "search": hop.Grid(max_epochs=2),
            "seed": 7,
            "name": "first",
            "backend": "inline",
            "workers": 3,
            "batch_size": 8,
            "partitions": 4,
            **more,
        },
    ).fit(quiet=True)


def everything(**more: Any) -> hop.Results:
    space = {"optimizer": hop.grid_search(["sgd", "adam"]), "schedule": hop.grid_search(["step", "cosine"])}
    return fitted(Everything(), space, **more)


def plain(**more: Any) -> hop.Results:
    return fitted(Plain(), {"lr": hop.grid_search([0.1, 0.01])}, **more)


def verdicts(found: Replay) -> dict[str, str]:
    return {trial.trial: trial.verdict for trial in found.trials}


def messages(name: str) -> list[Message]:
    with contextlib.closing(Journal(hop.load(name).folder.journal_file)) as journal:
        return [message for _, _, message in journal.read()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "workers"),
    [
        ("local", 2),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("inline", 1), ("inline", 2), ("local", 1))),
    ],
)
def test_the_same_bits_on_any_workers(own_home: Path, backend: str, workers: int) -> None:
    results = everything()
    found = replay("first", backend=backend, workers=workers)
    assert verdicts(found) == dict.fromkeys(("t0001", "t0002", "t0003", "t0004"), "equal") and found.ok
    assert found.notes == []
    for trial in found.trials:
        assert trial.units == 8
        saved = results.history.trials[trial.trial].saved
        assert {each.version: each.found for each in trial.versions} == {v: s.digest for v, s in saved.items()}
        assert trial.versions[-1].version == 8 and "last" in trial.versions[-1].which
        assert sum("best" in each.which for each in trial.versions) == 1
    assert [path.name for path in own_home.iterdir()] == ["first"], "nothing is left behind"
    kept = results.folder.replays()
    assert {name: each["verdict"] for name, each in kept.items()} == verdicts(found)


@pytest.mark.slow
def test_trials_by_name() -> None:
    everything()
    found = replay(hop.load("first"), trials=["t0003", "t0003"], backend="inline")
    assert verdicts(found) == {"t0003": "equal"}
    with pytest.raises(NotFound, match="t0009"):
        replay("first", trials=["t0009"], backend="inline")


@pytest.mark.slow
def test_a_killed_and_resumed_experiment(own_home: Path) -> None:
    for after in (60, 150):
        run_and_signal(own_home, ["local", "2"], after, signal.SIGKILL)
    # Every version in shared memory is gone, so units are rolled back.
    Versions(own_home / "killed" / "checkpoints").release()
    killable("local", 2).fit(quiet=True)
    assert any(isinstance(message, TrialRolledBack) for message in messages("killed"))
    found = replay("killed", backend="local", workers=2)
    assert set(verdicts(found).values()) == {"equal"} and len(found.trials) == 6
    assert hop.load("killed").verify().faults == []


@pytest.mark.slow
def test_an_interrupted_experiment_is_replayed_as_far_as_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Loop._write

    def drained(self: Loop, now: float, messages: Sequence[Message]) -> None:
        write(self, now, messages)
        if any(isinstance(event, UnitFinished) and event.attempt >= 3 for event in messages):
            self.drain()

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_write", drained)
        with pytest.raises(Interrupted):
            plain()
    before = hop.load("first").history
    assert any(trial.units_done % 4 for trial in before.trials.values()), "some are in the middle of an epoch"
    found = replay("first", backend="inline")
    assert {trial.trial: trial.units for trial in found.trials} == {
        trial.id: trial.units_done for trial in before.trials.values()
    }
    assert set(verdicts(found).values()) == {"equal"}
    # The clone goes on from the middle of an epoch.
    half = next(trial.id for trial in before.trials.values() if trial.units_done % 4)
    hop.control("first").clone(half, {"lr": 0.3}, warm=True, epochs=3)
    plain()
    assert len(hop.load("first").history.trials["t0003"].inherited) % 4
    assert verdicts(replay("first", backend="inline")) == dict.fromkeys(("t0001", "t0002", "t0003"), "equal")


@pytest.mark.slow
def test_clones_start_with_their_parents_model(tmp_path: Path) -> None:
    space = {
        "optimizer": hop.grid_search(["sgd", "adam"]),
        "lr": 0.05,
        "schedule": "step",
        "width": 8,
        "hold": str(tmp_path / "none"),
    }
    results = fitted(Steered(), space)
    for parent, changes in (
        ("t0001", {"lr": 0.1}),
        ("t0003", {"optimizer": "adam"}),
        ("t0003", {"schedule": "lambda"}),
    ):
        hop.control("first").clone(parent, changes, warm=True, epochs=results[parent].begins + 4)
        results = fitted(Steered(), space)
    assert [trial.begins for trial in results.trials] == [0, 0, 2, 4, 4], "clones, and clones of clones"
    for workers in (1, 3):
        found = replay("first", backend="inline", workers=workers)
        assert set(verdicts(found).values()) == {"equal"} and len(found.trials) == 5
    found = replay("first", trials=["t0005"], backend="local", workers=2)
    assert verdicts(found) == {"t0005": "equal"}, "its ancestors are trained for it, and not told of"
    assert found.trials[0].units == 4 * (results["t0005"].history[-1]["epoch"] - 4)


@pytest.mark.slow
def test_population_based_training() -> None:
    results = fitted(Plain(), {"lr": hop.loguniform(1e-3, 1.0)}, search=hop.PBT(population=4, max_epochs=4, interval=1))
    found = replay("first", backend="inline", workers=3)
    assert set(verdicts(found).values()) == {"equal"} and len(found.trials) == len(results.trials)


@pytest.mark.slow
def test_stopped_trials_and_requests() -> None:
    def run() -> hop.Results:
        return fitted(Plain(), {"lr": hop.loguniform(1e-3, 1.0)}, search=hop.ASHA(trials=6, max_epochs=4, min_epochs=1))

    assert len({trial.state for trial in run().trials}) > 1
    control = hop.control("first")
    control.clone("t0001", {"lr": 0.5}, warm=True, epochs=6)
    control.add({"lr": 0.25})
    run()
    control.delete("t0001")
    assert run()["t0007"].parent == "t0001"
    found = replay("first", backend="inline", workers=2)
    told = verdicts(found)
    assert told.pop("t0001") == "skipped" and found.trials[0].reason == "was deleted"
    assert len(told) == 7 and set(told.values()) == {"equal"}, "the clone of a deleted trial too"


def test_failed_trials_are_skipped() -> None:
    space = {"fault": hop.grid_search(["none", "raise"])}
    fitted(Faulty(), space)
    found = replay("first", backend="inline")
    assert verdicts(found) == {"t0001": "equal", "t0002": "skipped"} and found.ok
    assert found.trials[1].reason == "failed"


class Steeper(Plain):
    """Another learning rate than it is told."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, _ = super().build(config)
        return model, torch.optim.SGD(model.parameters(), lr=2 * config["lr"])


def test_another_learning_rate_is_found() -> None:
    results = plain()
    found = replay("first", task=Steeper(), backend="inline")
    assert set(verdicts(found).values()) == {"different"} and not found.ok
    assert {each["verdict"] for each in results.folder.replays().values()} == {"different"}
    for trial in found.trials:
        assert not any(each.equal for each in trial.versions)
        # The first batch has the same loss, the unit has not.
        assert (
            trial.reason == f"the training loss differs from epoch 1, partition {results[trial.trial].visits[0][0]} on"
        )


def test_other_data_is_found(tmp_path: Path) -> None:
    plain()
    changed = arrays()
    changed["x"][17] += 1e-3
    data = hop.partition(changed, tmp_path / "changed", partitions=4, seed=7)
    found = replay("first", train=str(tmp_path / "changed"), backend="inline")
    assert set(verdicts(found).values()) == {"different"}
    assert found.notes == [f"{data.url}: is not the data of the experiment; its fingerprint differs"]
    other = hop.partition(changed, tmp_path / "other", partitions=3)
    with pytest.raises(UsageError, match="has 3 partitions; the experiment had 4"):
        replay("first", train=other, backend="inline")


def test_a_difference_that_no_loss_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    plain()
    execute = Worker.execute

    def astray(self: Worker, command: Any, trial: Any) -> None:
        execute(self, command, trial)
        if isinstance(command, RunUnit) and command.model.version == 7:
            with torch.no_grad():
                self._models._held[trial.id].session.model[1].bias += 1.0  # type: ignore[attr-defined]

    monkeypatch.setattr(Worker, "execute", astray)
    found = replay("first", backend="inline", trials=["t0001"])
    assert found.trials[0].verdict == "different"
    assert found.trials[0].reason == "the models differ, but no training loss does"


def test_a_trial_that_fails_now() -> None:
    plain()
    found = replay("first", task=Faulty(), backend="inline")
    assert set(verdicts(found).values()) == {"failed"} and not found.ok
    assert "fault" in found.trials[0].reason


@pytest.mark.slow
def test_a_parent_that_fails_now_takes_its_clones_along() -> None:
    plain()
    hop.control("first").clone("t0001", {"lr": 0.2}, warm=True, epochs=3)
    plain()
    found = replay("first", task=Faulty(), trials=["t0003"], backend="inline")
    assert verdicts(found) == {"t0003": "failed"}
    assert found.trials[0].reason.startswith("its parent t0001 could not be replayed: ")


@pytest.mark.slow
def test_a_worker_that_dies_meanwhile(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    fitted(KillOnce(), {"lr": hop.grid_search([0.1, 0.2]), "mark": str(mark)})
    mark.unlink()
    found = replay("first", backend="local", workers=2)
    assert mark.exists() and set(verdicts(found).values()) == {"equal"}


@pytest.mark.slow
def test_a_trial_that_keeps_killing_workers() -> None:
    class Deadly(Plain):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    plain()
    found = replay("first", task=Deadly(), backend="local", workers=1, trials=["t0002"])
    assert verdicts(found) == {"t0002": "failed"}
    assert found.trials[0].reason.startswith("its model was lost 3 times while it trained; the last time: ")


def test_only_backends_that_train() -> None:
    plain()
    with pytest.raises(UsageError, match="backend='simulated': must be one that trains: inline, local"):
        replay("first", backend="simulated")
    with pytest.raises(UsageError, match="workers=0"):
        replay("first", backend=hop.Inline(), workers=0)


class Unreliable(hop.Inline):
    """Reports once, instead of the first unit that it finishes, something else."""

    def __init__(self, *instead: Event) -> None:
        super().__init__()
        self.instead = instead
        self.killed: list[bool] = []

    def receive(self, timeout: float) -> list[Event]:
        events = super().receive(timeout)
        if self.instead and any(isinstance(event, UnitFinished) for event in events):
            events, self.instead = list(self.instead), ()
        return events

    def close(self, *, kill: bool = False) -> None:
        self.killed.append(kill)
        super().close(kill=kill)


def test_a_unit_that_fails_frees_its_worker() -> None:
    plain()
    event = UnitFailed("w1", Unit("t0001", 1, 0), 1, 0, 1, "no")
    found = replay("first", backend=Unreliable(event), workers=1)
    assert verdicts(found) == {"t0001": "failed", "t0002": "equal"}
    assert found.trials[0].reason == "no"


def test_a_trial_whose_model_is_lost_begins_anew() -> None:
    plain()
    event = VersionLost(VersionRef("t0001", 0, 0), "no such file", "w1")
    found = replay("first", backend=Unreliable(event), workers=1)
    assert verdicts(found) == {"t0001": "equal", "t0002": "equal"}


def test_a_state_that_cannot_be_saved() -> None:
    plain()
    late = UnitFinished("w1", Unit("t0001", 1, 0), 99, 1, 0, 1)
    mine = UnitFinished("w1", Unit("t0001", 1, hop.load("first")["t0001"].visits[0][0]), 1, 1, 0, 1)
    found = replay(
        "first", backend=Unreliable(late, SaveFailed(VersionRef("t0001", 1, 0), "an open file"), mine), workers=1
    )
    assert verdicts(found) == {"t0001": "failed", "t0002": "equal"}
    assert found.trials[0].reason == "an open file"


def test_an_interrupted_replay_leaves_nothing(own_home: Path) -> None:
    plain()
    backend = Unreliable()

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay("first", backend=backend, tell=interrupt)
    assert backend.killed == [True]
    assert [path.name for path in own_home.iterdir()] == ["first"]


def test_the_old_home_of_replay_still_works() -> None:
    with pytest.warns(
        FutureWarning, match=r"hopfleet\.replay\.replay is deprecated.*use hopfleet\.clients\.replay\.replay"
    ):
        from hopfleet.replay import replay as old
    assert old is replay
    with pytest.raises(ImportError, match="nonsense"):
        from hopfleet.replay import nonsense  # noqa: F401
