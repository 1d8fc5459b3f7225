"""Runs one unit by itself: load the model, stream the partition, report."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence

from hopfleet.domain.messages import (
    Event,
    RecordLogged,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    VersionLost,
)
from hopfleet.domain.objectives import warning_of_nan
from hopfleet.domain.placement import CPU, SINGLE, STRATEGY, Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.errors import HopfleetError, NotFinite, describe
from hopfleet.frameworks.base import GivenUp, Result, Session
from hopfleet.frameworks.whole_set import Scored, check_room, gathers, scored
from hopfleet.support import clock
from hopfleet.support.files import append
from hopfleet.support.logging import messages
from hopfleet.support.user_code import describe_with_place, format_traceback, interrupts
from hopfleet.support.user_code import place as users_place
from hopfleet.worker.context import WorkerContext
from hopfleet.worker.feeding.stream import FirstBatches, Stream
from hopfleet.worker.interruption import InterruptibleStream
from hopfleet.worker.model_cache import ModelCache, VersionUnusable
from hopfleet.worker.saver import Saver

TRAIN_AGAIN_SECONDS = 10.0
"""Only units that took less time are trained again to explain a loss that is not finite."""

ADVICE = " (also on an emptied device; use a smaller batch_size, a smaller model, or fewer workers per GPU)"


class Broken(Exception):
    """This process can no longer use its device and must be replaced."""


@contextlib.contextmanager
def located(unit: Unit) -> Iterator[None]:
    """Note in exceptions of the task's code in which epoch and partition they were raised."""
    try:
        yield
    except BaseException as error:
        locate(error, unit)
        raise


def locate(error: BaseException, unit: Unit) -> None:
    """Note in an exception of the task's code in which unit it was raised. A refusal is the same in every unit."""
    if isinstance(error, NotFinite) or not isinstance(error, HopfleetError):
        error.add_note(f"epoch {unit.epoch}, {'' if unit.trains else 'validation '}partition {unit.partition}")


