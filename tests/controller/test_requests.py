"""What a user may request, and how the controller answers. Whole experiments with requests are in tests/scheduler."""

from __future__ import annotations

import math

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.fusion import Fusion
from tests.helpers.controller_desk import of
from tests.helpers.request_desk import RequestDesk

pytestmark = pytest.mark.usefixtures("few_saves")


def trained(**options):
    """A desk whose only trial has trained for one epoch of two, and saved it."""
    desk = RequestDesk("w1", **options)
    desk.epoch(loss=1.0)
    desk.saved(2)
    return desk


def test_a_trial_that_is_about_to_fail_is_not_resumed():
    """Its end would wait for a save that never comes."""
    desk = RequestDesk("w1")
    desk.finished()
    desk.finished()
    desk.tell(m.SaveFailed(VersionRef("t0001", 2, desk.saving(2)), "TypeError: no", "trace"))
    assert "t0001 has failed" in desk.refused("resume", trial="t0001")
    assert of(desk.evaluated(loss=1.0), m.TrialEnded)[0].state is TrialState.FAILED


def test_what_nobody_knows():
    desk = RequestDesk("w1")
    assert "unknown; there are add, clone" in desk.refused("dance")
    assert desk.refused("stop", trial="t0001", loud=True) == "loud=True: unknown; stop takes trial, now"
    assert desk.refused("stop") == "trial: is missing; stop takes trial, now"
    (answer,) = desk.tell(m.RequestMade("stop", ["t0001"], "ada", 7))
    assert answer.text == "request 'stop': its arguments are ['t0001']; must be a dict of names to values"
    for request in ("stop", "resume", "delete", "clone", "prioritise"):
        assert desk.refused(request, trial="t0009").startswith("trial 't0009': there is none of that name")
    assert desk.refused("stop", trial=3).startswith("trial=3: must be the name of a trial")


@pytest.mark.parametrize(
    ("request_", "given", "words"),
    [
        ("stop", {"trial": "t0001", "now": "x"}, "now='x': must be True or False"),
        ("resume", {"trial": "t0001", "epochs": "x"}, "epochs='x': must be an integer of at least 1"),
        ("resume", {"trial": "t0001", "epochs": True}, "epochs=True: must be an integer of at least 1"),
        ("clone", {"trial": "t0001", "epochs": 2.5}, "epochs=2.5: must be an integer of at least 1"),
        ("clone", {"trial": "t0001", "changes": "x"}, "changes='x': must be a dict of names to values, e.g."),
        ("clone", {"trial": "t0001", "changes": {"x": math.nan}}, "x=nan: must be a finite number, as in uniform"),
        ("clone", {"trial": "t0001", "changes": {"x": "y"}}, "x='y': must be a number, as in uniform(0, 1)"),
        ("add", {"config": "x"}, "config='x': must be a dict of names to values"),
        ("add", {"config": {"x": -3}}, "x=-3: must be a number of at least 0, as in uniform(0, 1)"),
        ("add", {"config": {"y": 3}}, "config: y is unknown, x is missing; the keys are x"),
        ("extend", {"space": "x"}, "space='x': must be a dict of names to dimensions, e.g. {'lr': 'loguniform"),
        ("extend", {"space": {"x": "uniform(1)"}}, "x=uniform(1): "),
        ("extend", {"trials": "x"}, "trials='x': must be an integer of at least 0"),
        ("prioritise", {"trial": "t0001", "level": -1}, "level=-1: must be an integer of at least 0"),
        ("workers", {"by": "x"}, "by='x': must be an integer, e.g. 2 or -1"),
        ("workers", {"count": -1}, "count=-1: must be an integer of at least 1"),
    ],
)
def test_wrong_arguments_are_refused_with_reasons(request_, given, words):
    assert RequestDesk("w1").refused(request_, **given).startswith(words)


