"""Control of an experiment that runs in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.messages import CopyVersion, Message
from hopfleet.errors import HopfleetError, UsageError
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from tests.helpers import steered, warm
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.processes import ROOT
from tests.helpers.states import assert_same_state
from tests.helpers.steered import SEED, Steered

SCRIPT = "import sys; from tests.helpers import steered; steered.run(sys.argv[1], int(sys.argv[2]))"
PATIENCE = 60.0


class Run:
    """An experiment in a process of its own, and its control. Units wait while the hold file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold_file = folder / "hold"
        self.process: subprocess.Popen[str] | None = None

    def start(self, epochs: int = 3, *, held: bool = True) -> None:
        if held:
            self.hold_file.touch()
        command = [sys.executable, "-c", SCRIPT, str(self.folder), str(epochs)]
        self.process = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.until(lambda results: len(self.busy()) == 2)

    def go(self) -> None:
        self.hold_file.unlink(missing_ok=True)

    @property
    def control(self) -> hop.Control:
        return hop.control("steered", who="ada@box", wait=PATIENCE)

    def until(self, holds: Callable[[hop.Results], Any]) -> hop.Results:
        """Wait for something to be true of the results."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(HopfleetError):
                results = hop.load("steered")
                if holds(results):
                    return results
            time.sleep(0.02)
        raise AssertionError(f"it did not come to pass: {hop.load('steered').trials}")

    def busy(self) -> list[str]:
        return [worker.name for worker in hop.load("steered").history.live_workers() if worker.doing]

    def end(self) -> hop.Results:
        """Let it go on to its end."""
        self.go()
        assert self.process is not None
        self.said, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self.said
        results = hop.load("steered")
        validate_history(messages(), partitions=4)
        return results

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def here(run: Run, epochs: int) -> hop.Experiment:
    """The same experiment in this process, which starts sooner."""
    return steered.experiment(run.folder, epochs=epochs, backend="inline")


def messages() -> list[Message]:
    with contextlib.closing(Journal(hop.load("steered").folder.journal_file)) as journal:
        return [message for _, _, message in journal.read()]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    run = Run(tmp_path)
    yield run
    run.go()
    run.kill()


def assert_trained_alone(trial: hop.TrialResult, folder: Path, **parent: Any) -> None:
    """The trial has the bits of plain training in the same order; ``parent`` gives its parent's config and visits."""
    config, visits = parent.get("config", trial.config), [*parent.get("visits", []), *trial.visits]
    model, optimizer, schedule = train_in_sequence(
        Steered(),
        folder / "train",
        config={**config, "hold": ""},
        trial_seed=parent.get("seed", trial.seed),
        seed=SEED,
        visits=visits,
        batch_size=16,
        before_epoch=parent.get("before_epoch"),
    )
    assert_same_state(trial.last_checkpoint, model, optimizer, schedule)


def change_rate(epoch: int, factor: float) -> Callable[[int, Any, Any], None]:
    """What a person does by hand in a plain loop: before an epoch, another learning rate."""

    def change(now: int, optimizer: Any, schedule: Any) -> None:
        if now != epoch:
            return
        for group in optimizer.param_groups:
            group["lr"] *= factor
            group["initial_lr"] *= factor
        schedule.base_lrs = [rate * factor for rate in schedule.base_lrs]

    return change


@pytest.mark.slow
def test_everything_that_can_be_asked_of_a_run(run: Run) -> None:
    run.start()
    control = run.control
    assert control.pause() == "running units end, no other starts"
    run.go()
    run.until(lambda results: not run.busy())
    assert hop.load("steered").history.held
    with pytest.raises(UsageError, match="paused already"):
        control.pause()
    assert control.proceed() == "the experiment goes on"
    results = run.until(lambda results: results.trials[0].history and results.trials[0].last_checkpoint)
    assert control.clone("t0001", {"lr": 0.025}, warm=True, epochs=6).startswith("t0003 goes on from epoch")
    assert control.clone(1, {"width": 16}, warm=True).startswith("t0004 goes on from epoch")
    config = {**results["t0001"].config, "optimizer": "adam", "lr": 0.01}
    assert control.add(config) == "t0005 is added"
    assert control.prioritise("t0005", 2) == "t0005 has level 2"
    with pytest.raises(UsageError, match=r"lr_rate is unknown, lr is missing"):
        control.add({**{k: v for k, v in config.items() if k != "lr"}, "lr_rate": 1})
    with pytest.raises(UsageError, match=r"no 'nonsense'; it has optimizer, lr"):
        control.clone(1, {"nonsense": 1})
    results = run.end()
    states = {trial.id: trial.state.value for trial in results.trials}
    assert states == {**dict.fromkeys(["t0001", "t0002", "t0003", "t0005"], "completed"), "t0004": "failed"}
    assert "does not fit this configuration; clone it cold" in (results["t0004"].error or "")
    assert (results["t0003"].parent, results["t0003"].origin) == ("t0001", "clone")
    assert (results["t0005"].parent, results["t0005"].origin) == (None, "person")
    assert results["t0003"].begins >= 1
    assert results["t0003"].history[0]["epoch"] == results["t0003"].begins + 1
    for name in ("t0001", "t0002", "t0005"):
        assert_trained_alone(results[name], run.folder)
    trail = control.requests()
    assert [request.number for request in trail] == list(range(1, 10))
    assert {request.who for request in trail} == {"ada@box"}
    assert [request.granted for request in trail].count(False) == 3
    assert "ada@box: running units end, no other starts" in run.said
    assert "ada@box: pause refused: the experiment is paused already" in run.said


