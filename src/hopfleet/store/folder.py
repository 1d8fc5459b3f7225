"""The run folder: the files of an experiment, and the lock of the process that runs it.

NAME/
  experiment.json   what was asked for: space, search, seed, data, versions
  journal.sqlite    everything that happened, in order
  checkpoints/      t0001/v00008-23.safetensors: the last and the best version of every trial; shared/: frozen weights
  best/             the weights of the best version alone, in the usual format of the framework
  trials/           t0001.json: configuration and metrics of every trial, in case the journal is lost
  logs/             t0001.log: what the trial's code printed; workers.log
  data/             data sets that were given as plain arrays
  plots/            pictures
  tests/            metrics of trials and ensembles on other data
  prediction.json   the forecast made before the first unit, if configurations were profiled
  profile.json      the profile of configurations: seconds and bytes
  trial_runs.json   rates of strategies for teams, with parallelism="auto"
  workers.json      how the workers of a run are, every few seconds: memory, last sign of life
  worker_load.jsonl the load of workers over the time of all runs, thinned out
  replays.json      verdicts of replays, by trial
  notes.json        notes and tags, by trial
  hopfleet.summary.json  what a list of experiments shows of the run
  hopfleet.json     proves that the folder is a run folder
  lock              held by the process that runs the experiment

Only a folder of this user that is proved to be a run folder is ever emptied, and only of what a run consists of: see
``proof``. Links in a run folder are removed, never followed. The run folder itself may be a link to a folder on another
disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from hopfleet.domain.version_ref import SHARED
from hopfleet.errors import ExperimentExists, JournalError, NotFound, UsageError
from hopfleet.phrases import did_you_mean, listed
from hopfleet.store.definitions import NAME, problem
from hopfleet.store.proof import (
    DEFINITION,
    JOURNAL,
    LOCK,
    LOCK_BYTES,
    RUN_FOLDER,
    SUMMARY,
    is_empty,
    is_part,
    is_run_folder,
)
from hopfleet.support.files import (
    MARKER,
    check_own,
    check_private,
    json_text,
    make_folder,
    mark,
    open_folder,
    open_lock,
    open_plain,
    read_json,
    remove_empty_folder,
    remove_from,
    replace_content,
    trouble,
    write_text,
)


def home() -> Path:
    """Return the folder of all runs: ``HOPFLEET_HOME``, or ``~/.hopfleet``."""
    return Path(os.environ.get("HOPFLEET_HOME") or Path.home() / ".hopfleet").expanduser().absolute()


def check_name(name: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"name={name!r}: use letters, digits, '.', '_' and '-' only, beginning with a letter or digit, "
            "at most 128 characters"
        )
    return name


class RunFolder:
    """The files of one experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.definition_file = path / DEFINITION
        self.journal_file = path / JOURNAL
        self.prediction_file = path / "prediction.json"
        self.profile_file = path / "profile.json"
        self.trial_runs_file = path / "trial_runs.json"
        self.health_file = path / "workers.json"
        self.load_file = path / "worker_load.jsonl"
        self.replays_file = path / "replays.json"
        self.notes_file = path / "notes.json"
        self.summary_file = path / SUMMARY
        self.checkpoints = path / "checkpoints"
        self.shared = self.checkpoints / SHARED
        self.best = path / "best"
        self.trials = path / "trials"
        self.logs = path / "logs"
        self.data = path / "data"
        self.plots = path / "plots"
        self.tests = path / "tests"
        #: Whether the process that holds the lock wrote everything of a run in the folder.
        self.new = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        """Whether there is a definition, whatever its content."""
        try:
            return self.definition_file.is_file()
        except (OSError, ValueError):  # not a valid file name, or no permission
            return False

    @property
    def damaged(self) -> bool:
        """Whether parts of a run are left without a definition."""
        with contextlib.suppress(OSError, ValueError):
            return not self.exists and (self.journal_file.is_file() or self.trained)
        return False

    @property
    def trained(self) -> bool:
        """Whether models or logs of trials are left, so that a run must have had a journal."""
        return any(self.models()) or any(self.logs.glob("t[0-9]*.log"))

    def models(self) -> Iterator[Path]:
        """Yield the model files of all trials, except those that only hopped."""
        for path in self.checkpoints.glob("t[0-9]*/v*.safetensors"):
            if path.is_file():
                yield path

    @property
    def handle(self) -> str:
        """Return the argument with which ``find_run`` finds the run: its name in the home folder, else its path."""
        return self.name if self.path.parent == home() else str(self.path)

    @property
    def running(self) -> bool:
        """Whether some process holds the lock."""
        try:
            with open_plain(self.path / LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is no lock, or none that a run can hold
            return False
        return False

    def create(self, definition: dict[str, Any]) -> None:
        """Create all folders, then write the definition: a folder with a definition is complete."""
        place = self.path
        try:
            for place in (self.path, self.checkpoints, self.shared, self.logs, self.data, self.plots):
                make_folder(place, private=True)
            place = self.definition_file
            write_text(place, json_text(definition), durable=True)
        except OSError as error:
            raise UsageError(trouble(place, error)) from error

    def keep_prediction(self, prediction: dict[str, Any]) -> None:
        """Write the forecast, if the disk takes it: a run does not depend on the file."""
        _write_json(self.prediction_file, prediction)

    def prediction(self) -> dict[str, Any] | None:
        """Return the forecast made before the first unit; None if there is none."""
        try:
            prediction = read_json(self.prediction_file)
            if not isinstance(prediction, dict):
                raise ValueError("it is not a JSON object")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JournalError(f"{self.prediction_file}: cannot be read ({error}); remove it") from error
        return prediction

    def keep_profile(self, profile: dict[str, Any]) -> None:
        """Write the profiles, if the disk takes them: a run does not depend on the file."""
        _write_json(self.profile_file, profile)

    def profile(self) -> dict[str, Any]:
        """Return the measured profiles; empty if they cannot be read, since they can be measured again."""
        return _measured(self.profile_file)

    def keep_trial_runs(self, runs: dict[str, Any]) -> None:
        """Write the trial runs of strategies, if the disk takes them: a run does not depend on the file."""
        _write_json(self.trial_runs_file, runs)

    def trial_runs(self) -> dict[str, Any]:
        """Return the trial runs of strategies; empty if they cannot be read, since they can be repeated."""
        return _measured(self.trial_runs_file)

    def keep_replays(self, verdicts: dict[str, Any]) -> None:
        """Add verdicts of replays, by trial, if the disk takes them."""
        _write_json(self.replays_file, {**self.replays(), **verdicts})

    def replays(self) -> dict[str, Any]:
        """Return the last verdict of each trial that was replayed; empty if they cannot be read."""
        return _measured(self.replays_file)

    def keep_notes(self, notes: dict[str, Any]) -> None:
        """Write notes and tags. Raise UsageError if the disk does not take them."""
        try:
            write_text(self.notes_file, json_text(notes), durable=True)
        except OSError as error:
            raise UsageError(trouble(self.notes_file, error)) from error

    def notes(self) -> dict[str, Any]:
        """Return notes and tags by trial; empty if they cannot be read."""
        return _measured(self.notes_file)

    def keep_health(self, health: dict[str, Any]) -> None:
        """Write how the workers are, if the disk takes it: a run does not depend on the file."""
        _write_json(self.health_file, health)

    def health(self) -> dict[str, Any]:
        """Return how the workers are, by name, while a process runs the experiment; empty if that is not known."""
        return _measured(self.health_file) if self.running else {}

    def clear(self, keep: Collection[str] = (LOCK, MARKER)) -> None:
        """Delete everything of a run except the lock, the marker and what else to ``keep``, without following links.

        Files that no run has written stay. Only the holder of the lock may call this method.
        """
        place = open_folder(self.path, links=True)
        try:
            check_own(place, self.path)
            # First the definition: a folder with a definition is complete.
            names = sorted(os.listdir(place), key=lambda name: name != DEFINITION)  # noqa: PTH208, a descriptor
            remove_from(place, [name for name in names if is_part(name) and name not in keep])
        finally:
            os.close(place)

    def discard(self) -> None:
        """Delete the folder if everything of a run in it is new."""
        if self.new:
            with contextlib.suppress(OSError):
                self.clear(keep=())
                remove_empty_folder(self.path)

    def definition(self, *, checked: bool = True) -> dict[str, Any]:
        """Return the definition of the experiment. Raise JournalError if it is damaged.

        Unless ``checked``, a definition that differs from its digest is returned too.
        """
        if not self.exists:
            raise NotFound(f"{self.path}: holds no experiment; `hopfleet ls` lists those in {home()}")
        try:
            definition = read_json(self.definition_file, checked=checked)
        except (OSError, ValueError) as error:
            raise JournalError(f"{self.definition_file}: cannot be read ({error}); {self.rescue}") from error
        if wrong := problem(definition):
            raise JournalError(f"{self.definition_file}: is damaged: {wrong}; {self.rescue}")
        assert isinstance(definition, dict)
        return definition

    @property
    def rescue(self) -> str:
        """Return the remedy for a run folder that is damaged."""
        return f"restore it from a backup, or run: hopfleet recover {self.handle}"

    def lock(self) -> IO[bytes]:
        """Become the one process that runs this experiment, until the returned file is closed or the process dies.

        Raise ExperimentExists if another process runs it, or if the folder contains files and is no run folder, and
        OSError if the folder cannot be written.
        """
        make_folder(self.path, private=True)
        place = open_folder(self.path, links=True)
        try:
            self.new = is_empty(place)
            if not (self.new or is_run_folder(place)):
                raise ExperimentExists(
                    f"folder={str(self.path)!r}: contains files and is not a run folder, or its {MARKER} and "
                    f"{self.definition_file.name} are damaged; choose another folder"
                )
            file = open_lock(Path(LOCK), place)
        except OSError as error:  # of a name in the folder
            error.filename = str(self.path / str(error.filename))
            raise
        finally:
            os.close(place)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = file.read(LOCK_BYTES).decode(errors="replace").strip() or "unknown"
            file.close()
            raise ExperimentExists(
                f"name={self.name!r}: is being run by process {owner}; watch it with `hopfleet show {self.name}` "
                "or choose another name"
            ) from None
        replace_content(file, str(os.getpid()).encode())
        with contextlib.suppress(OSError):  # a disk that does not take it
            mark(self.path, RUN_FOLDER)
        return file


def find_run(name: str | os.PathLike[str]) -> RunFolder:
    """Return the run folder with a name or path.

    A name without a separator is looked up among the runs of the home folder only: other users may have put a folder of
    that name into the current directory.
    """
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise UsageError(f"name={name!r}: must be the name of an experiment or its run folder, e.g. 'digits'")
    for run in _candidates(name):
        if run.exists:
            return run
        if run.damaged:
            raise JournalError(f"{run.definition_file}: is missing, but other parts of the run are left; {run.rescue}")
    names = [run.name for run in reversed(list(runs()))]  # the newest first
    near, known = did_you_mean(name, names), listed(name, names)
    here = "" if _is_path(name) or not RunFolder(Path(name)).exists else f"; for that in this directory, use ./{name}"
    raise NotFound(f"{str(name)!r}: no such experiment in {home()}; {near}there are: {known}{here}")


def find_damaged(name: str | os.PathLike[str]) -> RunFolder:
    """Return the run folder with a name or path, even if its definition is missing."""
    return next((run for run in _candidates(name) if run.damaged), None) or find_run(name)


def _candidates(name: str | os.PathLike[str]) -> list[RunFolder]:
    path = Path(name)
    with contextlib.suppress(RuntimeError):  # no such user
        path = path.expanduser()
    places = (path, home() / path) if _is_path(name) else (home() / path,)
    return [RunFolder(place.absolute()) for place in places]


def _is_path(name: str | os.PathLike[str]) -> bool:
    return not isinstance(name, str) or os.sep in name or name.startswith((".", "~"))


def runs() -> Iterator[RunFolder]:
    """Yield all experiments in the home folder, the newest last."""
    base = home()
    if not base.is_dir():
        return
    found = [RunFolder(path) for path in base.iterdir() if RunFolder(path).exists]
    yield from sorted(found, key=lambda run: run.definition_file.stat().st_mtime)


def check_trusted(folder: RunFolder) -> None:
    """Raise UsageError unless only this user could have written a definition, whose code is about to run."""
    check_private(folder.path, folder.definition_file)


def _measured(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        measured = read_json(path)
        return measured if isinstance(measured, dict) else {}
    return {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that a run does not depend on; a disk that does not take it is ignored."""
    with contextlib.suppress(OSError):
        write_text(path, json_text(content), durable=False)
