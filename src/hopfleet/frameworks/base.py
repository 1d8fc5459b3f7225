"""The interface between workers and frameworks: tasks for users, and frameworks, sessions and flotillas for adapters.

A user derives a task from the task class of an adapter and overrides its hooks. A worker reaches the adapter through
``task.framework`` and opens a session for each trial: the trial's live state on one worker. A saved version has all
that later units depend on, so a session that loads it continues bit for bit like the session that saved it.

An adapter for another framework is one folder with a task class, a ``Framework`` and a ``Session``; a ``Flotilla`` only
if its trials can train together.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from hopfleet.domain.batching import Batching
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.estimate import ResourceEstimate
from hopfleet.frameworks.process_settings import Changes, ProcessSetting
from hopfleet.frameworks.teams import Team, TeamTrainer
from hopfleet.frameworks.tracked_config import TrackedConfig as TrackedConfig
from hopfleet.frameworks.views import ModelT, StepCount, lacks_predict, view_of
from hopfleet.support.files import copy_file

Batch = dict[str, Any]
"""Column names to arrays (or lists, for strings, bytes and rows of different shapes)."""

Part = TypeVar("Part")


class Batches(Iterable[Batch], Sized, Protocol):
    """The batches of one unit, in order. They can be iterated over once."""

    @property
    def rows(self) -> int:
        """The number of rows in all batches."""


class EngineCache:
    """The findings that the engines of one worker keep from unit to unit: proofs, programs, buffers, streams.

    Each engine defines a class for its own part and asks for it by that class. The worker owns the cache, hands it to
    each session that it opens, and closes it in the end, which frees all parts.
    """

    #: The team that the worker leads; None for a worker on one device.
    team: Team | None = None
    #: Whether trials that train together may be stacked.
    fast: bool = False

    def __init__(self) -> None:
        self._parts: dict[type, object] = {}

    def part(self, kind: type[Part]) -> Part:
        """Return the part of a class; make it on first use. Threads that ask at the same time get the same part."""
        part = self._parts[kind] if kind in self._parts else self._parts.setdefault(kind, kind())
        assert isinstance(part, kind)
        return part

    def close(self) -> None:
        """Free all parts."""
        self._parts.clear()


class Session(ABC):
    """The live state of one trial.

    One thread uses a session at a time, except that ``save`` may run beside ``evaluate`` if the session is ``steady``.
    """

    #: Whether the process is the user's own, whose random streams must be left as they are.
    guest: bool = True

    #: The settings of the process that ``build`` made. Workers have them in force while the trial's code runs.
    own_settings: Changes = MappingProxyType({})

    #: Whether ``load`` builds the model, rather than the making of the session.
    builds_on_load: bool = False

    #: Whether other processes hold parts of the state, so that a save begins with a copy made by the main thread.
    spread: bool = False

    @property
    @abstractmethod
    def size(self) -> int:
        """The approximate size of a saved version, in bytes."""

    @property
    def shared_size(self) -> int:
        """The bytes that the trial has in memory in common with others of its worker."""
        return 0

    @property
    def steady(self) -> bool:
        """Whether ``evaluate`` leaves everything that ``save`` writes unchanged, so that both may run side by side."""
        return True

    @property
    def parameters(self) -> int:
        """The number of trainable parameters, for experiments whose goal names ``params``."""
        raise TaskError("params: this framework does not count them; return a number of that name from metrics()")

    def check_goal(self, metric: str, mode: str) -> None:
        """Raise TaskError if the trial contradicts the goal of the experiment; ``mode`` is "min" or "max"."""
        return

    def check_schedules(self) -> Iterable[str]:
        """Raise TaskError if a schedule ends before the trial does; return warnings if it goes wrong silently."""
        return ()

    def observe(self, metric: float) -> None:
        """Take note of the goal's metric at the end of an epoch. Called before the first unit of the next epoch."""
        return

    def visit(self, partition: int) -> None:
        """Take note of the partition that the next batches come from."""
        return

    @abstractmethod
    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        """Convert a batch of numpy arrays to the framework's own arrays. Called from a background thread."""

    def pick(self, whole: Batch, order: np.ndarray[Any, Any] | None, batch_size: int, rows: int) -> Iterator[Batch]:
        """Yield the batches of the first ``rows`` rows of a prepared partition, in ``order`` or as stored.

        Only frameworks whose ``spare_memory`` is not 0 need this method.
        """
        raise NotImplementedError("a framework with spare memory on its devices must implement Session.pick")

    @abstractmethod
    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        """Train one sub-epoch; ``last`` closes the epoch. Return values to record, e.g. the training loss."""

    def logged(self) -> StepValues | None:
        """Return the values of single steps that the last unit logged, once; None if there are none."""
        return None

    def gradient_norm(self, batches: Batches) -> float | None:
        """Train on some batches, and return the norm of the gradients in the last update; None if it is unknown.

        Only a loss that is not finite is explained in this way. The session is not used afterwards.
        """
        return None

    @abstractmethod
    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        """Return the metrics over some rows. Leave everything that training depends on unchanged."""

    def varying(self, batches: Batches) -> str:
        """Return a warning if training on the first batch does not give the same bits each time; empty if it does."""
        return ""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write everything that training depends on; the same state always gives the same bytes."""

    def snapshot(self) -> Callable[[Path], None] | None:
        """Copy the state, if possible; return a function that writes the copy, also after further training."""
        return None

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restore a saved state. Raises CheckpointError for a file that is damaged or of another kind."""

    def inherit(self, path: Path, parent: Session) -> None:
        """Continue from a version of another trial, as far as this configuration allows.

        ``parent`` is a new session of the other configuration. Where the configurations differ, e.g. in the learning
        rate, the settings of this session count. Raises TaskError if the model does not fit.
        """
        self.load(path)

    @abstractmethod
    def unused(self) -> tuple[str, ...]:
        """Return the configuration keys that the task has not read so far."""

    def absent(self) -> tuple[str, ...]:
        """Return the keys that the task asked for, with a default, and that its configuration does not have."""
        return ()


