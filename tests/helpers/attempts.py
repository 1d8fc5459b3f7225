"""The history of an experiment, attempt by attempt: what counts was asked for, ran last of its kind, and counts once.

It knows messages alone, neither schedule nor controller, so that it cannot share a mistake with them. It reads the
journals of simulated and of real experiments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hopfleet.domain import messages as m
from hopfleet.domain.version_ref import VersionRef


@dataclass
class Attempts:
    """A fold over the messages of an experiment that raises AssertionError at the first that must not be there."""

    partitions: int
    #: The open starts of each worker, by attempt: those of one unit or flotilla, and of the next one if the worker was
    #: told ahead.
    running: dict[str, dict[int, m.RunUnit]] = field(default_factory=dict)
    last: int = 0
    #: Per trial, the partitions of the units that count, in order.
    visits: dict[str, list[int]] = field(default_factory=dict)
    #: Per trial, the version that it started with, and the saves of the versions that are saved.
    base: dict[str, int] = field(default_factory=dict)
    saved: dict[str, dict[int, int | None]] = field(default_factory=dict)
    #: Units that ran to their end, and those of them that were rolled back.
    finished: int = 0
    undone: int = 0

    def read(self, messages: Iterable[m.Message]) -> Attempts:
        for message in messages:
            self.take(message)
        return self

    def take(self, message: m.Message) -> None:
        match message:
            case m.RunStarted():
                self.running.clear()
            case m.WorkerLost():
                self.running.pop(message.worker, None)
            case m.RunUnit():
                self._start(message)
            case m.UnitFinished() | m.UnitFailed() | m.UnitStopped():
                self._end(message)
            case m.TrialAdded():
                self.visits[message.trial] = list(message.visits)
                self.base[message.trial] = len(message.visits)
                self.saved[message.trial] = {}
            case m.TrialRolledBack():
                self._roll_back(message)
            case m.VersionSaved() if message.ref.version == len(self.visits[message.trial]) + 1:
                self._check_ahead(message)
            case m.VersionSaved():
                assert message.ref.version <= len(self.visits[message.trial]), f"saved before it was made: {message}"
                self.saved[message.trial][message.ref.version] = message.ref.attempt
            case m.DropVersion():
                self._forget(message.ref)
            case m.VersionLost():
                self._forget(message.ref)
                self._give_up(message)
            case _:
                pass

    def _check_ahead(self, saved: m.VersionSaved) -> None:
        """The report of a save may overtake that of the unit that made the version, and counts for nothing then."""
        makes = self._starts_of(saved.trial)
        assert makes, f"saved before it was made: {saved}"

    def _start(self, start: m.RunUnit) -> None:
        assert start.attempt > self.last, f"an attempt twice: {start}"
        self.last = start.attempt
        attempts = self.running.setdefault(start.worker, {})
        groups = {other.flotilla or other.attempt: other for other in attempts.values()} if attempts else {}
        other = groups.get(start.flotilla)
        if other is not None:
            same = replace(other.unit, trial=start.trial) == start.unit
            assert same, f"a flotilla of two kinds: {other}, {start}"
        else:
            assert len(groups) == start.lookahead, f"two attempts at once: {groups}, {start}"
        twins = self._starts_of(start.trial)
        if start.lookahead and start.unit.trains and any(other.trial == start.trial for other in attempts.values()):
            (before,) = twins
            self._check_goes_on(before, start)
            attempts[start.attempt] = start
            return
        assert start.model.version == len(self.visits[start.trial]), f"not from the newest version: {start}"
        alone = start.unit.trains or any(other.unit.trains for other in twins)
        assert not (twins and alone), f"a model at two places: {twins}, {start}"
        attempts[start.attempt] = start

    def _starts_of(self, trial: str) -> list[m.RunUnit]:
        return [start for attempts in self.running.values() for start in attempts.values() if start.trial == trial]

    def _check_goes_on(self, before: m.RunUnit, start: m.RunUnit) -> None:
        """A trial goes on where it is, with another partition of the epoch and the model that it is about to make."""
        assert before.unit.trains and before.worker == start.worker, f"a model at two places: {before}, {start}"
        assert start.model == (start.trial, before.model.version + 1, None), f"not what comes next: {before}, {start}"
        begun = (start.unit.epoch - 1) * self.partitions
        done = {*self.visits[start.trial][begun:], before.unit.partition}
        assert before.unit.epoch == start.unit.epoch, f"how an epoch ends is waited for: {before}, {start}"
        assert start.unit.partition not in done, f"a partition twice: {before}, {start}"

    def _end(self, end: m.UnitFinished | m.UnitFailed | m.UnitStopped) -> None:
        start = self.running.get(end.worker, {}).pop(end.attempt, None)
        assert start is not None, f"not an attempt that runs ({self.running.get(end.worker)}): {end}"
        assert start.unit == end.unit, f"{start}: {end}"
        if not isinstance(end, m.UnitFinished):
            self._end_what_follows(end.worker, end.trial)
        elif end.unit.trains:
            assert end.version == start.model.version + 1 == len(self.visits[end.trial]) + 1, f"{start}: {end}"
            assert (end.version - 1) // self.partitions + 1 == end.unit.epoch, f"a wrong epoch: {end}"
            self.visits[end.trial].append(end.unit.partition)
            self.finished += 1

    def _give_up(self, lost: m.VersionLost) -> None:
        """A worker that could not load its model does nothing."""
        if self.running.get(lost.worker or "", {}).pop(lost.attempt, None) is not None:
            self._end_what_follows(lost.worker or "", lost.trial)

    def _end_what_follows(self, worker: str, trial: str) -> None:
        """What a trial was to do after a unit that did not happen does not happen either."""
        attempts = self.running[worker]
        for attempt in [attempt for attempt, start in attempts.items() if start.trial == trial]:
            del attempts[attempt]

    def _forget(self, ref: VersionRef) -> None:
        """The file of a save is gone; if another one is that version by now, it stays."""
        if self.saved[ref.trial].get(ref.version, -1) == ref.attempt:
            del self.saved[ref.trial][ref.version]

    def _roll_back(self, back: m.TrialRolledBack) -> None:
        visits = self.visits[back.trial]
        assert back.version < len(visits), f"there is nothing to roll back: {back}"
        kept = {*self.saved[back.trial], self.base[back.trial]}
        assert back.version in kept, f"rolled back to what is not saved: {back}"
        assert not [version for version in kept if version > back.version], f"rolled back too far: {back}"
        self.undone += len(visits) - back.version
        del visits[back.version :]
