"""What a worker needs of a framework: a task that opens sessions, and sessions that train, evaluate, save and load.

A session is one trial's live state on one worker. Everything that a later unit depends on is in its saved file:
weights, buffers, optimizer, schedules, random streams, counters. So a session that loaded a version goes on bit for
bit as the one that saved it would have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import TaskError

Batch = dict[str, Any]
"""Column names to arrays (or lists, for strings, bytes and rows of different shapes)."""


class Batches(Iterable[Batch], Sized, Protocol):
    """The batches of one unit, in order. Can be iterated over once."""

    @property
    def rows(self) -> int:
        """How many rows they hold together."""


class Session(ABC):
    """One trial's live state. Used by one thread at a time, except that ``save`` may run beside ``evaluate`` if it is
    ``steady``."""

    #: Whether the process belongs to somebody else, whose random streams must be left as they are.
    guest: bool = True

    @property
    @abstractmethod
    def size(self) -> int:
        """About how many bytes a saved version takes."""

    @property
    def steady(self) -> bool:
        """Whether all that is saved stays as it is during ``evaluate``, so that ``save`` may run beside it."""
        return True

    @property
    def parameters(self) -> int:
        """The number of trainable parameters, for experiments whose goal names ``params``."""
        raise TaskError("params: this framework does not count them; return a number of that name from metrics()")

    @abstractmethod
    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        """A batch of numpy arrays as the framework wants it. Called from a background thread."""

    def pick(self, whole: Batch, order: np.ndarray[Any, Any] | None, batch_size: int, rows: int) -> Iterator[Batch]:
        """The batches of the first ``rows`` of a prepared partition, in an order or as it is.

        Only for tasks whose ``spare_memory`` is not 0.
        """
        raise NotImplementedError

    @abstractmethod
    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        """One sub-epoch; ``last`` closes the epoch. Returns what is to be known of it, e.g. the training loss."""

    @abstractmethod
    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        """Metrics over some rows. Changes nothing that training depends on."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write everything that training depends on; the same state always gives the same bytes."""

    def still(self) -> Callable[[Path], None] | None:
        """What writes the state of this moment, also when training has gone on; None if this framework cannot."""
        return None

    @abstractmethod
    def load(self, path: Path) -> None:
        """Become what was saved. Raises CheckpointError for a file that is damaged or of another kind."""

    def inherit(self, path: Path, parent: Session) -> None:
        """Go on from another trial's version, as far as this configuration lets it.

        ``parent`` is a new session of the other configuration: where the two differ, e.g. in the learning rate, this
        one's own way counts. Raises TaskError if the model does not fit.
        """
        self.load(path)

    @abstractmethod
    def unused(self) -> tuple[str, ...]:
        """Configuration keys that the task has not read so far."""


Result = dict[str, RowSum] | Exception
"""What came of a member's part: sums, or why it failed."""


class IsolationError(Exception):
    """Trials that train together would not have the bits that they have alone; each must train for itself."""


class Flotilla(ABC):
    """Sessions of one task that share a stream of batches. Each ends with the bits that it would have alone.

    A member whose code raises is left behind and the others go on; its session is of no use then. If a call raises
    Entangled, that holds for all of them.
    """

    #: The part of the time of the last call that was each member's own.
    shares: Sequence[float] = ()
    #: Called before each piece of a member's work with its number, so that what it prints can be told apart.
    turn: Callable[[int], None] = staticmethod(lambda number: None)

    @abstractmethod
    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        """One sub-epoch of each member; ``last`` tells whose epoch it closes."""

    @abstractmethod
    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        """Metrics over some rows, of each member."""


class Task(ABC):
    """What is to be trained. Users derive from a framework's own task class."""

    #: Modules that workers import before they fork.
    preload: Sequence[str] = ()

    #: ``transform(batch, rng)`` makes a new batch of numpy arrays from one; ``rng`` is None in evaluation.
    transform: Callable[[Batch, np.random.Generator | None], Batch] | None = None

    @abstractmethod
    def open(self, config: Mapping[str, Any], *, seed: int, device: str, threads: int) -> Session:
        """Build the model of a configuration; its random streams start from ``seed``."""

    @abstractmethod
    def model(self, config: Mapping[str, Any], checkpoint: Path) -> Any:
        """The trained model of a saved version, on the CPU, ready to predict."""

    @abstractmethod
    def devices(self) -> tuple[str, int]:
        """The kind of device that ``device="auto"`` stands for here, and how many there are."""

    @property
    def alone(self) -> str:
        """Why trials of this task cannot train together on the same batches; nothing if they can."""
        return "its framework cannot do that"

    def flotilla(self, sessions: Sequence[Any], *, fast: bool = False) -> Flotilla:
        """Sessions of this task, on one device, that are to train together; with ``fast``, rounding may differ."""
        raise NotImplementedError(self.alone)

    def gains(self, session: Any, *, fast: bool) -> bool:
        """Whether trials like this one take clearly less time together than one after another."""
        return True

    def spare_memory(self, device: str) -> int:
        """The free memory of a device, in bytes, if data should be kept there."""
        return 0

    def peak_memory(self, device: str) -> int:
        """The most bytes of a device that were in use since this was last asked; 0 if nobody counts them."""
        return 0

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether an exception says that the device has no memory left."""
        return False

    def broken(self, error: BaseException) -> bool:
        """Whether an exception says that this process cannot use the device any more."""
        return False

    def free_memory(self) -> None:
        """Give back the memory of the device that nothing uses any more."""
        return


class TrackedConfig(dict[str, Any]):
    """A configuration that remembers which keys were read. Nested dicts are tracked as dotted paths."""

    def __init__(self, values: Mapping[str, Any], seen: set[str] | None = None, prefix: str = "") -> None:
        self._seen: set[str] = set() if seen is None else seen
        self._prefix = prefix
        super().__init__(
            {
                key: TrackedConfig(value, self._seen, f"{prefix}{key}.") if isinstance(value, Mapping) else value
                for key, value in values.items()
            }
        )

    def unused(self) -> tuple[str, ...]:
        unread: list[str] = []
        for key, value in dict.items(self):
            if isinstance(value, TrackedConfig):
                unread += value.unused()
            elif self._prefix + key not in self._seen:
                unread.append(self._prefix + key)
        return tuple(unread)

    def share(self, other: TrackedConfig) -> None:
        """What was read of another configuration for both counts as read of this one too."""
        self._seen |= other._seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add(self._prefix + key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add(self._prefix + key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._seen.add(self._prefix + key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        # Who walks over the configuration, as f(**config) does, may use all of it.
        self._seen.update(self._prefix + key for key in dict.keys(self))
        return super().__iter__()

    def keys(self) -> Any:
        iter(self)
        return super().keys()

    def values(self) -> Any:
        iter(self)
        return super().values()

    def items(self) -> Any:
        iter(self)
        return super().items()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)
