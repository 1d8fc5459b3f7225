"""The progress of one trial: the partitions it visited, its model versions, its running units.

A trial's history is one flat list of visits. Its length names the newest model version (version n is the state
after n units), and everything else follows: with p partitions, version v belongs to epoch v // p + 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import TRANSITIONS, Trial, TrialState
from hopfleet.errors import InvariantBroken

Readable = frozenset[int] | None
"""The training or validation partitions that a worker can read; None stands for all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    state: TrialState
    reason: str = ""
    traceback: str = ""
    #: Whether to remove the trial and its versions.
    delete: bool = False


class Setback(Enum):
    """What may go wrong with a trial a few times before it fails."""

    UNIT = "a worker was lost while it ran a unit"
    SAVE = "a worker was lost before it had saved the trial"
    LOAD = "no model could be made from an intact file"


@dataclass(frozen=True, slots=True)
class Saved:
    """The file of a version: the number of the save that wrote it, and its SHA-256 if known."""

    attempt: int
    durable: bool
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Save:
    """A save in progress, and the worker that writes it; a copy has no worker."""

    version: int
    durable: bool
    worker: str | None
    #: Whether it waits in memory, and a newer version may replace it.
    waits: bool = False


@dataclass(slots=True)
class Progress:
    """The mutable record of a live trial. Only ``Schedule`` changes it."""

    trial: Trial
    partitions: int
    state: TrialState = TrialState.PENDING
    #: Partitions visited so far, all epochs in a row; ``len(visits)`` is the newest model version.
    visits: list[int] = field(default_factory=list)
    #: Partitions not visited yet in the epoch of the next unit. Never empty.
    todo: set[int] = field(default_factory=set)
    #: Partitions to visit next, in this order: a fixed order, or units that run again because versions were lost.
    forced: deque[int] = field(default_factory=deque)
    #: The newest epoch that has begun: one of its units was started.
    begun: int = 0
    #: Epochs that are trained and evaluated.
    epochs_ended: int = 0
    #: The goal's metric at the end of each of these epochs, as far as it is known.
    metrics: dict[int, float] = field(default_factory=dict)
    #: The worker that runs a training unit of this trial now.
    trains_on: str | None = None
    #: Validation partitions being evaluated now, and the worker of each.
    evaluates_on: dict[int, str] = field(default_factory=dict)
    #: Validation partitions that are already evaluated, in the epoch that ends next.
    evaluated: dict[int, Mapping[str, RowSum]] = field(default_factory=dict)
    #: Training sums of the units of the current epoch, by the version that they produced.
    trained: dict[int, Mapping[str, RowSum]] = field(default_factory=dict)
    #: Saved versions. Version 0 is built from the seed and needs no saving.
    saved: dict[int, Saved] = field(default_factory=dict)
    #: Files that were replaced by another file of the same version, as (version, attempt); the schedule drops them.
    stale: list[tuple[int, int]] = field(default_factory=list)
    #: Saves in progress, by number.
    saves: dict[int, Save] = field(default_factory=dict)
    #: The worker whose memory holds the newest version.
    holder: str | None = None
    #: Version and rank of the best epoch so far.
    best: tuple[int, tuple[bool, float]] | None = None
    #: The outcome of the trial once nothing of it runs and, unless it failed, its last version is durable.
    outcome: Outcome | None = None
    #: Saved versions that clones of this trial still need, by clone.
    lends: dict[str, int] = field(default_factory=dict)
    #: Trials of a higher level go first.
    level: int = 0
    #: Epochs that follow its last one, its own or those of a trial that waits for it.
    onward: int = 0
    #: The reasons of setbacks of each kind since the same last went well.
    setbacks: dict[Setback, list[str]] = field(default_factory=dict)
    #: Time and number of measured units, for estimates.
    seconds: float = 0.0
    measured: int = 0
    #: Seconds of its longest evaluation; 0 if none was measured.
    evaluation_seconds: float = 0.0
    #: Expected mean seconds of its units, if a forecast was made.
    expected: float | None = None

    def __post_init__(self) -> None:
        self.todo = set(range(self.partitions))

    @property
    def losses(self) -> Sequence[str]:
        """Return the reasons of consecutive losses of workers while they ran a unit of this trial."""
        return self.setbacks.get(Setback.UNIT, [])

    @property
    def version(self) -> int:
        return len(self.visits)

    @property
    def base(self) -> int:
        """Return the version that the trial started with: 0, which is built from the seed, or one of its parent's."""
        return 0 if self.trial.parent is None else self.trial.parent.version

    @property
    def clonable(self) -> int:
        """Return the newest durable version that a clone can start from; 0 if there is none."""
        # Within an epoch, only the newest version has its training sums; they are dropped at the end of the epoch.
        if self.durable(self.version) and self.version > self.epochs_ended * self.partitions:
            return self.version
        return max((v for v, saved in self.saved.items() if saved.durable and v % self.partitions == 0), default=0)

    def durable(self, version: int) -> bool:
        """Whether a version is saved durably."""
        return version in self.saved and self.saved[version].durable

    def told(self, version: int, *, durable: bool, waits: bool = False) -> bool:
        """Whether a version is being saved, durably if asked; a save that ``waits`` counts only if asked, too."""
        return any(
            save.version == version and (save.durable or not durable) and (waits or not save.waits)
            for save in self.saves.values()
        )

    @property
    def saves_best(self) -> bool:
        """Whether its best version is being saved; reports may overtake each other."""
        return self.best is not None and any(save.version == self.best[0] for save in self.saves.values())

    @property
    def epoch(self) -> int:
        """Return the epoch of the next unit, from 1."""
        return len(self.visits) // self.partitions + 1

    @property
    def last_metric(self) -> float | None:
        """Return the goal's metric at the end of the last epoch, if the next unit is the first of an epoch."""
        epochs, units = divmod(len(self.visits), self.partitions)
        return None if units else self.metrics.get(epochs)

    @property
    def awaits_evaluation(self) -> bool:
        """Whether an epoch is trained and not ended yet."""
        return len(self.visits) == (self.epochs_ended + 1) * self.partitions

    @property
    def gives_up(self) -> bool:
        """Whether the trial ends without another version."""
        return self.outcome is not None and (self.outcome.delete or self.outcome.state is TrialState.FAILED)

    @property
    def can_train(self) -> bool:
        """Whether its next unit may start as soon as a worker can take it."""
        if self.trains_on is not None or self.evaluates_on or self.awaits_evaluation:
            return False
        if self.outcome is None:
            return len(self.visits) < self.trial.epochs * self.partitions
        # Done, but its last versions were lost: the units that produced them run again.
        return self.outcome.state is not TrialState.FAILED and len(self.visits) < self.epochs_ended * self.partitions

    @property
    def begins_epoch(self) -> bool:
        """Whether its next unit is the first one of an epoch that it has not begun."""
        return self.epoch > self.begun and not self.awaits_evaluation

    @property
    def units_left(self) -> int:
        return self.trial.epochs * self.partitions - len(self.visits)

    @property
    def unit_seconds(self) -> float:
        """Return the mean seconds of its measured units, or the expected seconds, or 1."""
        return self.seconds / self.measured if self.measured else self.expected or 1.0

    @property
    def known(self) -> bool:
        """Whether its unit times were measured or expected."""
        return self.measured > 0 or self.expected is not None

    @property
    def loadable(self) -> bool:
        """Whether every worker can load the newest version."""
        return not self.visits or len(self.visits) in self.saved

    def loadable_by(self, worker: str) -> bool:
        """Whether ``worker`` can load the newest version."""
        return self.holder == worker or self.loadable

    def owed_to(self, readable: Readable) -> Collection[int]:
        """Return the partitions that may come next among the ``readable`` ones."""
        owed = {self.forced[0]} if self.forced else self.todo
        return owed if readable is None else owed & readable

    def goes_on(self, readable: Readable, partition: int | None) -> bool:
        """Whether the step after the unit on ``partition``, or after an evaluation, may be for the same worker.

        The worker can read ``readable`` partitions. At the end of an epoch the same worker evaluates, and at the end of
        a trial it saves.
        """
        if self.outcome is not None or (partition is not None and len(self.todo) == 1):
            return True
        if not self.units_left:
            return False
        forced = [*self.forced][partition is not None :]
        owed = {forced[0]} if forced else self.todo - {partition}
        return readable is None or bool(owed & readable)

    def owed_after(self, partition: int, readable: Readable) -> set[int]:
        """Return the ``readable`` partitions of the same epoch that may come after the unit on ``partition``."""
        owed = self.todo - {partition}
        if len(self.forced) > 1:
            owed &= {self.forced[1]}
        return owed if readable is None else owed & readable

    def visit(self, partition: int) -> None:
        self.visits.append(partition)
        self.todo.discard(partition)
        if self.forced:
            self.forced.popleft()
        if len(self.visits) % self.partitions == 0:
            self.todo = set(range(self.partitions))

    def finish_evaluation(self, partition: int, seconds: float, sums: Mapping[str, RowSum], covers: int) -> None:
        """Keep the metrics of an evaluation that ``covers`` one partition or all; one of all replaces the others."""
        self.evaluation_seconds = max(self.evaluation_seconds, seconds)
        if covers > 1:
            self.evaluated = {other: {} for other in range(covers)} | {partition: sums}
        else:
            self.evaluated.setdefault(partition, sums)

    def roll_back(self, version: int) -> list[int]:
        """Forget the units after ``version`` and force them next; return their partitions."""
        undone = self.visits[version:]
        self.visits = self.visits[:version]
        self.forced.extendleft(reversed(undone))
        start = version - version % self.partitions
        self.todo = set(range(self.partitions)) - set(self.visits[start:])
        self.trained = {made: sums for made, sums in self.trained.items() if made <= version}
        return undone

    def become(self, state: TrialState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantBroken(f"{self.trial.id} cannot go from {self.state.value} to {state.value}: {self.story()}")
        self.state = state

    def story(self) -> str:
        """Describe the whole state of the trial, for the message of a broken invariant."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__ if name != "trial")
