"""When the only worker is told ahead which partition its flotilla trains on next, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import TrialState
from hopfleet.scheduler.invariants import validate
from tests.helpers.virtual.settings import Setting, controller_of


class Bench:
    """A worker that has trained flotillas of four trials for an epoch, with units of ``seconds``."""

    def __init__(self, seconds: float = 0.2, workers: int = 1, **options: object) -> None:
        setting = Setting(**{"trials": 4, "partitions": 4, "epochs": 3, "together": 4, **options})
        self.controller: Controller = controller_of(setting)
        self.seconds, self.clock = seconds, 0.0
        self.log = self.tell(m.RunStarted("test", workers))
        for number in range(workers):
            self.starts = self.tell(m.WorkerJoined(f"w{number + 1}", Placement.on("fake")))

    def tell(self, *events: m.Event) -> list[m.Message]:
        follow = self.controller.take(events)
        validate(self.controller.schedule)
        return follow[len(events) :]

    def reports(self, *, without: Sequence[str] = ()) -> list[m.Event]:
        """The reports of the flotilla that w1 runs."""
        schedule = self.controller.schedule
        slot = schedule.slots["w1"]
        started, self.clock = self.clock, self.clock + self.seconds
        return [
            m.UnitFinished(
                *("w1", unit, attempt, schedule.trials[unit.trial].version + unit.trains, started, self.clock),
                sums={"train_loss" if unit.trains else "loss": RowSum.of(1.0, 1)},
                share=1 / len(slot.units),
            )
            for unit, attempt in slot.units.items()
            if unit.trial not in without
        ]

    def step(self) -> list[m.RunUnit]:
        """All units that run end well; return what is started then."""
        return [x for x in self.tell(*self.reports()) if isinstance(x, m.RunUnit)]


def test_the_next_partition_is_told_ahead_as_soon_as_times_are_known():
    bench = Bench()
    assert not any(x.lookahead for x in bench.starts if isinstance(x, m.RunUnit)), "it is unknown how long it takes"
    first = bench.step()
    assert [(x.unit.partition, x.model.version, x.lookahead, x.last) for x in first] == [
        *[(1, 1, False, False)] * 4,
        *[(2, 2, True, False)] * 4,
    ]
    assert len({x.flotilla for x in first}) == 2 and [x.more for x in first] == 2 * [True, True, True, False]
    second = bench.step()
    assert [(x.unit.partition, x.model.version, x.lookahead, x.last) for x in second] == [(3, 3, True, True)] * 4
    assert bench.step() == [], "how an epoch ends is waited for"
    assert [(x.unit.trains, x.lookahead) for x in bench.step()] == [(False, False)] * 4
    third = bench.step()
    assert [(x.unit.epoch, x.metric, x.lookahead) for x in third] == [*[(2, 1.0, False)] * 4, *[(2, None, True)] * 4]


def test_a_save_waits_for_a_unit_that_nothing_follows():
    """Half a second of training may be in memory alone."""
    bench = Bench(seconds=0.8)  # 0.2 s for each trial
    assert [x.lookahead for x in bench.step()] == [*[False] * 4, *[True] * 4]
    follow = bench.tell(*bench.reports())
    assert follow == [], "a version that is trained on cannot be saved, and nothing more is told"
    follow = bench.tell(*bench.reports())
    assert [x.ref.version for x in follow if isinstance(x, m.SaveVersion)] == [3] * 4
    assert [x.lookahead for x in follow if isinstance(x, m.RunUnit)] == [False] * 4


def test_what_is_being_written_is_not_at_risk():
    """Otherwise each version would be saved until the first of them is."""
    bench = Bench(seconds=0.8, partitions=12)
    saves, ahead = [], []
    for _ in range(11):
        follow = bench.tell(*bench.reports())
        saves += [x.ref.version for x in follow if isinstance(x, m.SaveVersion)]
        ahead += [x.unit.partition for x in follow if isinstance(x, m.RunUnit) and x.lookahead]
    assert sorted(set(saves)) == [3, 6, 9] and saves.count(3) == 4
    assert sorted(set(ahead)) == [2, 4, 5, 7, 8, 10, 11], "each time, the next two are told"


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 3.0},
        {"workers": 2},
        {"together": 2},
        {"together": 0},
    ],
    ids=["long units", "two workers", "others wait", "alone"],
)
def test_where_nothing_is_told_ahead(options):
    bench = Bench(**options)
    for _ in range(6):
        assert not any(x.lookahead for x in bench.step())


@pytest.mark.parametrize(("seconds", "told"), [(2.0, True), (2.5, False)])
def test_up_to_two_seconds_are_told_ahead(monkeypatch, seconds, told):
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 9.0)
    assert any(x.lookahead for x in Bench(seconds=seconds).step()) is told


def test_nothing_is_told_ahead_if_one_of_the_flotilla_is_to_end():
    bench = Bench()
    first = bench.step()[0]
    bench.tell(m.RequestMade("stop", {"trial": first.trial}))
    assert bench.step() == [], "what was told before is done"
    follow = bench.step()
    assert {x.trial for x in follow} == {"t0002", "t0003", "t0004"} and first.trial == "t0001"


@pytest.mark.parametrize("name", ["pause", "drain"])
def test_nothing_follows_that_should_not_start(name):
    bench = Bench()
    bench.step()
    bench.tell(m.RequestMade(name))
    assert bench.step() == [], "one unit was told, and no other is"
    assert bench.step() == []
    assert bench.controller.schedule.slots["w1"].unit is None


def test_others_go_on_without_a_trial_that_fails():
    bench = Bench()
    follow = bench.step()
    failing, told = follow[0], follow[4]
    assert told.trial == failing.trial and told.lookahead
    failed = m.UnitFailed("w1", failing.unit, failing.attempt, 0.0, 0.1, "ValueError: no", "trace")
    next_up = [x for x in bench.tell(failed, *bench.reports(without=[failing.trial])) if isinstance(x, m.RunUnit)]
    assert bench.controller.schedule.find(failing.trial).state is TrialState.FAILED
    late = m.VersionLost(told.model, "it was never made", "w1", told.attempt)
    assert bench.controller.refuses(late)
    assert [unit.trial for unit in bench.controller.schedule.slots["w1"].units] == [x.trial for x in follow[5:]]
    assert [(x.unit.partition, x.trial) for x in next_up] == [(3, x.trial) for x in follow[5:]]
    assert all(x.lookahead for x in next_up)


def test_a_trial_that_is_stopped_at_once_does_not_go_on():
    bench = Bench()
    (running, *_), told = (found := bench.step())[:4], found[4:]
    bench.tell(m.RequestMade("stop", {"trial": running.trial, "now": True}))
    bench.tell(m.UnitStopped("w1", running.unit, running.attempt, 0.0, 0.1))
    assert bench.controller.schedule.slots["w1"].told.keys() == {
        unit for x in (*found[1:4], *told[1:]) for unit in [x.unit]
    }


def test_a_restored_controller_knows_what_follows():
    bench = Bench()
    journal = [m.RunStarted("test", 1), *bench.log, m.WorkerJoined("w1", Placement.on("fake")), *bench.starts]
    reports = bench.reports()
    journal += [*reports, *bench.tell(*reports)]
    other = controller_of(Setting(trials=4, partitions=4, epochs=3, together=4))
    other.restore(journal)
    validate(other.schedule)
    assert other.schedule.slots == bench.controller.schedule.slots
