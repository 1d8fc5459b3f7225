"""What stands in lines is what a look at every trial would find, whatever happens to trials and workers."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.random import random_choice
from hopfleet.scheduler.ready import DRAWS
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk, trial

PARTITIONS = 3
READABLE = (None, (0,), (1,), (2,), (0, 1), (1, 2), ())
SECONDS = (1.0, 0.5, 3.0, 1.0, 0.0, -2.0)


def plain_longest(schedule, slot):
    """Look at every ready trial."""
    best, best_key = None, None
    for progress in schedule.ready.values():
        key = (schedule.remaining(progress), progress.holder == slot.worker)
        if (best_key is None or key > best_key) and list(schedule.options(progress, slot)):
            best, best_key = progress, key
    return best


def plain_policy(schedule):
    """Longest-remaining, by looking at everything."""
    for slot in sorted(schedule.idle.values(), key=schedule.load, reverse=True):
        progress = plain_longest(schedule, slot)
        if progress is not None:
            options = list(schedule.options(progress, slot))
            urgency = {j: schedule.owed[j] / schedule.replicas(j) for j in options}
            partition = max(options, key=lambda j: (j == slot.warm, urgency[j], -j))
            return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition))
    return None


class Walk:
    """One thing after another happens to a schedule, picked by numbers; what cannot happen is left out."""

    def __init__(self) -> None:
        self.schedule = Schedule(PARTITIONS, 0)
        self.trials = self.workers = self.attempts = 0

    def join(self, pick):
        self.workers += 1
        self.schedule.join(f"w{self.workers}", READABLE[pick % len(READABLE)])

    def rejoin(self, pick):
        """The same name again, with other partitions."""
        if worker := self.one(self.schedule.slots, pick):
            self.schedule.leave(worker)
            self.schedule.join(worker, READABLE[pick % len(READABLE)])

    def leave(self, pick):
        if worker := self.one(self.schedule.slots, pick):
            self.schedule.leave(worker)

    def add(self, pick):
        self.trials += 1
        epochs = 1 + pick % 3
        self.schedule.add(trial(self.trials, epochs), (2, 0, 1) * epochs if pick % 4 == 3 else ())

    def remove(self, pick):
        idle = [name for name, progress in self.schedule.trials.items() if progress.trains_on is None]
        if name := self.one(idle, pick):
            self.schedule.park(name, TrialState.FAILED)

    def follow(self, pick):
        """What the policy says."""
        policy = longest_remaining if pick % 4 else random_choice
        assignment = policy(self.schedule, random.Random(pick))
        if assignment is not None:
            self.attempts += 1
            self.schedule.start(assignment.worker, assignment.unit, self.attempts)

    def finish(self, pick):
        if worker := self.one(self.busy, pick):
            name = self.schedule.slots[worker].unit.trial
            self.schedule.finish(worker, self.schedule.slots[worker].unit, SECONDS[pick % len(SECONDS)], {})
            if self.schedule.trials[name].awaits_evaluation:
                self.schedule.end_epoch(name)

    def abandon(self, pick):
        if worker := self.one(self.busy, pick):
            self.schedule.abandon(worker, self.schedule.slots[worker].unit.trial)

    def save(self, pick):
        if name := self.one(self.schedule.trials, pick):
            self.schedule.saved(VersionRef(name, self.schedule.trials[name].version, 0), durable=pick % 2 == 0)

    def drop(self, pick):
        if name := self.one(self.schedule.trials, pick):
            self.schedule.dropped(VersionRef(name, self.schedule.trials[name].version, 0))

    def lose(self, pick):
        if name := self.one(self.schedule.trials, pick):
            progress = self.schedule.trials[name]
            if progress.trains_on is None:
                self.schedule.lost(VersionRef(name, progress.version, 0), progress.holder)

    def roll_back(self, pick):
        if name := self.one(self.schedule.trials, pick):
            progress = self.schedule.trials[name]
            if progress.trains_on is None:
                self.schedule.roll_back(name, max(progress.saved, default=0))

    @property
    def busy(self):
        return [worker for worker, slot in self.schedule.slots.items() if slot.unit is not None]

    @staticmethod
    def one(names, pick):
        return list(names)[pick % len(names)] if names else None


COMMON = ("add", "join", "follow", "follow", "finish", "finish", "save", "save")
RARE = ("leave", "rejoin", "remove", "abandon", "drop", "lose", "roll_back")
steps = st.lists(st.tuples(st.sampled_from(COMMON + RARE), st.integers(0, 11)), max_size=120)


@settings(deadline=None, max_examples=200)
@given(steps)
@example([("add", 1), ("add", 2), ("follow", 1), ("finish", 5)])  # a clock that was set back
@example([("join", 0), ("follow", 1), ("finish", 0), ("save", 0), ("drop", 0)])
@example([("add", 2)] * 3 + [("join", 0)] * 2 + [("follow", 1), ("finish", 0), ("save", 0)] * 30)
def test_the_lines_agree_with_a_look_at_every_trial(steps):
    walk = Walk()
    for name, pick in [("join", 0), ("add", 0), *steps]:
        getattr(walk, name)(pick)
        schedule = walk.schedule
        validate(schedule)
        assert longest_remaining(schedule, random.Random(0)) == plain_policy(schedule)
        for slot in schedule.slots.values():
            assert schedule.longest(slot) is plain_longest(schedule, slot)
            able = [name for name, progress in schedule.ready.items() if list(schedule.options(progress, slot))]
            drawn = schedule.draw(slot, random.Random(pick))
            assert drawn.trial.id in able if able else drawn is None


def test_each_trial_is_drawn_with_the_same_chance():
    desk = Desk((0,), (0, 1), partitions=2, trials=6)
    for name in ("t1", "t2"):
        desk.train("w1", name, 0)  # only w1 could load it, and it owes w1 nothing
    desk.train("w2", "t3", 0)  # only w2 can load it
    desk.train("w2", "t4", 0)
    desk.schedule.saved(VersionRef("t4", 1, 0), durable=False)
    rng = random.Random(0)
    draws = dict.fromkeys(desk.schedule.trials, 0)
    for _ in range(8000):
        draws[desk.schedule.draw(desk.schedule.slots["w2"], rng).trial.id] += 1
    assert draws.pop("t1") == draws.pop("t2") == 0
    assert all(abs(count - 2000) < 200 for count in draws.values())  # five standard deviations


def test_outdated_entries_do_not_hide_current_ones():
    """One trial behind very many that left without having been first."""
    desk = Desk(None, trials=50, epochs=1)
    desk.schedule.add(trial(51, epochs=2))
    for number in range(1, 50):
        desk.schedule.park(f"t{number}", TrialState.FAILED)
    rng = random.Random(0)
    assert {desk.schedule.draw(desk.schedule.slots["w1"], rng).trial.id for _ in range(100)} == {"t50", "t51"}
    assert len(desk.schedule._ready._shared[None].unknown.entries) == 2


def test_queues_go_with_the_last_worker_they_serve():
    desk = Desk((0,), (0,), None)
    desk.schedule.leave("w1")
    assert list(desk.schedule._ready._shared) == [{0}, None]
    desk.schedule.leave("w2")
    assert list(desk.schedule._ready._shared) == [None]


def test_outdated_entries_are_purged():
    desk = Desk(None, (0,), trials=3, epochs=1)
    for number in range(4, 1000):
        desk.schedule.add(trial(number, epochs=1))
        desk.schedule.park(f"t{number}", TrialState.FAILED)
    for queues in desk.schedule._ready._shared.values():
        assert len(queues.unknown.entries) <= 2 * 4 + DRAWS
