"""The driver: the order of journal, effects and observers, refused events, and the table of effects."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, get_args

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.placement import TeamShape
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.history import History
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import Simulated

START = [m.RunStarted("test")]
REF = VersionRef("t0001", 1, 7)


def controller(trials: int = 3) -> Controller:
    search = Random(trials, 2)
    search.setup({"x": 1}, seed=0, goal=Goal("loss", "min"))
    return Controller(search, POLICIES["longest-remaining"](), partitions=2, valid_partitions=1)


class Script:
    """A controller that says what it is told to say, and keeps one trial."""

    def __init__(self, *follow: m.Message, refused: Iterable[m.Event] = ()) -> None:
        self.follow, self.refused, self.finished = list(follow), list(refused), False
        self.trial = Trial("t0001", 0, {}, 0, 1)

    @property
    def schedule(self) -> Script:
        return self

    def find(self, trial: str) -> Script | None:
        return self if trial == self.trial.id else None

    def take(self, events: Iterable[m.Event], now: float) -> list[m.Message]:
        return [*(event for event in events if event not in self.refused), *self.follow]


class Recording(Observer):
    """Notes all that it hears in a common log."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def update(self, time: float, message: m.Message) -> None:
        self.log.append((self.name, message))


class Calls:
    """A backend that notes every call."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def now(self) -> float:
        return 5.0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.log.append((name, *arguments))


def test_journaled_before_acted_before_observed() -> None:
    log: list[Any] = []
    save, release = m.SaveVersion("w1", REF, True), m.ReleaseWorker("w2")
    script = Script(save, release)
    observers = [Recording(log, "first"), Recording(log, "second")]
    driver = Driver(script, Calls(log), observers, journal=lambda now, messages: log.append(("journal", now, messages)))
    driver.step(START)
    every = [*START, save, release]
    assert log[:3] == [("journal", 5.0, every), ("send", save, script.trial), ("release", "w2")]
    assert log[3:] == [(name, message) for message in every for name in ("first", "second")]


COMMANDS = {
    m.RunUnit: (m.RunUnit("w1", Unit("t0001", 1, 0), 1, REF), "send"),
    m.SaveVersion: (m.SaveVersion("w1", REF, True), "send"),
    m.CopyVersion: (m.CopyVersion(REF, REF), ""),
    m.StopUnit: (m.StopUnit("w1", "t0001", 1), "give_up"),
    m.AddWorkers: (m.AddWorkers(3), "add"),
    m.FormTeams: (m.FormTeams((TeamShape("ddp", 2),)), ""),
    m.ReleaseWorker: (m.ReleaseWorker("w1"), "release"),
    m.PlacePartition: (m.PlacePartition("w1", 1), "place"),
    m.DropVersion: (m.DropVersion(REF), ""),
    m.Finish: (m.Finish(True), ""),
}


def test_the_worker_of_an_overdue_unit_is_ended_at_once() -> None:
    log: list[Any] = []
    Driver(Script(), Calls(log)).follow([m.StopUnit("w1", "t0001", 1, overdue=True)])
    assert log == [("stop", "w1")]


def test_partitions_of_either_data_set_are_placed() -> None:
    placed: list[tuple[Any, ...]] = []

    class Places(Calls):
        def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
            placed.append((worker, partition, valid))

    Driver(Script(), Places([])).follow([m.PlacePartition("w1", 3), m.PlacePartition("w2", 0, valid=True)])
    assert placed == [("w1", 3, False), ("w2", 0, True)]


@pytest.mark.parametrize("kind", get_args(m.Command))
def test_every_command_has_its_effect(kind: type[Any]) -> None:
    command, call = COMMANDS[kind]
    log: list[Any] = []
    Driver(Script(), Calls(log)).follow([command])
    assert [entry[0] for entry in log] == ([call] if call else [])
    replaced: list[Any] = []
    Driver(Script(), Calls(log), effects={kind: replaced.append}).follow([command])
    assert replaced == [command] and len(log) == bool(call), "an effect of one's own replaces that of the backend"


def test_refused_events_are_neither_journaled_nor_observed() -> None:
    log: list[Any] = []
    late, good = m.WorkerLost("w9", "late"), m.WorkerJoined("w1")
    refused: list[m.Event] = []
    driver = Driver(Script(refused=[late]), Calls([]), [Recording(log, "observer")], refused=refused.append)
    driver.step([late, good])
    assert refused == [late] and log == [("observer", good)]


def test_nothing_happens_without_messages() -> None:
    log: list[Any] = []
    Driver(Script(), Calls(log), [Recording(log, "observer")], journal=lambda *written: log.append(written)).step([])
    assert log == []


def test_a_whole_experiment() -> None:
    backend, written = Simulated(), list[m.Message]()
    history = History(metric="loss", mode="min", partitions=2, name="test")
    driver = Driver(controller(), backend, [history], journal=lambda now, messages: written.extend(messages))
    backend.start(None, 2)
    assert driver.run(START) is True
    assert written[-1] == m.Finish(complete=True) and history.finished and len(history.spans) == 3 * 2 * 3


class Polled(Simulated):
    """Notes how long it may wait for events."""

    waits: set[float]

    def receive(self, timeout: float) -> list[m.Event]:
        self.waits = {*getattr(self, "waits", ()), timeout}
        return super().receive(timeout)


def test_simulated_time_takes_no_time() -> None:
    backend = Polled()
    backend.start(None, 1)
    assert Driver(controller(), backend).run(START) is True and backend.waits == {0.0}


def test_a_run_without_workers_ends_when_no_event_is_left() -> None:
    assert Driver(controller(), Simulated()).run(START) is False


def test_the_driver_adds_microseconds() -> None:
    messages = [m.WorkerJoined(f"w{number}") for number in range(20_000)]
    driver = Driver(Script(), Calls([]), [Observer()], journal=lambda now, messages: None)
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        driver.follow(messages)
        best = min(best, time.process_time() - began)
    assert best / len(messages) < 5e-6
