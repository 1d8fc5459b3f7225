"""What all parts of a worker share: the task, the device, the batches and the secrets of configurations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hopfleet.domain import batching
from hopfleet.domain.objectives import PARAMS
from hopfleet.domain.placement import SINGLE, Placement, strategy_of
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.secrets import hidden, references, revealed
from hopfleet.domain.trial import Config, Trial
from hopfleet.domain.unit import Unit
from hopfleet.frameworks.base import EngineCache, Framework, Session
from hopfleet.frameworks.process_settings import FoundChanges
from hopfleet.frameworks.teams import Team
from hopfleet.support.logging import SCHEDULES, SETTINGS, messages
from hopfleet.worker.feeding.feed import Feed, UnitBatches, needs_feed
from hopfleet.worker.feeding.stream import DeviceCache, Stream, valid_batch
from hopfleet.worker.interruption import Interruption
from hopfleet.worker.logs import Capture, veiled
from hopfleet.worker.secrets import read
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.surroundings.isolation import Isolation, listed, merged
from hopfleet.worker.surroundings.table import settings_of


class WorkerContext:
    """A worker's task on its devices."""

    def __init__(
        self,
        spec: WorkerSpec,
        placement: Placement,
        *,
        capture: Capture,
        guest: bool,
        feed: Feed | None,
        team: Team | None,
    ) -> None:
        self.spec = spec
        self.placement = placement
        self.framework = spec.task.framework
        #: The framework for trials, by the epochs that were planned for them.
        self._frameworks: dict[int, Framework] = {}
        #: Warnings of schedules that were given.
        self._warned: set[str] = set()
        self.capture = capture
        #: Whether the worker lives in the user's own process, whose random streams must be left as they are.
        self.guest = guest
        self.feed = Feed(spec.task) if feed is None and needs_feed(spec) else feed
        self.team = team
        self.engine_cache = EngineCache()
        self.engine_cache.team, self.engine_cache.fast = team, spec.fast
        self.interruption = Interruption()
        self.device_cache = DeviceCache(lambda: self.framework.spare_memory(placement))
        self.isolation = Isolation(settings_of(spec.task), guest=guest)
        #: Trials whose hooks change settings of the process as they train: these train by themselves.
        self.unsettled: set[str] = set()
        #: Trials and changes that the user was warned about.
        self._told: set[str] = set()
        self._initialized = False
        #: The values of secrets, by their references.
        self._secrets: dict[str, str] = {}

    def close(self) -> None:
        """Free the buffers that engines keep."""
        self.engine_cache.close()

    # ----------------------------------------------------------------------------------------------- sessions

    def open(self, trial: Trial) -> Session:
        """Build a trial's model, and keep the settings that its code makes."""
        if not self._initialized:
            if not self.guest:
                self.framework.begin_worker()
            self.spec.task.initialize_worker()
            self._initialized = True
        config = self.config(trial)
        with self.isolation.around({}) as found:
            session = self._framework_of(trial).open(
                config,
                seed=trial.seed,
                placement=self.placement_of(trial),
                threads=self.spec.threads,
                cache=self.engine_cache,
            )
        session.own_settings = found.changes
        self._tell_of_left(trial.id, found)
        session.guest = self.guest
        if self.spec.metric:
            session.check_goal(self.spec.metric, self.spec.mode)
        if trial.planned or self.spec.epochs:
            for text in session.check_schedules():
                if text not in self._warned:
                    self._warned.add(text)
                    messages(SCHEDULES).warning("%s", text)
        return session

    def _framework_of(self, trial: Trial) -> Framework:
        """Return the framework of the task, as trials see it that were planned for the same epochs."""
        spec, epochs = self.spec, trial.planned or self.spec.epochs
        if not epochs:
            return self.framework
        if epochs not in self._frameworks:
            plan = batching.Batching(spec.train.partition_rows, spec.batch_size, spec.drop_last, epochs)
            self._frameworks[epochs] = spec.task.planned(plan).framework
        return self._frameworks[epochs]

    def placement_of(self, trial: Trial) -> Placement:
        """Return where a trial trains on this worker: a configuration may name its own strategy."""
        strategy = strategy_of(trial.config, self.spec.strategies, self.placement.strategy)
        if strategy == SINGLE.strategy:
            return Placement.on(self.placement.device)
        return replace(self.placement, strategy=strategy)

    @contextlib.contextmanager
    def within(self, session: Session, trial: Trial, *, keeps: bool = False) -> Iterator[None]:
        """Have the settings of a trial in force while its code runs, and those of the process afterwards.

        What the code changes lasts until then, or stays the trial's own if the session ``keeps`` it.
        """
        with self.isolation.around(session.own_settings) as found:
            yield
        self._tell_of_left(trial.id, found)
        if keeps:
            session.own_settings = merged(session.own_settings, found.changes)
        elif found.changes:
            self.unsettled.add(trial.id)
            if trial.id in self._told:
                return
            self._told.add(trial.id)
            messages(SETTINGS).warning(
                "%s: a hook other than build() changed %s: the change lasts until the unit (one partition) ends, and "
                "the trial trains by itself; make such settings in build()",
                trial.id, listed(found.changes),
            )  # fmt: skip

    def _tell_of_left(self, trial: str, found: FoundChanges) -> None:
        """Warn once of each change that cannot be put back."""
        if new := [name for name in found.left if name not in self._told]:
            self._told.update(new)
            messages(SETTINGS).warning(
                "%s changed %s, which all trials of a worker share: a trial must not depend on what others set there",
                trial, ", ".join(new),
            )  # fmt: skip

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise SharedStateChanged if the trials that run meanwhile change what they share, also if they fail."""
        try:
            yield
        finally:
            self.framework.check_shared(self.engine_cache)

    def count_parameters(self, session: Session, sums: dict[str, RowSum]) -> None:
        """Add the number of parameters to the metrics, if the experiment wants it and the task does not report it."""
        if self.spec.count_parameters and PARAMS not in sums:
            sums[PARAMS] = RowSum.of(session.parameters, 1)

    # ------------------------------------------------------------------------------------------------ batches

    def batch_size(self, trial: Trial) -> int:
        return batching.batch_size(trial.config, self.spec.batch_size)

    def train_stream(
        self, session: Session, trial: Trial, unit: Unit, *, shared: bool = False, beside: Stream | None = None
    ) -> Stream:
        """Return the training batches of a unit; ``shared`` by the members of a flotilla.

        If members have batches of different sizes, their streams are ``beside`` each other.
        """
        spec = self.spec
        session.visit(unit.partition)
        return Stream(
            spec.train,
            unit.partition,
            session=session,
            feed=self.feed,
            together=shared,
            device_cache=self.device_cache,
            batch_size=self.batch_size(trial),
            seed=spec.seed,
            epoch=unit.epoch,
            drop_last=spec.drop_last,
            beside=beside,
        )

    def valid_stream(self, session: Session, partition: int, *, shared: bool = False) -> Stream:
        """Return the batches of a validation partition; ``shared`` by the members of a flotilla."""
        assert self.spec.valid is not None
        session.visit(partition)
        return Stream(
            self.spec.valid,
            partition,
            session=session,
            feed=self.feed,
            together=shared,
            device_cache=self.device_cache,
            batch_size=self.spec.evaluation_batch or valid_batch(self.spec.valid, self.placement),
        )

    def judge_inputs(self, trial: Trial, unit: Unit, number: int) -> str:
        """Return whether the inputs of a training batch, given by its number from 1 on, were finite, and the remedy."""
        spec = self.spec
        source = UnitBatches(spec.train, unit.partition, self.batch_size(trial), spec.seed, unit.epoch, spec.drop_last)
        batch = source.picker()(number - 1)
        if self.feed is not None:
            batch = self.feed.again(source, number - 1, batch, self.config(trial))
        for name, column in batch.items():
            arrays = column if isinstance(column, list) else [column]
            if any(
                isinstance(one, np.ndarray) and one.dtype.kind in "fc" and not np.isfinite(one).all() for one in arrays
            ):
                by = "" if self.feed is None else " after transform()"
                return f"column {name!r} of that batch holds NaN or infinity{by}: clean the data"
        return "its inputs are finite: try a smaller learning rate, or limit gradients with clip_norm"

    # ------------------------------------------------------------------------------------------------ secrets

    def config(self, trial: Trial) -> Config:
        """Return a trial's configuration with the values of its secrets."""
        config: Config = revealed(trial.config, self._values(trial))
        return config

    def veil(self, trial: Trial) -> Callable[[str], str]:
        """Return a function that hides a trial's secrets in a text."""
        # A secret that could not be read appears in no text either.
        values = [self._secrets[reference] for reference in references(trial.config) if reference in self._secrets]
        return lambda text: hidden(text, values)

    def hide(self, text: str) -> str:
        """Hide all secrets that this worker has read in a text."""
        return hidden(text, list(self._secrets.values()))

    def veiled(self, trial: Trial) -> contextlib.AbstractContextManager[None]:
        """Open a context in which a trial's secrets stay out of the output."""
        if not references(trial.config):
            return contextlib.nullcontext()
        self._values(trial)
        return veiled(self.veil(trial))

    def _values(self, trial: Trial) -> dict[str, str]:
        for reference in references(trial.config) - self._secrets.keys():
            self._secrets[reference] = read(reference)
        return self._secrets
