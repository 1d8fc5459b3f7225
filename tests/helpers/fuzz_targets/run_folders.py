"""Targets: the files of a run folder. Results are those of the untouched run, or verification tells of the damage."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.errors import HopfleetError
from hopfleet.runs.verify import verify
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.testing.tasks import CountingTask
from tests.helpers.mutation import Mutator


def experiment(folder: Path) -> hop.Experiment:
    """Return a small experiment with a failed trial, several objectives and a limit."""
    return hop.Experiment(
        CountingTask(),
        train={"x": np.arange(24.0)},
        valid={"x": np.arange(6.0)},
        space={"number": hop.grid_search([1, 2]), "fault": hop.grid_search([False, True])},
        search=hop.Grid(max_epochs=2),
        metric=["loss", "train_units"],
        mode=["min", "max"],
        constraints=["train_units <= 100"],
        partitions=2,
        batch_size=6,
        backend="inline",
        name="run",
        run_options=hop.RunOptions(folder=folder),
    )


@functools.cache
def original() -> tuple[Path, str]:
    """Return a finished run folder, made once in this process, and its results."""
    folder = Path(tempfile.mkdtemp(prefix="original-")) / "run"
    experiment(folder).fit(quiet=True)
    with contextlib.closing(Journal(folder / "journal.sqlite")) as journal:
        journal.requests.ask("ada", "extend", {"trials": 0, "epochs": 1, "space": {}})
        journal.requests.ask("ada", "stop", {"trial": "t0001", "now": False})
    return folder, outcome(folder)


def outcome(folder: Path) -> str:
    """Return all that a user sees of a run."""
    results = hop.load(folder)
    trials = [
        [trial.id, trial.state.value, dict(trial.config), trial.seed, trial.history, trial.visits, trial.error]
        for trial in results.trials
    ]
    best = results.best
    seen: dict[str, Any] = {"best": best.id, "model": best.checkpoint.name, "trials": trials}
    seen["pareto"] = [trial.id for trial in results.pareto]
    seen["definition"] = {key: value for key, value in results.definition.items() if key != "origin"}
    seen["content"] = best.model(CountingTask())
    return json.dumps(seen, sort_keys=True, default=str)


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(original()[0], folder / "run"))


def seen(run: Path) -> None:
    """Raise AssertionError if the results differ from those of the untouched run, unless verification finds out."""
    run.chmod(0o700)
    try:
        same = outcome(run) == original()[1]
    except HopfleetError:
        verify(RunFolder(run))  # must not fail in another way
        raise
    assert same or not verify(RunFolder(run)).ok, "results differ, and verification finds nothing"


def journal(mutator: Mutator, folder: Path) -> None:
    """Read a damaged journal."""
    run = copied(folder)
    mutator.file(run / "journal.sqlite")
    seen(run)


def old_journal(mutator: Mutator, folder: Path) -> None:
    """Read and continue a damaged journal of format 4, which has no digests: in words, or at all."""
    run = copied(folder)
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as database:
        database.execute("PRAGMA user_version = 4")
    mutator.database(run / "journal.sqlite", ["messages"])
    verify(RunFolder(run))
    outcome(run)


def definition(mutator: Mutator, folder: Path) -> None:
    """Read a damaged definition."""
    run = copied(folder)
    mutator.file(run / "experiment.json")
    seen(run)


def other_files(mutator: Mutator, folder: Path) -> None:
    """Read a run folder in which any other file is damaged, missing, or a folder."""
    run = copied(folder)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in DEFINING)
    path = mutator.random.choice(files)
    kind = mutator.random.randrange(10)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    elif kind == 2:
        path.unlink()
        path.symlink_to(mutator.random.choice(files))
    else:
        mutator.file(path)
    seen(run)


def requests(mutator: Mutator, folder: Path) -> None:
    """Run on with damaged requests. What the requests do not concern stays as it is."""
    run = copied(folder)
    table = "wishes"  # prose: allow, a name on disk
    for _ in range(3):
        with contextlib.suppress(IndexError):  # no request is left
            mutator.database(run / "journal.sqlite", [table])
    hop.control(run).requests()
    with contextlib.closing(Journal(run / "journal.sqlite")) as queue:
        numbers = [value for asked in queue.requests.pending() for value in asked.arguments.values()]
    if any(isinstance(number, int) and number > MOST for number in numbers):
        return  # a request that is granted, and takes its time
    experiment(run).fit(quiet=True)
    assert verify(RunFolder(run)).ok


def resumed(mutator: Mutator, folder: Path) -> None:
    """Continue a run whose journal or definition is damaged: as before the damage, or not at all."""
    run = copied(folder)
    mutator.file(run / mutator.random.choice(DEFINING))
    before = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
    try:
        experiment(run).fit(quiet=True)
    except HopfleetError:
        assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == before, "models were lost"
        raise
    assert verify(RunFolder(run)).ok


MOST = 5
"""Epochs or trials that a request may add."""

DEFINING = ("journal.sqlite", "experiment.json")
