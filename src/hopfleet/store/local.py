"""The store that comes with Hopfleet, and the choice of a store by name.

Other packages register further names as entry points (``support.registry``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hopfleet.store.base import JournalStore, Store, VersionStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from hopfleet.support import registry

LOCAL = "local"


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
    return registry.find("store", name, STORES)()


def has_journal(folder: RunFolder) -> bool:
    """Whether a run has a journal, in the store that the run was made with."""
    return store_of(folder).has_journal(folder)


def open_journal(folder: RunFolder, *, writable: bool = False) -> JournalStore:
    """Open the journal of a run, in the store that the run was made with."""
    return store_of(folder).journal(folder, writable=writable)


def store_of(folder: RunFolder) -> Store:
    """Return the store that a run was made with."""
    return find_store(folder.definition().get("store", LOCAL) if folder.exists else LOCAL)
