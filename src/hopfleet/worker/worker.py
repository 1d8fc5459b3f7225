"""A worker: executes commands one after another and reports the result of each.

A worker knows nothing of schedules; it runs the same way in its own process, in the user's process, and on a cluster.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from hopfleet.domain.messages import Command, Event, RecordLogged, RunUnit, SaveVersion
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Trial
from hopfleet.frameworks.teams import Team
from hopfleet.store.base import VersionStore
from hopfleet.support.logging import REPORTED, messages
from hopfleet.worker.context import WorkerContext
from hopfleet.worker.feeding.feed import Feed
from hopfleet.worker.fused_runner import FusedRunner
from hopfleet.worker.interruption import Interruption
from hopfleet.worker.logs import Capture
from hopfleet.worker.model_cache import ModelCache
from hopfleet.worker.profiler import Profiler
from hopfleet.worker.records import RecordReporter
from hopfleet.worker.saver import Saver
from hopfleet.worker.spec import Profile, WorkerSpec
from hopfleet.worker.unit_runner import Broken, UnitRunner

COPIES = 1 << 26
"""Bytes of copied models that may wait to be saved while training goes on; more if the device has memory to spare."""

SAVERS = max(1, min(4, (os.cpu_count() or 1) // 4))
"""Threads that save models."""


class Worker:
    """One worker on its devices. ``emit`` takes its events, those of one moment at once.

    A ``guest`` lives in the user's own process: it saves at once and leaves random streams as they are. ``versions``
    default to those of the spec's folder, and ``feed`` makes the transformed batches. If its placement has
    several devices, the worker leads a ``team``.
    """

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        placement: Placement,
        emit: Callable[[Sequence[Event]], None],
        *,
        capture: Capture,
        guest: bool,
        versions: VersionStore | None = None,
        feed: Feed | None = None,
        team: Team | None = None,
    ) -> None:
        self.name = name
        self._context = context = WorkerContext(spec, placement, capture=capture, guest=guest, feed=feed, team=team)
        #: Reports what the user's code logs. In the user's own process, the terminal shows it anyway.
        self._records = RecordReporter(lambda trial, text: emit([RecordLogged(name, trial, context.hide(text))]))
        if not guest:
            for logger in (logging.getLogger(), *map(messages, REPORTED)):
                logger.addHandler(self._records)
            context.capture = self._records.following(capture)
        versions = versions or spec.store.versions(spec.checkpoints)
        framework = context.framework
        self._saver = saver = Saver(
            versions,
            lambda event: emit([event]),
            worker=name,
            threads=0 if guest else SAVERS,
            hopeless=framework.broken,
            room=lambda: max(COPIES, framework.spare_memory(placement) // 4),
            patience=spec.checkpoint_every,
        )
        self._models = ModelCache(context, versions, saver)
        self._runner = UnitRunner(name, context, self._models, saver, emit)
        self._fused = FusedRunner(context, self._models, saver, self._runner)
        self._profiler = Profiler(context, versions)
        #: Units of a flotilla whose last member is still to come.
        self._pending: list[tuple[RunUnit, Trial]] = []

    def execute(self, command: Command, trial: Trial) -> None:
        """Execute a command and emit the result. The user's exceptions become events; Broken ends this worker."""
        self._check_team()
        match command:
            case RunUnit():
                self._pending.append((command, trial))
                if not command.more:
                    units, self._pending = self._pending, []
                    self._fused.run(units) if len(units) > 1 else self._runner.run(*units[0])
            case SaveVersion():
                self._saver.save(command, self._models.peek(command.ref))
            case _:
                raise AssertionError(f"not for a worker: {command}")
        self._check_team()

    def _check_team(self) -> None:
        """Raise Broken if the members of the team cannot work together any more, after all saves under way."""
        if (team := self._context.team) is not None and team.broken:
            self._saver.close()
            raise Broken

    def probe(self, trial: Trial, batches: int = 0, partition: int = 0, valid: int = 0) -> Profile:
        """Check a trial in seconds or, with ``batches``, time them; see ``Profiler.probe``."""
        found = self._profiler.probe(trial, batches, partition, valid)
        if (team := self._context.team) is not None and team.lost:
            raise Broken
        return found

    def check(self, trial: Trial) -> tuple[str, ...]:
        """Do once what a trial does, and return its metrics; raise what the task raises."""
        return self._profiler.check(trial)

    @property
    def interruption(self) -> Interruption:
        """The attempts to give up."""
        return self._context.interruption

    def rest(self) -> None:
        """Note that there is nothing to do at the moment."""
        self._saver.under_way()

    def retry(self) -> None:
        """Retry the saves that the disk has refused. Only a guest needs this call."""
        self._saver.retry()

    def close(self) -> None:
        """Finish all saves, and free the buffers that engines keep."""
        self._saver.close()
        self._context.close()
        for logger in (logging.getLogger(), *map(messages, REPORTED)):
            logger.removeHandler(self._records)
