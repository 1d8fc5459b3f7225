"""Trials that get numbers of devices in rounds: teams are formed, kept, and formed anew between epochs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.controller.decisions.allocation import _fitting
from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import TPE, Random
from hopfleet.search.base import Goal, Search

LINEAR = (10.0, 20.0)


def fleet(*slowness: float) -> Fleet:
    """Return rates that grow with each device; the first trials are slower by these factors."""

    def rates(trial: Trial) -> Rates:
        slow = slowness[trial.number] if trial.number < len(slowness) else 1.0
        return Rates("", tuple(rate / slow for rate in LINEAR))

    return Fleet(Scaling("ddp", Rates("", LINEAR), 0.01), rates, rows=100)


class Desk:
    """A controller whose workers train at once, in any order, and form the teams that it asks for."""

    def __init__(
        self, devices: int, search: Search, given: Fleet | None, policy: str = "fleet", **options: Any
    ) -> None:
        search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("train_loss", "min"))
        self.controller = Controller(
            search, POLICIES[policy](), partitions=2, valid_partitions=0, fleet=given, fixed_order=True, **options
        )
        self.log: list[m.Message] = []
        self.names = 0
        self.clock = 0.0
        #: Whether workers that were told to go stay for now.
        self.holds = False
        if devices:
            self.start(devices)

    @property
    def schedule(self) -> Any:
        return self.controller.schedule

    def start(self, devices: int) -> None:
        self.tell(m.RunStarted("test", devices))
        self.join([TeamShape()] * devices)

    def join(self, shapes: Any) -> None:
        for shape in shapes:
            self.names += 1
            self.tell(m.WorkerJoined(f"w{self.names}", Placement(("cpu",) * shape.devices, shape.strategy)))

    def tell(self, event: m.Event) -> None:
        follow = self.controller.handle(event)
        self.log += [event, *follow]
        validate(self.schedule)
        for message in follow:
            if isinstance(message, m.SaveVersion):
                self.tell(m.VersionSaved(message.ref, message.durable, "", 0))
            elif isinstance(message, m.ReleaseWorker) and not self.holds:
                self.tell(m.WorkerLost(message.worker, m.RELEASED))
            elif isinstance(message, m.FormTeams):
                self.join(message.shapes)

    def train(self, slot: Any) -> None:
        version = self.schedule.trials[slot.unit.trial].version + 1
        sums = {"train_loss": RowSum.of(1.0 / version, 1)}
        began, self.clock = self.clock, self.clock + 1.0
        self.tell(m.UnitFinished(slot.worker, slot.unit, slot.attempt, version, began, self.clock, sums=sums))

    def run(self, units: int = 1000, seed: int = 0) -> None:
        """Let workers train in a random order, until nothing runs or some units have ended."""
        rng = random.Random(seed)
        for _ in range(units):
            busy = [slot for slot in self.schedule.slots.values() if slot.unit is not None]
            if not busy:
                return
            self.train(rng.choice(busy))

    def visits(self) -> dict[tuple[str, int], int]:
        """Return the number of devices of each visit that counts, by trial and version."""
        devices: dict[str, int] = {}
        found = {}
        for message in self.log:
            if isinstance(message, m.WorkerJoined):
                devices[message.worker] = len(message.placement.devices)
            elif isinstance(message, m.UnitFinished):
                found[message.unit.trial, message.version] = devices[message.worker]
        return found

    def formed(self) -> list[tuple[int, ...]]:
        return [tuple(each.devices for each in one.shapes) for one in self.log if isinstance(one, m.FormTeams)]

    def done(self) -> bool:
        validate_history(self.log, 2)
        return self.controller.finished and not any(isinstance(message, m.RunStalled) for message in self.log)


@pytest.mark.parametrize("seed", range(4))
def test_sizes_do_not_depend_on_which_worker_is_fast(seed: int) -> None:
    desk = Desk(4, Random(2, 4), fleet(1.0, 3.0))
    assert desk.formed() == [(3, 1)]
    desk.run(seed=seed)
    assert desk.done()
    assert {count for (trial, _), count in desk.visits().items() if trial == "t0001"} == {1}
    assert {count for (trial, _), count in desk.visits().items() if trial == "t0002"} == {3}


def test_no_unit_starts_before_all_devices_are_known() -> None:
    desk = Desk(0, Random(1, 1), fleet())
    desk.tell(m.RunStarted("test", 2))
    desk.join([TeamShape()])
    assert not any(isinstance(message, m.RunUnit | m.DevicesAllocated | m.RunStalled) for message in desk.log)
    desk.join([TeamShape()])
    assert desk.formed() == [(2,)]
    desk.run()
    assert desk.done()


def test_devices_of_a_trial_that_ends_go_to_the_others() -> None:
    desk = Desk(3, Random(2, 6), fleet(6.0, 4.0))
    desk.run()
    assert desk.done()
    assert desk.formed() == [(2, 1), (3,)]
    assert sorted(desk.visits().values()).count(3) > 0


@pytest.mark.parametrize("killed", range(24))
@pytest.mark.parametrize("lost", [False, True])
def test_a_killed_run_trains_each_epoch_on_as_many_devices(killed: int, lost: bool) -> None:
    calm = Desk(3, Random(2, 6), fleet(6.0, 4.0))
    calm.run()
    desk = Desk(3, Random(2, 6), fleet(6.0, 4.0))
    desk.run(killed)
    again = Desk(0, Random(2, 6), fleet(6.0, 4.0))
    again.controller.restore(desk.log)
    again.log, again.names, again.clock = desk.log, desk.names, desk.clock
    again.start(3)
    if lost:  # the file is damaged, and epochs of an earlier round run again
        for slot in list(again.schedule.slots.values()):
            progress = again.schedule.trials[slot.unit.trial] if slot.unit is not None else None
            if progress is not None and progress.version:
                ref = VersionRef(progress.trial.id, progress.version, progress.saved[progress.version].attempt)
                again.tell(m.VersionLost(ref, "damaged", slot.worker, slot.attempt))
    again.run(seed=killed)
    assert again.done()
    assert again.visits() == calm.visits()


def test_trials_that_are_added_as_others_end_have_one_device() -> None:
    desk = Desk(2, TPE(8, 1), fleet())
    desk.run()
    assert desk.done()
    assert {desk.visits()[f"t000{number}", 1] for number in range(1, 5)} == {1}


def test_fewer_devices_than_before_are_allocated_anew() -> None:
    desk = Desk(4, Random(1, 4), fleet())
    assert desk.formed() == [(4,)]
    desk.run(3)
    desk.start(2)
    desk.run()
    assert desk.done()
    assert desk.formed()[1:] == [(2,)]
    assert desk.visits()["t0001", 3] == 4 and desk.visits()["t0001", 8] == 2


def test_a_lost_device_is_not_waited_for() -> None:
    desk = Desk(2, Random(3, 2), fleet(1.0, 1.0, 1.0))
    worker = next(iter(desk.schedule.slots))
    desk.tell(m.WorkerLost(worker, "gone for good"))
    desk.run()
    assert desk.done()


def test_workers_that_join_while_others_leave_retire_too() -> None:
    desk = Desk(0, Random(1, 2), fleet())
    desk.holds = True
    desk.start(2)
    desk.join([TeamShape()])
    assert all(slot.retired for slot in desk.schedule.slots.values()) and len(desk.schedule.slots) == 3
    desk.holds = False
    for worker in list(desk.schedule.slots):
        desk.tell(m.WorkerLost(worker, m.RELEASED))
    assert desk.formed() == [(2,)] and desk.schedule.devices == 3
    desk.run()
    assert desk.done()


def test_a_search_that_listens_allocates_again_after_each_lap() -> None:
    search = Random(2, 4)
    search.listens = True
    desk = Desk(4, search, fleet())
    desk.run()
    assert desk.done()
    assert sum(isinstance(message, m.DevicesAllocated) for message in desk.log) == 4
    assert desk.formed() == [(2, 2)], "the same teams go on"


@pytest.mark.parametrize("policy", ["random", "longest-remaining", "auto", "match-reserve"])
def test_every_policy_keeps_to_the_devices_that_were_given(policy: str) -> None:
    desk = Desk(3, Random(2, 3), fleet(2.0, 1.0), policy)
    desk.controller.schedule.sticky = policy == "random"
    desk.run()
    assert desk.done()
    assert {count for (trial, _), count in desk.visits().items() if trial == "t0001"} >= {2}


def test_teams_for_lost_versions_fit_on_the_devices() -> None:
    assert _fitting({3, 2, 1}, 4) == (3, 1)
    assert _fitting({3}, 2) == ()
