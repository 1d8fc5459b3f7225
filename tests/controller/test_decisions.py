"""What follows from the state: trials that are added, stopped and concluded, versions, rounds, and the end of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hopfleet.controller.decisions.versions import at_risk, needed_versions
from hopfleet.controller.decisions.workers import finish
from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Save
from hopfleet.search import ASHA, Random
from hopfleet.search.base import Clone, Suggestion
from hopfleet.search.stopping import Budget, Stopping
from tests.helpers.controller_desk import Desk, of


@pytest.fixture(autouse=True)
def few_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units take a second here. What is saved within an epoch has tests of its own."""
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 1.5)


def ask(desk: Desk, request: str, **arguments: Any) -> list[m.Message]:
    return desk.tell(m.RequestMade(request, arguments, "ada", 1))


# --------------------------------------------------------------------------------------- trials that are added


class Grows(Random):
    """A search that learns from results, with a suggestion for each trial that has ended, and one before."""

    adaptive = True
    known = 0

    def suggest(self, number: int) -> Suggestion | None:
        return super().suggest(number) if number <= self.known else None

    def ended(self, trial: Any, state: TrialState) -> list[Any]:
        self.known += 1
        return []


def test_a_search_hears_of_the_end_of_a_trial_before_it_is_asked_for_another() -> None:
    desk = Desk("w1", search=Grows(9, 1))
    desk.finished()
    desk.finished()
    desk.saved(2)
    kinds = [type(message) for message in desk.evaluated(loss=1.0)]
    assert kinds == [m.EpochEnded, m.TrialEnded, m.TrialAdded, m.RunUnit]


class Waits(Random):
    """A search without a suggestion until an epoch has ended, which then has a trial for each live one."""

    adaptive = True
    heard = False

    def suggest(self, number: int) -> Suggestion | None:
        return super().suggest(number) if not number or self.heard else None

    def observe(self, trial: Any, epoch: int, metrics: Any) -> list[Any]:
        self.heard = True
        return []


def test_a_trial_that_completes_makes_room_before_another_is_added() -> None:
    desk = Desk("w1", search=Waits(9, 1))
    desk.finished()
    desk.finished()
    desk.saved(2)
    kinds = [type(message) for message in desk.evaluated(loss=1.0)]
    assert kinds == [m.EpochEnded, m.TrialEnded, m.TrialAdded, m.TrialAdded, m.RunUnit]


@pytest.mark.parametrize("request_", ["drain", "pause"])
def test_no_trial_is_added_while_a_run_ends_or_is_paused(request_: str) -> None:
    desk = Desk("w1", trials=3, max_live=1)
    desk.tell(m.RequestMade(request_))
    follow = desk.failed()
    assert len(of(follow, m.TrialEnded)) == 1 and not of(follow, m.TrialAdded)


def test_policies_know_whether_more_trials_will_come() -> None:
    desk = Desk("w1", search=Random(None, 1))
    assert desk.controller.schedule.more_to_come
    desk = Desk("w1", search=Stopping(Random(None, 1), [Budget(seconds=1.0)]))
    assert desk.controller.schedule.more_to_come
    desk.finished(took=2.0)
    assert not desk.controller.schedule.more_to_come, "the time is over"
    desk = Desk("w1", search=Grows(9, 1))
    assert not desk.controller.schedule.more_to_come, "there is nothing to suggest for now"
    assert not Desk("w1", trials=3, max_live=2).controller.schedule.more_to_come, "their number is known"


def test_how_long_a_trial_may_train_in_all_is_planned() -> None:
    class Rungs(Random):
        def suggest(self, number: int) -> Suggestion | None:
            suggestion = super().suggest(number)
            return suggestion and Suggestion(suggestion.config, 1)

    desk = Desk("w1", search=Rungs(1, 3))
    (added,) = of(desk.started, m.TrialAdded)
    assert (added.epochs, added.planned) == (1, 3)
    (added,) = of(ask(desk, "clone", trial="t0001", epochs=8), m.TrialAdded)
    assert (added.epochs, added.planned) == (8, 8)


