"""Callbacks: users' code that hears of experiments, trials, epochs, units and hops.

Callbacks come out of the same list of observers as the live view. They run in the process of the run, between events.
Their arguments are frozen or copies, so a callback cannot change a trial.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hopfleet.domain.messages import (
    EpochEnded,
    Finish,
    Message,
    RunStarted,
    RunUnit,
    TrialAdded,
    TrialEnded,
    TrialResumed,
    UnitFailed,
    UnitFinished,
    UnitStopped,
)
from hopfleet.domain.trial import Config, TrialState
from hopfleet.errors import UsageError, describe
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.steps import Curves, LoggedSteps
from hopfleet.phrases import did_you_mean, listed, shown
from hopfleet.support import registry
from hopfleet.support.logging import messages


@dataclass(frozen=True, slots=True)
class ExperimentInfo:
    """An experiment, as callbacks see it."""

    name: str
    folder: Path  #: the run folder
    metric: str
    mode: str  #: "min" or "max"
    resumed: bool = False  #: whether the run continues an earlier one


@dataclass(frozen=True, slots=True)
class TrialInfo:
    """A trial, as callbacks see it."""

    id: str
    number: int
    config: Config
    epochs: int  #: planned
    origin: str = "search"  #: or "point", "clone", "person"
    parent: str = ""  #: the trial that this one was cloned from
    #: The values that a space that is a function asked for, by name; of other spaces, the configuration.
    chosen: Config = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """A unit that has ended, as callbacks see it. Times are seconds since the epoch."""

    epoch: int
    partition: int
    work: str  #: "train" or "evaluate"
    worker: str
    started: float
    ended: float
    error: str = ""  #: what the user's code raised, if the unit failed

    @property
    def seconds(self) -> float:
        return self.ended - self.started


@dataclass(frozen=True, slots=True)
class HopInfo:
    """A model that went from one worker to another to train there, as callbacks see it."""

    epoch: int
    partition: int
    source: str  #: the worker that trained the model before; empty if unknown
    target: str


class Callback:
    """A base class for callbacks: derive from it and override the hooks of interest.

    The run waits for a hook, so a hook must return within milliseconds; hand longer work to a thread. An exception is
    logged once for each hook and never ends the run. A run that continues does not repeat the calls of earlier runs.
    """

    def check(self) -> None:
        """Raise UsageError if the callback cannot do its work, e.g. because a server does not answer.

        ``fit`` calls it before anything is trained.
        """

    def on_experiment_begin(self, experiment: ExperimentInfo) -> None:
        """React to the start of a run, before its first unit."""

    def on_experiment_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        """React to the end of a run, also after an error. ``complete`` tells whether the search has ended."""

    def on_trial_start(self, trial: TrialInfo) -> None:
        """React to the start of a trial: its first unit was sent to a worker."""

    def on_trial_complete(self, trial: TrialInfo, reason: str) -> None:
        """React to the end of a trial. ``reason`` is empty, or tells why the trial was stopped early."""

    def on_trial_error(self, trial: TrialInfo, error: str) -> None:
        """React to a trial that has failed."""

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        """React to the end of an epoch, once: the trial has visited all partitions and was evaluated."""

    def on_steps_logged(self, trial: TrialInfo, epoch: int, curves: Curves) -> None:
        """React to the values of single steps that an epoch logged, once, before its ``on_epoch_end``.

        ``curves`` has for each name a list of steps, counted from the beginning of the trial, and a list of values.
        """

    def on_unit_end(self, trial: TrialInfo, unit: UnitInfo) -> None:
        """React to the end of a unit, also of a unit that failed."""

    def on_hop(self, trial: TrialInfo, hop: HopInfo) -> None:
        """React to a model that came from another worker, when its unit has ended and before ``on_unit_end``."""


HOOKS = (
    *("on_experiment_begin", "on_experiment_end", "on_trial_start", "on_trial_complete", "on_trial_error"),
    *("on_epoch_end", "on_steps_logged", "on_unit_end", "on_hop"),
)


def callbacks(
    given: Sequence[Callback | str], builtin: Mapping[str, Callable[[], Callback]] | None = None
) -> list[Callback]:
    """Return callbacks, given as objects or as names: those of ``builtin``, and those that packages have registered."""
    if isinstance(given, (str, Callback)):
        given = [given]
    found = [
        registry.find("observer", each, builtin or {}, argument="callbacks")() if isinstance(each, str) else each
        for each in given
    ]
    for each in found:
        if not isinstance(each, Callback):
            wanted = "an object" if not isinstance(each, type) else f"an instance, {each.__name__}(),"
            raise UsageError(
                f"callbacks={shown(each)}: must be {wanted} of a class derived from hop.Callback, or its name"
            )
        for name in dir(type(each)):
            if name.startswith("on_") and name not in HOOKS and callable(getattr(each, name)):
                raise UsageError(
                    f"callback {type(each).__name__}.{name}: there is no such hook, so it would never be called; "
                    f"{did_you_mean(name, HOOKS)}the hooks are {listed(name, HOOKS)}; rename a helper of your own"
                )
    return found


class CallbackObserver(Observer):
    """The observer that calls callbacks: a context manager around the run."""

    def __init__(self, callbacks: Sequence[Callback], experiment: ExperimentInfo) -> None:
        self._experiment = experiment
        self._complete = False
        self._silent = False  #: whether messages of earlier runs are being recalled
        self._hooks: dict[str, list[tuple[str, Callable[..., None]]]] = {
            name: [(type(each).__name__, getattr(each, name)) for each in callbacks if overrides(each, name)]
            for name in HOOKS
        }
        self._reported: set[tuple[str, str]] = set()  #: callbacks and hooks whose error was logged
        self._trials: dict[str, TrialInfo] = {}  #: also those that were deleted
        self._started: set[str] = set()
        self._epochs: dict[str, int] = {}  #: the last epoch reported of each trial
        self._workers: dict[str, str] = {}  #: the worker that trained each trial last
        self._definition: Mapping[str, Any] = {}
        self._logged: dict[str, LoggedSteps] = {}  #: values of single steps; empty if no callback wants them
        self._told: dict[str, int] = {}  #: the version up to which values of single steps were reported
        self._handlers: Mapping[type[Any], Callable[[Any], None]] = {
            RunStarted: self._start_run,
            TrialAdded: self._add,
            TrialResumed: self._resume,
            RunUnit: self._start,
            UnitFinished: self._finish_unit,
            UnitFailed: self._fail_unit,
            UnitStopped: self._stop_unit,
            EpochEnded: self._end_epoch,
            TrialEnded: self._end_trial,
            Finish: self._finish,
        }

    def __enter__(self) -> Self:
        self._call("on_experiment_begin", self._experiment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call("on_experiment_end", self._experiment, self._complete)

    def recall(self, time: float, message: Message) -> None:
        self._silent = True
        self.update(time, message)
        self._silent = False

    def update(self, time: float, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    @property
    def hooked(self) -> bool:
        """Whether any callback overrides a hook."""
        return any(self._hooks.values())

    def _call(self, hook: str, *arguments: Any) -> None:
        if self._silent:
            return
        for name, call in self._hooks[hook]:
            try:
                call(*arguments)
            except Exception as error:
                if (name, hook) not in self._reported:
                    self._reported.add((name, hook))
                    messages().error(
                        f"callback {name}: {hook} raised {describe(error)}; the run continues, and further errors of "
                        "this hook are not shown",
                        exc_info=True,
                    )

    # ------------------------------------------------------------------------------------------------ messages

    def _start_run(self, message: RunStarted) -> None:
        self._definition = message.definition or self._definition

    def _add(self, message: TrialAdded) -> None:
        self._trials[message.trial] = TrialInfo(
            *(message.trial, message.number, copy.deepcopy(message.config), message.epochs),
            *(message.origin, message.parent, copy.deepcopy(message.chosen or message.config)),
        )
        if self._hooks["on_steps_logged"]:
            self._logged[message.trial] = LoggedSteps(message.visits)
        if message.visits:  # the model comes from the parent's last worker
            self._workers[message.trial] = self._workers.get(message.parent, "")

    def _resume(self, message: TrialResumed) -> None:
        self._trials[message.trial] = dataclasses.replace(self._trials[message.trial], epochs=message.epochs)

    def _start(self, message: RunUnit) -> None:
        if message.trial not in self._started:
            self._started.add(message.trial)
            self._call("on_trial_start", self._trials[message.trial])

    def _finish_unit(self, message: UnitFinished) -> None:
        trial, unit = self._trials[message.trial], message.unit
        if unit.trains:
            source = self._workers.get(message.trial, "")
            self._workers[message.trial] = message.worker
            if message.trial in self._logged:
                self._logged[message.trial].add(message.version, unit.partition, message.logged)
            if message.hopped and self._hooks["on_hop"]:
                self._call("on_hop", trial, HopInfo(unit.epoch, unit.partition, source, message.worker))
        self._end_unit(message)

    def _fail_unit(self, message: UnitFailed) -> None:
        self._end_unit(message, message.error)

    def _stop_unit(self, message: UnitStopped) -> None:
        self._end_unit(message, "given up: the trial was stopped")

    def _end_unit(self, message: UnitFinished | UnitFailed | UnitStopped, error: str = "") -> None:
        if self._hooks["on_unit_end"]:
            unit, times = message.unit, (message.started, message.ended)
            info = UnitInfo(unit.epoch, unit.partition, unit.work.value, message.worker, *times, error)
            self._call("on_unit_end", self._trials[message.trial], info)

    def _end_epoch(self, message: EpochEnded) -> None:
        if message.epoch > self._epochs.get(message.trial, 0):  # an epoch that was rolled back ends again
            self._epochs[message.trial] = message.epoch
            self._tell_of_steps(message)
            self._call("on_epoch_end", self._trials[message.trial], message.epoch, dict(message.metrics))

    def _tell_of_steps(self, message: EpochEnded) -> None:
        if message.trial in self._logged:
            trial, told = self._trials[message.trial], self._told.get(message.trial, 0)
            self._told[message.trial] = message.version
            curves = self._logged[message.trial].curves(self._definition, trial.config, told, message.version)
            if curves:
                self._call("on_steps_logged", trial, message.epoch, curves)

    def _end_trial(self, message: TrialEnded) -> None:
        hook = "on_trial_error" if message.state is TrialState.FAILED else "on_trial_complete"
        self._call(hook, self._trials[message.trial], message.reason)

    def _finish(self, message: Finish) -> None:
        self._complete = not self._silent and message.complete


def overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)
