"""What searches decide about trials, and what persons have decided before."""

from __future__ import annotations

import pytest

from hopfleet.controller.request_arguments import check_arguments
from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.search import Random
from hopfleet.search.base import Clone, Stop, Suggestion, Train
from tests.helpers.controller_desk import of
from tests.helpers.request_desk import RequestDesk

pytestmark = pytest.mark.usefixtures("few_saves")


class Rungs(Random):
    """Trials pause after one epoch, and go on when told."""

    def suggest(self, number):
        suggestion = super().suggest(number)
        return suggestion and Suggestion(suggestion.config, 1)

    def observe(self, trial, epoch, metrics):
        return self.decisions.pop(0) if self.decisions else []


def rungs(*decisions, **options):
    search = Rungs(options.pop("trials", 1), 3)
    search.decisions = [*decisions]
    return RequestDesk("w1", search=search, **options)


def test_a_trial_pauses_where_its_search_says_and_keeps_its_model():
    desk = rungs([])
    desk.epoch(loss=1.0)
    follow = desk.saved(2)
    assert follow == [m.TrialPaused("t0001"), m.Finish(complete=True)]
    parked = desk.controller.schedule.parked["t0001"]
    assert (parked.state, list(parked.saved), parked.durable(2)) == (TrialState.PAUSED, [2], True)


def test_a_trial_that_is_to_go_on_does_not_pause():
    desk = rungs([Train("t0001", 3)])
    follow = desk.epoch(loss=1.0)
    assert [type(x) for x in follow] == [m.EpochEnded, m.TrialResumed, m.RunUnit]


def test_a_paused_trial_goes_on():
    desk = rungs([], [Train("t0001", 3)], trials=2, max_live=1)
    desk.epoch(loss=1.0)
    assert of(desk.saved(2), m.TrialPaused, m.TrialAdded) == [m.TrialPaused("t0001"), desk.messages[-2]]
    follow = desk.epoch(loss=0.5)
    assert of(follow, m.TrialResumed) == [m.TrialResumed("t0001", 3)]
    start = m.RunUnit("w1", Unit("t0001", 2, 0), 9, VersionRef("t0001", 2, 4), digest="abc", metric=1.0)
    assert of(follow, m.RunUnit) == [start]


def test_a_paused_trial_is_stopped_by_the_search_or_a_person():
    for how in ("search", "person"):
        desk = rungs([], [Stop("t0001", "hopeless")] if how == "search" else [], trials=2, max_live=1)
        desk.epoch(loss=1.0)
        desk.saved(2)
        follow = desk.epoch(loss=0.5) if how == "search" else desk.granted("stop", trial="t0001")[1]
        assert of(follow, m.TrialEnded)[0].state is TrialState.STOPPED
        assert desk.controller.schedule.parked["t0001"].state is TrialState.STOPPED


def test_what_a_search_wants_of_trials_that_are_gone_does_not_happen():
    wanted = [Train("t0007", 3), Stop("t0007", ""), Clone("t0007", {}), Train("t0001", 1), Clone("t0001", {"x": 1})]
    desk = rungs(wanted)
    follow = desk.epoch(loss=1.0)
    assert not of(follow, m.TrialResumed, m.TrialStopped, m.TrialAdded)


def test_a_search_cannot_revive_what_a_person_stopped():
    desk = rungs([Train("t0001", 3), Stop("t0001", "again")], trials=2)
    desk.granted("stop", trial="t0001")
    desk.finished()
    desk.saved(1)
    assert desk.controller.schedule.parked["t0001"].state is TrialState.STOPPED
    assert not of(desk.epoch(loss=1.0), m.TrialResumed, m.TrialEnded)


def test_a_completed_trial_is_complete():
    desk = rungs([Train("t0001", 3)], [], [], [Train("t0001", 9), Stop("t0001", "late")], trials=2, max_live=1)
    for version in (2, 4, 6):
        desk.epoch(loss=1.0)
        desk.saved(version)
    assert desk.controller.schedule.parked["t0001"].state is TrialState.COMPLETED
    assert not of(desk.epoch(loss=1.0), m.TrialResumed, m.TrialStopped, m.TrialEnded)


def test_a_clone_replaces_a_trial():
    desk = rungs([], [Clone("t0001", {"x": 7}, replaces="t0002")], trials=2, max_live=1)
    desk.epoch(loss=1.0)
    desk.saved(2)
    follow = desk.epoch(loss=2.0)
    assert of(follow, m.TrialStopped) == [m.TrialStopped("t0002", "replaced by t0003")]
    assert of(follow, m.TrialAdded)[0].config == {"x": 7}


def test_points_come_first_and_count_apart():
    desk = RequestDesk("w1", trials=2, points=[{"x": 0.25}])
    added = of(desk.started, m.TrialAdded)
    assert [(x.origin, x.number) for x in added] == [("point", 0), ("search", 1), ("search", 2)]
    assert added[0].config == {"x": 0.25}
    assert added[1].config == desk.search.suggest(0).config


class Hasty(Random):
    def over(self, elapsed):
        return "time is up" if elapsed >= 1.5 else ""


def test_when_all_is_over_trials_stop_and_no_more_come():
    desk = RequestDesk("w1", search=Hasty(5, 2), max_live=2)
    desk.finished()
    desk.tell(m.RunStarted("again"))
    desk.tell(m.WorkerJoined("w2"))
    assert not of(desk.messages, m.TrialStopped)
    follow = desk.finished("w2")
    assert {x.reason for x in of(follow, m.TrialStopped)} == {"time is up"}
    assert len(of(desk.messages, m.TrialAdded)) == 2


def test_adaptive_searches_have_as_many_trials_as_keep_workers_busy():
    class Curious(Random):
        adaptive = True

    desk = RequestDesk(search=Curious(20, 1))
    assert not of(desk.started, m.TrialAdded)
    assert len(of(desk.tell(m.WorkerJoined("w1")), m.TrialAdded)) == 2


def test_arguments_that_are_not_given_and_spaces_that_are_functions():
    check_arguments("resume", {"trial": "t0001", "epochs": None}, {})
    check_arguments("add", {"config": {"lr": 0.1}}, lambda trial: {"lr": trial.uniform(0, 1)})
