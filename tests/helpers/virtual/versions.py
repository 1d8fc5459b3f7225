"""A version store in memory: what ``hopfleet.runtime.effects`` does to files, without a disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError

Model = tuple[tuple[int, int], ...]
"""The units that a model has seen, as (epoch, partition)."""


class VirtualVersions:
    """Files, by trial, version and the number of the save; whether each is durable."""

    def __init__(self) -> None:
        self.storage: dict[VersionRef, tuple[Model, bool]] = {}
        #: Files that went with the end of a run.
        self.released: set[VersionRef] = set()
        self.sends = False

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        return Path("durable" if durable else "memory", f"{ref.trial}-{ref.version}-{ref.attempt}")

    def put(self, ref: VersionRef, model: Model, *, durable: bool) -> None:
        assert ref not in self.storage, "two saves write one file"
        self.storage[ref] = model, durable

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        if ref not in self.storage:
            raise CheckpointError("not found")
        return self.path(ref, durable=True)

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        model, durable = self.storage.get(source, ((), False))
        if not durable:
            raise CheckpointError("not found")
        self.put(ref, model, durable=True)
        return "", 0

    def collect(self, trial: str = "") -> None:
        """Do nothing: all versions are in one place."""

    def drop(self, ref: VersionRef) -> None:
        self.storage.pop(ref, None)

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        kept = set(needed)
        self.storage = {ref: stored for ref, stored in self.storage.items() if ref in kept}

    def forget(self, trial: str) -> None:
        self.storage = {ref: stored for ref, stored in self.storage.items() if ref.trial != trial}

    def release(self) -> None:
        self.released |= {ref for ref, (_, durable) in self.storage.items() if not durable}
        self.storage = {ref: stored for ref, stored in self.storage.items() if stored[1]}


class VirtualChores:
    """Chores that run at once, or are left undone by a process that dies."""

    def __init__(self) -> None:
        self.lost = False

    def add(self, job) -> None:
        if not self.lost:
            job()

    def finish(self) -> None:
        """Do nothing: all chores are done."""


class VirtualCopies:
    """Copies that are made after some time; ``later`` takes the seconds. A process that dies leaves them undone."""

    DELAYS = (0.0, 0.5, 0.0, 3.0)

    def __init__(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._later = later
        self._delays = itertools.cycle(self.DELAYS)

    def add(self, copy: Callable[[], None]) -> None:
        self._later(next(self._delays), copy)

    def pause(self, seconds: float) -> bool:
        return True
