"""The unit of work: one trial over one partition in one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Work(Enum):
    """What a unit does with its partition: train on training data, or evaluate on validation data."""

    TRAIN = "train"
    EVALUATE = "evaluate"

    @property
    def verb(self) -> str:
        return _VERBS[self]


_VERBS = {Work.TRAIN: "trains on", Work.EVALUATE: "is evaluated on"}


@dataclass(frozen=True, slots=True)
class Unit:
    """One trial over one partition in one epoch. Epochs count from 1, partitions from 0."""

    trial: str
    epoch: int
    partition: int
    work: Work = Work.TRAIN

    def __str__(self) -> str:
        return f"{self.trial} {self.work.verb} partition {self.partition} in epoch {self.epoch}"

    @property
    def trains(self) -> bool:
        """Whether the unit changes the model."""
        return self.work is Work.TRAIN