def test_a_trial_stops_after_its_unit_with_a_durable_model_and_can_be_resumed():
    desk = RequestDesk("w1", partitions=3)
    desk.finished()
    text, follow = desk.granted("stop", trial="t0001")
    assert text == "t0001 stops after what it is doing"
    assert follow == [m.TrialStopped("t0001", "stopped by a person")]
    assert desk.refused("stop", trial="t0001") == "t0001 is about to end already"
    assert desk.finished() == [m.SaveVersion("w1", VersionRef("t0001", 2, 3), True)]
    assert of(desk.saved(2), m.TrialEnded)[0].state is TrialState.STOPPED
    text, follow = desk.granted("resume", trial="t0001")
    assert text == "t0001 goes on from epoch 0 until epoch 2"
    assert follow == [
        m.TrialResumed("t0001", 2),
        m.RunUnit("w1", Unit("t0001", 1, 2), 4, VersionRef("t0001", 2, 3), last=True, digest="abc"),
    ]


def test_a_trial_stops_now():
    desk = RequestDesk("w1")
    _, follow = desk.granted("stop", trial="t0001", now=True)
    assert follow == [m.TrialStopped("t0001", "stopped by a person"), m.StopUnit("w1", "t0001", 1)]
    follow = desk.tell(m.WorkerLost("w1", "killed"))
    assert of(follow, m.TrialEnded)[0].state is TrialState.STOPPED
    assert desk.controller.schedule.parked["t0001"].losses == []


def test_a_unit_that_is_given_up_costs_nobody_else_a_unit():
    desk = RequestDesk("w1", trials=3, fusion=Fusion(lambda config: 0))
    assert len(desk.controller.schedule.slots["w1"].units) == 3
    _, follow = desk.granted("stop", trial="t0002", now=True)
    assert m.StopUnit("w1", "t0002", 2) in follow
    follow = desk.tell(m.UnitStopped("w1", Unit("t0002", 1, 0), 2, 0.0, 0.5))
    assert of(follow, m.TrialEnded) == [m.TrialEnded("t0002", TrialState.STOPPED, "stopped by a person")]
    assert not of(follow, m.RunUnit)
    assert [unit.trial for unit in desk.controller.schedule.slots["w1"].units] == ["t0001", "t0003"]
    assert desk.controller.state.stopped == {}
    # It may have ended before the worker heard of it: a late report does not count, and an overdue unit is given up.
    desk.granted("stop", trial="t0001", now=True)
    desk.finished()
    assert desk.controller.state.stopped == {}
    assert desk.tell(m.UnitStopped("w1", Unit("t0001", 1, 0), 1, 0.0, 0.5)) == []


def test_a_drained_run_waits_for_the_save_of_an_earlier_version():
    desk = RequestDesk("w1", partitions=1)
    desk.finished()
    assert of(desk.evaluated(loss=1.0), m.RunUnit)[0].unit.epoch == 2
    desk.tell(m.RequestMade("drain", {}))
    desk.finished()
    assert desk.saved(2) == [] and not desk.controller.finished
    (end,) = of(desk.saved(1), m.Finish)
    assert not end.complete


def test_members_are_not_blamed_for_a_worker_that_ends_because_it_gave_up_one_of_two_units():
    desk = RequestDesk("w1", trials=3, fusion=Fusion(lambda config: 0))
    desk.granted("stop", trial="t0001", now=True)
    desk.granted("stop", trial="t0002", now=True)
    desk.tell(m.UnitStopped("w1", Unit("t0002", 1, 0), 2, 0.0, 0.5))
    desk.tell(m.WorkerLost("w1", "killed"))
    schedule = desk.controller.schedule
    assert schedule.trials["t0003"].losses == []
    assert desk.controller.state.stopped == {} and desk.controller.state.losses.in_a_row == 0


def test_a_stopped_trial_goes_back_to_its_last_saved_version():
    desk = trained(epochs=3)
    desk.finished()
    assert (desk["t0001"].version, desk["t0001"].holder) == (3, "w1")
    desk.granted("stop", trial="t0001", now=True)
    slot = desk.controller.schedule.slots["w1"]
    follow = desk.tell(m.UnitStopped("w1", slot.unit, slot.attempt, 0.0, 0.5))
    assert of(follow, m.TrialRolledBack) == [m.TrialRolledBack("t0001", 2)]
    assert of(follow, m.TrialEnded)


