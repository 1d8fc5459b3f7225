"""Tries a configuration before the run: does it work, how long does it take, and what do flotillas gain?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Session
from hopfleet.frameworks.whole_set import check_room, doubtful
from hopfleet.store.base import VersionStore
from hopfleet.support.files import digest
from hopfleet.support.user_code import describe_with_place, format_traceback, interrupts, place
from hopfleet.worker.context import WorkerContext
from hopfleet.worker.feeding.feed import UnitBatches
from hopfleet.worker.feeding.stream import FirstBatches, valid_batch
from hopfleet.worker.spec import Profile

COMPARED, COMPARING, ROUNDS = 8, 1.0, 3
"""Measuring the gain of flotillas: trials tried together, approximate seconds per mode, and rounds; the fastest
round counts."""

PROBE, NEXT = VersionRef("probe", 1, 1), VersionRef("probe", 2, 1)
"""The versions of a configuration that is tried, before and after a hop."""

CHANGED = "a model that was saved and loaded again is not the same: build() must return it"
DRIFTED = (
    "the trial trains differently after a hop: the task depends on something outside of the model, the optimizer and "
    "the random streams, e.g. on a counter of its own"
)
"""What is wrong with a trial that is not the same after a hop."""

QUICK = 3.0
"""Seconds that a check before the run should take; one that would take longer leaves out the hop."""


class Profiler:
    """Measures trials on a worker. Nothing of them is kept."""

    def __init__(self, context: WorkerContext, versions: VersionStore) -> None:
        self._context = context
        self._versions = versions
        #: The validation partition to try trials on.
        self._valid = 0
        #: Whether the transform was checked for determinism.
        self._checked = False
        #: Whether training was checked for determinism.
        self._repeated = False
        #: Whether the gain of flotillas was measured.
        self._compared = False
        #: Whether a trial that was timed has hopped.
        self._has_hopped = False

    def probe(self, trial: Trial, batches: int = 0, partition: int = 0, valid: int = 0) -> Profile:
        """Try a trial on real batches of these partitions, and time ``batches`` batches of training, a save and a load.

        Without ``batches``, check the trial instead, in seconds: train two batches, evaluate one, save, load and hop.
        The first trial that is timed hops, too, so it needs no check; but not where nothing is run afterwards.
        """
        self._valid, began = valid, time.perf_counter()
        found = self._probed(trial, batches, partition)
        return replace(found, seconds=time.perf_counter() - began)

    def _probed(self, trial: Trial, batches: int, partition: int) -> Profile:
        context, metrics = self._context, dict[str, RowSum]()
        try:
            with context.capture(context.spec.logs / "probe.log"), context.veiled(trial):
                began = time.perf_counter()
                session = context.open(trial)
                opened = time.perf_counter() - began
                # Once trained, a model takes weights, gradients and two values per weight for most optimizers.
                memory = session.shared_size + 4 * session.size
                spare = context.framework.spare_memory(context.placement)
                # Trials that train together share the making of batches.
                gains = context.feed is not None or context.framework.gains(session, fast=context.spec.fast)
                # Use batches of an epoch of this trial's own, so that the time to make them shows.
                unit = Unit(trial.id, -1 - trial.number, partition)
                if not batches:
                    self._train(session, trial, unit, 2)
                if context.spec.valid is not None:
                    metrics, _ = self._evaluate_one(session, trial)
                context.count_parameters(session, metrics)
                found = Profile(tuple(metrics), open_seconds=opened, memory=memory, spare=spare, gains=gains)
                found = replace(found, averaged=self._averaged(metrics))
                found = replace(found, unsteady=self._unsteady(session, trial))
                found = replace(found, varying=self._varying(session, trial, unit))
                seconds = time.perf_counter() - began
                if batches:
                    found = self._timed(found, session, trial, unit, batches)
                    if self._has_hopped or not context.spec.run:
                        return found
                    self._has_hopped = True
                    seconds = opened + 2 * context.batch_size(trial) * found.seconds_per_row
                sessions = [session]
                del session
                return self._hopped(found, sessions, trial, unit, seconds)
        except BaseException as error:
            if interrupts(error):
                raise
            with contextlib.suppress(Exception):
                context.framework.explain(error)
            veil = context.veil(trial)
            error_text, trace = veil(describe_with_place(error)), veil(format_traceback(error))
            return Profile(tuple(metrics), error=error_text, traceback=trace, place=place(error))

    def check(self, trial: Trial) -> tuple[str, ...]:
        """Do once what a trial does: train, evaluate, save, hop to another session, and train on.

        Return the metrics. Raise what the task raises, and TaskError if a hop changes the trial.
        """
        context, metrics, unit = self._context, dict[str, RowSum](), Unit(trial.id, 1, 0)
        with context.capture(context.spec.logs / "probe.log"), context.veiled(trial):
            session = context.open(trial)
            self._train(session, trial, unit, 2)
            if context.spec.valid is not None:
                metrics, _ = self._evaluate_one(session, trial)
            context.count_parameters(session, metrics)
            sessions = [session]
            del session
            if doubt := self._hop(sessions, trial, unit):
                raise TaskError(doubt)
        return tuple(metrics)

    def _hopped(self, found: Profile, sessions: list[Session], trial: Trial, unit: Unit, seconds: float) -> Profile:
        """Return the profile with the outcome of a hop, unless the check has taken ``seconds`` and would take long."""
        if seconds + found.open_seconds > QUICK:
            return replace(found, skipped=f"saving, loading and hopping: the check took {seconds:.0f} s without them")
        return replace(found, doubt=self._hop(sessions, trial, unit))

    def _hop(self, sessions: list[Session], trial: Trial, unit: Unit) -> str:
        """Save a session, load it into another one and train both on; return how they differ, if they do.

        The session is taken out of its list, so that only one model is in memory at a time.
        """
        context, session = self._context, sessions.pop()
        cpu = context.placement.kind == "cpu"  # on other devices, the same step may round differently
        try:
            saved = self._digest(PROBE, session, durable=True)
            self._train(session, trial, unit, 1)
            stayed = self._digest(NEXT, session)
            del session
            hopped = context.open(trial)
            self._load(hopped, trial)
            if not cpu and self._digest(PROBE, hopped) != saved:
                return CHANGED
            self._train(hopped, trial, unit, 1)
            if not cpu or self._digest(NEXT, hopped) == stayed:
                return ""
            self._load(hopped, trial)
            return DRIFTED if self._digest(PROBE, hopped) == saved else CHANGED
        finally:
            self._versions.forget(PROBE.trial)

    def _load(self, session: Session, trial: Trial, checksum: str = "") -> None:
        """Load the version that was saved."""
        path = self._versions.find(PROBE, checksum)
        with self._context.within(session, trial):
            session.load(path)

    def _train(self, session: Session, trial: Trial, unit: Unit, batches: int) -> None:
        """Train on the first batches of a unit."""
        stream = self._context.train_stream(session, trial, unit)
        with self._context.within(session, trial):
            session.train(FirstBatches(batches, stream, self._context.batch_size(trial)), last=False)

    def _digest(self, ref: VersionRef, session: Session, *, durable: bool = False) -> str:
        """Save a session, and return the digest of the file."""
        found, _ = self._versions.write(ref, session.save, durable=durable, size=session.size)
        return found or digest(self._versions.find(ref))

    def _varying(self, session: Session, trial: Trial, unit: Unit) -> str:
        """Return a warning if training does not give the same bits each time. Only the first call checks."""
        if self._repeated or self._context.framework.fusion_blocker:  # the loop is not the framework's
            return ""
        self._repeated = True
        stream = self._context.train_stream(session, trial, unit)
        with self._context.within(session, trial):
            return session.varying(FirstBatches(1, stream, self._context.batch_size(trial)))

    def _unsteady(self, session: Session, trial: Trial) -> str:
        """Return a column that differs when a batch is transformed twice, if any. Only the first call checks."""
        context, spec = self._context, self._context.spec
        if context.feed is None or self._checked:
            return ""
        self._checked = True
        config = context.config(trial)
        sources = [UnitBatches(spec.train, 0, context.batch_size(trial), spec.seed, 1)]
        if spec.valid is not None:
            sources.append(UnitBatches(spec.valid, self._valid, valid_batch(spec.valid, context.placement)))
        with context.within(session, trial):
            return next(filter(None, (context.feed.unsteady(source, config) for source in sources)), "")

    def _averaged(self, metrics: dict[str, RowSum]) -> str:
        """Return a metric that is averaged over several batches although a mean of batches is wrong, if any."""
        valid = self._context.spec.valid
        several = valid is not None and (len(valid) > 1 or valid.rows > valid_batch(valid, self._context.placement))
        return doubtful(metrics) if several else ""

    def _evaluate_one(self, session: Session, trial: Trial) -> tuple[dict[str, RowSum], float]:
        """Return the metrics of one batch, and seconds per row."""
        context, valid = self._context, self._context.spec.valid
        assert valid is not None
        one = FirstBatches(1, context.valid_stream(session, self._valid), valid_batch(valid, context.placement))
        began = time.perf_counter()
        with context.within(session, trial):
            metrics = session.evaluate(one, seed=0)
        check_room(metrics, one.rows, valid.rows)
        return metrics, (time.perf_counter() - began) / one.rows

    def _timed(self, found: Profile, session: Session, trial: Trial, unit: Unit, batches: int) -> Profile:
        """Return the profile with times, each taken after one round to warm up."""
        context, framework = self._context, self._context.framework
        batch_size = context.batch_size(trial)
        stream = context.train_stream(session, trial, unit)
        framework.peak_memory(context.placement)
        before = framework.peak_memory(context.placement)
        self._train(session, trial, unit, 1)
        began = time.perf_counter()
        some = _Some(FirstBatches(batches, stream, batch_size))
        feeding = (time.perf_counter() - began) / some.rows
        with context.within(session, trial):
            training = _seconds(lambda: session.train(some, last=False)) / some.rows
        peak = framework.peak_memory(context.placement) - before
        exact, fast = self._shares(trial, some, training * some.rows) if context.spec.compare else (0.0, 0.0)
        passed_on = context.feed is not None and context.feed.passes_on
        evaluation = 0.0 if context.spec.valid is None else self._evaluate_one(session, trial)[1]
        size, save_seconds, load_seconds = self._save_and_load(session, trial, unit)
        return replace(
            found,
            seconds_per_row=training,
            feeding_seconds_per_row=feeding,
            passed_on=passed_on,
            size=size,
            memory=peak if peak > 0 else 2 * session.size,
            exact_share=exact,
            fast_share=fast,
            evaluation_seconds_per_row=evaluation,
            save_seconds=save_seconds,
            load_seconds=load_seconds,
        )

    def _save_and_load(self, session: Session, trial: Trial, unit: Unit) -> tuple[int, float, float]:
        """Return the bytes of a saved version, and the seconds to save and to load it."""
        try:
            began = time.perf_counter()
            checksum, size = self._versions.write(PROBE, session.save, durable=True, size=session.size)
            saved = time.perf_counter()
            self._load(session, trial, checksum)
            loaded = time.perf_counter()
            if len(self._context.placement.devices) > 1:
                # The other members may still be loading, but not any more when all have trained.
                self._train(session, trial, unit, 1)
            return size, saved - began, loaded - saved
        finally:
            self._versions.forget(PROBE.trial)

    def _shares(self, trial: Trial, some: _Some, alone: float) -> tuple[float, float]:
        """Return the cost of one more member in a flotilla relative to its time alone, exact and fast; 0 is unknown."""
        framework, found = self._context.framework, [0.0, 0.0]
        if framework.fusion_blocker or self._compared:
            return 0.0, 0.0
        self._compared = True
        members = max(2, min(COMPARED, int(COMPARING / (2 * ROUNDS * alone))))
        many = _Some(some, times=max(1, min(8, int(COMPARING / (ROUNDS * members * alone)))))
        single = self._context.open(trial)
        with self._context.within(single, trial):
            alone = min(_seconds(lambda: single.train(many, last=False)) for _ in range(ROUNDS))
        for fast in (False, True):
            with contextlib.suppress(Exception):
                sessions = [self._context.open(replace(trial, seed=number)) for number in range(members)]
                with self._context.isolation.around(sessions[0].own_settings):
                    flotilla, last = framework.flotilla(sessions, fast=fast), [False] * members
                    flotilla.train(some, last=last)
                    fused = min(_seconds(lambda: flotilla.train(many, last=last)) for _ in range(ROUNDS))  # noqa: B023
                found[fast] = max(1e-3, (fused - alone) / ((members - 1) * alone))
        return found[0], found[1]


class _Some(list[dict[str, Any]]):
    """Batches in memory, repeated."""

    def __init__(self, batches: FirstBatches | _Some, times: int = 1) -> None:
        super().__init__(list(batches) * times)
        self.rows: int = batches.rows * times


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