@pytest.mark.slow
def test_workers_come_and_go(run: Run) -> None:
    run.start(epochs=4)
    control = run.control
    assert control.workers("+1") == "from 2 to 3 workers"
    run.until(lambda results: len(results.history.live_workers()) == 3)
    assert control.workers(1) == "from 3 to 1 workers"
    with pytest.raises(UsageError, match="there is 1 worker already"):
        control.workers(1)
    run.go()
    run.until(lambda results: len(results.history.live_workers()) == 1)
    assert control.workers(2) == "from 1 to 2 workers"
    results = run.end()
    assert len(results.history.live_workers()) == 2
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED
        assert_trained_alone(trial, run.folder)


@pytest.mark.slow
def test_stopping_now_replaces_the_worker(run: Run) -> None:
    run.start()
    lost = {name: worker.doing.trial for name, worker in hop.load("steered").history.workers.items() if worker.doing}
    assert run.control.stop("t0001", now=True) == "t0001 stops now"
    # All units still wait, and yet it has stopped.
    run.until(lambda results: results["t0001"].state is hop.TrialState.STOPPED)
    with pytest.raises(UsageError, match="there are 2 workers already"):
        run.control.workers(2)
    assert run.control.delete("t0002", now=True).startswith("t0002 will be deleted")
    results = run.until(lambda results: "t0002" not in results.history.trials)
    assert all(results.history.workers[name].lost for name in lost)
    results = run.end()
    assert [trial.id for trial in results.trials] == ["t0001"]
    assert not (results.folder.checkpoints / "t0002").exists()
    results.gantt()
    results.plot()


@pytest.mark.slow
def test_a_stop_that_takes_too_long_is_asked_for_again(run: Run) -> None:
    run.start()
    assert run.control.stop("t0001") == "t0001 stops after what it is doing"
    with pytest.raises(UsageError, match="about to end already"):
        run.control.stop("t0001")
    assert run.control.stop("t0001", now=True) == "t0001 stops now"
    run.until(lambda results: results["t0001"].state is hop.TrialState.STOPPED)
    run.end()


@pytest.mark.slow
def test_a_stopped_trial_goes_on_with_the_same_bits_in_the_same_run_and_in_the_next(run: Run) -> None:
    run.start(epochs=4)
    run.hold_file.write_text("6")
    run.until(lambda results: all(trial.history for trial in results.trials))
    for name in ("t0001", "t0002"):
        run.control.stop(name, now=name == "t0002")
    run.hold_file.unlink()
    run.until(lambda results: results["t0001"].state is hop.TrialState.STOPPED)
    with contextlib.suppress(UsageError):  # by then it may all be over: then it is for the next run
        run.control.resume("t0001")
    results = run.end()
    assert results["t0002"].state is hop.TrialState.STOPPED
    done = len(results["t0002"].visits)
    assert done < 4
    text = run.control.resume("t0002")
    assert text.endswith("is queued for the next run: hopfleet resume steered")
    results = here(run, 4).fit(quiet=True)
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED
        assert [sorted(epoch) for epoch in trial.visits] == [[0, 1, 2, 3]] * 4
        assert_trained_alone(trial, run.folder)
    assert here(run, 4).fit(quiet=True).finished


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "factor"), [(0.05, 1.0), (0.1, 2.0)])
def test_a_warm_clone_has_the_bits_of_a_plain_loop_that_changes_the_rate_there(
    run: Run, lr: float, factor: float
) -> None:
    here(run, 2).fit(quiet=True)
    run.control.clone("t0001", {"lr": lr}, warm=True)
    results = here(run, 2).fit(quiet=True)
    parent, clone = results["t0001"], results["t0003"]
    assert (clone.state, clone.begins, len(clone.visits)) == (hop.TrialState.COMPLETED, 2, 2)
    change = change_rate(3, factor)
    past = {"config": parent.config, "seed": parent.seed, "visits": parent.visits, "before_epoch": change}
    assert_trained_alone(clone, run.folder, **past)