Result = dict[str, RowSum] | BaseException
"""The outcome of a member's part: sums, or the exception that ended it."""


class IsolationError(Exception):
    """Trials that train together would not get the bits that each gets alone, so they must train one by one."""

    lasting = True  #: whether they must from now on, and not in this unit alone


class SharedStateChanged(Exception):
    """A trial changed state that it shares: all that share it start anew from their versions, with their own."""


class GivenUp(Exception):
    """A unit that a person asked to stop ends before its last batch."""


class Flotilla(ABC):
    """Sessions of one task that train on one stream of batches. Each member ends with the bits that it gets alone.

    If the code of one member raises, its session becomes unusable and the others continue. If a call raises
    IsolationError, all sessions become unusable.
    """

    repeats = True  #: whether a unit can be trained anew, after an IsolationError that is not lasting
    #: The share of each member in the time of the last call.
    shares: Sequence[float] = ()
    #: Called with the number of a member before its code runs, so that its output can be told apart.
    turn: Callable[[int], None] = staticmethod(lambda number: None)
    #: Returns the numbers of the members that were given up: their code need not run, and their results do not count.
    given_up: Callable[[], Collection[int]] = staticmethod(lambda: ())

    @abstractmethod
    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        """Train one sub-epoch of each member; ``last`` tells for each member whether this closes its epoch."""

    def train_mixed(self, streams: Sequence[Batches], of: Sequence[int], *, last: Sequence[bool]) -> list[Result]:
        """Train members with batches of different sizes; ``of`` has the number of each member's stream of batches.

        Only frameworks that mix batch sizes need this method.
        """
        raise NotImplementedError("a framework that mixes batch sizes must implement Flotilla.train_mixed")

    @abstractmethod
    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        """Return the metrics of each member over some rows."""


