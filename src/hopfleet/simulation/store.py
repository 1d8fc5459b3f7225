"""Saved versions in memory: what a version store does to files, without a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError

Model = tuple[tuple[int, int], ...]
"""The units that a model has seen, as (epoch, partition). Its length is the version."""


class MemoryVersions:
    """The saved versions of simulated workers, each with its model and whether it is durable."""

    sends = False

    def __init__(self) -> None:
        self.files: dict[VersionRef, tuple[Model, bool]] = {}
        #: Bytes of versions that are not durable, by file, and the most that there were at a time.
        self._shared: dict[VersionRef, int] = {}
        self.most_shared = 0

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        return Path("durable" if durable else "memory", f"{ref.trial}-{ref.version}-{ref.attempt}")

    def put(self, ref: VersionRef, model: Model, *, durable: bool, size: int = 0) -> None:
        """Save a model of some bytes."""
        assert ref not in self.files, "two saves write one file"
        self.files[ref] = model, durable
        if size and not durable:
            self._shared[ref] = size
            self.most_shared = max(self.most_shared, sum(self._shared.values()))

    def model(self, ref: VersionRef) -> Model | None:
        """Return a saved model; None if there is none."""
        found = self.files.get(ref)
        return None if found is None else found[0]

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        raise AssertionError("simulated workers write no files")

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        if ref not in self.files:
            raise CheckpointError("not found")
        return self.path(ref, durable=True)

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        source = ref._replace(attempt=saved)
        self.find(source)
        self.put(ref, self.files[source][0], durable=True)
        return "", 0

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        model, durable = self.files.get(source, ((), False))
        if not durable:
            raise CheckpointError("not found")
        self.put(ref, model, durable=True)
        return "", 0

    def send(self, ref: VersionRef) -> None:
        """Do nothing: all versions are in one place."""

    def collect(self, trial: str = "") -> None:
        """Do nothing: all versions are in one place."""

    def drop(self, ref: VersionRef) -> None:
        self.files.pop(ref, None)
        self._shared.pop(ref, None)

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        for ref in self.files.keys() - set(needed):
            self.drop(ref)

    def forget(self, trial: str) -> None:
        for ref in [ref for ref in self.files if ref.trial == trial]:
            self.drop(ref)

    def release(self) -> None:
        for ref in [ref for ref, (_, durable) in self.files.items() if not durable]:
            self.drop(ref)
