"""Verification of a run folder against its journal.

The journal is checked against the invariants, every durable model and the data against their SHA-256, and the folder's
permissions against 0700. Verification changes nothing and works while the experiment runs: before a file counts as
missing, damaged or stray, the journal is read again for versions dropped or saved in the meantime.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopfleet.data import Dataset, open_dataset
from hopfleet.data.unseen import unseen
from hopfleet.domain.messages import (
    DropVersion,
    Finish,
    Message,
    RunStarted,
    TrialAdded,
    TrialDeleted,
    TrialEnded,
    TrialPaused,
    TrialResumed,
    VersionLost,
    VersionSaved,
)
from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import SHARED
from hopfleet.errors import HopfleetError, InvariantBroken, JournalError, describe
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.base import JournalStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import has_journal, missing_part, open_journal, recalled
from hopfleet.store.shared_memory import KEY
from hopfleet.store.versions.local import OURS, OURS_SHARED, Versions, references
from hopfleet.support.files import digest
from hopfleet.support.machine import this_machine

PARTS = ("journal", "models", "data", "folder")

RESTORE = "restore it or partition again"

TELL_SECONDS = 0.5
"""Seconds between two progress reports, and before a second look at a journal that is being created."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem of the run folder and its remedy."""

    part: str  #: "journal", "models", "data" or "folder"
    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification: a summary of each part, the faults, and notes on files that were not checked."""

    checked: dict[str, str]
    faults: list[Fault]
    notes: list[str]

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class _Known:
    """The journal's record of model files and of trials that may still write some."""

    saved: dict[tuple[str, int], VersionSaved] = field(default_factory=dict)
    states: dict[str, TrialState] = field(default_factory=dict)
    finished: bool = False
    messages: int = 0
    #: The definition with which the last run began; empty in journals of earlier releases.
    definition: Mapping[str, Any] = field(default_factory=dict)

    def take(self, message: Message) -> None:
        self.messages += 1
        match message:
            case VersionSaved(durable=True):
                self.saved[message.trial, message.ref.version] = message
            case VersionLost(ref=ref) | DropVersion(ref=ref):
                key = (ref.trial, ref.version)
                if key in self.saved and self.saved[key].ref == ref:
                    del self.saved[key]
            case TrialAdded(trial=trial) | TrialResumed(trial=trial):
                self.states[trial] = TrialState.RUNNING
            case TrialEnded():
                self.states[message.trial] = message.state
            case TrialPaused(trial=trial):
                self.states[trial] = TrialState.PAUSED
            case TrialDeleted(trial=trial):
                self.states.pop(trial, None)
                self.saved = {key: saved for key, saved in self.saved.items() if key[0] != trial}
            case RunStarted() | Finish():
                self.finished = isinstance(message, Finish) and message.complete
                if isinstance(message, RunStarted):
                    self.definition = message.definition
            case _:
                pass

    def leftover(self, name: str) -> bool:
        """Whether an unrecorded file is a normal leftover.

        A running or interrupted experiment writes files before it records them; a finished one has removed them.
        """
        shared = OURS_SHARED.fullmatch(name.removeprefix(f"{SHARED}/"))
        return not self.finished and (OURS.fullmatch(name) or shared) is not None


def find_data(folder: RunFolder, role: str) -> Dataset:
    """Open the ``train`` or ``valid`` data of a run: inside the run folder if present, else at its recorded URL."""
    own = folder.data / role
    return open_dataset(own if own.is_dir() else folder.definition()[role]["url"])


def verify(folder: RunFolder, tell: Callable[[str], None] = lambda text: None) -> Verdict:
    """Check a run folder, reporting progress to ``tell``."""
    return _Verification(folder, tell).verdict()


