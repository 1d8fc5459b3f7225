"""What messages do to saved versions: files are copied, dropped, collected, forgotten and released.

Real runs and simulated ones share this code, so that a simulated crash between two effects tests what users run. They
differ in the store, in when chores run, where new events go, and how to wait for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from hopfleet.domain.messages import (
    CopyVersion,
    DropVersion,
    Event,
    Finish,
    SaveDelayed,
    TrialDeleted,
    TrialEnded,
    VersionLost,
    VersionSaved,
)
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, describe
from hopfleet.runtime.driver import Effects
from hopfleet.scheduler.schedule import Schedule
from hopfleet.store.base import VersionStore
from hopfleet.support.files import LIMITS, back_off, trouble


class Retry(Protocol):
    """Waits for a disk or a storage."""

    def __call__(self, path: Path | None, write: Callable[[], object], /) -> None:
        """Call ``write``, again and again while it raises OSError. ``path`` is what it writes."""


class Deferred(Protocol):
    """Jobs that run in order, at any time before ``finish`` returns. A process that dies loses those that are left."""

    def add(self, job: Callable[[], object], /) -> None: ...

    def finish(self) -> None: ...


class Copies(Protocol):
    """Copies of versions for clones, beside the run: training goes on while a disk or a storage takes its time."""

    def add(self, copy: Callable[[], object], /) -> None: ...

    def pause(self, seconds: float, /) -> bool:
        """Wait before another attempt at a copy; return whether the run still wants it."""


class VersionEffects:
    """Acts on messages about saved versions. ``report`` takes the events that effects lead to, from any thread."""

    def __init__(
        self,
        schedule: Schedule,
        versions: VersionStore,
        *,
        chores: Deferred,
        copies: Copies,
        report: Callable[[Event], object],
        retry: Retry,
    ) -> None:
        self._schedule = schedule
        self._versions = versions
        self._chores = chores
        self._copies = copies
        self._report = report
        self._retry = retry

    def effects(self) -> Effects:
        """Return what to do about each type of message."""
        versions, chores = self._versions, self._chores
        return {
            # Deleting a large file takes a while; the end of the run tidies up what is left.
            DropVersion: lambda command: chores.add(partial(versions.drop, command.ref)),
            TrialEnded: lambda decision: chores.add(partial(versions.collect, decision.trial)),
            TrialDeleted: lambda decision: chores.add(partial(versions.forget, decision.trial)),
            CopyVersion: lambda command: self._copies.add(partial(self._copy, command)),
            Finish: self._finish,
        }

    def _finish(self, command: Finish) -> None:
        self._chores.finish()
        self._retry(None, self._versions.release)

    def refuse(self, event: Event) -> None:
        """Delete the file of a late save, unless the file is the current version: a report may come twice."""
        if isinstance(event, VersionSaved) and not self._schedule.refers(event.ref):
            self._versions.drop(event.ref)

    def _copy(self, command: CopyVersion) -> None:
        """Copy a version for a clone, trying again while a disk or a storage refuses it, which is reported once."""
        source, ref = command.source, command.ref
        assert ref.attempt is not None, f"{ref} has no file"
        path = self._versions.path(ref, durable=True)
        told = False
        for seconds in back_off():
            try:
                digest, size = self._versions.copy(source, ref, command.digest)
            except Exception as error:
                if not isinstance(error, OSError) or error.errno in LIMITS:
                    self._report(VersionLost(ref._replace(attempt=None), _reason(error, path), None, ref.attempt))
                    return
                if not told:
                    told, sends = True, self._versions.sends
                    self._report(SaveDelayed("", ref, str(error) if sends else trouble(path, error), on_node=sends))
                if not self._copies.pause(seconds):
                    return
            else:
                self._report(VersionSaved(ref, True, digest, size))
                return


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, OSError):
        return trouble(path, error)
    return str(error) if isinstance(error, CheckpointError) else describe(error)


def missing_versions(schedule: Schedule, versions: VersionStore) -> Iterator[VersionLost]:
    """Delete the files that a restored schedule does not need, then yield the versions that are not in the store."""
    versions.tidy(schedule.files())
    for name, progress in schedule.trials.items():
        for version, saved in progress.saved.items():
            try:
                versions.find(ref := VersionRef(name, version, saved.attempt))
            except CheckpointError as error:
                yield VersionLost(ref, str(error))
