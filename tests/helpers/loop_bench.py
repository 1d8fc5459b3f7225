"""A loop on the simulated backend, with a real journal, and with spies all round it."""

from __future__ import annotations

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.space import uniform
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.loop import Loop
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import Simulated
from hopfleet.store.journal import Journal

START = [m.RunStarted("test")]


class SpyJournal(Journal):
    """Notes every append in a common log."""

    def __init__(self, path, log):
        super().__init__(path, writable=True)
        self.log = log

    def append(self, time, messages):
        super().append(time, messages)
        self.log += [("journal", message) for message in messages]


class SpyBackend(Simulated):
    def __init__(self, log, **options):
        super().__init__(**options)
        self.log = log

    def send(self, command, trial):
        assert trial.id == command.trial
        self.log.append(("act", command))
        super().send(command, trial)


class SpyVersions:
    def __init__(self, log):
        self.log = log

    def drop(self, ref):
        self.log.append(("act", m.DropVersion(ref)))

    def collect(self, trial):
        self.log.append(("collect", trial))

    def release(self):
        self.log.append(("act", "release"))


class SpyObserver(Observer):
    def __init__(self, log):
        self.log = log
        self.refreshed = 0

    def update(self, time, message):
        self.log.append(("show", message))

    def refresh(self):
        self.refreshed += 1

    def waiting(self, text):
        self.log.append(("wait", text))


class Bench:
    """A loop with spies all round it."""

    def __init__(self, path, *, trials=3, epochs=2, workers=2, backend=None, **options):
        self.log = []
        search = Random(trials, epochs)
        search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
        self.controller = Controller(search, POLICIES["longest-remaining"](), partitions=3, valid_partitions=1)
        self.journal = SpyJournal(path / "journal.sqlite", self.log)
        self.controller.restore(message for _, _, message in self.journal.read())
        self.backend = (backend or SpyBackend)(self.log, **options)
        self.backend.start(None, workers)
        self.observer = SpyObserver(self.log)
        self.versions = SpyVersions(self.log)
        self.loop = Loop(self.controller, self.backend, self.journal, self.versions, [self.observer])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.journal.close()

    def of(self, kind):
        return [what for who, what in self.log if who == kind]

    def journaled(self):
        return [message for _, _, message in self.journal.read()]


class HungOnce(SpyBackend):
    """The first unit never ends."""

    def send(self, command, trial):
        if isinstance(command, m.RunUnit) and command.attempt == 1:
            self.log.append(("act", command))
        else:
            super().send(command, trial)