@pytest.mark.slow
def test_killed_with_a_clone_under_way(run: Run) -> None:
    here(run, 2).fit(quiet=True)
    run.control.clone("t0001", {"lr": 0.1}, warm=True, epochs=4)
    run.control.clone("t0002", warm=True, epochs=4)
    run.start(epochs=2)
    assert run.process is not None
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert any(isinstance(message, CopyVersion) for message in messages())
    run.go()
    results = here(run, 2).fit(quiet=True)
    validate_history(messages(), partitions=4)
    assert [trial.state for trial in results.trials] == [hop.TrialState.COMPLETED] * 4
    parents = {"t0003": "t0001", "t0004": "t0002"}
    for name, origin in parents.items():
        parent, clone = results[origin], results[name]
        change = change_rate(3, 2.0 if name == "t0003" else 1.0)
        past = {"config": parent.config, "seed": parent.seed, "visits": parent.visits, "before_epoch": change}
        assert_trained_alone(clone, run.folder, **past)


@pytest.mark.slow
def test_a_finished_experiment_is_extended(run: Run) -> None:
    here(run, 1).fit(quiet=True)
    assert run.control.extend(epochs=1, space={"lr": hop.grid_search([0.05, 0.1, 0.2])}).endswith("resume steered")
    assert [request.granted for request in run.control.requests()] == [None]
    again = here(run, 1)
    results = again.fit(quiet=True)
    assert [trial.config["lr"] for trial in results.trials] == [0.05, 0.1, 0.2]
    for trial in results.trials:
        assert len(trial.visits) == 2
        assert_trained_alone(trial, run.folder)
    assert run.control.requests()[0].text == "all train until epoch 2; lr changed"
    # What was added lives in the journal: the definition is as it was, and the same object can go on as well.
    run.control.extend(epochs=1)
    assert [len(trial.visits) for trial in again.fit(quiet=True).trials] == [3, 3, 3]


@pytest.mark.slow
def test_the_number_of_workers_may_wait_for_the_next_run(run: Run) -> None:
    here(run, 1).fit(quiet=True)
    run.control.workers(1)
    run.control.extend(epochs=1)
    results = here(run, 1).fit(quiet=True)
    assert [request.text for request in run.control.requests()] == ["from 2 to 1 workers", "all train until epoch 2"]
    assert all(trial.state is hop.TrialState.COMPLETED for trial in results.trials)


def test_what_can_be_known_at_once_is_refused_at_once(run: Run) -> None:
    here(run, 1).fit(quiet=True)
    control = run.control
    for ask, text in REFUSED:
        with pytest.raises(UsageError, match=text):
            ask(control)
    assert control.requests() == []
    assert repr(control) == "<Control of steered by ada@box>"
    assert "@" in hop.control(control.folder.path).who


REFUSED: list[tuple[Callable[[hop.Control], str], str]] = [
    (lambda control: control.stop("t0009"), "'t0009': no such trial"),
    (lambda control: control.stop(1), "t0001 is completed: a trial that has ended cannot be stopped"),
    (lambda control: control.resume(1, epochs=1), "epochs=1: t0001 has already trained for 1 epochs"),
    (lambda control: control.delete("t9"), "'t9': no such trial"),
    (lambda control: control.clone(1, {"rate": 1}), "no 'rate'; it has optimizer, lr, schedule, width, hold"),
    (lambda control: control.clone(1, {"lr": object()}), "a configuration holds numbers"),
    (lambda control: control.add({"lr": 1}), "hold is missing, optimizer is missing"),
    (lambda control: control.extend(), "extend: nothing to add"),
    (lambda control: control.extend(space={"rate": 1}), "no 'rate'; it has optimizer, lr"),
    (lambda control: control.extend(space={"lr": hop.sample_from(len)}), "a function cannot be written as text"),
    (lambda control: control.extend(space={"lr": "uniform(1)"}), "uniform"),
    (lambda control: control.resume(1, epochs="x"), "epochs='x': must be an integer of at least 1"),  # type: ignore[arg-type]
    (lambda control: control.resume(1, epochs=object()), "must be an integer of at least 1"),  # type: ignore[arg-type]
    (lambda control: control.stop(1, now="x"), "now='x': must be True or False"),  # type: ignore[arg-type]
    (lambda control: control.clone(1, {"lr": float("nan")}), "lr=nan: must be a finite number"),
    (lambda control: control.clone(1, {"width": -3}), "width=-3: must be a number above 0"),
    (lambda control: control.clone(1, "x"), "changes='x': must be a dict"),  # type: ignore[arg-type]
    (lambda control: control.clone(1, warm=True, epochs=1), "epochs=1: t0001 has already trained for 1 epochs"),
    (lambda control: control.add("x"), "config='x': must be a dict"),  # type: ignore[arg-type]
    (lambda control: control.extend(space="x"), "space='x': must be a dict"),  # type: ignore[arg-type]
    (lambda control: control.extend(epochs="x"), "epochs='x': must be an integer of at least 0"),  # type: ignore[arg-type]
    (lambda control: control.prioritise(1, -1), "level=-1: must be an integer of at least 0"),
    (lambda control: control.pause(), "is not running"),
    (lambda control: control.proceed(), "is not running"),
    (lambda control: control.workers(0), "at least 1"),
    (lambda control: control.workers(-2), "at least 1"),
    (lambda control: control.workers("many"), "must be a number"),
]
