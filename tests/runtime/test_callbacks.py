"""Callbacks: which hooks are called, with what, and that nothing a callback does reaches the run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.errors import UsageError
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.callbacks import HOOKS, Callback, CallbackObserver, ExperimentInfo
from hopfleet.runtime.loop import Loop
from hopfleet.support.logging import messages
from hopfleet.testing.observers import CallbackSuite
from hopfleet.testing.tasks import CountingTask


class Recorder(hop.Callback):
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def of(self, hook: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == hook]

    def on_experiment_begin(self, experiment: Any) -> None:
        self.calls.append(("on_experiment_begin", experiment))

    def on_experiment_end(self, experiment: Any, complete: bool) -> None:
        self.calls.append(("on_experiment_end", experiment, complete))

    def on_trial_start(self, trial: Any) -> None:
        self.calls.append(("on_trial_start", trial))

    def on_trial_complete(self, trial: Any, reason: str) -> None:
        self.calls.append(("on_trial_complete", trial, reason))

    def on_trial_error(self, trial: Any, error: str) -> None:
        self.calls.append(("on_trial_error", trial, error))

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        self.calls.append(("on_epoch_end", trial, epoch, metrics))

    def on_unit_end(self, trial: Any, unit: Any) -> None:
        self.calls.append(("on_unit_end", trial, unit))

    def on_hop(self, trial: Any, hop: Any) -> None:
        self.calls.append(("on_hop", trial, hop))


class Meddler(hop.Callback):
    """Raises in every hook, after changing all that can be changed."""

    def on_trial_start(self, trial: Any) -> None:
        trial.config.clear()
        raise ValueError("started")

    def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
        metrics.clear()
        raise ValueError("epoch")

    def on_unit_end(self, trial: Any, unit: Any) -> None:
        np.random.seed(0)
        raise ValueError("unit")


def experiment(folder: Path, *callbacks: Any, **options: Any) -> hop.Experiment:
    data = {"x": np.arange(40.0)}
    defaults: dict[str, Any] = {"workers": 2, "backend": "inline", "search": hop.Random(trials=3, max_epochs=2)}
    return hop.Experiment(
        CountingTask(),
        train=data,
        space={"lr": hop.uniform(0, 1), "fault": options.pop("fault", "")},
        metric="train_units",
        mode="max",
        partitions=4,
        batch_size=5,
        callbacks=callbacks,
        run_options=hop.RunOptions(folder=folder),
        **defaults | options,
    )


def digests(results: hop.Results) -> list[Any]:
    return [
        (trial.config, [saved.digest for saved in results.history.trials[trial.id].saved.values()])
        for trial in results.trials
    ]


class TestRecorder(CallbackSuite):
    def make(self) -> Callback:
        return Recorder()


def test_all_hooks_of_a_run(tmp_path: Path) -> None:
    recorder = Recorder()
    results = experiment(tmp_path / "run", recorder).fit(quiet=True)
    ((info,),) = recorder.of("on_experiment_begin")
    assert info == ExperimentInfo(results.name, tmp_path / "run", "train_units", "max")
    assert recorder.of("on_experiment_end") == [(info, True)]
    assert recorder.calls[0][0] == "on_experiment_begin" and recorder.calls[-1][0] == "on_experiment_end"
    assert [trial.id for (trial,) in recorder.of("on_trial_start")] == [trial.id for trial in results.trials]
    assert [trial.config for (trial,) in recorder.of("on_trial_start")] == [trial.config for trial in results.trials]
    assert sorted(trial.id for trial, reason in recorder.of("on_trial_complete") if not reason) == [
        trial.id for trial in results.trials
    ]
    epochs = {(trial.id, epoch): metrics for trial, epoch, metrics in recorder.of("on_epoch_end")}
    assert len(epochs) == len(recorder.of("on_epoch_end")) == 3 * 2
    for trial in results.history.trials.values():
        assert [epochs[trial.id, row.epoch] for row in trial.epochs_done] == [row.metrics for row in trial.epochs_done]
    units = recorder.of("on_unit_end")
    assert Counter((trial.id, unit.epoch) for trial, unit in units) == Counter(dict.fromkeys(epochs, 4))
    assert all(unit.work == "train" and unit.seconds >= 0.0 and not unit.error for _, unit in units)
    hops = recorder.of("on_hop")
    assert len(hops) == results.history.hops > 0
    assert all(hop.source != hop.target for _, hop in hops)


def test_a_failed_trial_is_an_error(tmp_path: Path) -> None:
    recorder = Recorder()
    failing = experiment(tmp_path / "run", recorder, fault="train", search=hop.Random(trials=1, max_epochs=1))
    with pytest.raises(hop.AllTrialsFailed):
        failing.fit(quiet=True)
    ((trial, error),) = recorder.of("on_trial_error")
    assert trial.id == "t0001" and error and not recorder.of("on_trial_complete")
    ((_, unit),) = recorder.of("on_unit_end")
    assert unit.error


def test_a_callback_changes_nothing_and_its_errors_are_logged_once(tmp_path: Path, capsys: Any) -> None:
    alone = experiment(tmp_path / "alone").fit(quiet=True)
    recorder = Recorder()
    watched = experiment(tmp_path / "watched", Meddler(), recorder).fit(quiet=True)
    assert digests(watched) == digests(alone)
    assert len(recorder.of("on_epoch_end")) == 6, "the callback after the one that raises hears of everything"
    logged = capsys.readouterr().err
    for hook, word in (("on_trial_start", "started"), ("on_epoch_end", "epoch"), ("on_unit_end", "unit")):
        assert logged.count(f"callback Meddler: {hook} raised ValueError: {word}; the run continues") == 1


def test_a_run_that_continues_repeats_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, run = Recorder(), Recorder(), Loop.run

    class Drains(Observer):
        def __init__(self, loop: Any) -> None:
            self.loop = loop

        def update(self, time: float, message: m.Message) -> None:
            if isinstance(message, m.EpochEnded):
                self.loop.drain()

    def interrupted(loop: Any, events: Any) -> bool:
        loop._driver._updates.append(Drains(loop).update)
        return run(loop, events)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run", interrupted)
        with pytest.raises(hop.HopfleetError):
            experiment(tmp_path / "run", first, workers=1).fit(quiet=True)
    assert first.of("on_experiment_end")[0][1] is False
    results = experiment(tmp_path / "run", second, workers=1).fit(quiet=True)
    ((info,),) = second.of("on_experiment_begin")
    assert info.resumed and second.of("on_experiment_end") == [(info, True)]
    for hook, count in (("on_trial_start", 3), ("on_epoch_end", 6), ("on_trial_complete", 3)):
        calls = [(call[0].id, *call[1:2]) for call in [*first.of(hook), *second.of(hook)]]
        assert len(calls) == len(set(calls)) == count, hook
    assert all(trial.config == results[trial.id].config for trial, *_ in second.of("on_epoch_end"))


def test_an_epoch_that_was_rolled_back_ends_once() -> None:
    recorder = Recorder()
    observer = CallbackObserver([recorder], ExperimentInfo("x", Path(), "loss", "min"))
    ended = m.EpochEnded("t0001", 1, 2, {"loss": 1.0}, True)
    for message in (m.TrialAdded("t0001", 0, {}, 0, 2), ended, m.TrialRolledBack("t0001", 1), ended):
        observer.update(0.0, message)
    assert len(recorder.of("on_epoch_end")) == 1


def test_what_callbacks_hear_of_a_trial_and_its_warm_clone() -> None:
    recorder = Recorder()
    observer = CallbackObserver([recorder], ExperimentInfo("x", Path(), "loss", "min"))
    unit = Unit("t0001", 1, 0)
    story = [
        m.TrialAdded("t0001", 0, {"lr": 0.1}, 0, 2),
        m.UnitFinished("w1", unit, 1, 1, 10.0, 12.5),
        m.UnitFinished("w2", dataclasses.replace(unit, partition=1), 2, 2, 13.0, 14.0, hopped=True),
        m.TrialAdded("t0002", 1, {"lr": 0.2}, 0, 2, "clone", "t0001", visits=(0, 1)),
        m.TrialAdded("t0003", 2, {"lr": 0.3}, 0, 2, "clone", "t0001"),
        m.UnitFinished("w3", dataclasses.replace(unit, trial="t0002"), 3, 3, 15.0, 16.0, hopped=True),
        m.UnitFinished("w3", dataclasses.replace(unit, trial="t0003"), 4, 1, 16.0, 17.0, hopped=True),
        m.TrialResumed("t0001", 5),
        m.UnitStopped("w2", dataclasses.replace(unit, epoch=2), 5, 18.0, 18.5),
    ]
    for message in story:
        observer.update(0.0, message)
    hops = [(trial.id, hop.source, hop.target) for trial, hop in recorder.of("on_hop")]
    assert hops == [("t0001", "w1", "w2"), ("t0002", "w2", "w3"), ("t0003", "", "w3")]
    ended = recorder.of("on_unit_end")
    assert [unit.seconds for _, unit in ended] == [2.5, 1.0, 1.0, 1.0, 0.5]
    assert [trial.epochs for trial, _ in ended] == [2, 2, 2, 2, 5]
    assert [unit.error for _, unit in ended] == ["", "", "", "", "given up: the trial was stopped"]


def test_callbacks_hear_what_a_space_that_is_a_function_asked_for() -> None:
    recorder = Recorder()
    observer = CallbackObserver([recorder], ExperimentInfo("x", Path(), "loss", "min"))
    for number, chosen in enumerate(({}, {"depth": 3})):
        observer.update(0.0, m.TrialAdded(f"t{number}", number, {"width": 8}, 0, 1, chosen=chosen))
        observer.update(0.0, m.TrialEnded(f"t{number}", TrialState.COMPLETED, ""))
    assert [trial.chosen for trial, _ in recorder.of("on_trial_complete")] == [{"width": 8}, {"depth": 3}]


def test_a_run_that_ended_with_an_error_is_not_complete() -> None:
    recorder, info = Recorder(), ExperimentInfo("x", Path(), "loss", "min")
    with pytest.raises(ZeroDivisionError), CallbackObserver([recorder], info):
        raise ZeroDivisionError
    assert recorder.of("on_experiment_end") == [(info, False)]


def test_the_log_has_the_place_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    observer = CallbackObserver([Meddler()], ExperimentInfo("x", Path(), "loss", "min"))
    messages().addHandler(caplog.handler)
    try:
        for message in (m.TrialAdded("t0001", 0, {}, 0, 1), m.EpochEnded("t0001", 1, 1, {"loss": 1.0}, True)):
            observer.update(0.0, message)
    finally:
        messages().removeHandler(caplog.handler)
    assert 'raise ValueError("epoch")' in caplog.text


def test_without_hooks_there_is_nothing_to_call() -> None:
    info = ExperimentInfo("x", Path(), "loss", "min")
    assert not CallbackObserver([Callback()], info).hooked
    assert CallbackObserver([Callback(), Meddler()], info).hooked, "some hooks are enough"
    assert all(callable(getattr(Callback, hook)) for hook in HOOKS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [Recorder, print, 3])
def test_what_is_no_callback_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"must be an .*of a class derived from hop"):
        experiment(tmp_path, wrong)
    with pytest.raises(UsageError, match="callbacks='nothing': unknown; there are csv, jsonl, log, mlflow, otel, tens"):
        experiment(tmp_path, "nothing")
