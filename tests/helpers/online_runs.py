"""Whole runs under a policy, and desks in the middle of one."""

from __future__ import annotations

import random
from dataclasses import replace

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.planner.portfolio import plan
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.search.base import Goal
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver


def run(policy: Policy, times: list[list[float]], *, epochs: int = 1, noise: float = 0.0, seed: int = 0) -> float:
    """Makespan by the bound, with partition j on worker j, and ``times`` as what is expected."""
    trials, partitions = len(times), len(times[0])
    search = Random(trials=trials, max_epochs=epochs)
    search.setup({"x": 1}, seed=0, goal=Goal("train_loss", "min"))
    estimates = Estimates([1] * partitions, prior=lambda number, worker, partition: times[number][partition])
    controller = Controller(search, policy, partitions=partitions, valid_partitions=0, seed=seed, estimates=estimates)
    workers, loads = [0.0] * partitions, [0.0] * trials

    def seconds(command: m.RunUnit, trial: Trial) -> float:
        draw = random.Random(f"{seed} {trial.number} {command.unit.epoch} {command.unit.partition}")
        took = times[trial.number][command.unit.partition] * draw.lognormvariate(0.0, noise)
        workers[command.unit.partition] += took
        loads[trial.number] += took
        return took

    backend = Simulated(seconds, partitions=[[partition] for partition in range(partitions)])
    backend.start(None, partitions)
    end = 0.0
    loop = simulated_driver(controller, backend)
    for events in loop.moments([m.RunStarted("test", partitions)]):
        for event in events:
            if isinstance(event, m.UnitFinished):
                end = backend.elapsed
                event = replace(event, sums={"train_loss": RowSum.of(1.0, 1)})
            loop.step([event])
    return end / max(*workers, *loads)


def solved(shop: Shop) -> Timetable:
    return plan(shop, random.Random(0))


def decide(policy, desk):
    return policy(desk.schedule, random.Random(0))
