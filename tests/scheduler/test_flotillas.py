"""Trials that train together: those that want the same rows, as many as fit, and none that may kill its worker."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.fusion import UNKNOWN, Fusion, companions
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.progress import Setback
from tests.helpers.schedule_desk import Desk
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import Fault, Setting, controller_of

SIZE = Fusion(lambda config: config.get("size"), most=4)


def along(desk: Desk, worker: str, unit: Unit, fusion: Fusion = SIZE) -> list[str]:
    found = companions(desk.schedule, desk.schedule.slots[worker], unit, fusion)
    assert all((x.epoch, x.partition, x.work) == (unit.epoch, unit.partition, unit.work) for x in found)
    return [each.trial for each in found]


def finish(desk: Desk, trial: str, seconds: float) -> None:
    """The unit of a trial on w1 ends well."""
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit_of(trial), seconds, {})


def test_as_many_as_fit():
    desk = Desk(None, trials=20)
    assert along(desk, "w1", Unit("t3", 1, 0)) == ["t1", "t2", "t4"]
    many = Fusion(lambda config: None, most=99, memory=1000)
    assert len(along(desk, "w1", Unit("t3", 1, 0), many)) == UNKNOWN - 1
    profiled = Fusion(lambda config: None, most=99, memory=1000, size=100)
    assert len(along(desk, "w1", Unit("t3", 1, 0), profiled)) == 9
    desk.schedule.model_bytes = 400
    assert along(desk, "w1", Unit("t3", 1, 0), many) == along(desk, "w1", Unit("t3", 1, 0), profiled) == ["t1"]
    desk.schedule.model_bytes = 4000
    assert along(desk, "w1", Unit("t3", 1, 0), many) == []


def test_no_more_than_a_worker_s_share():
    desk = Desk(None, None, trials=6)
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t2", "t3"]
    desk["t2"].seconds, desk["t2"].measured = 4.5, 1
    desk.schedule.seconds, desk.schedule.measured = 9.0, 9
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t2"]


@pytest.mark.parametrize(
    ("seconds", "whole", "come", "stay"),
    [(1.2, False, 4, 4), (1.3, False, 3, 3), (1.3, True, 3, 4), (2.0, True, 3, 4), (9.0, True, 2, 2)],
)
def test_members_of_a_stack_stay_if_they_take_little_more_than_that(seconds, whole, come, stay):
    """Half of ten trials take longer: count the companions of the first one, also if the worker holds them."""
    desk = Desk(None, None, trials=10, valid=0)
    for number in range(1, 11):
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = (seconds if number <= 5 else 1.0), 1
    fusion = Fusion(lambda config: None, whole=whole, most=99, memory=100, size=1)
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == ["t2", "t3", "t4", "t5"][:come]
    for number in range(1, 6):
        desk[f"t{number}"].holder = "w1"
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == ["t2", "t3", "t4", "t5"][:stay]


def test_a_trial_that_takes_just_its_share_is_a_companion():
    """Trials of 1, 2 and 1 seconds on two workers: 2 seconds are the share of each."""
    desk = Desk(None, None, trials=3, valid=0)
    for number, seconds in enumerate((1.0, 2.0, 1.0), 1):
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = seconds, 1
    fusion = Fusion(lambda config: None, most=99, memory=100, size=1)
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == ["t2"]


@pytest.mark.parametrize(("held", "members"), [(("t2", "t3", "t4"), ["t2", "t3", "t4"]), (("t2", "t3"), ["t2"])])
def test_trials_of_another_form_stay_only_if_all_of_them_are_there(held, members):
    """5 seconds are a share, and 6.25 may be taken by those that stay: 1 and 2, and half of the 5 of the other form."""
    desk = Desk(None, None, trials=6, valid=0)
    for number, (form, seconds) in enumerate(zip("aabbxx", (1.0, 2.0, 2.5, 2.5, 1.0, 1.0), strict=True), 1):
        desk[f"t{number}"].trial.config["form"] = form  # type: ignore[index]
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = seconds, 1
    for name in held:
        desk[name].holder = "w1"
    fusion = Fusion(lambda config: None, lambda config: config["form"], whole=True, most=99, memory=100, size=1)
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == members


def test_the_limit_of_members_is_a_whole_number():
    assert Fusion(lambda config: None, memory=10).limit(3) == 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nobody_waits_for_a_straggler_on_another_worker(workers):
    """Six trials train together, and the device works for one of them as long as for the others together, twice."""
    desk = Desk(*[None] * workers, trials=6, valid=0)
    for number in range(1, 7):
        desk.schedule.start("w1", Unit(f"t{number}", 1, 0), number, 1)
    assert all(desk.schedule.unit_seconds(desk[f"t{number}"]) == 1.0 for number in range(1, 7))
    for number in range(1, 7):
        finish(desk, f"t{number}", 10.0 if number == 2 else 1.0)
    many = Fusion(lambda config: None, most=99, memory=100, size=1)
    others = ["t2", "t3", "t4", "t5", "t6"] if workers == 1 else ["t3", "t4", "t5", "t6"]
    assert along(desk, "w1", Unit("t1", 1, 1), many) == others
    assert along(desk, "w1", Unit("t2", 1, 1), many) == (["t1", *others[1:]] if workers == 1 else [])


def test_only_those_that_want_the_same_rows_and_batches():
    desk = Desk(None, None, trials=5, valid=0)
    for number, size in enumerate((1, 1, 2, 1, 1), 1):
        desk[f"t{number}"].trial.config["size"] = size  # type: ignore[index]
    desk.train("w1", "t2", 0)
    desk.train("w1", "t4", 1)
    desk.train("w2", "t5", 1)
    # t2 has seen partition 0, t3 wants other batches, t5's model is elsewhere.
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t4"]
    desk.schedule.saved(VersionRef("t5", 1, 0), durable=False)
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t4", "t5"]
    desk.train("w1", "t4", 0)
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t5"]  # t4 is an epoch ahead


def test_trials_of_the_same_form_come_first():
    """Weights of one form can be stacked; whatever room is left goes to others."""
    desk = Desk(None, trials=6)
    for number, form in enumerate("abaaba", 1):
        desk[f"t{number}"].trial.config["form"] = form  # type: ignore[index]
    fusion = Fusion(lambda config: None, lambda config: config["form"], most=5, memory=100, size=1)
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == ["t3", "t4", "t6", "t2"]


@pytest.mark.parametrize(("most", "expected"), [(2, ["t3"]), (4, ["t3", "t4"]), (5, ["t3", "t4", "t2", "t5"])])
def test_trials_of_another_form_come_all_at_once(most, expected):
    """A part of them would be a stack of its own, which is built anew when the others come."""
    desk = Desk(None, trials=5)
    for number, form in enumerate("abaab", 1):
        desk[f"t{number}"].trial.config["form"] = form  # type: ignore[index]
    fusion = Fusion(lambda config: None, lambda config: config["form"], whole=True, most=most, memory=100, size=1)
    assert along(desk, "w1", Unit("t1", 1, 0), fusion) == expected


def test_who_was_lost_with_a_worker_goes_alone():
    desk = Desk(None, trials=3)
    desk["t2"].setbacks[Setback.UNIT] = ["killed"]
    assert along(desk, "w1", Unit("t1", 1, 0)) == ["t3"]
    assert along(desk, "w1", Unit("t2", 1, 0)) == []


def test_evaluations_too():
    desk = Desk(None, None, partitions=1, valid=2, trials=8)
    for number, worker in enumerate(("w1", "w1", "w2"), 1):
        desk.train(worker, f"t{number}", 0)
    assert along(desk, "w1", Unit("t1", 1, 0, Work.EVALUATE)) == ["t2"]
    desk.start("w2", "t3", 0, evaluate=True)
    desk.schedule.saved(VersionRef("t3", 1, 0), durable=False)
    assert along(desk, "w1", Unit("t1", 1, 0, Work.EVALUATE)) == ["t2"]
    assert along(desk, "w1", Unit("t1", 1, 1, Work.EVALUATE)) == ["t2", "t3"]


# ------------------------------------------------------------------------------------------- the state machine


def test_a_worker_is_busy_until_all_are_home():
    desk = Desk(None, trials=3, valid=0)
    for number in (1, 2, 3):
        desk.schedule.start("w1", Unit(f"t{number}", 1, 0), number, 1)
        validate(desk.schedule)
    slot = desk.schedule.slots["w1"]
    assert (slot.unit, slot.attempt, list(slot.units.values())) == (Unit("t1", 1, 0), 1, [1, 2, 3])
    finish(desk, "t2", 1.0)
    desk.schedule.abandon("w1", "t1")
    assert not desk.schedule.idle and desk["t2"].visits == [0] and desk["t1"].can_train
    finish(desk, "t3", 1.0)
    assert list(desk.schedule.idle) == ["w1"]
    validate(desk.schedule)
    assert (slot.unit, slot.attempt) == (None, 0)


@pytest.mark.parametrize("unit", [Unit("t2", 1, 1), Unit("t2", 1, 0, Work.EVALUATE)])
def test_only_what_is_alike_runs_together(unit):
    desk = Desk(None, trials=2)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1, 1)
    with pytest.raises(InvariantBroken, match="exclusive access"):
        desk.schedule.start("w1", unit, 2, 1)


@pytest.mark.parametrize("flotilla", [0, 2])
def test_nobody_joins_another_flotilla(flotilla):
    desk = Desk(None, trials=2)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1, 1)
    with pytest.raises(InvariantBroken, match="exclusive access"):
        desk.schedule.start("w1", Unit("t2", 1, 0), 2, flotilla)


def test_a_history_with_flotillas():
    def told(number: int, flotilla: int) -> list[m.Message]:
        trial = f"t{number}"
        return [
            m.TrialAdded(trial, number, {}, 0, 1),
            m.RunUnit("w1", Unit(trial, 1, 0), number, VersionRef(trial, 0, None), last=True, flotilla=flotilla),
            m.UnitFinished("w1", Unit(trial, 1, 0), number, 1, 0.0, 2.0, sums={"loss": RowSum.of(1.0, 1)}, share=0.5),
        ]

    validate_history([*told(1, 1), *told(2, 1)], 1)
    for flotillas in ((0, 0), (1, 2)):
        with pytest.raises(InvariantBroken, match="exclusive access"):
            validate_history([*told(1, flotillas[0]), *told(2, flotillas[1])], 1)


# ------------------------------------------------------------------------------------------- whole experiments


def flotillas(driver: Driver) -> list[int]:
    """The number of members of each flotilla."""
    starts = [x for x in driver.messages if isinstance(x, m.RunUnit) and x.flotilla]
    return [sum(x.flotilla == number for x in starts) for number in sorted({x.flotilla for x in starts})]


def test_trials_go_together_through_all_epochs():
    driver = Driver(Setting(workers=(None, None), partitions=3, trials=8, epochs=2, together=8)).run()
    assert set(flotillas(driver)) == {4}
    starts = [x for x in driver.messages if isinstance(x, m.RunUnit)]
    assert all(x.flotilla for x in starts)
    assert sum(not x.more for x in starts) == len(flotillas(driver))
    units = sum(isinstance(x, m.UnitFinished) and x.unit.trains for x in driver.messages)
    assert driver.controller.schedule.seconds == pytest.approx(units)  # each its share


def test_a_lost_worker_makes_suspects_of_all_until_they_have_trained_alone():
    driver = Driver(Setting(partitions=2, trials=4, epochs=2, together=4, faults=(Fault(2, "lose"),))).run()
    assert driver.happened == {"lose"}
    lost = next(i for i, x in enumerate(driver.messages) if isinstance(x, m.WorkerLost))
    next_starts = [x for x in driver.messages[lost:] if isinstance(x, m.RunUnit)]
    assert [x.flotilla for x in next_starts[:4]] == [0, 0, 0, 0]
    assert any(x.flotilla for x in next_starts[4:])
    assert all(x.state.value == "completed" for x in driver.ended.values())


def sole_flotilla(*, trials: int = 3) -> tuple:
    """Return a controller whose only worker runs a flotilla, and the commands that started its members."""
    controller = controller_of(Setting(partitions=1, valid=0, trials=trials, epochs=2, together=8))
    controller.handle(m.RunStarted("test", 1))
    follow = controller.handle(m.WorkerJoined("w1"))
    starts = [x for x in follow if isinstance(x, m.RunUnit)]
    assert len(starts) == trials and len({x.flotilla for x in starts}) == 1
    return controller, starts


def test_stopping_one_at_once_blames_no_other():
    controller, starts = sole_flotilla()
    follow = controller.handle(m.RequestMade("stop", {"trial": starts[1].trial, "now": True}))
    stop = next(x for x in follow if isinstance(x, m.StopUnit))
    assert stop.attempt == starts[1].attempt
    controller.handle(m.WorkerLost("w1", "it was told to give up", replaced=True))
    assert [controller.schedule.trials[x.trial].losses for x in (starts[0], starts[2])] == [[], []]


def test_a_hung_flotilla_makes_suspects_of_all():
    controller, starts = sole_flotilla()
    controller.handle(m.UnitOverdue("w1", starts[2].attempt, 99.0, 1.0))
    controller.handle(m.WorkerLost("w1", "it was told to give up", replaced=True))
    assert [controller.schedule.trials[x.trial].losses for x in starts] == [["it ran for 99 s; estimated 1 s"]] * 3
    assert controller.refuses(m.UnitOverdue("w1", 1, 99.0, 1.0))


def test_one_fails_and_the_others_do_not_notice():
    controller, starts = sole_flotilla()
    failed, *others = starts
    where = ("w1", Unit(failed.trial, 1, 0), failed.attempt)
    follow = controller.handle(m.UnitFailed(*where, 0.0, 1.0, "ValueError: no", "traceback"))
    assert [x.trial for x in follow if isinstance(x, m.TrialEnded)] == [failed.trial]
    sums = {"train_loss": RowSum.of(1.0, 1)}
    for start in others:
        controller.handle(
            m.UnitFinished("w1", Unit(start.trial, 1, 0), start.attempt, 1, 0.0, 1.0, sums=sums, share=0.5)
        )
    assert [controller.schedule.trials[x.trial].version for x in others] == [1, 1]


def test_a_flotilla_is_cut_to_the_epochs_that_are_left():
    desk = Desk(None, trials=3)
    desk.schedule.epoch_limit = 2
    units = [Unit(trial, 1, 0) for trial in ("t1", "t2", "t3")]
    assert desk.schedule.affordable(units) == units[:2]
