"""Balanced shares of replicated partitions, in virtual time."""

from __future__ import annotations

import pytest

from hopfleet.planner.balance import installed, relax
from hopfleet.scheduler.policies.balanced import Balanced, _owed
from tests.helpers.replica_shop import ReplicaShop
from tests.helpers.schedule_desk import Desk

pytestmark = pytest.mark.skipif(not installed(), reason="needs SciPy")

BOTH, ALL = (0, 1), (0, 1, 2)


def bound(workers, times, epochs, arrivals) -> float:
    """Return the end before which no schedule ends, if the work could be divided at will."""
    cells = {
        (f"t{number}", partition): {
            f"w{worker}": epochs * seconds * slow
            for worker, (reads, slow) in enumerate(workers, 1)
            if partition in reads
        }
        for number, row in enumerate(times, 1)
        for partition, seconds in enumerate(row)
    }
    return relax(cells, config_ready={f"t{number}": at for number, at in arrivals.items()})[0]


@pytest.mark.parametrize(
    ("workers", "times", "epochs", "arrivals", "prior"),
    [
        ([(ALL, 1.0), (BOTH, 2.0)], [(1, 7, 1), (5, 6, 3), (5, 7, 2), (5, 2, 7)], 2, {}, True),
        ([(BOTH, 1.0), (BOTH, 1.0)], [(4, 7), (4, 5), (2, 1), (2, 1), (5, 3)], 1, {2: 1.0, 3: 6.0, 5: 6.0}, True),
        ([(ALL, 1.0), (ALL, 0.5)], [(2, 8, 2), (3, 7, 4)], 1, {2: 5.0}, False),
        ([((1,), 1.0), (BOTH, 1.0)], [(4, 8), (4, 7)], 2, {1: 8.0}, True),
        ([((1,), 0.5), (BOTH, 1.0), (BOTH, 0.5)], [(1, 8), (5, 4)], 1, {2: 1.0}, True),
        ([(BOTH, 2.0), (BOTH, 1.0)], [(1, 1), (8, 1), (3, 5), (1, 1), (4, 2)], 1, {1: 4.0, 2: 8.0}, True),
    ],
)
def test_small_shops_end_at_the_bound(workers, times, epochs, arrivals, prior):
    """Also where trials come later, and where nothing is known of times beforehand."""
    end = ReplicaShop(workers, times, prior=prior).run(Balanced(), epochs=epochs, arrivals=arrivals)
    assert end == pytest.approx(bound(workers, times, epochs, arrivals))


@pytest.mark.parametrize(
    ("workers", "times", "epochs", "arrivals", "prior", "seconds"),
    [
        (
            [((1,), 2.0), (BOTH, 1.0), (BOTH, 0.5)],
            [(3, 4), (8, 2), (8, 4), (3, 4), (3, 2), (8, 5), (8, 3), (8, 2), (5, 5), (6, 1), (2, 4)],
            2, {1: 6.0}, False, 62.0,
        ),
        (
            [((0, 2), 1.0), ((1, 2), 2.0), (ALL, 2.0)],
            [(5 / 64, 6 / 64, 7 / 64), (6 / 64, 3 / 64, 8 / 64), (6 / 64, 6 / 64, 3 / 64), (3 / 64, 4 / 64, 6 / 64)],
            1, {}, True, 33 / 64,
        ),
        (
            [((0, 2), 0.5), (BOTH, 2.0), ((1, 2), 1.0)],
            [
                (3, 5, 5), (6, 5, 1), (8, 6, 6), (3, 1, 1), (5, 8, 2), (4, 1, 7),
                (7, 8, 7), (8, 7, 4), (5, 8, 2), (5, 1, 7), (5, 8, 5), (3, 3, 8),
            ],
            1, {12: 8.0}, False, 78.0,
        ),
    ],
)  # fmt: skip
def test_shops_where_times_are_learned_or_units_are_few(workers, times, epochs, arrivals, prior, seconds):
    """Take exactly ``seconds``: one more trial comes, units take half a second or nothing is known beforehand."""
    end = ReplicaShop(workers, times, prior=prior).run(Balanced(), epochs=epochs, arrivals=arrivals)
    assert bound(workers, times, epochs, arrivals) <= end * (1 + 1e-9)
    assert end == pytest.approx(seconds)


def test_a_trial_that_waits_for_its_last_evaluation_owes_nothing():
    desk = Desk(None, None, trials=1, epochs=2)
    progress = desk["t1"]
    assert _owed(desk.schedule, progress) == {0: 2, 1: 2}
    desk.train("w1", "t1", 0)
    assert _owed(desk.schedule, progress) == {0: 1, 1: 2}
    desk.train("w1", "t1", 1)
    desk.schedule.end_epoch("t1")
    desk.train("w1", "t1", 1)
    desk.start("w1", "t1", 0)
    assert _owed(desk.schedule, progress) == {}
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit, 1.0, {})
    assert progress.awaits_evaluation and _owed(desk.schedule, progress) == {}
