"""The queues of ready trials: ties, and how long outdated entries remain."""

from __future__ import annotations

import pytest

from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.ready import DRAWS, Entry, Queue
from tests.helpers.schedule_desk import Desk, trial


def entry(left: float, name: int) -> Entry:
    return Entry(-left, 0, name, Progress(trial(name), 2))


@pytest.mark.parametrize("trials", [1, 5, 40])
def test_outdated_entries_remain_until_they_are_the_majority(trials):
    current: dict[str, Entry] = {}
    queue = Queue(current)
    most = 0
    for again in range(4 * DRAWS):
        for name in range(trials):
            current[f"t{name}"] = entry(again, name)
            queue.add(current[f"t{name}"])
            most = max(most, len(queue.entries))
    assert most == 2 * trials + DRAWS
    queue.purge()
    assert len(queue.entries) == trials


def test_the_first_after_a_purge_is_the_longest():
    entries = [entry(left, left) for left in (9, 5, 8, 4, 3, 7, 6)]
    current = {found.progress.trial.id: found for found in entries}
    queue = Queue(current)
    for found in entries:
        queue.add(found)
    for outdated in ("t9", "t8"):
        del current[outdated]
    queue.purge()
    assert queue.first() is current["t7"]
    assert len(queue.entries) == 5


def held(desk: Desk, name: str, *, saved: bool) -> None:
    desk.train("w1", name, 0)
    if saved:
        desk.schedule.saved(VersionRef(name, 1, 0), durable=False)


def longest(desk: Desk, worker: str = "w1") -> str:
    return desk.schedule.longest(desk.schedule.slots[worker]).trial.id


def test_ties_go_to_a_trial_that_the_worker_holds():
    desk = Desk(None, None, trials=2)
    desk.train("w2", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    held(desk, "t2", saved=True)
    assert longest(desk) == "t2"
    assert longest(desk, "w2") == "t1"


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("names", [("t1", "t2"), ("t2", "t1")])
def test_of_two_that_it_holds_the_one_that_has_been_ready_longer(names, saved):
    desk = Desk(None, trials=2)
    first, second = names
    held(desk, first, saved=saved)
    held(desk, second, saved=not saved)
    assert longest(desk) == first


@pytest.mark.parametrize("saved", [True, False])
def test_the_longest_that_a_worker_holds(saved):
    desk = Desk(None, trials=1, epochs=3)
    desk.schedule.add(trial(2, 2))
    held(desk, "t1", saved=saved)
    held(desk, "t2", saved=not saved)
    assert desk.schedule.longest_held(desk.schedule.slots["w1"]) is desk["t1"]
