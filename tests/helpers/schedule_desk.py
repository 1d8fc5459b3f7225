"""A schedule for tests, with short hands for its transitions."""

from __future__ import annotations

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule


def trial(number: int = 1, epochs: int = 2) -> Trial:
    return Trial(f"t{number}", number, {}, 0, epochs)


class Desk:
    """A schedule with trials t1, t2, ... and workers w1, w2, ..., and short hands for its transitions."""

    def __init__(self, *workers, partitions=2, valid=1, trials=1, epochs=2):
        self.schedule = Schedule(partitions, valid)
        for number, readable in enumerate(workers, 1):
            self.schedule.join(f"w{number}", readable)
        for number in range(1, trials + 1):
            self.schedule.add(trial(number, epochs))

    def __getitem__(self, name: str) -> Progress:
        return self.schedule.trials[name]

    def start(self, worker, name, partition, *, evaluate=False, epoch=None):
        progress = self[name]
        epoch = epoch or progress.epoch - evaluate
        unit = Unit(name, epoch, partition, Work.EVALUATE if evaluate else Work.TRAIN)
        self.schedule.start(worker, unit, 1)
        validate(self.schedule)

    def train(self, worker, name, *partitions, seconds=1.0):
        for partition in partitions:
            self.start(worker, name, partition)
            unit = self.schedule.slots[worker].unit
            self.schedule.finish(worker, unit, seconds, {"train_loss": RowSum.of(1.0, 1)})
            validate(self.schedule)
