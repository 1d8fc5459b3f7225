"""A small simulator that writes the journal of a made-up experiment: realistic input for every view."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hopfleet.domain.messages import (
    EpochEnded,
    Finish,
    Message,
    RunStarted,
    RunUnit,
    TrialAdded,
    TrialEnded,
    TrialRolledBack,
    UnitFailed,
    UnitFinished,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.history import History

Records = list[tuple[float, Message]]


START = 1_700_000_000.0


@dataclass
class Model:
    """A trial as the simulator sees it."""

    id: str
    config: dict[str, Any]
    skill: float
    epoch: int = 1
    version: int = 0
    holder: str = ""
    busy: bool = False
    ended: bool = False
    best: float = -math.inf
    to_visit: list[int] = field(default_factory=list)
    to_evaluate: bool = False


class Simulator:
    """Lists units greedily: the free worker takes the trial that is furthest behind."""

    def __init__(self, *, trials: int, partitions: int, workers: int, epochs: int, seed: int, stop: float) -> None:
        self.random = random.Random(seed)
        self.partitions, self.epochs, self.stop = partitions, epochs, stop
        self.time = START
        self.records: Records = []
        self.running: list[tuple[float, str, Unit, float, bool]] = []
        self.models = {f"t{number:04d}": self.model(number) for number in range(trials)}
        self.free = [f"w{number}" for number in range(workers)]
        self.start_run()
        for number, model in enumerate(self.models.values()):
            self.write(TrialAdded(model.id, number, model.config, seed=number, epochs=epochs))

    def model(self, number: int) -> Model:
        rate = 10 ** self.random.uniform(-4, -1)
        config = {
            "lr": rate,
            "width": self.random.choice([64, 128, 256]),
            "optimizer": {"name": self.random.choice(["adam", "sgd"]), "momentum": 0.9},
        }
        skill = 0.97 - 0.12 * abs(math.log10(rate) + 2.4) + self.random.gauss(0, 0.01)
        return Model(f"t{number:04d}", config, skill, to_visit=list(range(self.partitions)))

    def write(self, message: Message) -> None:
        self.records.append((self.time, message))

    def start_run(self) -> None:
        self.write(RunStarted("0.1.0"))
        self.time += 0.4
        for worker in self.free:
            self.write(WorkerJoined(worker))

    def run(self, units: float = math.inf, fails: Sequence[tuple[str, int]] = ()) -> None:
        """Go on until ``units`` more units and evaluations are done, or nothing is left to do."""
        while units > 0:
            self.assign()
            if not self.running:
                return
            self.finish(fails)
            units -= 1

    def assign(self) -> None:
        waiting = sorted(
            (model for model in self.models.values() if not model.busy and not model.ended),
            key=lambda model: (model.version, model.id),
        )
        for model in waiting[: len(self.free)]:
            worker = model.holder if model.holder in self.free else self.free[0]
            self.free.remove(worker)
            partition = 0 if model.to_evaluate else self.random.choice(model.to_visit)
            work = Work.EVALUATE if model.to_evaluate else Work.TRAIN
            unit = Unit(model.id, model.epoch, partition, work)
            last = unit.trains and len(model.to_visit) == 1
            self.write(RunUnit(worker, unit, 1, VersionRef(model.id, model.version, None), last))
            hopped = bool(model.holder) and model.holder != worker
            started = self.time + (0.12 if hopped else 0.02)
            duration = (0.5 if model.to_evaluate else model.config["width"] / 100) * self.random.uniform(0.9, 1.1)
            heapq.heappush(self.running, (started + duration, worker, unit, started, hopped))
            model.busy = True

    def finish(self, fails: Sequence[tuple[str, int]]) -> None:
        self.time, worker, unit, started, hopped = heapq.heappop(self.running)
        model = self.models[unit.trial]
        model.busy, model.holder = False, worker
        self.free.append(worker)
        facts = (worker, unit, 1)
        if (unit.trial, unit.epoch) in fails:
            error = "RuntimeError: CUDA out of memory"
            self.write(UnitFailed(*facts, started, self.time, error, "Traceback ..."))
            self.end(model, TrialState.FAILED, error)
        elif unit.work is Work.EVALUATE:
            self.write(UnitFinished(*facts, model.version, started, self.time))
            self.end_epoch(model)
        else:
            model.version += 1
            self.write(UnitFinished(*facts, model.version, started, self.time, hopped))
            model.to_visit.remove(unit.partition)
            model.to_evaluate = not model.to_visit

    def end_epoch(self, model: Model) -> None:
        accuracy = model.skill * (1 - math.exp(-0.7 * model.epoch)) + self.random.gauss(0, 0.006)
        metrics = {"accuracy": accuracy, "loss": 2.4 * (1 - accuracy) + 0.05}
        self.write(EpochEnded(model.id, model.epoch, model.version, metrics, best=accuracy > model.best))
        self.write(VersionSaved(VersionRef(model.id, model.version, 0), True, "d", 1000))
        model.best = max(model.best, accuracy)
        model.epoch += 1
        model.to_visit, model.to_evaluate = list(range(self.partitions)), False
        if model.epoch > self.epochs:
            self.end(model, TrialState.COMPLETED)
        elif self.random.random() < self.stop:
            self.end(model, TrialState.STOPPED, "not among the best third at its rung")

    def end(self, model: Model, state: TrialState, reason: str = "") -> None:
        model.ended = True
        self.write(TrialEnded(model.id, state, reason))

    def roll_back(self, model: Model) -> None:
        """To the last epoch's end, which is durable."""
        durable = (model.epoch - 1) * self.partitions
        if model.version > durable:
            self.write(TrialRolledBack(model.id, durable))
        model.version, model.holder, model.busy = durable, "", False
        model.to_visit, model.to_evaluate = list(range(self.partitions)), False

    def lose(self, worker: str) -> None:
        self.write(WorkerLost(worker, "no heartbeat for 10 s"))
        self.free = [name for name in self.free if name != worker]
        for entry in [entry for entry in self.running if entry[1] == worker]:
            self.running.remove(entry)
            self.models[entry[2].trial].busy = False
        heapq.heapify(self.running)
        for model in self.models.values():
            if model.holder == worker and not model.busy and not model.ended:
                self.roll_back(model)

    def resume(self, gap: float) -> None:
        """The controller was killed; ``gap`` seconds later another one takes over."""
        self.free = sorted({*self.free, *(entry[1] for entry in self.running)})
        self.running = []
        self.time += gap
        self.start_run()
        for model in self.models.values():
            if not model.ended:
                self.roll_back(model)


def simulated(
    *,
    trials: int = 8,
    partitions: int = 4,
    workers: int = 3,
    epochs: int = 4,
    seed: int = 0,
    stop: float = 0.0,
    eventful: bool = False,
    gap: float = 60.0,
) -> Records:
    """The journal of a run to its end; an eventful one has a failure, a lost worker, a rollback and a resume."""
    simulator = Simulator(trials=trials, partitions=partitions, workers=workers, epochs=epochs, seed=seed, stop=stop)
    if eventful:
        fails = [("t0001", 3)]
        work = trials * epochs * (partitions + 1)
        simulator.run(work // 3, fails)
        simulator.lose("w1")
        simulator.run(work // 4, fails)
        simulator.free.append("w1")
        simulator.resume(gap)
        simulator.run(fails=fails)
    simulator.run()
    simulator.write(Finish(complete=True))
    return simulator.records


def history_of(records: Records, *, partitions: int = 4) -> History:
    return History.of(records, metric="accuracy", mode="max", partitions=partitions, name="digits")
