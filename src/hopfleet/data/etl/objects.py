"""Objects that rows name: files and URLs, each fetched once by a machine and kept in its cache."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hopfleet.data.folders import RemoteFolder, cache_folder
from hopfleet.errors import DataError, describe
from hopfleet.support.files import denied, retried, write_atomically

THREADS = 16
"""Objects fetched at the same time by one process."""


def object_folder() -> Path:
    """Return the folder of fetched objects, whose names are checksums of their URLs."""
    return cache_folder().parent / "objects"


def fetch(name: str) -> Path:
    """Return a local file with the content of an object; a URL is fetched unless the cache has it."""
    if "://" not in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise DataError(f"{name}: no such file; restore it")
        return path
    path = object_folder() / (hashlib.sha256(name.encode()).hexdigest() + Path(name.partition("?")[0]).suffix)
    if path.is_file():
        return path
    files, inside = RemoteFolder(name).filesystem()
    try:
        content = retried(lambda: files.cat_file(inside))
    except FileNotFoundError:
        raise DataError(f"{name}: no such object; upload it") from None
    except Exception as error:
        remedy = "configure credentials for this file system" if denied(error) else "check the network"
        raise DataError(f"{name}: cannot be fetched ({describe(error)}); {remedy}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, functools.partial(_write, content=content), durable=False)
    return path


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def fetch_all(names: Sequence[str]) -> None:
    """Fetch many URLs at once, so that each is in the cache. A URL that fails raises its error at its own ``fetch``."""
    remote = [name for name in dict.fromkeys(names) if "://" in name]
    if len(remote) < 2:
        return

    def attempt(name: str) -> None:
        try:
            fetch(name)
        except DataError:
            pass  # the row that needs the object fails

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(attempt, remote))
