"""A worker: executes commands one after another and reports the result of each.

It keeps the models that it has trained or loaded in memory, so a trial that stays is neither written nor read to go
on. It knows nothing of schedules; it runs alike in a process of its own, in the user's process, or on a cluster.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hopfleet.domain.messages import (
    Command,
    Event,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    VersionLost,
)
from hopfleet.domain.objectives import PARAMS
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.secrets import hidden, references, revealed
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, describe
from hopfleet.frameworks.base import EngineCache, IsolationError, Result, Session
from hopfleet.store.base import VersionStore
from hopfleet.support import clock
from hopfleet.worker.feeding.feed import Feed, UnitBatches
from hopfleet.worker.feeding.stream import DeviceCache, Stream, valid_batch
from hopfleet.worker.logs import Turn, veiled
from hopfleet.worker.saver import Saver
from hopfleet.worker.secrets import read
from hopfleet.worker.spec import Profile, WorkerSpec

MEMORY = 1 << 30
"""Bytes of models to keep beside the one at work; more if the device has them to spare."""

COPIES = 1 << 26
"""Bytes of models that may wait to be saved while they train on; more if the device has them to spare."""

SAVERS = max(1, min(4, (os.cpu_count() or 1) // 4))
"""Threads that save models."""

COMPARED, COMPARING, ROUNDS = 8, 1.0, 3
"""Measuring the gain of flotillas: trials tried together, approximate seconds per mode, and rounds; the fastest
round counts."""

PROBE = VersionRef("probe", 1, 1)
"""Where a version is written that only shows how long that takes."""

ADVICE = " (also on an emptied device; use a smaller batch_size, a smaller model, or fewer workers per GPU)"

Done = TypeVar("Done")


class Broken(Exception):
    """The device is of no use to this process any more, which must be replaced."""


@dataclass(slots=True)
class Held:
    """A model in memory, and the version that it is."""

    session: Session
    version: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Sailor:
    """A member of a flotilla: what it is to do, with which model, and whether that had to be fetched."""

    command: RunUnit
    trial: Trial
    session: Session
    hopped: bool


class Worker:
    """One worker on one device. ``emit`` takes its events, those of one moment at once.

    A ``guest`` lives in the user's own process: it saves at once and leaves random streams as they are. ``versions``
    are those of the job's folder, unless others are given, and ``feed`` makes the transformed batches.
    """

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        device: str,
        emit: Callable[[Sequence[Event]], None],
        *,
        capture: Callable[..., contextlib.AbstractContextManager[Turn]],
        guest: bool,
        versions: VersionStore | None = None,
        feed: Feed | None = None,
    ) -> None:
        self.name = name
        self._spec = spec
        self._device = device
        self._framework = framework = spec.task.framework
        self._engine_cache = EngineCache()
        self._send = emit
        #: What members of a flotilla have to tell, until all are home.
        self._mail: list[Event] = []
        self._capture = capture
        self._guest = guest
        self._versions = versions or spec.store.versions(spec.checkpoints)
        self._saver = Saver(
            self._versions,
            lambda event: emit([event]),
            worker=name,
            threads=0 if guest else SAVERS,
            hopeless=framework.broken,
            room=lambda: max(COPIES, framework.spare_memory(device) // 4),
        )
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._feed = feed
        if feed is None and spec.task.transform is not None:
            self._feed = Feed(spec.task)
        #: Whether it was seen if that is the same each time.
        self._looked = False
        #: Whether it was tried what flotillas bring.
        self._compared = False
        self._device_cache = DeviceCache(lambda: framework.spare_memory(device))
        #: What is to run together with what comes next.
        self._crew: list[tuple[RunUnit, Trial]] = []
        #: Trials whose models come home from a flotilla, and must all stay.
        self._sailing: set[str] = set()
        #: How many trials train together at most, by what was learned here.
        self._most = sys.maxsize
        #: Trials and versions whose work has run out of memory once.
        self._cramped: set[tuple[str, int]] = set()
        #: What references of configurations stand for.
        self._secrets: dict[str, str] = {}

    def execute(self, command: Command, trial: Trial) -> None:
        """Do what is asked and emit what came of it. The user's exceptions become events; Broken ends this worker."""
        match command:
            case RunUnit():
                self._crew.append((command, trial))
                if not command.more:
                    crew, self._crew = self._crew, []
                    self._together(crew) if len(crew) > 1 else self._alone(*crew[0])
            case SaveVersion():
                held = self._held.get(command.trial)
                holds = held is not None and held.version == command.ref.version
                self._saver.save(command, held.session if held is not None and holds else None)
            case _:
                raise AssertionError(f"not for a worker: {command}")

    def rest(self) -> None:
        """Hear that there is nothing to do at the moment."""
        self._saver.under_way()

    def retry(self) -> None:
        """Try again to save what the disk has not taken. Only a guest has to be asked."""
        self._saver.retry()

    def close(self) -> None:
        """Finish all saves, and free what engines keep."""
        self._saver.close()
        self._engine_cache.close()

    # --------------------------------------------------------------------------------------------------- work

    def _alone(self, command: RunUnit, trial: Trial) -> None:
        """Run one unit by itself."""
        run = self._train if command.unit.trains else self._evaluate
        with self._reporting(command, trial) as started:
            session, hopped, sums = self._with_room(command, lambda: run(command, trial))
            self._finished(command, session, started, hopped, sums)

    def _train(self, command: RunUnit, trial: Trial) -> tuple[Session, bool, dict[str, RowSum]]:
        session, hopped = self._session(command, trial)
        stream = self._train_stream(session, trial, command.unit)
        self._saver.under_way()
        sums = session.train(stream, last=command.last)
        if self._spec.valid is None:
            self._count(session, sums, stream.rows)
        return session, hopped, sums

    def _evaluate(self, command: RunUnit, trial: Trial) -> tuple[Session, bool, dict[str, RowSum]]:
        session, hopped = self._session(command, trial)
        self._hold(command.trial, Held(session, command.model.version))
        stream = self._valid_stream(session, command.unit.partition)
        self._saver.under_way()
        sums = session.evaluate(stream, seed=self._evaluation_seed(command.unit))
        self._count(session, sums, stream.rows)
        return session, hopped, sums

    def _finished(
        self,
        command: RunUnit,
        session: Session,
        started: float,
        hopped: bool,
        sums: dict[str, RowSum],
        share: float = 1.0,
    ) -> None:
        """Keep the model and report the unit. Only training makes a new version and tells which keys it read."""
        version, unused = command.model.version, tuple[str, ...]()
        if command.unit.trains:
            version += 1
            unused = tuple(key for key in session.unused() if key != "batch_size")
        self._hold(command.trial, Held(session, version))
        moved = hopped and command.unit.trains
        times = (started, clock.now())
        self._emit(UnitFinished(self.name, command.unit, command.attempt, version, *times, moved, sums, unused, share))

    def _evaluation_seed(self, unit: Unit) -> int:
        return derive(self._spec.seed, "evaluate", unit.epoch, unit.partition)

    # ------------------------------------------------------------------------------------------------ together

    def _together(self, crew: list[tuple[RunUnit, Trial]]) -> None:
        """Units of several trials over the same rows. Who cannot go along does its own afterwards, alone."""
        started = clock.now()
        aboard: list[Sailor] = []
        for command, trial in crew:
            held = self._held.get(trial.id)
            at_hand = held is not None and held.version == command.model.version
            with contextlib.nullcontext() if at_hand else self._reporting(command, trial, started):
                aboard.append(Sailor(command, trial, *self._session(command, trial)))
        while aboard:
            some, aboard = aboard[: self._most], aboard[self._most :]
            self._set_out(some, started)

    def _set_out(self, aboard: list[Sailor], started: float) -> None:
        if len(aboard) == 1:
            # As it was before it was asked to come along.
            (sailor,) = aboard
            self._held[sailor.command.trial] = Held(sailor.session, sailor.command.model.version)
            left = aboard
        elif (results := self._sail(aboard)) is None:
            left = aboard  # half trained: each begins anew
        else:
            self._sailing = {sailor.command.trial for sailor in aboard}
            for sailor, result, share in results:
                self._come_home(sailor, result, share, started)
            self._sailing.clear()
            mail, self._mail = self._mail, []
            self._send(mail)
            left = [sailor for sailor, result, _ in results if self._cramps(result)]
            if left:
                self._part(len(aboard), "there is no memory for all of them", most=len(aboard) // 2)
        orders = [(sailor.command, sailor.trial) for sailor in left]
        aboard.clear()  # and with them their half-trained models
        left.clear()
        for command, trial in orders:
            self._alone(command, trial)

    def _part(self, members: int, reason: str, *, most: int) -> None:
        """Limit the members of later flotillas to ``most``."""
        self._most = max(1, most)
        how = f"at most {self._most} at once" if self._most > 1 else "one by one"
        sys.stderr.write(f"hopfleet: {members} trials that trained together go on {how}: {reason}\n")

    def _sail(self, aboard: list[Sailor]) -> list[tuple[Sailor, Result, float]] | None:
        """What came of each, and its share of the time; None if each must try for itself, from the version before."""
        first, spec = aboard[0], self._spec
        logs = [spec.logs / f"{sailor.command.trial}.log" for sailor in aboard]
        try:
            with self._capture(*logs) as turn, contextlib.ExitStack() as stack:
                for sailor in aboard:
                    stack.enter_context(self._veiled(sailor.trial))
                flotilla = self._framework.flotilla([sailor.session for sailor in aboard], fast=spec.fast)
                flotilla.turn = turn
                self._saver.under_way()
                unit = first.command.unit
                if unit.trains:
                    self._check_sizes(aboard)
                    stream = self._train_stream(first.session, first.trial, unit, together=True)
                    results = flotilla.train(stream, last=[sailor.command.last for sailor in aboard])
                else:
                    stream = self._valid_stream(first.session, unit.partition, together=True)
                    results = flotilla.evaluate(stream, seed=self._evaluation_seed(unit))
        except (Exception, SystemExit) as error:
            self._check_device(error)
            if isinstance(error, IsolationError):
                self._part(len(aboard), str(error), most=1)
            else:
                self._part(len(aboard), describe(error), most=len(aboard) // 2)
            return None
        for sailor, result in zip(aboard, results, strict=True):
            self._check_device(result)
            if not isinstance(result, Exception) and (spec.valid is None or not unit.trains):
                self._count(sailor.session, result, stream.rows)
        return list(zip(aboard, results, flotilla.shares, strict=True))

    def _check_sizes(self, aboard: list[Sailor]) -> None:
        """Check that all members use the same batch size: a flotilla has one stream of batches."""
        sizes = sorted({self._batch_size(sailor.trial) for sailor in aboard})
        if len(sizes) > 1:
            raise IsolationError(
                f"they want batches of {', '.join(map(str, sizes))} rows; only those of one size go along"
            )

    def _come_home(self, sailor: Sailor, result: Result, share: float, started: float) -> None:
        command = sailor.command
        if isinstance(result, Exception):
            if not self._cramps(result):
                with self._reporting(command, sailor.trial, started):
                    raise result
        else:
            self._finished(command, sailor.session, started, sailor.hopped, result, share)

    def _emit(self, event: Event) -> None:
        """Tell at once, or with all of a flotilla: else its worker would seem to turn to other trials."""
        if self._sailing:
            self._mail.append(event)
        else:
            self._send([event])

    def _check_device(self, result: object) -> None:
        """Raise Broken if there is nothing more to be done here. Who did it shows when each goes on alone."""
        if isinstance(result, Exception) and not self._guest and self._framework.broken(result):
            sys.stderr.write(f"hopfleet: this worker is replaced: {describe(result)}\n")
            raise Broken

    def _cramps(self, result: Result) -> bool:
        """Whether the members did not fit into memory together."""
        return isinstance(result, Exception) and self._framework.out_of_memory(result)

    def probe(self, trial: Trial, batches: int = 0, partition: int = 0) -> Profile:
        """Build a trial, evaluate one batch, and time ``batches`` batches of training and a save. Nothing is kept."""
        metrics: dict[str, RowSum] = {}
        try:
            with self._capture(self._spec.logs / "probe.log"), self._veiled(trial):
                began = time.perf_counter()
                session = self._open(trial)
                opened = time.perf_counter() - began
                if self._spec.valid is not None:
                    metrics, _ = self._evaluate_one(session)
                self._count(session, metrics, 1)
                # What a model takes when it has trained: weights, gradients, and what an optimizer keeps.
                memory, spare = 4 * session.size, self._framework.spare_memory(self._device)
                gains = self._framework.gains(session, fast=self._spec.fast)
                found = Profile(tuple(metrics), open_seconds=opened, memory=memory, spare=spare, gains=gains)
                found = replace(found, unsteady=self._unsteady(trial))
                return self._rehearsed(found, session, trial, batches, partition) if batches else found
        except Exception as error:
            veil = self._veil(trial)
            return Profile(tuple(metrics), error=veil(describe(error)), traceback=veil(traceback.format_exc()))

    def _unsteady(self, trial: Trial) -> str:
        """A column that is not the same if a batch is transformed twice, of training or of evaluation. Looks once."""
        feed, spec = self._feed, self._spec
        if feed is None or self._looked:
            return ""
        self._looked = True
        config = revealed(trial.config, self._values(trial))
        sources = [UnitBatches(spec.train, 0, self._batch_size(trial), spec.seed, 1)]
        if spec.valid is not None:
            sources.append(UnitBatches(spec.valid, 0, valid_batch(spec.valid, self._device)))
        return next(filter(None, (feed.unsteady(source, config) for source in sources)), "")

    def _evaluate_one(self, session: Session) -> tuple[dict[str, RowSum], float]:
        """The metrics of one batch, and seconds per row."""
        assert self._spec.valid is not None
        one = _First(1, self._valid_stream(session, 0), valid_batch(self._spec.valid, self._device))
        began = time.perf_counter()
        metrics = session.evaluate(one, seed=0)
        return metrics, (time.perf_counter() - began) / one.rows

    def _rehearsed(self, found: Profile, session: Session, trial: Trial, batches: int, partition: int) -> Profile:
        """The finding with times, each taken after one round to warm up."""
        size, framework = self._batch_size(trial), self._framework
        # Batches that no other trial has asked for, so that it shows what it takes to make them.
        stream = self._train_stream(session, trial, Unit(trial.id, -1 - trial.number, partition))
        framework.peak_memory(self._device)
        before = framework.peak_memory(self._device)
        session.train(_First(1, stream, size), last=False)
        began = time.perf_counter()
        some = _Some(_First(batches, stream, size))
        feeding = (time.perf_counter() - began) / some.rows
        training = _seconds(lambda: session.train(some, last=False)) / some.rows
        peak = framework.peak_memory(self._device) - before
        exact, fast = self._shares(trial, some, training * some.rows) if self._spec.compare else (0.0, 0.0)
        passed_on = self._feed is not None and self._feed.passes_on
        evaluation = 0.0 if self._spec.valid is None else self._evaluate_one(session)[1]
        try:
            began = time.perf_counter()
            digest, size = self._versions.write(PROBE, session.save, durable=True, size=session.size)
            saved = time.perf_counter()
            session.load(self._versions.find(PROBE, digest))
            loaded = time.perf_counter()
        finally:
            self._versions.forget(PROBE.trial)
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
            save_seconds=saved - began,
            load_seconds=loaded - saved,
        )

    def _shares(self, trial: Trial, some: _Some, alone: float) -> tuple[float, float]:
        """What one more trial takes in a flotilla, as a part of its time alone: exact and fast; 0 is unknown."""
        framework, found = self._framework, [0.0, 0.0]
        if framework.fusion_blocker or self._compared:
            return 0.0, 0.0
        self._compared = True
        members = max(2, min(COMPARED, int(COMPARING / (2 * ROUNDS * alone))))
        many = _Some(some, times=max(1, min(8, int(COMPARING / (ROUNDS * members * alone)))))
        single = self._open(trial)
        alone = min(_seconds(lambda: single.train(many, last=False)) for _ in range(ROUNDS))
        for fast in (False, True):
            with contextlib.suppress(Exception):
                sessions = [self._open(replace(trial, seed=number)) for number in range(members)]
                flotilla, last = framework.flotilla(sessions, fast=fast), [False] * members
                flotilla.train(some, last=last)
                together = min(_seconds(lambda: flotilla.train(many, last=last)) for _ in range(ROUNDS))  # noqa: B023
                found[fast] = max(1e-3, (together - alone) / ((members - 1) * alone))
        return found[0], found[1]

    # ------------------------------------------------------------------------------------------------ models

    def _session(self, command: RunUnit, trial: Trial) -> tuple[Session, bool]:
        """Return the trial's model at the version wanted, and whether it had to be fetched."""
        version = command.model.version
        held = self._held.get(trial.id)
        if held is None or held.version != version or command.unit.trains or not held.session.steady:
            self._saver.wait(trial.id)
        # Taken out of the cache while in use: if the user's code raises, a half-trained model must not stay.
        held = self._held.pop(trial.id, None)
        if held is not None and held.version == version:
            return held.session, False
        if version == 0:
            return self._open(trial), False
        path = self._versions.find(command.model, command.digest)
        if trial.parent is not None and trial.parent.version == version:
            session = self._open(trial)
            session.inherit(path, self._open(replace(trial, config=trial.parent.config)))
        else:
            session = held.session if held is not None else self._open(trial)
            session.load(path)
        return session, True

    def _open(self, trial: Trial) -> Session:
        spec = self._spec
        config = revealed(trial.config, self._values(trial))
        session = self._framework.open(
            config, seed=trial.seed, device=self._device, threads=spec.threads, cache=self._engine_cache
        )
        session.guest = self._guest
        return session

    def _values(self, trial: Trial) -> dict[str, str]:
        """The secrets of a trial, by their references. They are read once."""
        for reference in references(trial.config) - self._secrets.keys():
            self._secrets[reference] = read(reference)
        return self._secrets

    def _veiled(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        """Keep the secrets of a trial out of what is printed."""
        if not references(trial.config):
            return contextlib.nullcontext()
        self._values(trial)
        return veiled(self._veil(trial))

    def _veil(self, trial: Trial) -> Callable[[str], str]:
        """What makes a text fit to be seen."""
        # One that cannot be read yet is in no text either.
        values = [self._secrets[reference] for reference in references(trial.config) if reference in self._secrets]
        return lambda text: hidden(text, values)

    @functools.cached_property
    def _memory(self) -> int:
        return max(MEMORY, self._framework.spare_memory(self._device) // 4)

    def _hold(self, trial: str, held: Held) -> None:
        held.size = held.session.size
        self._held[trial] = held
        room = self._memory
        for name in reversed(list(self._held)):
            room -= self._held[name].size
            if room < 0 and name != trial and name not in self._sailing:
                del self._held[name]

    def _with_room(self, command: RunUnit, work: Callable[[], Done]) -> Done:
        """Do some work; if the device runs out of memory, empty it and begin once more.

        The model at work is half trained then and forgotten. If its version is saved nowhere, the work ends with a
        CheckpointError, and the trial comes back from an earlier version; it is given no third chance here.
        """
        key = (command.trial, command.model.version)
        if key not in self._cramped:
            try:
                return work()
            except Exception as error:
                if not self._framework.out_of_memory(error):
                    raise
                sys.stderr.write(f"{describe(error)}\nhopfleet: the unit begins once more, on an emptied device\n")
            # Not before here is the exception gone, with all that it kept alive.
            self._cramped.add(key)
        self._make_room(command.trial)
        done = work()
        self._cramped.discard(key)
        return done

    def _make_room(self, trial: str) -> None:
        """Keep no other model than that of ``trial``."""
        for name in [name for name in self._held if name != trial]:
            self._saver.wait(name)
            del self._held[name]
        self._device_cache.clear()
        gc.collect()
        self._framework.free_memory()

    # ----------------------------------------------------------------------------------------------- helpers

    def _count(self, session: Session, sums: dict[str, RowSum], rows: int) -> None:
        """Add the number of parameters to what a task reports, if it is wanted and not there."""
        if self._spec.count_parameters and PARAMS not in sums:
            sums[PARAMS] = RowSum.of(session.parameters, rows)

    def _batch_size(self, trial: Trial) -> int:
        return int(trial.config.get("batch_size", self._spec.batch_size))

    def _train_stream(self, session: Session, trial: Trial, unit: Unit, *, together: bool = False) -> Stream:
        spec = self._spec
        return Stream(
            spec.train,
            unit.partition,
            session=session,
            feed=self._feed,
            together=together,
            device_cache=self._device_cache,
            batch_size=self._batch_size(trial),
            seed=spec.seed,
            epoch=unit.epoch,
            drop_last=spec.drop_last,
        )

    def _valid_stream(self, session: Session, partition: int, *, together: bool = False) -> Stream:
        assert self._spec.valid is not None
        return Stream(
            self._spec.valid,
            partition,
            session=session,
            feed=self._feed,
            together=together,
            device_cache=self._device_cache,
            batch_size=valid_batch(self._spec.valid, self._device),
        )

    @contextlib.contextmanager
    def _reporting(self, command: RunUnit, trial: Trial, started: float | None = None) -> Iterator[float]:
        """Turn whatever goes wrong into an event, and keep the output."""
        started = clock.now() if started is None else started
        try:
            with self._capture(self._spec.logs / f"{command.trial}.log"), self._veiled(trial):
                yield started
        except Broken:
            raise
        except CheckpointError as error:
            self._emit(VersionLost(command.model, str(error), self.name, command.attempt))
        except (Exception, SystemExit) as error:
            advice = ADVICE if self._framework.out_of_memory(error) else ""
            veil = self._veil(trial)
            reason, trace = veil(describe(error)) + advice, veil(traceback.format_exc())
            self._emit(UnitFailed(self.name, command.unit, command.attempt, started, clock.now(), reason, trace))
            self._check_device(error)


class _First:
    """A stream cut after its first batches."""

    def __init__(self, count: int, stream: Stream, batch_size: int) -> None:
        self._count = min(count, len(stream))
        self._stream = stream
        self.rows = min(stream.rows, self._count * batch_size)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, object]]:
        batches = iter(self._stream)
        with contextlib.closing(batches):  # type: ignore[type-var]
            yield from itertools.islice(batches, self._count)


class _Some(list[dict[str, Any]]):
    """Batches that are there, as often as wanted."""

    def __init__(self, batches: _First | _Some, times: int = 1) -> None:
        super().__init__(list(batches) * times)
        self.rows: int = batches.rows * times


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
