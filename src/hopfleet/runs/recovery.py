"""Recovery of a run folder whose journal or definition is missing or damaged.

Nothing is deleted: damaged files are set aside under another name. The journal is rebuilt up to its first damaged
message, the definition from the journal. If no journal is left, a table tells what models and records of trials say.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopfleet.domain.messages import Message, RunStarted
from hopfleet.errors import JournalError
from hopfleet.phrases import plural
from hopfleet.store.definitions import problem
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.store.local import recalled
from hopfleet.support.files import digest, json_text, move, read_json, temporary_name, write_text

TABLE = "recovered.json"
"""Name of the file with the table of trials."""

VERSION = re.compile(r"v(\d+)(-\d+)?\.safetensors")

Row = tuple[float, Message]


@dataclass
class Recovery:
    """What was rebuilt, what is lost, and the table of trials if there is no journal."""

    folder: RunFolder
    rebuilt: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost


def recover(folder: RunFolder, tell: Callable[[str], None] = lambda text: None) -> Recovery:
    """Rebuild what can be rebuilt of a run folder, reporting progress to ``tell``."""
    with contextlib.closing(folder.lock()):
        found = Recovery(folder)
        tell("reading the journal")
        rows, whole = _rows(folder)
        if not whole and rows:
            _rebuild_journal(found, rows)
        _rebuild_definition(found, rows)
        if not rows and folder.trained:
            tell("reading models and records of trials")
            _list_trials(found)
        return found


# --------------------------------------------------------------------------------------------------------- the journal


def _rows(folder: RunFolder) -> tuple[list[Row], bool]:
    """Return the times and messages up to the first damaged one, and whether that is all of a journal."""
    rows: list[Row] = []
    try:
        with contextlib.closing(Journal(folder.journal_file)) as journal:
            for time, message in recalled(journal):
                rows.append((time, message))
    except JournalError:
        return rows, False
    return rows, True


def _rebuild_journal(found: Recovery, rows: Sequence[Row]) -> None:
    path = found.folder.journal_file
    beside = temporary_name(path)
    with contextlib.closing(Journal(beside, writable=True)) as journal:
        for time, some in itertools.groupby(rows, key=lambda row: row[0]):
            journal.append(time, [message for _, message in some])
    aside = _set_aside(path)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            move(path.with_name(path.name + suffix), aside.with_name(aside.name + suffix))
    move(beside, path)
    found.rebuilt.append(f"{path.name}: {plural(len(rows), 'message')}; the damaged journal is now {aside.name}")
    found.lost.append(
        f"{path.name}: messages after number {len(rows)}, and requests; hopfleet resume {found.folder.handle} trains "
        "what they reported again, with the same bits, and replaces models that are newer than the journal"
    )


# ------------------------------------------------------------------------------------------------------ the definition


def _rebuild_definition(found: Recovery, rows: Sequence[Row]) -> None:
    path = found.folder.definition_file
    started = [message for _, message in rows if isinstance(message, RunStarted) and message.definition]
    known = dict(started[-1].definition) if started else None
    try:
        current = read_json(path)
    except (OSError, ValueError):
        current = None
    if known is None or problem(known):
        if wrong := problem(current):
            what = wrong if path.exists() else "it is missing"
            found.lost.append(f"{path.name}: {what}, and no journal of a present release is left to rebuild it from")
        return
    if json.dumps(known, sort_keys=True) == json.dumps(current, sort_keys=True):
        return
    aside = f"; the file as it was is now {_set_aside(path).name}" if path.exists() else ""
    write_text(path, json_text(known), durable=True)
    found.rebuilt.append(f"{path.name}: from the journal{aside}")


# ----------------------------------------------------------------------------------------------------------- the table


def _list_trials(found: Recovery) -> None:
    folder = found.folder
    records = {path.stem: path for path in folder.trials.glob("t*.json")}
    models = sorted(folder.models())
    names = sorted({*records, *(path.parent.name for path in models)})
    found.trials = [
        _trial(name, records.get(name), [path for path in models if path.parent.name == name]) for name in names
    ]
    text = json.dumps(found.trials, indent=2) + "\n"
    write_text(folder.path / TABLE, text, durable=True)
    found.rebuilt.append(
        f"{TABLE}: {plural(len(names), 'trial')} with their configurations, metrics and models, as far as known"
    )
    found.lost.append(f"{folder.journal_file.name}: all of it, so the run can be neither continued nor replayed")
    unknown = [trial["trial"] for trial in found.trials if trial.get("config") is None]
    if unknown:
        found.lost.append(f"configurations and metrics of {', '.join(unknown)}: there are no records of these trials")


def _trial(name: str, record: Path | None, models: Sequence[Path]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if record is not None:
        with contextlib.suppress(OSError, ValueError):
            content = read_json(record)
            known = content if isinstance(content, dict) else {}
    best = known.get("best")
    return {
        "trial": name,
        **{key: known.get(key) for key in ("state", "config", "seed", "best", "last")},
        "models": [_model(path, best.get("version") if isinstance(best, dict) else None) for path in models],
    }


def _model(path: Path, best: object) -> dict[str, Any]:
    match = VERSION.fullmatch(path.name)
    version = int(match[1]) if match else None
    return {
        "file": f"{path.parent.parent.name}/{path.parent.name}/{path.name}",
        "version": version,
        "best": version is not None and version == best,
        "bytes": path.stat().st_size,
        "sha256": digest(path),
    }


# ------------------------------------------------------------------------------------------------------------- helpers


def _set_aside(path: Path) -> Path:
    """Rename a damaged file to a name that is free, and return that name."""
    aside = next(free for free in _free_names(path) if not free.exists())
    move(path, aside)
    return aside


def _free_names(path: Path) -> Iterator[Path]:
    for number in itertools.count(1):
        yield path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
