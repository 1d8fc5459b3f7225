"""What a worker can be busy with: a training unit, or the evaluation of one validation partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Work(Enum):
    TRAIN = "train"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class Unit:
    """One trial over one partition in one epoch (epochs count from 1, partitions from 0)."""

    trial: str
    epoch: int
    partition: int
    work: Work = Work.TRAIN

    def __str__(self) -> str:
        verb = "trains on" if self.work is Work.TRAIN else "is evaluated on"
        return f"{self.trial} {verb} partition {self.partition} in epoch {self.epoch}"
