"""The models in a worker's memory.

A trial that stays on its worker is neither written nor read to go on. Old models are dropped when memory runs short.
"""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hopfleet.domain.messages import RunUnit
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, describe
from hopfleet.frameworks.base import Session, SharedStateChanged
from hopfleet.store.base import VersionStore
from hopfleet.support.logging import messages
from hopfleet.worker.context import WorkerContext
from hopfleet.worker.saver import Saver, size_of

MEMORY = 1 << 30
"""Bytes of models to keep beside the one in use; more if the device has memory to spare."""

Done = TypeVar("Done")


class VersionUnusable(CheckpointError):
    """The version that a unit starts from is gone or, if its file is ``intact``, no model can be made from it."""

    def __init__(self, reason: CheckpointError, *, intact: bool) -> None:
        super().__init__(str(reason))
        self.intact = intact


@dataclass(slots=True)
class Held:
    """A model in memory, and its version."""

    session: Session
    version: int
    size: int = 0


class ModelCache:
    """Models of trials, the least recently used first."""

    def __init__(self, context: WorkerContext, versions: VersionStore, saver: Saver) -> None:
        self._context = context
        self._versions = versions
        self._saver = saver
        self._held: OrderedDict[str, Held] = OrderedDict()
        #: Trials of a flotilla that is reporting: all of their models must stay.
        self.pinned: set[str] = set()
        #: Trials and versions whose work is retried: memory ran out, or the work changed a shared state.
        self._retried: set[tuple[str, int]] = set()

    def holds(self, ref: VersionRef) -> bool:
        """Whether the model is in memory at this version."""
        held = self._held.get(ref.trial)
        return held is not None and held.version == ref.version

    def peek(self, ref: VersionRef) -> Session | None:
        """Return the model at a version, if it is in memory."""
        return self._held[ref.trial].session if self.holds(ref) else None

    def take(self, command: RunUnit, trial: Trial) -> tuple[Session, bool]:
        """Return the trial's model at the version that a command starts from, and whether it was loaded.

        The model leaves the cache while it is in use: if the user's code raises, a half-trained model must not stay.
        Raise VersionUnusable if the version cannot be loaded.
        """
        version, held = command.model.version, self._held.get(trial.id)
        if held is None or held.version != version or command.unit.trains or not held.session.steady:
            self._saver.wait(trial.id)
        held = self._held.pop(trial.id, None)
        if held is not None and held.version == version:
            return held.session, False
        if version == 0:
            return self._context.open(trial), False
        try:
            path = self._versions.find(command.model, command.digest)
        except CheckpointError as error:
            raise VersionUnusable(error, intact=False) from error
        parent = None if trial.parent is None or trial.parent.version != version else trial.parent
        session = held.session if held is not None and parent is None else self._context.open(trial)
        try:
            if parent is None:
                with self._context.within(session, trial, keeps=session.builds_on_load):
                    session.load(path)
            else:
                other = self._context.open(replace(trial, config=parent.config))
                with self._context.within(session, trial):
                    session.inherit(path, other)
        except CheckpointError as error:
            raise VersionUnusable(error, intact=True) from error
        return session, True

    def put(self, trial: str, session: Session, version: int) -> None:
        """Keep a model, and drop the oldest ones if there is no room for all."""
        self._held[trial] = Held(session, version, size_of(session))
        room = self._memory
        for name in reversed(list(self._held)):
            room -= self._held[name].size
            if room < 0 and name != trial and name not in self.pinned:
                del self._held[name]

    def drop(self, trial: str) -> None:
        """Forget a model that may be half trained."""
        self._held.pop(trial, None)

    def put_back(self, trial: str, session: Session, version: int) -> None:
        """Return a model that was taken and not used."""
        self._held[trial] = Held(session, version)

    @functools.cached_property
    def _memory(self) -> int:
        return max(MEMORY, self._context.framework.spare_memory(self._context.placement) // 4)

    def with_room(self, command: RunUnit, work: Callable[[], Done]) -> Done:
        """Do some work; if the device runs out of memory, empty it and try once more.

        Do the same if the work changed a state that trials share: then each of them starts anew, with its own.

        The half-trained model is dropped then. If its version is saved nowhere, the second try ends with a
        CheckpointError, and the trial comes back from an earlier version; a third try is not made here.
        """
        key, changed = (command.trial, command.model.version), False
        if key not in self._retried:
            try:
                return work()
            except Exception as error:
                changed = isinstance(error, SharedStateChanged)
                if not changed and not self._context.framework.out_of_memory(error):
                    raise
                how = "from now on each trial has its own" if changed else "on an emptied device"
                messages().warning("%s; the unit starts once more, %s", describe(error), how)
            # Only here is the exception gone, with everything that it kept alive.
            self._retried.add(key)
        self.make_room("" if changed else command.trial)
        done = work()
        self._retried.discard(key)
        return done

    def make_room(self, trial: str = "") -> None:
        """Drop all models except that of ``trial``, and everything cached on the device."""
        for name in [name for name in self._held if name != trial]:
            self._saver.wait(name)
            del self._held[name]
        self._saver.flush()
        self._context.device_cache.clear()
        gc.collect()
        self._context.framework.free_memory()