def test_a_stopped_trial_whose_model_lies_in_shared_memory_alone_is_saved_by_anybody():
    desk = RequestDesk("w1", trials=2, partitions=3)
    desk.finished()
    desk.saved(1, durable=False)
    desk.tell(m.WorkerLost("w1", "killed"))
    _, follow = desk.granted("stop", trial="t0001")
    assert not of(follow, m.SaveVersion)  # no worker is left
    assert m.SaveVersion("w2", VersionRef("t0001", 1, 5), True, 3) in desk.tell(m.WorkerJoined("w2"))
    follow = desk.tell(m.WorkerLost("w2", "killed"))
    assert m.SaveVersion("w3", VersionRef("t0001", 1, 7), True, 3) in desk.tell(m.WorkerJoined("w3"))
    assert of(desk.saved(1), m.TrialEnded)


def test_resuming_what_runs_needs_an_epoch_and_more_than_there_was():
    desk = trained()
    assert desk.refused("resume", trial="t0001").startswith("t0001 is running already")
    assert desk.refused("resume", trial="t0001", epochs=1).startswith(
        "epochs=1: t0001 has trained for 1 epochs already"
    )
    assert desk.refused("resume", trial="t0001", epochs=2).startswith("epochs=2: t0001 trains until epoch 2 already")
    assert desk.refused("resume", trial="t0001", epochs=0) == "epochs=0: must be an integer of at least 1"
    assert desk.granted("resume", trial="t0001", epochs=5)[1] == [m.TrialResumed("t0001", 5)]
    assert desk["t0001"].units_left == 8


def test_a_failed_trial_is_not_resumed():
    desk = RequestDesk("w1", trials=2)
    desk.failed()
    assert "clone it with another configuration" in desk.refused("resume", trial="t0001")
    assert desk.refused("prioritise", trial="t0001") == "t0001 does not train: it is failed"


def test_a_trial_that_has_ended_is_deleted_with_its_models():
    desk = trained(trials=2, epochs=1, max_live=1)
    assert "t0001" in desk.controller.schedule.parked
    _, follow = desk.granted("delete", trial="t0001")
    assert follow == [m.DropVersion(VersionRef("t0001", 2, 4)), m.TrialDeleted("t0001")]
    assert desk.controller.schedule.find("t0001") is None


def test_a_trial_that_runs_is_deleted_when_it_is_done():
    desk = trained()
    text, follow = desk.granted("delete", trial="t0001")
    assert text == "t0001 will be deleted when it runs nothing"
    follow = desk.finished()
    assert [type(x) for x in follow] == [m.DropVersion, m.TrialEnded, m.TrialDeleted, m.Finish]


def test_a_lender_waits_for_its_clone_before_it_goes():
    desk = trained()
    _, follow = desk.granted("clone", trial="t0001", warm=True)
    assert of(follow, m.CopyVersion) == [m.CopyVersion(VersionRef("t0001", 2, 4), VersionRef("t0002", 2, 6), "abc")]
    assert of(follow, m.CopyVersion)[0].trial == "t0002", "the copy belongs to the clone"
    desk.granted("delete", trial="t0001")
    assert not of(desk.finished(), m.TrialDeleted)
    assert of(desk.saved(2, "t0002"), m.TrialDeleted)


def test_a_lender_that_has_ended_is_not_deleted_either():
    desk = trained(epochs=2)
    desk.granted("stop", trial="t0001")
    desk.finished()
    desk.saved(3)
    desk.granted("clone", trial="t0001", warm=True)
    assert "a clone is about to take its model" in desk.refused("delete", trial="t0001")


def test_a_warm_clone_goes_on_from_the_last_epoch():
    desk = trained()
    text, follow = desk.granted("clone", trial="t0001", changes={"x": 0.5}, warm=True)
    assert text == "t0002 goes on from epoch 1 of t0001, until epoch 2"
    (added,) = of(follow, m.TrialAdded)
    assert (added.config, added.parent, added.origin) == ({"x": 0.5}, "t0001", "clone")
    assert added.visits == tuple(desk["t0001"].visits[:2])
    assert desk["t0002"].trial.parent.config == desk["t0001"].trial.config
    assert desk["t0002"].last_metric == desk["t0001"].metrics[1], "its first unit learns the metric of its parent"
    desk.finished()
    desk.saved(2, "t0002")
    assert not desk["t0001"].lends


