"""The store that comes with Hopfleet, and the choice of a store by name.

Other packages register further names as entry points (``support.registry``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hopfleet.domain.messages import Message
from hopfleet.errors import JournalError, UsageError
from hopfleet.safe_text import HIDDEN
from hopfleet.store.base import JournalStore, Store, VersionStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal, JournalUnfinished
from hopfleet.store.versions.local import Versions
from hopfleet.support import registry

LOCAL = "local"

MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that messages of a damaged journal may cause in what reads them; journals before format 5 have no digests."""


class LocalStore:
    """Files in the run folder: a SQLite journal with its requests, and versions as safetensors files."""

    def has_journal(self, folder: RunFolder) -> bool:
        return folder.journal_file.exists()

    def journal(self, folder: RunFolder, *, writable: bool = False) -> JournalStore:
        return Journal(folder.journal_file, writable=writable)

    def versions(self, checkpoints: Path) -> VersionStore:
        return Versions(checkpoints)


STORES: Mapping[str, Callable[[], Store]] = {LOCAL: LocalStore}


def find_store(name: str) -> Store:
    """Return the store of that name. Raise UsageError if there is none."""
    if name == LOCAL:  # asked for often, and a search among all installed packages takes a while
        return LocalStore()
    return registry.find("store", name, STORES)()


def has_journal(folder: RunFolder) -> bool:
    """Whether a run has a journal, in the store that the run was made with."""
    return store_of(folder).has_journal(folder)


def open_journal(folder: RunFolder, *, writable: bool = False) -> JournalStore:
    """Open the journal of a run, in the store that the run was made with."""
    return store_of(folder).journal(folder, writable=writable)


def store_of(folder: RunFolder) -> Store:
    """Return the store that a run was made with."""
    name = folder.definition(checked=False).get("store", LOCAL) if folder.exists else LOCAL
    if HIDDEN in name:
        raise UsageError(
            f"{folder.handle}: the password of its store, {name!r}, is not kept in the run folder; call fit() again "
            "where the experiment is defined"
        )
    return find_store(name)


def recalled(journal: JournalStore) -> Iterator[tuple[float, Message]]:
    """Yield all that a run continues from: the times and messages of its journal. Then read the requests that wait.

    Resuming and verifying share this function, so a journal that passes one can be read by the other.
    """
    for _, time, message in journal.read():
        yield time, message
    journal.requests.pending()


def last_message(folder: RunFolder, store: Store) -> tuple[Message | None, int]:
    """Return the last message of an earlier run, None if there was no run, and how many requests have come since.

    Raise JournalError if parts of an earlier run are missing, so that nothing is lost by starting over.
    """
    last, requests = None, 0
    journaled = store.has_journal(folder)
    if journaled:
        try:
            with contextlib.closing(store.journal(folder)) as journal:
                last, requests = journal.last(), len(journal.requests.pending())
        except JournalUnfinished:
            pass
        except JournalError as error:
            raise JournalError(f"{error}; {folder.rescue}") from error
    if missing := missing_part(folder, journaled=journaled, empty=last is None):
        raise JournalError(
            f"{missing}, so the run cannot continue; {folder.rescue}; fit(overwrite=True) deletes it and starts over"
        )
    return last, requests


def missing_part(folder: RunFolder, *, journaled: bool, empty: bool) -> str:
    """Describe what is missing of a run that has begun; return an empty string if nothing is.

    ``journaled`` tells whether there is a journal, and ``empty`` whether it has no message.
    """
    if not folder.exists and not empty:
        return f"{folder.definition_file}: is missing, but its journal is left"
    if not empty or not folder.trained:
        return ""
    path = folder.journal_file if folder.exists else folder.definition_file
    problem = "is empty" if folder.exists and journaled else "is missing"
    return f"{path}: {problem}, but models or logs of trials are left"