class _Verification:
    """One pass over a run folder."""

    def __init__(self, folder: RunFolder, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._definition = folder.definition(checked=False)
        self._versions = Versions(folder.checkpoints)
        self._tell = tell
        self._checked = dict.fromkeys(PARTS, "")
        self._faults: list[Fault] = []
        self._notes: list[str] = []

    def verdict(self) -> Verdict:
        self._check_permissions()
        self._tell("reading the journal")
        known = self._check_journal()
        with ThreadPoolExecutor(max(2, this_machine().cores)) as pool:
            data = {role: pool.submit(self._data_fault, role) for role in self._roles()}
            models = {} if known is None else {key: pool.submit(self._model_fault, known, *key) for key in known.saved}
            names = set() if known is None else self._shared(known)
            shared = [pool.submit(self._shared_fault, name) for name in sorted(names)]
            try:
                self._wait([*shared, *data.values(), *models.values()])
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self._faults += [fault for found in shared if (fault := found.result()) is not None]
        suspects = [key for key, fault in models.items() if fault.result()]
        if known is not None:
            self._check_models(known, suspects)
        self._faults += [fault for found in data.values() if (fault := found.result()) is not None]
        order = {part: number for number, part in enumerate(PARTS)}
        return Verdict(self._checked, sorted(self._faults, key=lambda fault: order[fault.part]), self._notes)

    def _wait(self, jobs: list[Future[Any]]) -> None:
        pending = set(jobs)
        while pending:
            _, pending = wait(pending, TELL_SECONDS, return_when=FIRST_COMPLETED)
            self._tell(f"{len(jobs) - len(pending)} of {len(jobs)} models and data sets checked")

    # ------------------------------------------------------------------------------------------- folder, journal

    def _check_permissions(self) -> None:
        mode = stat.S_IMODE(self._folder.path.stat().st_mode)
        self._checked["folder"] = f"permissions {mode:04o}"
        if mode != 0o700:
            remedy = f"chmod 700 {self._folder.path}"
            self._faults.append(
                Fault("folder", str(self._folder.path), f"has permissions {mode:04o}, not 0700", remedy)
            )

    def _check_journal(self) -> _Known | None:
        """Return the journal's record, or None if the journal cannot be read."""
        path = self._folder.journal_file
        try:
            known, broken = self._read_settled()
        except JournalError as error:
            self._checked["journal"] = "cannot be read"
            self._checked["models"] = "not checked without a journal"
            problem = str(error).removeprefix(f"{path}: ")
            self._faults.append(Fault("journal", str(path), problem, "restore it from a backup"))
            return None
        self._checked["journal"] = f"{known.messages} messages"
        if known.definition and not _same(known.definition, self._definition):
            differ = sorted(
                key
                for key in known.definition.keys() | self._definition.keys()
                if not _same(known.definition.get(key), self._definition.get(key))
            )
            problem = f"was modified since the last run: {', '.join(differ)}"
            self._faults.append(Fault("folder", str(self._folder.definition_file), problem, self._folder.rescue))
        elif wrong := self._definition_damage():
            self._faults.append(Fault("folder", str(self._folder.definition_file), wrong, self._folder.rescue))
        if broken:
            remedy = "restore it from a backup; if it was not modified, please report this as a bug in Hopfleet"
            if not known.messages:
                remedy = self._folder.rescue
            self._faults.append(Fault("journal", str(path), broken.removeprefix(f"{path}: "), remedy))
        return known

    def _definition_damage(self) -> str:
        """Return what is wrong with the definition, as far as its digest tells."""
        try:
            self._folder.definition()
        except JournalError as error:
            return str(error).removeprefix(f"{self._folder.definition_file}: ").partition("; ")[0]
        return ""

    def _read_settled(self) -> tuple[_Known, str]:
        """Return ``_read()``, trying twice if a running experiment may just be creating the journal."""
        try:
            return self._read()
        except JournalError:
            if not self._folder.running:
                raise
        time.sleep(TELL_SECONDS)
        return self._read()

    def _read(self) -> tuple[_Known, str]:
        """Return the journal's record and the first broken invariant, or an empty string."""
        known, broken = _Known(), ""
        journaled = has_journal(self._folder)
        if not journaled:
            return known, missing_part(self._folder, journaled=False, empty=True)
        with contextlib.closing(open_journal(self._folder)) as journal:
            messages = _passed(journal, known)
            try:
                validate_history(messages, self._definition["train"]["partitions"])
            except InvariantBroken as error:
                broken = f"breaks an invariant ({error})"
            except KeyError as error:
                broken = f"refers to a trial that was never added ({error})"
            except (TypeError, ValueError, AttributeError, IndexError) as error:
                broken = f"has a message with a value of the wrong type ({describe(error)})"
            for _ in messages:  # read the rest too: files are compared with the complete journal
                pass
        if not broken:
            broken = missing_part(self._folder, journaled=True, empty=not known.messages)
        return known, broken

    # ------------------------------------------------------------------------------------------------- models

    def _model_fault(self, known: _Known, trial: str, version: int) -> Fault | None:
        saved = known.saved[trial, version]
        path = self._versions.path(saved.ref, durable=True)
        goes_on = not known.finished and known.states.get(trial) is TrialState.RUNNING
        backup = "restore it from a backup"
        again = f"hopfleet resume {self._folder.handle} recreates it"
        try:
            size = path.stat().st_size
            if size != saved.size:
                problem = f"is damaged: {size} bytes instead of {saved.size}"
            elif digest(path) != saved.digest:
                problem = "is damaged: its SHA-256 differs from the journal"
            else:
                return None
        except FileNotFoundError:
            return Fault("models", str(path), "is missing", again if goes_on else backup)
        except OSError as error:
            return Fault("models", str(path), f"cannot be read ({error})", "check its permissions and the disk")
        return Fault("models", str(path), problem, f"delete it; {again}" if goes_on else backup)

    def _shared(self, known: _Known) -> set[str]:
        """Return the names of the files that the models in the journal share."""
        paths = (self._versions.path(saved.ref, durable=True) for saved in known.saved.values())
        return {name for path in paths for name in references(path)}

    def _shared_fault(self, name: str) -> Fault | None:
        path = self._versions.shared_path(name)
        try:
            problem = "" if digest(path) == name else "is damaged: its SHA-256 differs from its name"
        except FileNotFoundError:
            problem = "is missing, and models refer to it"
        except OSError as error:
            return Fault("models", str(path), f"cannot be read ({error})", "check its permissions and the disk")
        return Fault("models", str(path), problem, "restore it from a backup") if problem else None

    def _check_models(self, known: _Known, suspects: list[tuple[str, int]]) -> None:
        """Check suspect models again, and report files that are not in the journal."""
        files = self._files()
        names = self._names(known)
        strays = [name for name in files if name not in names]
        now = self._read()[0] if suspects or strays else known
        faults = [self._model_fault(now, *key) for key in suspects if key in now.saved]
        self._faults += [fault for fault in faults if fault is not None]
        names = self._names(now)
        bytes_read = sum(saved.size for saved in now.saved.values())
        self._checked["models"] = f"{len(now.saved)} files, {bytes_read / 1e6:,.1f} MB"
        for name in strays:
            path = self._folder.checkpoints / name
            if path.exists() and name not in names:
                if now.leftover(name):
                    self._notes.append(
                        f"{path}: is not in the journal yet, or is left over from a fault; it is harmless"
                    )
                else:
                    remedy = "delete it, or move it elsewhere if you put it there"
                    self._faults.append(Fault("models", str(path), "is a stray file: it is not in the journal", remedy))

    def _files(self) -> list[str]:
        """Return all files in the checkpoints folder, relative to that folder, except the key of shared memory."""
        base = self._folder.checkpoints
        found = (Path(folder, name).relative_to(base) for folder, _, names in os.walk(base) for name in names)
        return sorted(path.as_posix() for path in found if path != Path(KEY))

    def _names(self, known: _Known) -> set[str]:
        """Return the files recorded in the journal, relative to the checkpoints folder."""
        paths = [self._versions.path(saved.ref, durable=True) for saved in known.saved.values()]
        paths += map(self._versions.shared_path, self._shared(known))
        return {path.relative_to(self._folder.checkpoints).as_posix() for path in paths}

    # --------------------------------------------------------------------------------------------------- data

    def _roles(self) -> list[str]:
        roles = [role for role in ("train", "valid") if self._definition[role] is not None]
        self._checked["data"] = ", ".join(f"{role}: {self._definition[role]['rows']:,} rows" for role in roles)
        return roles

    def _data_fault(self, role: str) -> Fault | None:
        recorded, own = self._definition[role], self._folder.data / role
        url = str(own if own.is_dir() else recorded["url"])
        here = self._folder.path in Path(url).parents or ("://" not in url and Path(url).exists())
        try:
            dataset = open_dataset(url)
        except (HopfleetError, OSError) as error:
            if here:
                return _damage(role, error)
            self._notes.append(f"{role} data: not checked because it cannot be reached ({error})")
            return None
        if dataset.fingerprint != recorded["fingerprint"]:
            return Fault("data", url, f"is not the {role} data of the experiment: its fingerprint differs", RESTORE)
        try:
            rows = unseen(dataset) if role == "valid" and self._definition.get("folds") else dataset
            rows.check(checksums=True)
        except (HopfleetError, OSError) as error:
            return _damage(role, error)
        return None


def _damage(role: str, error: Exception) -> Fault:
    """Convert an error of a data set, which names the file, the problem and the remedy, to a fault."""
    problem, _, remedy = str(error).partition("; ")
    return Fault("data", f"{role} data", problem, remedy or RESTORE)


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; NaN is the same as NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _passed(journal: JournalStore, known: _Known) -> Iterator[Message]:
    for _, message in recalled(journal):
        known.take(message)
        yield message