class Breeds(Random):
    """A search that clones each trial, warm, as soon as its first epoch has ended."""

    epochs = 0

    def observe(self, trial: Any, epoch: int, metrics: Any) -> list[Any]:
        return [Clone(trial.id, {"x": 0.5}, epochs=self.epochs)] if trial.number == 0 else []


@pytest.mark.parametrize(("epochs", "clones"), [(1, 0), (2, 1), (0, 1)])
def test_a_search_clones_a_model_that_has_something_left_to_learn(epochs: int, clones: int) -> None:
    search = Breeds(1, 3)
    search.epochs = epochs
    desk = Desk("w1", search=search, partitions=1)
    desk.finished()
    desk.saved(1)
    added = of(desk.evaluated(loss=1.0), m.TrialAdded)
    assert [clone.visits for clone in added] == [(0,)] * clones


# ------------------------------------------------------------------------------------ the end of trials and search


def test_a_trial_that_has_trained_all_its_epochs_completes_when_the_time_is_over() -> None:
    desk = Desk("w1", search=Stopping(Random(2, 1), [Budget(seconds=2.5)]), max_live=1)
    desk.epoch(loss=1.0)
    assert not of(desk.finished("w1") if desk.controller.schedule.slots["w1"].unit else [], m.TrialStopped)
    assert of(desk.saved(2), m.TrialEnded) == [m.TrialEnded("t0001", TrialState.COMPLETED)]


def test_the_trial_that_starts_first_gets_the_last_epoch() -> None:
    desk = Desk(search=Stopping(Random(1, 1), [Budget(epochs=1)]))
    for x in (0.25, 0.5):
        assert not of(ask(desk, "add", config={"x": x}), m.TrialStopped), "either of them may get it"
    ask(desk, "prioritise", trial="t0002")
    follow = desk.tell(m.WorkerJoined("w1"))
    assert [start.trial for start in of(follow, m.RunUnit)] == ["t0002"]
    assert of(desk.finished(), m.TrialStopped) == [m.TrialStopped("t0001", "the budget of 1 epoch is spent")]


@pytest.mark.parametrize("losses", [(2.0, 2.0, 1.0), (math.nan, math.nan, 3.0)])
def test_of_equally_good_epochs_the_first_is_the_best(losses: tuple[float, ...]) -> None:
    desk = Desk("w1", epochs=4)
    assert [of(desk.epoch(loss=loss), m.EpochEnded)[0].best for loss in losses] == [True, False, True]


def paused(**options: Any) -> Desk:
    """A run whose only trial, of three epochs, has paused after the first; there is no other trial to beat."""
    desk = Desk("w1", search=ASHA(trials=1, max_epochs=3), **options)
    desk.finished()
    desk.finished()
    desk.evaluated(loss=1.0)
    return desk


def test_the_best_trial_is_completed_when_no_other_is_left() -> None:
    desk = paused()
    follow = desk.saved(2)
    assert [type(message) for message in follow] == [m.TrialPaused, m.TrialResumed, m.RunUnit]
    assert follow[1].epochs == 3


def test_a_run_that_a_person_paused_does_not_end_before_its_search_is_concluded() -> None:
    desk = paused()
    ask(desk, "pause")
    assert [type(message) for message in desk.saved(2)] == [m.TrialPaused, m.TrialResumed]
    assert [start.unit.epoch for start in of(ask(desk, "proceed"), m.RunUnit)] == [2]


def test_a_search_is_not_concluded_when_the_run_is_drained() -> None:
    desk = paused()
    desk.tell(m.RequestMade("drain"))
    assert [type(message) for message in desk.saved(2)] == [m.TrialPaused, m.Finish]


def test_a_search_is_not_concluded_when_the_budget_is_spent() -> None:
    desk = Desk("w1", search=Stopping(ASHA(trials=1, max_epochs=3), [Budget(epochs=1)]))
    desk.epoch(loss=1.0)
    assert [type(message) for message in desk.saved(2)] == [m.TrialPaused, m.Finish]


def test_a_search_is_not_concluded_while_a_trial_is_under_way() -> None:
    desk = Desk("w1", search=ASHA(trials=2, max_epochs=3), max_live=2)
    desk.finished()
    desk.tell(m.WorkerJoined("w2"))
    assert not of(desk.messages, m.TrialResumed)
    assert len(desk.controller.schedule.trials) == 2


