"""Workers that give way to teams of their devices when fewer trials than devices are left."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.space import uniform
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal, Suggestion

SCALING = Scaling("ddp", Rates("linear", (10.0, 20.0)))


class Desk:
    """A controller with some workers of one device; each unit takes a second on one device."""

    def __init__(
        self,
        workers: int,
        *,
        trials: int = 1,
        scaling: Scaling | None = SCALING,
        epochs: int = 8,
        pinned: bool = False,
        search: Random | None = None,
        **options: Any,
    ) -> None:
        search = search or Random(trials, epochs)
        search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("train_loss", "min"))
        self.controller = Controller(
            search, POLICIES["auto"](), partitions=2, valid_partitions=0, scaling=scaling, **options
        )
        self.log: list[m.Message] = []
        self.clock = 0.0
        self.tell(m.RunStarted("test", workers))
        for number in range(workers):
            self.tell(m.WorkerJoined(f"w{number + 1}", partitions=(number % 2,) if pinned else None))

    def tell(self, event: m.Event) -> list[m.Message]:
        follow = self.controller.handle(event)
        self.log += [event, *follow]
        validate(self.controller.schedule)
        for save in [message for message in follow if isinstance(message, m.SaveVersion)]:
            follow = [*follow, *self.tell(m.VersionSaved(save.ref, save.durable, "", 0))]
        return follow

    def train(self, worker: str) -> list[m.Message]:
        slot = self.controller.schedule.slots[worker]
        assert slot.unit is not None
        version = self.controller.schedule.trials[slot.unit.trial].version + 1
        began, self.clock = self.clock, self.clock + 1.0 / SCALING.speed(slot.devices)
        sums = {"train_loss": RowSum.of(1.0, 1)}
        return self.tell(m.UnitFinished(worker, slot.unit, slot.attempt, version, began, self.clock, sums=sums))

    def release(self) -> list[m.Message]:
        """Let all workers go that were told to; return what follows the last."""
        follow: list[m.Message] = []
        for slot in list(self.controller.schedule.slots.values()):
            if slot.released:
                follow = self.tell(m.WorkerLost(slot.worker, m.RELEASED))
        return follow

    @property
    def busy(self) -> dict[str, str]:
        slots = self.controller.schedule.slots.values()
        return {slot.worker: slot.unit.trial for slot in slots if slot.unit is not None}


def test_idle_devices_join_the_last_trial() -> None:
    desk = Desk(4)
    assert desk.busy == {"w1": "t0001"}
    follow = desk.train("w1")
    assert [message.worker for message in follow if isinstance(message, m.WorkerRetired)] == ["w1", "w2", "w3", "w4"]
    assert not desk.busy, "all units end before teams start"
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 4),))]
    (start,) = desk.tell(m.WorkerJoined("w5", Placement(("cpu",) * 4, "ddp")))
    assert isinstance(start, m.RunUnit) and start.model.version == 1, "nothing is trained twice"
    desk.train("w5")
    progress = desk.controller.schedule.trials["t0001"]
    assert progress.unit_seconds == pytest.approx(1.0), "a team's times count as those of one device"
    while not desk.controller.finished:
        desk.train("w5")
    assert sum(isinstance(message, m.FormTeams) for message in desk.log) == 1


def test_a_controller_that_is_restored_knows_what_leaves() -> None:
    desk = Desk(4)
    desk.train("w1")
    other = Desk(0).controller
    other.restore(desk.log)
    assert other.schedule.regrouping == 4
    again = Desk(0).controller
    again.restore([*desk.log, m.RunStarted("test", 2)])
    assert (again.schedule.regrouping, again.schedule.starting) == (0, 2), "the devices may be others now"
    desk.release()
    other.restore(desk.log)
    assert (other.schedule.regrouping, other.schedule.starting) == (0, 1)
    other.restore([m.RunStarted("test", 4)])
    assert (other.schedule.regrouping, other.schedule.starting) == (0, 4)


def test_a_team_gets_the_partitions_that_it_lacks() -> None:
    desk = Desk(4, pinned=True)
    assert desk.busy == {"w1": "t0001"}
    desk.train("w1")
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 4),))]
    assert not any(isinstance(message, m.PartitionsMissing | m.PlacePartition) for message in desk.log)
    joined = m.WorkerJoined("w5", Placement(("cpu",) * 4, "ddp"), (0,))
    assert desk.tell(joined) == [m.PlacePartition("w5", 1)]
    desk.tell(m.PartitionPlaced("w5", 1))
    while not desk.controller.finished:
        desk.train("w5")
    validate_history(desk.log, 2)


def test_workers_stay_while_a_partition_is_under_way() -> None:
    desk = Desk(0, pinned=True)
    for number in range(4):
        desk.tell(m.WorkerJoined(f"w{number + 1}", partitions=(0,)))
    (worker,) = desk.busy
    desk.train(worker)
    assert not any(isinstance(message, m.WorkerRetired) for message in desk.log)
    (place,) = [message for message in desk.log if isinstance(message, m.PlacePartition)]
    assert m.WorkerRetired("w1", for_teams=True) in desk.tell(m.PartitionPlaced(place.worker, place.partition))


def test_a_worker_that_joins_meanwhile_adds_its_device_later() -> None:
    desk = Desk(4, epochs=40)
    desk.train("w1")
    assert desk.tell(m.WorkerJoined("w5")) == [], "the trial waits for the team rather than start here"
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 4),))]
    desk.tell(m.WorkerJoined("w6", Placement(("cpu",) * 4, "ddp")))
    assert m.WorkerRetired("w5", for_teams=True) in desk.train("w6"), "teams may change after each unit"
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 5),))]


def test_a_worker_that_is_lost_meanwhile_takes_its_device_along() -> None:
    desk = Desk(4)
    desk.train("w1")
    assert desk.controller.schedule.regrouping == 4 and desk.controller.schedule.slots["w1"].released
    desk = Desk(3, trials=2)
    first, second = desk.busy
    for worker in (first, first, second):
        desk.train(worker)
    leaving = [slot.worker for slot in desk.controller.schedule.slots.values() if slot.for_teams]
    assert second in leaving and first not in leaving and desk.controller.schedule.regrouping == 2
    desk.controller.schedule.slots[second].released = False
    desk.tell(m.WorkerLost(second, "its node was lost"))
    assert desk.release() == [m.FormTeams((TeamShape(),))]


def test_devices_that_no_team_can_use_are_not_forgotten() -> None:
    desk = Desk(4, scaling=Scaling("ddp", Rates("curbed", (10.0, 20.0), base=1)))
    desk.train("w1")
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 2),))]
    assert desk.controller.schedule.spare == 2
    desk.tell(m.WorkerJoined("w5", Placement(("cpu",) * 2, "ddp")))
    assert desk.controller.schedule.devices == 4


def test_devices_that_no_team_could_use_are_forgotten_with_the_run() -> None:
    desk = Desk(4, scaling=Scaling("ddp", Rates("curbed", (10.0, 20.0), base=1)))
    desk.train("w1")
    desk.release()
    desk.tell(m.RunStarted("test", 1))
    desk.tell(m.WorkerJoined("w1"))
    assert desk.controller.schedule.devices == 1


def test_workers_stay_until_the_time_of_each_trial_is_known() -> None:
    desk = Desk(4, trials=2)
    first, second = desk.busy
    assert not any(isinstance(message, m.WorkerRetired) for message in desk.train(first))
    assert any(isinstance(message, m.WorkerRetired) for message in desk.train(second))


def test_a_unit_that_runs_is_waited_for_and_gains_nothing() -> None:
    """Two units are left for a team, which takes a second for both, and this second is lost before."""
    desk = Desk(1, epochs=2)
    desk.train("w1")
    assert desk.tell(m.WorkerJoined("w2")) == []
    assert any(isinstance(message, m.WorkerRetired) for message in desk.train("w1")), "now nothing is lost"


def test_a_team_may_form_for_the_last_unit() -> None:
    follow = Desk(2, epochs=1).train("w1")
    assert [message.worker for message in follow if isinstance(message, m.WorkerRetired)] == ["w1", "w2"]


def test_workers_stay_until_a_worker_that_leaves_is_gone() -> None:
    desk = Desk(4)
    assert m.ReleaseWorker("w4") in desk.tell(m.RequestMade("workers", {"count": 3}, "ada", 1))
    assert not any(isinstance(message, m.WorkerRetired) for message in desk.train("w1"))
    follow = desk.tell(m.WorkerLost("w4", m.RELEASED))
    assert [message.worker for message in follow if isinstance(message, m.WorkerRetired)] == ["w1", "w2", "w3"]


class Curious(Random):
    """A search that learns from results, and has one suggestion until a trial has ended."""

    adaptive = True

    def suggest(self, number: int) -> Suggestion | None:
        return super().suggest(number) if number < 1 else None


@pytest.mark.parametrize("trials", [1, 2])
def test_workers_stay_while_a_search_may_suggest_more(trials: int) -> None:
    desk = Desk(4, search=Curious(trials, 8))
    desk.train("w1")
    assert any(isinstance(message, m.WorkerRetired) for message in desk.log) is (trials == 1)


def test_the_longest_trial_gets_the_largest_team() -> None:
    desk = Desk(3, trials=2)
    (first, ahead), (second, behind) = desk.busy.items()
    for worker in (first, first, second, first):
        desk.train(worker)
    assert desk.release() == [m.FormTeams((TeamShape("ddp", 2),))]
    assert desk.busy == {first: ahead}, "it trains on meanwhile"
    desk.tell(m.WorkerJoined("w4", Placement(("cpu",) * 2, "ddp")))
    assert desk.busy == {first: ahead, "w4": behind}


@pytest.mark.parametrize(
    "options",
    [{"scaling": None}, {"trials": 8}, {"scaling": Scaling("ddp", SCALING.rates, 100.0)}],
    ids=["no scaling", "enough trials", "slow to form"],
)
def test_workers_stay(options: dict[str, Any]) -> None:
    desk = Desk(4, **options)
    for worker in list(desk.busy):
        desk.train(worker)
    assert not any(isinstance(message, m.WorkerRetired) for message in desk.log)


def test_workers_stay_while_others_start_or_leave() -> None:
    desk = Desk(1)
    assert desk.tell(m.RequestMade("workers", {"count": 4}, "ada", 1))[-1] == m.AddWorkers(3)
    desk.train("w1")
    for number in (2, 3):
        desk.tell(m.WorkerJoined(f"w{number}"))
        assert not any(isinstance(message, m.WorkerRetired) for message in desk.log)
    assert m.WorkerRetired("w1", for_teams=True) in desk.tell(m.WorkerJoined("w4"))


def test_a_run_that_drains_forms_no_team() -> None:
    desk = Desk(4)
    desk.train("w1")
    desk.tell(m.RequestMade("drain"))
    desk.release()
    assert desk.controller.finished and not any(isinstance(message, m.FormTeams) for message in desk.log)


def test_a_team_trains_one_trial_at_a_time() -> None:
    desk = Desk(0, trials=4, scaling=None, fusion=Fusion(lambda config: None, size=4))
    desk.tell(m.WorkerJoined("w1", Placement(("cpu",) * 2, "ddp")))
    assert len(desk.controller.schedule.slots["w1"].units) == 1
    desk.tell(m.WorkerJoined("w2"))
    assert len(desk.controller.schedule.slots["w2"].units) > 1
