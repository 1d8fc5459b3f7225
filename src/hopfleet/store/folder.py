"""The run folder: the files of an experiment, and the lock of the process that runs it.

NAME/
  experiment.json   what was asked for: space, search, seed, data, versions
  journal.sqlite    everything that happened, in order
  checkpoints/      t0001/v00008-23.safetensors: the last and the best version of every trial
  logs/             t0001.log: what the trial's code printed; workers.log
  data/             data sets that were given as plain arrays
  plots/            pictures
  prediction.json   the forecast made before the first unit, if configurations were profiled
  profile.json      the profile of configurations: seconds and bytes
  lock              held by the process that runs the experiment
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hopfleet.errors import ExperimentExists, JournalError, NotFound, UsageError
from hopfleet.support.files import write_atomically

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def home() -> Path:
    """Return the folder of all runs: ``HOPFLEET_HOME``, or ``~/.hopfleet``."""
    return Path(os.environ.get("HOPFLEET_HOME") or Path.home() / ".hopfleet").expanduser().absolute()


def check_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"name={name!r}: use letters, digits, '.', '_' and '-' only, beginning with a letter or digit, "
            "at most 128 characters"
        )
    return name


class RunFolder:
    """The files of one experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.definition_file = path / "experiment.json"
        self.journal_file = path / "journal.sqlite"
        self.prediction_file = path / "prediction.json"
        self.profile_file = path / "profile.json"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.data = path / "data"
        self.plots = path / "plots"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        try:
            return self.definition_file.is_file()
        except (OSError, ValueError):  # not a valid file name, or no permission
            return False

    @property
    def handle(self) -> str:
        """Return the argument with which ``find_run`` finds the run: its name in the home folder, else its path."""
        return self.name if self.path.parent == home() else str(self.path)

    @property
    def running(self) -> bool:
        """Whether some process holds the lock."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def create(self, definition: dict[str, Any]) -> None:
        """Create all folders, then write the definition: a folder with a definition is complete."""
        for folder in (self.path, self.checkpoints, self.logs, self.data, self.plots):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps(definition, indent=2) + "\n"
        write_atomically(self.definition_file, lambda path: _write_text(path, text), durable=True)

    def keep_prediction(self, prediction: dict[str, Any]) -> None:
        text = json.dumps(prediction) + "\n"
        write_atomically(self.prediction_file, lambda path: _write_text(path, text), durable=False)

    def prediction(self) -> dict[str, Any] | None:
        """Return the forecast made before the first unit; None if there is none."""
        try:
            prediction: dict[str, Any] = json.loads(self.prediction_file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JournalError(f"{self.prediction_file}: cannot be read ({error}); remove it") from error
        return prediction

    def keep_profile(self, profile: dict[str, Any]) -> None:
        text = json.dumps(profile) + "\n"
        write_atomically(self.profile_file, lambda path: _write_text(path, text), durable=False)

    def profile(self) -> dict[str, Any]:
        """Return the measured profiles; empty if they cannot be read, since they can be measured again."""
        with contextlib.suppress(OSError, ValueError):
            profile = json.loads(self.profile_file.read_text())
            return profile if isinstance(profile, dict) else {}
        return {}

    def clear(self) -> None:
        """Delete everything of an earlier run except the lock. Only the holder of the lock may call this method."""
        self.definition_file.unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if entry.is_symlink():  # versions in a shared folder
                shutil.rmtree(entry.resolve(), ignore_errors=True)
                entry.unlink()
            elif entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()

    def discard(self) -> None:
        """Delete the folder if no experiment was ever defined in it."""
        if not self.exists:
            shutil.rmtree(self.path, ignore_errors=True)

    def definition(self) -> dict[str, Any]:
        """Return the definition of the experiment."""
        if not self.exists:
            raise NotFound(f"{self.path}: holds no experiment; `hopfleet ls` lists those in {home()}")
        try:
            definition: dict[str, Any] = json.loads(self.definition_file.read_text())
        except (OSError, ValueError) as error:
            raise JournalError(f"{self.definition_file}: cannot be read ({error})") from error
        return definition

    def lock(self) -> IO[str]:
        """Become the one process that runs this experiment, until the returned file is closed or the process dies."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = self.path / "lock"
        if not lock.exists() and any(self.path.iterdir()):
            raise ExperimentExists(f"folder={str(self.path)!r}: contains other files; choose another folder")
        file = lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise ExperimentExists(
                f"name={self.name!r}: is being run by process {owner}; watch it with `hopfleet show {self.name}` "
                "or choose another name"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file


def find_run(name: str | os.PathLike[str]) -> RunFolder:
    """Return the run folder with a name or path."""
    path = Path(name).expanduser()
    for candidate in (path, home() / path):
        if RunFolder(candidate).exists:
            return RunFolder(candidate.absolute())
    known = ", ".join(run.name for run in runs()) or "none"
    raise NotFound(f"{str(name)!r}: no such experiment in {home()}; there are: {known}")


def runs() -> Iterator[RunFolder]:
    """Yield all experiments in the home folder, the newest last."""
    base = home()
    if not base.is_dir():
        return
    found = [RunFolder(path) for path in base.iterdir() if RunFolder(path).exists]
    yield from sorted(found, key=lambda run: run.definition_file.stat().st_mtime)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)
