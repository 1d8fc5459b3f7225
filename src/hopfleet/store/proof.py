"""What a run folder consists of, and what proves that a folder is one.

A folder is proved by its marker; by its definition; or by the schema of its journal. Folders of release 0.1 have no
marker. The name of a file proves nothing: many programs have a ``journal.sqlite``. Everything is read through a
descriptor of the folder.
"""

from __future__ import annotations

import contextlib
import os
import re

from hopfleet.store.definitions import problem
from hopfleet.support.files import MARKER, mark_of, open_plain, parsed_json

RUN_FOLDER = "run folder"
"""What the marker of a run folder says."""

LOCK, DEFINITION, JOURNAL = "lock", "experiment.json", "journal.sqlite"

SUMMARY = "hopfleet.summary.json"
"""What a list shows of a run. A server may write it while the folder is emptied, so it proves nothing."""

ASIDE = (".moving", ".replaced", ".outdated")
"""Folders that hold an earlier run while another one takes its place: see ``replacing``."""

DATABASE, SCHEMA = (
    b"SQLite format 3\0",
    b"CREATE TABLE messages (number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL",
)
"""The beginning of a SQLite file, and a text near the beginning of every journal since release 0.1."""

SCHEMA_BYTES = 1 << 16
"""Bytes of a journal in which its schema begins: the largest page of SQLite."""

DEFINITION_BYTES = 1 << 28

LOCK_BYTES = 64

_FILES = (
    *(LOCK, MARKER, DEFINITION, JOURNAL, "prediction.json", "profile.json", "trial_runs.json", "workers.json"),
    "worker_load.jsonl",
    *("replays.json", "recovered.json", "notes.json", SUMMARY),
    *("metrics.csv", "metrics.steps.csv", "metrics.jsonl", "mlflow.db"),
)
_FOLDERS = (
    *("checkpoints", "best", "trials", "logs", "data", "plots", "tests", "tensorboard", "wandb", "mlflow"),
    *ASIDE,
)
_NAMES = re.compile(
    "|".join(
        (
            *map(re.escape, (*_FILES, *_FOLDERS)),
            rf"\.({'|'.join(map(re.escape, _FILES))})\.\w+(-wal|-shm|-journal)?",  # temporary files
            r"(journal|mlflow)(\.damaged-\d+)?\.(sqlite|db)(-wal|-shm|-journal)?",
            r"experiment\.damaged-\d+\.json",
        )
    )
)


def is_part(name: str) -> bool:
    """Whether a run folder may have a file or folder of that name."""
    return _NAMES.fullmatch(name) is not None


def is_empty(place: int) -> bool:
    """Whether the folder open at a descriptor holds nothing but a lock, a marker and a summary of ours."""
    return all(_is_trace(place, name) for name in os.listdir(place))


def _is_trace(place: int, name: str) -> bool:
    if name == LOCK:
        with open_plain(LOCK, place=place) as file:
            return not file.read(LOCK_BYTES).strip(b"0123456789")
    return (name == MARKER and mark_of(place) == RUN_FOLDER) or name == SUMMARY or name.startswith(f".{MARKER}.")


def is_run_folder(place: int) -> bool:
    """Whether the folder open at a descriptor is a run folder."""
    if mark_of(place) == RUN_FOLDER:
        return True
    with contextlib.suppress(OSError, ValueError), open_plain(DEFINITION, place=place) as file:
        if not problem(parsed_json(file.read(DEFINITION_BYTES))):
            return True
    with contextlib.suppress(OSError), open_plain(JOURNAL, place=place) as file:
        beginning = file.read(SCHEMA_BYTES)
        return beginning.startswith(DATABASE) and SCHEMA in beginning
    return False
