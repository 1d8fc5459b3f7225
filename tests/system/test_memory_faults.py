"""A device that runs out of memory: the unit begins once more, and the bits are those of an undisturbed run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.domain.messages import Message, TrialRolledBack, UnitFailed
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.sample_tasks import Everything, Starved, arrays
from tests.helpers.states import assert_same_state


def run(
    folder: Path, *, at: int, times: int, during: str = "train", backend: str = "inline", trials: int = 2
) -> hop.Results:
    """Run some trials on one worker that runs out of memory ``times`` times, from batch ``at`` of the run on.

    The check before the run has trained four batches of each trial and evaluated one.
    """
    for number in range(times):
        (folder / f"left-{number}").touch()
    hop.partition(arrays(), folder / "train", partitions=4, seed=3)
    space = {
        "optimizer": hop.grid_search(["sgd", "adam"][:trials]),
        "schedule": "cosine",
        "marks": str(folder),
        "at": at + (4 if during == "train" else 1) * trials,
        "during": during,
    }
    return hop.Experiment(
        Starved(),
        train=folder / "train",
        valid=arrays(60, seed=1),
        space=space,
        search=hop.Grid(max_epochs=2),
        metric="accuracy",
        mode="max",
        seed=5,
        name="starved",
        backend=backend,
        workers=1,
        batch_size=8,
        worker_options=hop.WorkerOptions(fuse="off"),
        run_options=hop.RunOptions(all_failed="return"),
    ).fit(quiet=True)


def journaled(results: hop.Results) -> list[Message]:
    with contextlib.closing(Journal(results.folder.journal_file)) as journal:
        return [message for _, _, message in journal.read()]


def assert_undisturbed_bits(folder: Path, results: hop.Results) -> None:
    assert not list(folder.glob("left-*"))
    validate_history(journaled(results), partitions=4)
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED, trial.error
        model, optimizer, schedule = train_in_sequence(
            Everything(),
            folder / "train",
            config=trial.config,
            trial_seed=trial.seed,
            seed=5,
            visits=trial.visits,
            batch_size=8,
        )
        assert_same_state(trial.last_checkpoint, model, optimizer, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_unit_begins_once_more(tmp_path: Path, backend: str) -> None:
    results = run(tmp_path, at=3, times=1, backend=backend)
    assert not any(isinstance(message, TrialRolledBack) for message in journaled(results))
    assert_undisturbed_bits(tmp_path, results)
    log = (results.folder.path / "logs" / "t0001.log").read_text()
    assert "the unit starts once more, on an emptied device" in log


def test_a_version_that_was_nowhere_else_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine is, the first version is not worth saving before the second.
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 99.0)
    results = run(tmp_path, at=11, times=1, trials=1)
    assert TrialRolledBack("t0001", 0) in journaled(results)
    assert_undisturbed_bits(tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize("at", [27, pytest.param(50, marks=pytest.mark.slow)])
def test_a_saved_version_is_loaded_again(tmp_path: Path, at: int) -> None:
    assert_undisturbed_bits(tmp_path, run(tmp_path, at=at, times=1))


@pytest.mark.slow
def test_an_evaluation_begins_once_more(tmp_path: Path) -> None:
    results = run(tmp_path, at=1, times=1, during="evaluate")
    assert not any(isinstance(message, TrialRolledBack) for message in journaled(results))
    assert_undisturbed_bits(tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "during"), [(3, "train"), (11, "train"), (1, "evaluate")])
def test_the_second_time_its_trial_fails_alone(tmp_path: Path, at: int, during: str) -> None:
    results = run(tmp_path, at=at, times=2, during=during)
    (failed,) = [message for message in journaled(results) if isinstance(message, UnitFailed)]
    assert failed.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert "use a smaller batch_size" in failed.error
    states = {trial.id: trial.state for trial in results.trials}
    assert states.pop(failed.trial) is hop.TrialState.FAILED
    assert set(states.values()) == {hop.TrialState.COMPLETED}


def test_a_lost_version_is_no_endless_excuse(tmp_path: Path) -> None:
    # The first time in unit 2, whose version is then lost; from there on in every unit, as long as it lasts.
    results = run(tmp_path, at=11, times=9, trials=1)
    assert results.trials[0].state is hop.TrialState.FAILED
    assert "fewer workers per GPU" in (results.trials[0].error or "")
    assert len(list(tmp_path.glob("left-*"))) == 6
