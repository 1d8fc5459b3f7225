"""Transitions of saved versions: which saves are under way, and in which file each version is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.progress import Progress, Save, Saved, Setback
from hopfleet.scheduler.view import ScheduleView


class VersionRecords(ScheduleView):
    """The part of a schedule that records versions."""

    def blame(self, trial: str, setback: Setback, reason: str) -> list[str]:
        """Note a setback of a trial; return the reasons of all such setbacks in a row."""
        reasons = self.trials[trial].setbacks.setdefault(setback, [])
        reasons.append(reason)
        return reasons

    def forgive(self, trial: str, setback: Setback) -> None:
        """Note that something went well which may lead to a setback."""
        self.trials[trial].setbacks.pop(setback, None)

    def save(self, trial: str, attempt: int, save: Save, replaces: Iterable[int] = ()) -> None:
        """Note that a save began, and forget those that it ``replaces``."""
        self._forget_saves(self.trials[trial], replaces)
        self.trials[trial].saves[attempt] = save

    def saved(self, ref: VersionRef, durable: bool, digest: str = "") -> None:
        """End a save: its file is the version from now on, unless a more durable file already is.

        A durable save whose file is only on its node goes on until the file is in the storage.
        """
        progress, (_, version, attempt) = self.trials[ref.trial], ref
        assert attempt is not None
        save = progress.saves.get(attempt)
        self._forget_saves(progress, [attempt])
        if save is not None and save.durable and not durable:
            progress.saves[attempt] = replace(save, waits=False)
        self.forgive(ref.trial, Setback.SAVE)
        saved = Saved(attempt, durable, digest)
        before = progress.saved.get(version, saved)
        if before.durable and not durable:
            before, saved = saved, before
        progress.saved[version] = saved
        if before.attempt != saved.attempt:
            progress.stale.append((version, before.attempt))
        if version == progress.version:
            self._refresh(progress)

    def delay(self, ref: VersionRef, *, on_node: bool) -> None:
        """Note that a save has begun, and that the disk, or the storage if ``on_node``, does not take it yet."""
        assert ref.attempt is not None
        saves = self.trials[ref.trial].saves
        save = saves[ref.attempt] = replace(saves[ref.attempt], waits=False)
        (self.unsent if on_node else self.delayed)[ref.attempt] = save.worker

    def premature(self, ref: VersionRef) -> None:
        """End a save whose unit is not known to have finished: its file is useless, and the version is not saved."""
        assert ref.attempt is not None
        progress = self.trials[ref.trial]
        self._forget_saves(progress, [ref.attempt])
        progress.stale.append((ref.version, ref.attempt))

    def dropped(self, ref: VersionRef) -> None:
        """Forget a file that is deleted because no unit needs it."""
        trial, version, attempt = ref
        assert attempt is not None
        progress = self.parked.get(trial) or self.trials[trial]
        if (version, attempt) in progress.stale:
            progress.stale.remove((version, attempt))
            return
        self._lose_file(progress, version, attempt)
        self._forget_saves(progress, [attempt])
        if version == progress.version and trial in self.trials:
            self._refresh(progress)

    def lost(self, ref: VersionRef, worker: str | None, attempt: int = 0, *, intact: bool = False) -> None:
        """Forget the unusable file ``ref``, and ``attempt``, which needed it; ``worker`` does not hold the version.

        An ``intact`` file is still to be dropped.
        """
        progress = self.trials[ref.trial]
        if progress.holder == worker and progress.version == ref.version:
            progress.holder = None
        if intact and ref.attempt is not None and self.refers(ref) and (ref.version, ref.attempt) not in progress.stale:
            progress.stale.append((ref.version, ref.attempt))
        self._lose_file(progress, ref.version, ref.attempt)
        self._forget_saves(progress, [attempt])
        self._refresh(progress)

    def forget_saves(self) -> None:
        """Forget all saves under way, and earlier trouble with saved versions: a run starts."""
        for progress in self.trials.values():
            self._forget_saves(progress, list(progress.saves))
            for setback in (Setback.SAVE, Setback.LOAD):
                self.forgive(progress.trial.id, setback)

    def _forget_saves(self, progress: Progress, attempts: Iterable[int]) -> None:
        for attempt in attempts:
            progress.saves.pop(attempt, None)
            self.delayed.pop(attempt, None)
            self.unsent.pop(attempt, None)

    def _lose_file(self, progress: Progress, version: int, attempt: int | None) -> None:
        if version in progress.saved and progress.saved[version].attempt == attempt:
            del progress.saved[version]

    def _refresh(self, progress: Progress) -> None:
        """Keep ``ready`` and ``awaiting`` true for one trial."""
        name = progress.trial.id
        if self.may_train(progress):
            self.ready[name] = progress
            self._ready.put(progress)
        elif self.ready.pop(name, None) is not None:
            self._ready.remove(name)
        wanted = progress.awaits_evaluation and progress.outcome is None and progress.trains_on is None
        if wanted and any(True for _ in self.unevaluated(progress)):
            self.awaiting[name] = progress
        else:
            self.awaiting.pop(name, None)
