"""What the controller remembers of events: times, workers, requests and what the search has said."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.seeds import derive
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import ASHA, Random
from hopfleet.search.base import Clone, Goal, Train
from tests.helpers.controller_desk import Desk, of


def plain(search: Any = None, **options: Any) -> Controller:
    """A controller with the options that users leave out, and without a run."""
    search = search or Random(4, 1)
    search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
    return Controller(search, POLICIES["longest-remaining"](), partitions=2, valid_partitions=0, **options)


def ended(controller: Controller, worker: str = "w1", began: float = 0.0, until: float = 1.0) -> m.UnitFinished:
    slot = controller.schedule.slots[worker]
    assert slot.unit is not None
    return m.UnitFinished(worker, slot.unit, slot.attempt, 1, began, until)


# ----------------------------------------------------------------------------------------------- beginnings


def test_a_controller_needs_no_options_and_no_start() -> None:
    controller = plain()
    follow = controller.handle(m.WorkerUnavailable("no room"))
    assert [type(message) for message in follow] == [m.TrialAdded] * 4
    assert [added.seed for added in follow] == [derive(0, "trial", number) for number in range(4)]
    assert [type(message) for message in controller.handle(m.WorkerJoined("w1"))] == [m.RunUnit]
    for number in range(4):
        (slot,) = controller.schedule.slots.values()
        failed = m.UnitFailed("w1", slot.unit, slot.attempt, 0.0, 1.0, "ValueError: no", "trace", "task.py:3")
        follow = controller.handle(failed)
        assert len(of(follow, m.RunUnit)) == (number < 3), "the run goes on, however the trials failed"
    assert of(follow, m.Finish) == [m.Finish(complete=True)]


@pytest.mark.parametrize("sticky", [False, True])
def test_a_trial_stays_with_its_model_where_hops_cost(sticky: bool) -> None:
    desk = Desk("w1", trials=2, sticky=sticky)
    (start,) = of(desk.finished(), m.RunUnit)
    assert start.trial == ("t0001" if sticky else "t0002")


def test_only_time_in_which_a_run_was_active_counts() -> None:
    controller = plain(Random(9, 9))
    controller.take([m.RunStarted("test"), m.WorkerJoined("w1")])
    for began, until, elapsed in [(10.0, 13.0, 3.0), (13.0, 14.0, 4.0), (13.5, 13.75, 4.0)]:
        controller.handle(ended(controller, began=began, until=until))
        assert controller.elapsed == elapsed
    controller.take([m.RunStarted("test"), m.WorkerJoined("w1")])
    controller.handle(ended(controller, began=100.0, until=102.0))
    assert controller.elapsed == 6.0


def test_the_time_of_a_run_comes_from_its_driver_and_never_goes_back() -> None:
    controller = plain(Random(9, 9))
    for told, now in [(0.5, 0.5), (3.0, 3.0), (2.0, 3.0)]:
        controller.take([m.RecordLogged("w1", "t0001", "any event")], told)
        assert controller.schedule.now == now


# ------------------------------------------------------------------------------------------ runs and workers


def test_a_new_run_forgets_which_units_were_to_be_given_up() -> None:
    """Its workers have the same names; the loss of the new w1 counts against what it ran."""
    desk = Desk("w1")
    desk.tell(m.RequestMade("stop", {"trial": "t0001", "now": True}, "ada", 1))
    desk.tell(m.RunStarted("again"))
    desk.tell(m.RequestMade("resume", {"trial": "t0001"}, "ada", 2))
    desk.tell(m.WorkerJoined("w1"))
    desk.tell(m.WorkerLost("w1", "killed"))
    assert desk["t0001"].losses == ["killed"]


def test_the_number_of_trials_in_a_round_is_that_of_the_first_run() -> None:
    controller = plain(ASHA(trials=20), deterministic=True)
    controller.handle(m.RunStarted("test", workers=3))
    assert len(of(controller.handle(m.WorkerJoined("w1")), m.TrialAdded)) == 0
    assert len(controller.schedule.trials) == 6, "two for each of the planned workers"
    again = plain(ASHA(trials=20), deterministic=True)
    again.restore([m.RunStarted("test", workers=2)])
    assert len(of(again.handle(m.RunStarted("test", workers=5)), m.TrialAdded)) == 4


def test_a_request_for_workers_waits_until_each_has_joined_or_will_not() -> None:
    desk = Desk()
    desk.tell(m.RunStarted("test", workers=3))
    desk.tell(m.WorkerJoined("w1"))
    assert desk.tell(m.RequestMade("workers", {"count": 2}, "ada", 1)) == []
    assert desk.tell(m.WorkerUnavailable("no room")) == []
    assert m.AddWorkers(1) in desk.tell(m.WorkerUnavailable("no room"))
    desk.tell(m.WorkerJoined("w2"))
    assert desk.tell(m.WorkerUnavailable("a third one, without a request")) == []
    assert m.AddWorkers(1) in desk.tell(m.RequestMade("workers", {"count": 3}, "ada", 2))


def test_a_run_waits_for_the_requests_that_it_was_started_for() -> None:
    desk = Desk("w1", epochs=1)
    desk.epoch(loss=1.0)
    desk.saved(2)
    assert desk.tell(m.RunStarted("again", requests=2)) == []
    first, second = (m.RequestMade("prioritise", {"trial": "t0001"}, "ada", number) for number in (1, 2))
    assert not of(desk.tell(first), m.Finish)
    assert desk.tell(second)[-1] == m.Finish(complete=True)
    assert desk.tell(m.RunStarted("again")) == [m.Finish(complete=True)]
    desk.tell(first)  # it was not announced
    assert desk.tell(m.RunStarted("once more")) == [m.Finish(complete=True)]


def test_a_request_that_nobody_announced_is_not_waited_for() -> None:
    desk = Desk("w1", epochs=1)
    desk.tell(m.RequestMade("prioritise", {"trial": "t0001"}, "ada", 1))
    desk.epoch(loss=1.0)
    assert desk.saved(2)[-1] == m.Finish(complete=True)


def test_a_placement_that_failed_is_tried_again_when_a_worker_joins() -> None:
    desk = Desk()
    desk.tell(m.RunStarted("test", workers=1))
    desk.tell(m.WorkerJoined("w1", partitions=(0,)))
    follow = desk.tell(m.PartitionUnavailable("w1", 1, "no room"))
    assert of(follow, m.PlacePartition, m.PartitionsMissing) == [m.PartitionsMissing((1,))]
    follow = desk.tell(m.WorkerJoined("w2", partitions=(0,)))
    assert [place.worker for place in of(follow, m.PlacePartition)] == ["w1"], "w1 has the same to do, and was first"


def test_what_others_hold_is_saved_when_the_machine_seems_broken() -> None:
    """The run ends, so nothing may be in the memory of one worker alone."""
    desk = Desk("w1", trials=40, partitions=4)
    desk.finished(took=0.1)
    held = desk["t0001"]
    desk.controller.state.losses.in_a_row = 22  # two more, and it is the machine
    for number in (1, 2):
        assert not held.durable(1)
        desk.tell(m.WorkerJoined(f"x{number}"))
        follow = desk.tell(m.WorkerLost(f"x{number}", "killed"))
    assert [(save.worker, save.ref.version, save.durable) for save in of(follow, m.SaveVersion)] == [("w1", 1, True)]


def test_in_rounds_trials_that_failed_alike_end_with_the_run() -> None:
    desk = Desk("w1", search=ASHA(trials=9, concurrency=4), fail_fast=True, deterministic=True)
    for count in range(3):
        assert not of(desk.messages, m.TrialEnded), "the round is not over"
        slot = desk.controller.schedule.slots["w1"]
        follow = desk.tell(
            m.UnitFailed("w1", slot.unit, slot.attempt, 0.0, 1.0, "ValueError: no", f"trace {count}", "task.py:3")
        )
    assert [end.state for end in of(follow, m.TrialEnded)] == [TrialState.FAILED] * 3
    assert not follow[-1].complete and "3 trials failed in the same way" in follow[-1].reason
    assert not of(follow, m.RunUnit)


# ---------------------------------------------------------------------------------------------- versions


def test_a_model_is_copied_for_a_clone_once() -> None:
    desk = Desk("w1", "w2")
    desk.epoch(loss=1.0)
    desk.saved(2)
    desk.tell(m.RequestMade("clone", {"trial": "t0001", "warm": True}, "ada", 1))
    desk.tell(m.WorkerLost("w2", "killed"))
    assert len(of(desk.messages, m.CopyVersion)) == 1
    assert desk.controller.schedule.trials["t0002"].saves.popitem()[1].durable


def test_a_clone_without_a_worker_asks_again_for_its_model_in_the_next_run() -> None:
    desk = Desk("w1")
    desk.epoch(loss=1.0)
    desk.saved(2)
    desk.tell(m.RequestMade("clone", {"trial": "t0001", "warm": True}, "ada", 1))
    desk.tell(m.WorkerLost("w1", "killed"))
    assert len(of(desk.tell(m.RunStarted("again")), m.CopyVersion)) == 1


def test_a_version_that_was_lost_before_it_was_saved_ends_no_unit() -> None:
    """The worker has trained on, and will make a newer version."""
    desk = Desk("w1", valid=0)
    desk.finished(loss=1.0)
    save, start = of(desk.finished(loss=1.0), m.SaveVersion, m.RunUnit)
    desk.tell(m.VersionLost(VersionRef("t0001", 2, None), "evicted", "w1", save.ref.attempt))
    assert desk.controller.schedule.accepts("w1", start.unit, start.attempt)
    assert save.ref.attempt not in desk["t0001"].saves


def test_no_more_models_train_together_than_fit_with_the_largest() -> None:
    fusion = Fusion(lambda config: None, memory=100)
    desk = Desk("w1", trials=6, epochs=9, partitions=1, valid=0, fusion=fusion)
    assert len(desk.controller.schedule.slots["w1"].units) == 6

    def go_on(size: int) -> int:
        """All members report and are saved with ``size`` bytes; return how many train together then."""
        slot = desk.controller.schedule.slots["w1"]
        for unit, attempt in list(slot.units.items()):
            version = desk[unit.trial].version + 1
            follow = desk.tell(m.UnitFinished("w1", unit, attempt, version, 0.0, 1.0, sums={}))
            for save in of(follow, m.SaveVersion):
                desk.tell(m.VersionSaved(save.ref, save.durable, "", size))
        return len(slot.units)

    desk.controller.search.goal = Goal("epoch", "max")
    go_on(50)
    assert go_on(1) == 2
    assert go_on(1) == 2, "the largest counts, and not the last"


# ------------------------------------------------------------------------------------------- trials and searches


def test_a_trial_that_waits_for_a_worker_stops_at_once() -> None:
    desk = Desk("w1", trials=2)
    follow = desk.tell(m.RequestMade("stop", {"trial": "t0002"}, "ada", 1))
    assert [type(message) for message in follow] == [m.RequestAnswered, m.TrialStopped, m.TrialEnded]


def test_a_trial_that_was_evaluated_before_it_is_resumed_ends_its_epoch() -> None:
    desk = Desk("w1", epochs=3)
    desk.finished()
    desk.finished()
    desk.tell(m.RequestMade("stop", {"trial": "t0001"}, "ada", 1))
    assert not of(desk.evaluated(loss=1.0), m.EpochEnded), "it is to end, once its model is saved"
    follow = desk.tell(m.RequestMade("resume", {"trial": "t0001"}, "ada", 2))
    assert [ended.epoch for ended in of(follow, m.EpochEnded)] == [1]
    assert [(start.unit.epoch, start.unit.work) for start in of(follow, m.RunUnit)] == [(2, Work.TRAIN)]


class Slow(Random):
    """A search that has another suggestion only after a result: an epoch, or the end of a trial."""

    adaptive = True
    results = asked = 0

    def suggest(self, number: int) -> Any:
        self.asked += 1
        return super().suggest(number) if number <= self.results else None

    def observe(self, trial: Any, epoch: int, metrics: Any) -> list[Any]:
        self.results += epoch == 1
        return []

    def ended(self, trial: Any, state: TrialState) -> list[Any]:
        self.results += state is TrialState.FAILED
        return []


def test_a_search_is_asked_again_when_it_has_heard_something() -> None:
    desk = Desk("w1", search=Slow(9, 2), partitions=1)
    asked = desk.search.asked
    desk.tell(m.WorkerJoined("w2"))
    desk.finished()
    assert desk.search.asked == asked and len(desk.controller.schedule.trials) == 1, "it has heard nothing"
    assert [added.trial for added in of(desk.evaluated(loss=1.0), m.TrialAdded)] == ["t0002"]
    (worker,) = (slot.worker for slot in desk.controller.schedule.slots.values() if slot.unit == Unit("t0002", 1, 0))
    assert [added.trial for added in of(desk.failed(worker), m.TrialAdded)] == ["t0003"]


class Heirs(Random):
    """A search that clones its first trial after each epoch, and lets it go on when another one has ended."""

    def observe(self, trial: Any, epoch: int, metrics: Any) -> list[Any]:
        return [Clone(trial.id, {"x": 0.5}, warm=False)] if trial.number == 0 else []

    def ended(self, trial: Any, state: TrialState) -> list[Any]:
        return [Train("t0001", 9)] if trial.number else []


def test_what_a_search_wants_when_a_trial_has_ended_is_done() -> None:
    desk = Desk("w1", search=Heirs(2, 2), partitions=1)
    follow = desk.tell(m.RequestMade("stop", {"trial": "t0002"}, "ada", 1))
    assert [type(message) for message in follow[2:]] == [m.TrialEnded, m.TrialResumed]
    assert follow[-1] == m.TrialResumed("t0001", 9)


def test_what_a_search_wanted_is_not_done_again_when_a_run_is_resumed() -> None:
    desk = Desk("w1", search=Heirs(1, 2), partitions=1)
    desk.finished()
    assert len(of(desk.evaluated(loss=1.0), m.TrialAdded)) == 1
    again = Controller(Heirs(1, 2), POLICIES["longest-remaining"](), partitions=1, valid_partitions=1)
    again.search.setup({"x": uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
    again.restore(desk.messages)
    assert not of(again.handle(m.RunStarted("again")), m.TrialAdded)
