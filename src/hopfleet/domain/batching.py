"""How rows become batches and steps: the one place that knows batch sizes, short batches and numbers of steps.

Each partition is a unit of its own. Its last batch is short unless the batch size divides its rows, ``drop_last``
leaves that batch out, and a unit ends with an update. So an epoch may have more steps than its rows divided by the
batch size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from hopfleet.domain.trial import Config

BATCH_SIZE = "batch_size"
"""The key of a configuration with a batch size of its own."""


def batch_size(config: Config, default: int) -> int:
    """Return the batch size of a configuration; ``default`` is that of the experiment."""
    # Asking a dict itself: configurations note which keys a task asks for.
    found = dict.get(config, BATCH_SIZE, default) if isinstance(config, dict) else config.get(BATCH_SIZE, default)
    return int(found)


def batches(rows: int, size: int, *, drop_last: bool = False) -> int:
    """Return the number of batches of a partition."""
    return rows // size if drop_last else -(-rows // size)


@dataclass(frozen=True, slots=True)
class Batching:
    """The rows that a trial trains on and the way they are divided, until the planned number of epochs."""

    #: The rows of each partition.
    rows: tuple[int, ...]
    #: The batch size of the experiment, or the trial's own; see ``of``.
    batch_size: int
    drop_last: bool
    #: The epochs that were planned when the trial was added. A trial that is extended later keeps this number.
    epochs: int

    @classmethod
    def recorded(cls, definition: Mapping[str, Any]) -> Self:
        """Return the batching of a recorded experiment. Old definitions have no rows of each partition."""
        rows, partitions = definition["train"]["rows"], definition["train"]["partitions"]
        even = [len(range(part, rows, partitions)) for part in range(partitions)]
        found = definition.get("partition_rows") or even
        epochs = definition["search"].get("max_epochs", 1)
        return cls(tuple(found), definition["batch_size"], definition["drop_last"], epochs)

    def of(self, config: Config) -> Self:
        """Return the batching of a configuration, which may have a batch size of its own."""
        return replace(self, batch_size=batch_size(config, self.batch_size))

    def without(self, partitions: Collection[int]) -> Self:
        """Return the batching of a model that some partitions validate."""
        return replace(self, rows=tuple(rows for part, rows in enumerate(self.rows) if part not in partitions))

    @property
    def batches(self) -> Sequence[int]:
        """The number of batches of each partition."""
        return [batches(rows, self.batch_size, drop_last=self.drop_last) for rows in self.rows]

    def steps_per_epoch(self, accumulate: int = 1) -> int:
        """Return the updates in an epoch, each made of ``accumulate`` batches or of those left at the end of a unit."""
        return sum(self.steps(accumulate))

    def steps(self, accumulate: int = 1) -> list[int]:
        """Return the updates of each partition."""
        return [-(-count // accumulate) for count in self.batches]

    def total_steps(self, accumulate: int = 1) -> int:
        """Return the updates until the end of the planned epochs."""
        return self.epochs * self.steps_per_epoch(accumulate)
