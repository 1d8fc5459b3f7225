"""A run may be killed at any time; calling fit() again ends with the bits of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.domain.messages import Message, RunStarted, TrialRolledBack, WorkerLost
from hopfleet.errors import ExperimentExists, Interrupted
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from tests.helpers import warm
from tests.helpers.killable import experiment
from tests.helpers.killing import SCRIPT, ended, journaled, run_and_signal
from tests.helpers.marks import long
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.processes import environment
from tests.helpers.states import assert_same_state


def messages(home: Path) -> list[Message]:
    with contextlib.closing(Journal(home / "killed" / "journal.sqlite")) as journal:
        return [message for _, _, message in journal.read()]


def processes_of(home: Path) -> list[int]:
    """Return the ids of live processes that have files in this home folder open, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(str(link.readlink()).startswith(str(home)) for link in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
    return sorted(found)


def workers_of(home: Path, script: int) -> list[int]:
    """Return the ids of worker processes, oldest first: children of the fork server."""
    found = [pid for pid in processes_of(home) if pid != script]
    with contextlib.suppress(OSError):
        parents = {
            pid: int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            for pid in found
        }
        return [pid for pid in found if parents[pid] in parents]
    return []


def assert_undisturbed_bits(home: Path) -> None:
    results = hop.load("killed")
    assert results.finished
    validate_history(messages(home), partitions=4)
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED
        model, optimizer, schedule = train_in_sequence(
            results.find_task(),
            home / "killed" / "data" / "train",
            config=trial.config,
            trial_seed=trial.seed,
            seed=5,
            visits=trial.visits,
            batch_size=8,
        )
        assert_same_state(trial.last_checkpoint, model, optimizer, schedule)


@pytest.mark.slow  # make test runs a like attack of tests/chaos
@pytest.mark.usefixtures("warm_compiler")
@pytest.mark.parametrize(("backend", "workers"), [("local", "2"), pytest.param("inline", "2", marks=long)])
def test_killed_again_and_again(own_home: Path, backend: str, workers: str) -> None:
    for after in (40, 150):
        assert run_and_signal(own_home, [backend, workers], after, signal.SIGKILL) == -signal.SIGKILL
    experiment(backend, 3).fit(quiet=True)
    assert sum(isinstance(message, RunStarted) for message in messages(own_home)) >= 3
    assert_undisturbed_bits(own_home)


@pytest.mark.slow
@pytest.mark.usefixtures("cold")
def test_killed_workers_do_not_outlive_their_controller(own_home: Path) -> None:
    run_and_signal(own_home, ["local", "2"], 40, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes_of(own_home) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert processes_of(own_home) == []


def signal_a_worker(home: Path, after: int, *steps: float) -> None:
    """Run the script to its end; a worker gets signals when ``after`` messages are journaled. A float is a pause."""
    process = warm.Popen([*SCRIPT, "local", "2"], env=environment())
    try:
        while not ended(process) and journaled(home) < after:
            pass
        worker = workers_of(home, process.pid)[0]
        for step in steps:
            if isinstance(step, float):
                threading.Event().wait(step)
            else:
                os.kill(worker, step)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("after", "steps", "reason"),
    [
        (40, (signal.SIGKILL,), "killed by SIGKILL"),
        pytest.param(90, (signal.SIGSTOP,), "stopped (SIGSTOP)", marks=pytest.mark.slow),
        pytest.param(40, (signal.SIGSTOP, 0.5, signal.SIGCONT), "", marks=pytest.mark.slow),
    ],
)
def test_a_disturbed_worker_changes_no_bits(own_home: Path, after: int, steps: tuple[float, ...], reason: str) -> None:
    signal_a_worker(own_home, after, *steps)
    lost = [message.reason for message in messages(own_home) if isinstance(message, WorkerLost)]
    assert len(lost) == bool(reason)
    assert all(reason in words for words in lost)
    assert_undisturbed_bits(own_home)


@pytest.mark.slow
def test_lost_versions_are_trained_again_in_the_same_order(own_home: Path) -> None:
    """The machine went down: shared memory is empty, and a durable file was damaged."""
    run_and_signal(own_home, ["local", "2"], 150, signal.SIGKILL)
    before = {trial.id: trial.visits for trial in hop.load("killed").trials}
    from hopfleet.store.versions.local import Versions

    checkpoints = own_home / "killed" / "checkpoints"
    Versions(checkpoints).release()
    damaged = sorted(checkpoints.glob("*/v*.safetensors"))[:2]
    damaged[0].write_bytes(b"not a checkpoint")
    damaged[1].unlink()
    experiment("local", 2).fit(quiet=True)
    assert any(isinstance(message, TrialRolledBack) for message in messages(own_home))
    for trial in hop.load("killed").trials:
        flat = [partition for epoch in before[trial.id] for partition in epoch]
        assert [partition for epoch in trial.visits for partition in epoch][: len(flat)] == flat
    assert_undisturbed_bits(own_home)


@pytest.mark.slow
def test_first_interrupt_leaves_a_resumable_run(own_home: Path) -> None:
    status = run_and_signal(own_home, ["local", "2"], 60, signal.SIGINT)
    assert status != 0
    interrupted = hop.load("killed")
    assert interrupted.history.finished is False
    assert all(trial.state is not hop.TrialState.FAILED for trial in interrupted.trials)
    experiment("local", 2).fit(quiet=True)
    assert not any(isinstance(message, TrialRolledBack) for message in messages(own_home)), (
        "a drained run loses nothing"
    )
    assert_undisturbed_bits(own_home)


@pytest.mark.slow
def test_interrupt_in_this_process(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    asked = experiment("inline", 1)
    monkeypatch.setattr("hopfleet.runtime.loop.Loop.run", _interrupted(hop.Experiment))
    with pytest.raises(Interrupted, match="hopfleet resume killed"):
        asked.fit(quiet=True)
    monkeypatch.undo()
    monkeypatch.setenv("HOPFLEET_HOME", str(own_home))
    assert asked.fit(quiet=True).finished


def _interrupted(_: object) -> object:
    from hopfleet.runtime.loop import Loop

    run = Loop.run

    def drained(self: Loop, first: list) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return run(self, first)

    return drained


@pytest.mark.slow
def test_a_finished_or_different_experiment_is_not_touched(own_home: Path) -> None:
    run_and_signal(own_home, ["inline", "1"], 60, signal.SIGKILL)
    different = experiment("inline", 1, batch_size=16)
    with pytest.raises(AttributeError, match=r"write hop.Experiment\(..., batch_size=...\)"):
        different.batch_size = 32  # type: ignore[attr-defined]
    with pytest.raises(ExperimentExists, match=r"defined differently \(batch_size: 8 before, 16 now\).*overwrite=True"):
        different.fit(quiet=True)
    experiment("inline", 1).fit(quiet=True)
    with pytest.raises(ExperimentExists, match=r"is finished.*batch_size: 8 before, 16 now.*overwrite=True"):
        different.fit(quiet=True)


def test_two_controllers_on_one_experiment(own_home: Path) -> None:
    asked = experiment("inline", 1)
    with contextlib.closing(asked.folder.lock()), pytest.raises(ExperimentExists, match="is being run by process"):
        experiment("inline", 1).fit(quiet=True)
