"""The clock of a schedule: seconds since the run started, whatever the time of day."""

from __future__ import annotations

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.shop_view import ShopView
from hopfleet.search import Random
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import START, Simulated
from hopfleet.simulation.driver import simulated_driver
from hopfleet.simulation.simulator import simulate
from hopfleet.support.clock import RunClock


class Bench:
    """A run on two workers with a partition each; units take 2 and 5 seconds."""

    def __init__(self, clock: float = START) -> None:
        search = Random(trials=3, max_epochs=1)
        search.setup({"x": 1}, seed=0, goal=Goal("train_loss", "min"))
        self.controller = Controller(search, POLICIES["longest-remaining"](), partitions=2, valid_partitions=0)
        self.backend = Simulated(
            lambda command, trial: (2.0, 5.0)[command.unit.partition], partitions=[[0], [1]], clock=clock
        )
        self.messages: list[m.Message] = []
        self.driver = simulated_driver(
            self.controller, self.backend, journal=lambda now, messages: self.messages.extend(messages)
        )

    def start(self) -> Bench:
        self.backend.start(None, 2)
        self.driver.step([m.RunStarted("test", 2)])
        self.driver.step(self.backend.receive(0.0))
        return self


def test_busy_workers_are_busy_in_the_first_wave() -> None:
    bench = Bench().start()
    schedule = bench.controller.schedule
    assert schedule.now == 0.0 and all(slot.unit is not None for slot in schedule.slots.values())
    bench.driver.step(bench.backend.receive(0.0))
    assert schedule.now == 2.0 and [slot.started for slot in schedule.slots.values()] == [2.0, 0.0]
    state = ShopView().look(schedule)
    assert state.worker_free == [2.0 + state.seconds[state.runs[0]][0], state.seconds[state.runs[1]][1]]


@pytest.mark.parametrize(("trials", "partitions", "seed"), [(8, 4, 4), (16, 8, 0), (16, 8, 2)])
def test_one_epoch_on_pinned_partitions_ends_at_the_bound(trials: int, partitions: int, seed: int) -> None:
    """These ended at 1.038, 1.069 and 1.011 while units of the first wave seemed to have begun in 1970."""
    run = simulate(trials=trials, partitions=partitions, costs="cnn", seed=seed)
    assert run.ratio == pytest.approx(1.0, abs=1e-6)


def test_a_resumed_run_starts_its_own_clock() -> None:
    before = Bench().start()
    for _ in range(2):
        before.driver.step(before.backend.receive(0.0))
    assert before.controller.schedule.now > 0 and before.controller.elapsed > 0
    after = Bench(clock=START - 1e6)  # the clock of the machine was set back meanwhile
    after.controller.restore(before.messages)
    assert after.controller.schedule.now == 0.0
    assert after.controller.elapsed == before.controller.elapsed, "the budget of time is that of all runs"
    after.start()
    assert after.controller.schedule.now == 0.0
    while not after.controller.finished:
        after.driver.step(after.backend.receive(0.0))
    assert after.controller.schedule.now == after.backend.elapsed


def test_a_run_clock_starts_with_its_first_reading() -> None:
    times = iter([1.7e9, 1.7e9 + 0.5, 1.7e9 + 8])
    clock = RunClock(lambda: next(times))
    assert [clock(), clock(), clock()] == [0.0, 0.5, 8.0]
