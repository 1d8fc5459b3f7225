"""A controller for tests, with short hands for the reports of its workers."""

from __future__ import annotations

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.space import uniform
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal


class Desk:
    """A controller, and short hands for the reports of its workers."""

    def __init__(
        self,
        *workers,
        trials=1,
        epochs=2,
        partitions=2,
        valid=1,
        search=None,
        max_live=256,
        seed=0,
        **options,
    ):
        self.search = search or Random(trials, epochs)
        self.search.setup({"x": uniform(0, 1)}, seed=seed, goal=Goal("loss", "min"))
        policy = POLICIES["longest-remaining"]()
        self.controller = Controller(
            self.search,
            policy,
            partitions=partitions,
            valid_partitions=valid,
            seed=seed,
            max_live=max_live,
            **options,
        )
        self.messages = []
        self.started = self.tell(m.RunStarted("test"))
        for worker in workers:
            self.joined = self.tell(m.WorkerJoined(worker))

    def __getitem__(self, trial):
        return self.controller.schedule.trials[trial]

    def tell(self, event):
        follow = self.controller.handle(event)
        self.messages += [event, *follow]
        validate(self.controller.schedule)
        return follow

    def finished(self, worker="w1", took=1.0, **sums):
        """The training unit that runs there came to its end."""
        slot = self.controller.schedule.slots[worker]
        unit, version = slot.unit, self[slot.unit.trial].version + 1
        return self.tell(m.UnitFinished(worker, unit, slot.attempt, version, 0.0, took, sums=as_sums(sums)))

    def evaluated(self, worker="w1", **sums):
        slot = self.controller.schedule.slots[worker]
        version = self[slot.unit.trial].version
        return self.tell(m.UnitFinished(worker, slot.unit, slot.attempt, version, 0.0, 1.0, sums=as_sums(sums)))

    def failed(self, worker="w1"):
        slot = self.controller.schedule.slots[worker]
        return self.tell(m.UnitFailed(worker, slot.unit, slot.attempt, 0.0, 1.0, "ValueError: no", "trace"))

    def saving(self, version, trial="t0001"):
        """The number of the save of a version that is under way."""
        return max(number for number, save in self[trial].saves.items() if save.version == version)

    def saved(self, version, trial="t0001", *, durable=True):
        ref = VersionRef(trial, version, self.saving(version, trial))
        return self.tell(m.VersionSaved(ref, durable, "abc" if durable else "", 0))

    def saved_unasked(self, version):
        """A version of t0001 that w1 holds lies in shared memory, as if it had been told to save it."""
        self.controller.restore([m.SaveVersion("w1", VersionRef("t0001", version, 90 + version), False)])
        return self.saved(version, durable=False)

    def saved_from(self, worker, version):
        """A worker has saved a durable version of t0001, as if it had been told to."""
        number = self.controller.state.next_attempt
        self.controller.restore([m.SaveVersion(worker, VersionRef("t0001", version, number), True)])
        return self.tell(m.VersionSaved(VersionRef("t0001", version, number), True, "abc", 0))

    def epoch(self, **sums):
        """Two units and an evaluation of the only trial on w1."""
        self.finished()
        self.finished()
        return self.evaluated(**sums)


def as_sums(values):
    return {name: RowSum.of(value, 1) for name, value in values.items()}


def of(messages, *kinds):
    return [message for message in messages if isinstance(message, kinds)]
