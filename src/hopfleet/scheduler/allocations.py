"""The numbers of devices that trials were given, as the journal has them."""

from __future__ import annotations

from typing import NamedTuple

from hopfleet.scheduler.progress import Progress


class Grant(NamedTuple):
    """The number of devices on which a trial trains from one epoch to another."""

    first: int
    last: int
    devices: int


class Allocations:
    """The number of devices for each epoch of a trial, and the teams of the last allocation.

    An epoch that runs again, because its version was lost, trains on as many devices as before.
    """

    def __init__(self) -> None:
        #: The numbers of devices of the teams; empty before the first allocation.
        self.teams: tuple[int, ...] = ()
        self._grants: dict[str, list[Grant]] = {}

    def grant(self, progress: Progress, devices: int, last: int) -> None:
        """Give a trial some devices from its next epoch to epoch ``last``; for these, earlier grants no longer hold."""
        self._grants.setdefault(progress.trial.id, []).append(Grant(progress.epoch, last, devices))

    def devices(self, progress: Progress) -> int:
        """Return the number of devices for the next unit of a trial; 0 if it has none yet."""
        grant = self._of(progress)
        return 0 if grant is None else grant.devices

    def units_left(self, progress: Progress) -> int:
        """Return the units that a trial trains on the same devices, as far as it has them."""
        grant = self._of(progress)
        return 0 if grant is None else grant.last * progress.partitions - progress.version

    def _of(self, progress: Progress) -> Grant | None:
        grants = reversed(self._grants.get(progress.trial.id, []))
        return next((grant for grant in grants if grant.first <= progress.epoch <= grant.last), None)
