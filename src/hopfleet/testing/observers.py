"""The conformance suite of callbacks. Derive ``CallbackSuite`` in a test file and override ``make``:

    class TestMyTracker(CallbackSuite):
        def make(self):
            return MyTracker()

The suite runs whole experiments in virtual time, with the controller of real experiments: trials that fail or end in
NaN, workers that are lost, requests, trials that are deleted, and runs that continue in another process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.extend import Callback, ExperimentInfo, Observer, Search
from hopfleet.extend import messages as m
from hopfleet.runtime.callbacks import HOOKS, CallbackObserver, overrides
from hopfleet.search.pbt import PBT
from hopfleet.search.random import Random
from hopfleet.support.files import temporary_folder
from hopfleet.support.logging import messages
from hopfleet.testing.virtual import Run, VirtualExperiment

EXPERIMENTS = 16
"""Experiments for each test of the suite."""

CHEAP_SECONDS = 0.01
"""Most seconds of processor time that a hook may take on average."""

SEARCHES: tuple[Callable[[], Search], ...] = (
    lambda: Random(trials=6, max_epochs=3),
    lambda: PBT(population=4, max_epochs=4),
)


class CallbackSuite:
    """The tests. ``experiments`` and ``cheap_seconds`` may be changed for callbacks that do much."""

    experiments = EXPERIMENTS
    cheap_seconds = CHEAP_SECONDS

    def make(self) -> Callback:
        raise AssertionError("override make()")

    def test_hooks_raise_nothing(self) -> None:
        for seed in range(self.experiments):
            with _raised() as errors:
                self._run(VirtualExperiment.made(seed, troubles=seed % 7), SEARCHES[seed % len(SEARCHES)])
            assert not errors, errors[0]

    def test_experiments_are_the_same_without_the_callback(self) -> None:
        for seed in range(self.experiments // 2):
            setting, search = VirtualExperiment.made(seed, troubles=4), SEARCHES[seed % len(SEARCHES)]
            without = self._run(setting, search, Callback).journal()
            assert self._run(setting, search).journal() == without, f"another experiment with seed {seed}"

    def test_hooks_are_cheap(self) -> None:
        timed = _Timed(self.make())
        self._run(VirtualExperiment(workers=4, partitions=4), SEARCHES[0], lambda: timed)
        mean = timed.seconds / max(1, timed.calls)
        assert mean <= self.cheap_seconds, f"{mean:.3g} seconds per call: hand longer work to a thread"

    def _run(
        self, setting: VirtualExperiment, search: Callable[[], Search], make: Callable[[], Callback] | None = None
    ) -> _ObservedRun:
        with temporary_folder() as folder:
            run = _ObservedRun(_Searched(search), setting, Path(folder), make or self.make)
            run.go()
            run.end()
        return run


class _Searched:
    """Experiments with one search."""

    def __init__(self, search: Callable[[], Search]) -> None:
        self._search = search
        self.space: spaces.Space = {"lr": spaces.loguniform(1e-4, 1e-1), "net": {"width": spaces.randint(1, 9)}}

    def make(self) -> Search:
        return self._search()


class _ObservedRun(Run):
    """An experiment with the callback under test. A run that continues has a new callback, as in a new process."""

    def __init__(
        self, suite: _Searched, setting: VirtualExperiment, folder: Path, make: Callable[[], Callback]
    ) -> None:
        self._folder, self._make = folder, make
        self._observer: CallbackObserver | None = None
        self._trained_by: dict[str, str] = {}
        super().__init__(suite, setting)

    def _observers(self) -> Sequence[Observer]:
        self.end()
        goal = self.setting.goal
        info = ExperimentInfo("suite", self._folder, goal.metric, goal.mode, resumed=bool(self.messages))
        self._observer = CallbackObserver([self._make()], info).__enter__()
        for message in self.messages:
            self._observer.recall(0.0, message)
        return [self._observer]

    def _take(self, event: m.Event) -> None:
        if isinstance(event, m.UnitFinished) and event.unit.trains:  # simulated workers do not tell of hops
            before = self._trained_by.get(event.trial, event.worker)
            self._trained_by[event.trial] = event.worker
            event = dataclasses.replace(event, hopped=before != event.worker)
        super()._take(event)

    def end(self) -> None:
        """End the run of the current callback."""
        if self._observer is not None:
            self._observer.__exit__(None, None, None)
        self._observer = None


class _Timed(Callback):
    """The callback under test, with a clock around the hooks that it overrides."""

    def __init__(self, callback: Callback) -> None:
        self.calls, self.seconds = 0, 0.0
        for hook in HOOKS:
            if overrides(callback, hook):
                setattr(self, hook, self._timed(getattr(callback, hook)))

    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began = time.process_time()
            call(*arguments)
            self.seconds += time.process_time() - began
            self.calls += 1

        return timed


class _Errors(logging.Handler):
    """The errors that were logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@contextlib.contextmanager
def _raised() -> Iterator[list[str]]:
    """Yield the list of errors that hooks raise."""
    handler, logger = _Errors(), messages()
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