def test_a_clone_that_never_gets_its_model_fails_alone():
    desk = trained()
    desk.granted("clone", trial="t0001", warm=True)
    lost = m.VersionLost(VersionRef("t0002", 2, None), "no such file", None, desk.saving(2, "t0002"))
    end = of(desk.tell(lost), m.TrialEnded)[0]
    assert (end.trial, end.state) == ("t0002", TrialState.FAILED)
    assert end.reason == "the model of t0001 that it should have started with is lost: no such file"
    assert not desk["t0001"].lends


def test_a_drained_run_does_not_wait_for_a_copy_that_a_storage_refuses():
    desk = trained()
    desk.granted("clone", trial="t0001", warm=True)
    desk.tell(m.RequestMade("drain"))
    desk.finished()
    assert not of(desk.saved(3), m.Finish), "the copy may be done at any moment"
    delayed = m.SaveDelayed("", VersionRef("t0002", 2, desk.saving(2, "t0002")), "s3://bucket: gone", on_node=True)
    assert of(desk.tell(delayed), m.Finish) == [m.Finish(complete=False)]


def test_a_clone_asks_again_for_its_model_in_the_next_run():
    desk = trained()
    desk.granted("clone", trial="t0001", warm=True)
    follow = desk.tell(m.RunStarted("again"))
    assert m.CopyVersion(VersionRef("t0001", 2, 4), VersionRef("t0002", 2, 7), "abc") in follow
    assert not of(follow, m.TrialRolledBack), "it has trained nothing that could be lost"


def test_a_warm_clone_needs_a_model_and_something_left_to_do():
    desk = RequestDesk("w1")
    assert "wait for the end of its first epoch, or clone it cold" in desk.refused("clone", trial="t0001", warm=True)
    desk = trained()
    assert "epochs=1: t0001 has trained for 1" in desk.refused("clone", trial="t0001", warm=True, epochs=1)
    desk = trained(trials=2, epochs=1, max_live=1)
    assert desk.granted("clone", trial="t0001", warm=True)[0].endswith("until epoch 2")


def test_a_cold_clone_starts_afresh():
    desk = RequestDesk("w1")
    text, follow = desk.granted("clone", trial="t0001", changes={"x": 3})
    assert text == "t0002 starts afresh with what t0001 had, until epoch 2"
    (added,) = of(follow, m.TrialAdded)
    assert (added.config, added.parent, added.visits) == ({"x": 3}, "t0001", ())


def test_a_key_that_nobody_knows_is_not_set():
    desk = RequestDesk("w1")
    assert desk.refused("clone", trial="t0001", changes={"y": 1}) == "y=1: the configuration has no 'y'; it has x"


def test_configurations_are_added():
    desk = RequestDesk("w1")
    _, follow = desk.granted("add", config={"x": 9})
    assert of(follow, m.TrialAdded)[0].origin == "person"
    assert desk.refused("add", config={}) == "config: x is missing; the keys are x"
    assert desk.refused("add", config={"y": 1, "z": 2}) == (
        "config: y is unknown, z is unknown, x is missing; the keys are x"
    )


def test_levels_go_first():
    desk = RequestDesk("w1", trials=3)
    desk.granted("prioritise", trial="t0003", level=2)
    desk.granted("prioritise", trial="t0002")
    assert of(desk.finished(), m.RunUnit)[0].trial == "t0003"
    desk.granted("prioritise", trial="t0003", level=0)
    desk.finished()
    desk.saved(1, "t0003", durable=False)
    assert desk.controller.schedule.urgent == {"t0002"}
    assert desk.refused("prioritise", trial="t0002", level=-1) == "level=-1: must be an integer of at least 0"


def test_an_urgent_trial_that_no_idle_worker_can_take_holds_nobody_up():
    desk = RequestDesk(trials=2)
    desk.tell(m.WorkerJoined("w1", partitions=(0, 1)))
    desk.granted("prioritise", trial="t0001")
    assert of(desk.tell(m.WorkerJoined("w2", partitions=())), m.RunUnit) == []
    assert of(desk.tell(m.WorkerJoined("w3")), m.RunUnit)[0].trial == "t0002"