class Framework(TeamTrainer, ABC):
    """The adapter of a framework, for one task: it opens sessions, loads models, and answers questions about devices.

    A framework holds no state of trials and may be made anew for each call.
    """

    @abstractmethod
    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> Session:
        """Build the model of a configuration; its random streams start from ``seed``.

        ``cache`` belongs to the worker. A session that is opened without one has a cache of its own.
        """

    @abstractmethod
    def model(self, config: Config, checkpoint: Path) -> Any:
        """Return the trained model of a saved version, on the CPU, ready to predict."""

    #: Name of the file that ``export`` writes; empty if the framework has no format for weights alone.
    weights_file: str = ""

    def export(self, config: Config, checkpoint: Path, path: Path) -> float | None:
        """Write the weights of a saved version to a file that the framework's users can load without Hopfleet.

        Return the largest deviation found on reading the file back; None if the file is not read back.
        """
        raise NotImplementedError("a framework with a weights_file must implement Framework.export")

    def pack(self, config: Config, checkpoint: Path, path: Path) -> None:
        """Write everything that ``unpack`` needs to return the model of a saved version."""
        copy_file(checkpoint, path)

    def unpack(self, config: Config, path: Path) -> Any:
        """Return the trained model that ``pack`` wrote, on the CPU, ready to predict."""
        return self.model(config, path)

    #: Formats that ``convert`` writes.
    formats: Sequence[str] = ()

    def convert(self, model: Any, kind: str, path: Path, call: Callable[[Any], object]) -> float:
        """Write a trained model in one of the ``formats``, read it back, and return the largest deviation of outputs.

        ``call`` runs the task's code with a model on a few rows.
        """
        raise NotImplementedError("a framework with formats must implement Framework.convert")

    def measuring(self, config: Config, dtypes: Mapping[str, str]) -> Callable[[Any, Batch], dict[str, RowSum]]:
        """Return a function that returns the metrics of a model on a batch of numpy arrays."""
        raise TaskError("ensembles: this framework does not support them; results.best is the best single model")

    def combined(self, outputs: Sequence[Any], weights: Sequence[float], *, logits: bool) -> Any:
        """Return the weighted mean of what several models returned for the same rows.

        With ``logits``, return the logarithm of the mean of their probabilities.
        """
        raise NotImplementedError("a framework that supports ensembles must implement Framework.combined")

    def ensemble(self, models: Sequence[Any], weights: Sequence[float], *, logits: bool) -> Any:
        """Return one model whose outputs are the ``combined`` outputs of several."""
        raise NotImplementedError("a framework that supports ensembles must implement Framework.ensemble")

    @abstractmethod
    def devices(self) -> tuple[str, int]:
        """Return the kind of device that ``device="auto"`` selects on this machine, and the number of such devices."""

    def settings(self) -> dict[str, Any]:
        """Return the process-wide settings of the framework that differ from its defaults, as JSON values.

        Workers and replays make the same settings, and a run that continues must have them too.
        """
        return {}

    def apply(self, settings: Mapping[str, Any]) -> None:
        """Make the settings that ``settings`` returned, and return all others to their defaults."""
        return

    def begin_worker(self) -> None:
        """Prepare the process of a worker before its first trial. The user's own process is not prepared."""
        return

    @contextlib.contextmanager
    def applied(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Have some settings in place, and the process's own afterwards."""
        before = self.settings()
        self.apply(settings)
        try:
            yield
        finally:
            self.apply(before)

    def process_settings(self) -> Sequence[ProcessSetting]:
        """Return what a trial's code may change in the framework, so that workers put it back."""
        return ()

    def estimate(self, session: Any, batches: Batches) -> ResourceEstimate:
        """Train a session on some batches and return what a row takes. Raise UsageError if that cannot be counted."""
        raise UsageError("the operations of this framework are not counted: plans are made for PyTorch tasks")

    @property
    def fusion_blocker(self) -> str:
        """The reason why trials of the task cannot train together on the same batches; empty if they can."""
        return "its framework does not support that"

    def flotilla(self, sessions: Sequence[Any], *, fast: bool = False) -> Flotilla:
        """Return a flotilla of sessions on one device; with ``fast``, rounding may differ from training alone."""
        raise NotImplementedError(self.fusion_blocker)

    #: Whether a flotilla on a device with its own memory may have members with batches of different sizes.
    mixes_batch_sizes: bool = False

    def gains(self, session: Any, *, fast: bool) -> bool:
        """Whether trials like this one take clearly less time together than one after another."""
        return True

    def check_shared(self, cache: EngineCache) -> None:
        """Raise SharedStateChanged if a trial changed state that sessions with this cache share."""
        return

    def spare_memory(self, placement: Placement) -> int:
        """Return the free memory of a device in bytes, or 0 if no data should be kept on the device."""
        return 0

    def peak_memory(self, placement: Placement) -> int:
        """Return the peak memory use of a device in bytes since the last call, or 0 if it is not measured."""
        return 0

    def used_memory(self, placement: Placement) -> int:
        """Return the bytes that this process has on a device, or 0 if it is not known. Called from any thread."""
        return 0

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether an exception means that the device has run out of memory."""
        return False

    def broken(self, error: BaseException) -> bool:
        """Whether an exception means that this process can no longer use the device."""
        return False

    def explain(self, error: BaseException) -> None:
        """Add notes to an exception of the task's code: what the code was given, and what may have been meant."""
        return

    def free_memory(self) -> None:
        """Return unused memory to the device."""
        return


class Task(ABC, Generic[ModelT]):
    """The model, data preparation and metrics to train. Users derive from the task class of an adapter.

    A task is shared by all trials of a worker and is never changed by them. Where hooks need the trial at hand, an
    adapter calls them on a view of the task that belongs to the session.
    """

    #: The slot belongs to a view, whereas ``__dict__`` is shared by all views of a task.
    __slots__ = ("__dict__", "__weakref__", "_batching")
    _batching: Batching

    #: Modules that workers import before they fork.
    preload: Sequence[str] = ()

    #: ``transform(batch, rng)`` makes a new batch of numpy arrays from one; ``rng`` is None in evaluation.
    transform: Callable[[Batch, np.random.Generator | None], Batch] | None = None

    #: The steps of a schedule in an epoch, and until the end of the epochs that the search may train. Each partition
    #: ends with a batch of its own, which may be short.
    steps_per_epoch: int = StepCount(Batching.steps_per_epoch)  # type: ignore[assignment]
    total_steps: int = StepCount(Batching.total_steps)  # type: ignore[assignment]

    @property
    @abstractmethod
    def framework(self) -> Framework:
        """The adapter that trains this task."""

    def initialize_worker(self) -> None:
        """Prepare a process before its first trial. Settings that are made here hold for all trials of the process."""
        return

    @property
    def batching(self) -> Batching | None:
        """How the rows of the trial at hand become steps; None outside of an experiment."""
        return getattr(self, "_batching", None)

    @property
    def batches_per_step(self) -> int:
        """The batches of one step of a schedule. Adapters whose schedules step with updates have more than one."""
        return 1

    def planned(self, batching: Batching | None) -> Self:
        """Return a view of this task whose hooks know the steps of trials: the same attributes, and the batching."""
        view = view_of(self)
        if batching is not None:
            object.__setattr__(view, "_batching", batching)
        return view

    def for_config(self, config: Config) -> Self:
        """Return a view of this task for a configuration, which may have a batch size of its own."""
        return self.planned(self.batching and self.batching.of(config))

    def log(self, name: str, value: Any) -> None:
        """Log a value of the step at hand: a number or a tensor of one element. In evaluations, nothing is logged."""
        where = "values of single steps are logged by tasks of PyTorch; record a value of each epoch as a metric"
        raise TaskError(f"self.log({name!r}, ...): {where}")

    def predict(self, model: Any, batch: Batch) -> Any:
        """Return a trained model's predictions for a batch of numpy arrays: an array with a row for each, or a dict."""
        if hasattr(model, "predict") and "x" in batch:
            return model.predict(batch["x"])
        raise TaskError(lacks_predict(self))