class UnitRunner:
    """Runs units one at a time, and reports units of flotillas too. ``emit`` takes the events of one moment."""

    def __init__(
        self,
        worker: str,
        context: WorkerContext,
        models: ModelCache,
        saver: Saver,
        emit: Callable[[Sequence[Event]], None],
    ) -> None:
        self._worker = worker
        self._context = context
        self._models = models
        self._saver = saver
        self._send = emit
        #: Trials whose logs say that a metric is NaN.
        self._warned: set[str] = set()
        #: Events of a flotilla, collected until all of its members have reported; None outside of one.
        self._collected: list[Event] | None = None

    def run(self, command: RunUnit, trial: Trial) -> None:
        """Run one unit by itself."""
        work = self._train if command.unit.trains else self._evaluate
        with self.reporting(command, trial) as started:
            session, hopped, sums = self._models.with_room(command, lambda: work(command, trial))
            self.finish(command, session, started, hopped, sums, placement=self._context.placement_of(trial))
        self._context.interruption.forget([command.attempt])

    def _interruptible(self, stream: Stream, command: RunUnit) -> InterruptibleStream:
        def check() -> None:
            if self._context.interruption.ordered([command.attempt]):
                raise GivenUp

        return InterruptibleStream(stream, check)

    def give_up(self, command: RunUnit, started: float) -> None:
        """Report a unit that was given up, and forget its model, which may be half trained."""
        self._models.drop(command.trial)
        self._send([UnitStopped(self._worker, command.unit, command.attempt, started, clock.now())])

    def _train(self, command: RunUnit, trial: Trial) -> tuple[Session, bool, dict[str, RowSum]]:
        session, hopped = self._models.take(command, trial)
        stream = self._context.train_stream(session, trial, command.unit)
        self._saver.under_way()
        with self._context.guarded(), located(command.unit), self._context.within(session, trial):
            if command.metric is not None:
                session.observe(command.metric)
            sums = session.train(self._interruptible(stream, command), last=command.last)
        if self._context.spec.valid is None:
            self._context.count_parameters(session, sums)
        return session, hopped, sums

    def _evaluate(self, command: RunUnit, trial: Trial) -> tuple[Session, bool, dict[str, RowSum]]:
        session, hopped = self._models.take(command, trial)
        self._models.put(command.trial, session, command.model.version)
        self._saver.under_way()

        def evaluate(partition: int) -> list[Result]:
            stream = self._context.valid_stream(session, partition)
            seed = self.evaluation_seed(command.unit, partition)
            return [session.evaluate(self._interruptible(stream, command), seed=seed)]

        with self._context.guarded(), located(command.unit), self._context.within(session, trial):
            (sums,) = self.evaluated(evaluate, command.unit)
            if isinstance(sums, BaseException):
                raise sums
        self._context.count_parameters(session, sums)
        return session, hopped, sums

    def evaluated(self, evaluate: Callable[[int], list[Result]], unit: Unit) -> list[Result]:
        """Return the metrics of members on the partition of a unit, given a function that evaluates all on a partition.

        Metrics over the whole set need all validation rows at once: members with such metrics are evaluated on all
        other partitions, too, and all of their metrics are those of the whole set.
        """
        first = evaluate(unit.partition)
        if not any(map(gathers, first)):
            return first
        valid = self._context.spec.valid
        assert valid is not None
        for result in first:
            check_room(result, valid.partition_rows[unit.partition], valid.rows)
        parts = [first if number == unit.partition else evaluate(number) for number in range(len(valid))]
        return [scored([part[number] for part in parts]) if gathers(one) else one for number, one in enumerate(first)]

    def evaluation_seed(self, unit: Unit, partition: int) -> int:
        return derive(self._context.spec.seed, "evaluate", unit.epoch, partition)

    # ---------------------------------------------------------------------------------------------- reporting

    def finish(
        self,
        command: RunUnit,
        session: Session,
        started: float,
        hopped: bool,
        sums: dict[str, RowSum],
        share: float = 1.0,
        placement: Placement = CPU,
    ) -> None:
        """Keep the model and report the unit. Only training makes a new version and tells which keys it read."""
        version, unused, absent = command.model.version, tuple[str, ...](), tuple[str, ...]()
        if command.unit.trains:
            version += 1
            unused = tuple(key for key in session.unused() if key not in ("batch_size", STRATEGY))
            absent = session.absent() if unused else ()
        self._models.put(command.trial, session, version)
        self._warn_of_nan(command, sums)
        whole = any(isinstance(value, Scored) for value in sums.values())
        sums = {name: RowSum(value.total, value.rows) for name, value in sums.items()}
        visited = None if placement.shape == SINGLE else placement
        moved = hopped and command.unit.trains
        where, times = (self._worker, command.unit, command.attempt, version), (started, clock.now())
        logged = session.logged() if command.unit.trains else None
        self._emit(UnitFinished(*where, *times, moved, sums, unused, share, absent, visited, whole, logged))

    def _warn_of_nan(self, command: RunUnit, sums: dict[str, RowSum]) -> None:
        """Write to the trial's log that a metric is NaN, once per trial and worker; report the reason, if known."""
        text = warning_of_nan(sums, self._context.spec.metric, command.unit.epoch)
        if text and command.trial not in self._warned:
            self._warned.add(command.trial)
            self._log(command, f"hopfleet: {text}\n")
            for name, value in sums.items():
                if isinstance(value, Scored) and value.reason:
                    reason = f"the metric {name!r} is NaN over {value.rows} rows: {value.reason}"
                    self._log(command, f"hopfleet: {reason}\n")
                    self._emit(RecordLogged(self._worker, command.trial, reason))

    @contextlib.contextmanager
    def reporting(self, command: RunUnit, trial: Trial, started: float | None = None) -> Iterator[float]:
        """Turn exceptions into events, and keep the output in the trial's log."""
        context = self._context
        started = clock.now() if started is None else started
        try:
            with context.capture(context.spec.logs / f"{command.trial}.log"), context.veiled(trial):
                yield started
        except Broken:
            raise
        except GivenUp:
            self.give_up(command, started)
        except VersionUnusable as error:
            self._emit(VersionLost(command.model, str(error), self._worker, command.attempt, error.intact))
        except BaseException as error:
            if interrupts(error):
                raise
            if (team := context.team) is not None and team.lost:
                raise Broken from error  # the loss of another member is no fault of the trial
            advice = ADVICE if context.framework.out_of_memory(error) else ""
            self._explain(error, command, trial, clock.now() - started)
            veil = context.veil(trial)
            reason, trace = veil(describe_with_place(error)) + advice, veil(format_traceback(error))
            self._log(command, veil(traceback.format_exc()))
            times = started, clock.now()
            self._emit(
                UnitFailed(self._worker, command.unit, command.attempt, *times, reason, trace, users_place(error))
            )
            self.check_device(error)

    def _explain(self, error: BaseException, command: RunUnit, trial: Trial, seconds: float) -> None:
        """Add notes to an exception that the task's code raised after some seconds.

        A fault in the explanation must not hide the exception.
        """
        with contextlib.suppress(Exception):
            self._context.framework.explain(error)
            if isinstance(error, NotFinite) and command.unit.trains:
                error.__notes__.insert(0, self._context.judge_inputs(trial, command.unit, error.batch))
                if "norm" not in str(error) and error.batch > 1 and seconds < TRAIN_AGAIN_SECONDS:
                    error.__notes__[:0] = self._gradients(command, trial, error.batch - 1)

    def _gradients(self, command: RunUnit, trial: Trial, batches: int) -> list[str]:
        """Train the first batches of a unit again, and return the norm of the gradients in the last update."""
        session, _ = self._models.take(command, trial)
        stream = self._context.train_stream(session, trial, command.unit)
        with self._context.within(session, trial):
            if command.metric is not None:
                session.observe(command.metric)
            norm = session.gradient_norm(FirstBatches(batches, stream, self._context.batch_size(trial)))
        return [] if norm is None else [f"the update before had gradients of norm {norm:.3g}"]

    def _log(self, command: RunUnit, text: str) -> None:
        """Add text to the trial's log, such as the whole traceback: its report begins at the user's first frame."""
        with contextlib.suppress(OSError):
            append(self._context.spec.logs / f"{command.trial}.log", text.encode(errors="backslashreplace"))

    @contextlib.contextmanager
    def collecting(self, trials: set[str]) -> Iterator[None]:
        """Send the reports of a flotilla at once: separate ones would look as if the worker turned to other trials.

        The models of all these ``trials`` stay in memory meanwhile.
        """
        self._collected, self._models.pinned = [], trials
        try:
            yield
        finally:
            collected, self._collected, self._models.pinned = self._collected, None, set()
        self._send(collected)

    def _emit(self, event: Event) -> None:
        if self._collected is None:
            self._send([event])
        else:
            self._collected.append(event)

    def check_device(self, result: object) -> None:
        """Raise Broken if an exception says that this process cannot use the device any more."""
        context = self._context
        if isinstance(result, BaseException) and not context.guest and context.framework.broken(result):
            messages().warning("this worker is replaced: %s", describe(result))
            raise Broken