# ------------------------------------------------------------------------------------------------- rounds


def in_rounds(**options: Any) -> Desk:
    return Desk("w1", "w2", search=ASHA(trials=2, max_epochs=3, concurrency=1), deterministic=True, **options)


def test_in_rounds_a_failing_evaluation_waits_for_the_others() -> None:
    desk = in_rounds(valid=2)
    desk.finished()
    desk.finished()
    desk.saved(2)
    assert not of(desk.failed("w1"), m.TrialEnded)
    assert of(desk.evaluated("w2", loss=1.0), m.TrialEnded)[0].state is TrialState.FAILED


def test_in_rounds_a_trial_that_is_stopped_is_saved_first() -> None:
    desk = in_rounds()
    desk.finished()
    ask(desk, "stop", trial="t0001")
    assert not of(desk.finished(), m.TrialEnded)
    assert of(desk.saved(2), m.TrialEnded)[0].state is TrialState.STOPPED


# ------------------------------------------------------------------------------------------------ versions


def test_what_is_at_risk_is_what_came_after_the_newest_version_that_is_written() -> None:
    desk = Desk("w1", partitions=9)
    for _ in range(4):
        desk.finished(took=1.0)
    progress, state = desk["t0001"], desk.controller.state
    progress.saved.clear()
    for saved, written, risk in [((), (), True), ((1,), (), True), ((1, 3), (), False), ((1,), (3,), False)]:
        progress.saved = dict.fromkeys(saved)  # type: ignore[arg-type]
        progress.saves = {90 + version: Save(version, durable=False, worker="w1") for version in written}
        assert at_risk(state, progress, 4) is risk


def test_an_older_version_is_dropped_as_soon_as_a_newer_one_is_saved() -> None:
    desk = Desk("w1", partitions=4)
    desk.finished()
    desk.saved_unasked(1)
    desk.finished()
    assert of(desk.saved_unasked(2), m.DropVersion) == [m.DropVersion(VersionRef("t0001", 1, 91))]
    assert needed_versions(desk["t0001"]) == {2}


def test_a_trial_returns_to_the_newest_of_its_saved_versions() -> None:
    desk = Desk("w1", "w2", partitions=4)
    for _ in range(3):
        desk.finished()
    desk.saved_from("w1", 1)
    desk.saved_unasked(2)
    assert sorted(desk["t0001"].saved) == [1, 2]
    assert of(desk.tell(m.WorkerLost("w1", "killed")), m.TrialRolledBack) == [m.TrialRolledBack("t0001", 2)]


def test_a_drain_leaves_in_shared_memory_what_no_worker_holds() -> None:
    """A resumed run finds the version there; no worker that has nothing of the trial is told to save it."""
    desk = Desk("w1", trials=2)
    desk.finished()
    desk.saved(1, durable=False)
    desk.tell(m.WorkerLost("w1", "killed"))
    desk.controller.state.draining = True
    assert not of(desk.tell(m.WorkerJoined("w2")), m.SaveVersion)
    assert not of(desk.tell(m.RequestMade("drain")), m.SaveVersion)


# ------------------------------------------------------------------------------------------ the end of a run


def test_a_run_ends_only_when_every_version_in_memory_is_durable() -> None:
    desk = Desk("w1", trials=2, partitions=3)
    desk.finished()
    state = desk.controller.state
    desk.controller.schedule.abandon("w1", desk.controller.schedule.slots["w1"].unit.trial)
    desk["t0001"].saves.clear()
    state.draining = True
    assert desk["t0001"].holder == "w1" and list(finish(state)) == []
    desk.saved_from("w1", 1)
    assert of(desk.messages, m.Finish) == [m.Finish(complete=False)]


def test_each_worker_has_its_own_time() -> None:
    desk = Desk("w1", "w2", trials=2, unit_timeout=0.5)
    assert desk.controller.overdue({}) == [], "it is unknown when they began"
    assert [late.worker for late in desk.controller.overdue({"w1": 0.25, "w2": 0.75})] == ["w2"]
