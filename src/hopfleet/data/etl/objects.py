"""Objects that rows name: files and URLs, each fetched once by a machine and kept in its cache."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

from hopfleet.data.folders import RemoteFolder
from hopfleet.errors import DataError, describe
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import denied, make_folder, retried, write_bytes

THREADS = 16
"""Objects fetched at the same time by one process."""


class Unreachable(DataError):
    """A server does not answer: no row is at fault, so none can be left out."""


def object_folder() -> Path:
    """Return the folder of fetched objects, whose names are checksums of their URLs."""
    return cache_folder("objects")


def fetch(name: str) -> Path:
    """Return a local file with the content of an object; a URL is fetched unless the cache has it."""
    if "://" not in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise DataError(f"{name}: no such file; restore it, or correct the row")
        return path
    path = _place(name)
    if not path.is_file():
        _fetch(name, path)
    return path


def _fetch(name: str, path: Path) -> None:
    """Put the content of a URL's object into a file of the cache."""
    files, inside = RemoteFolder(name).filesystem()
    try:
        _keep(retried(lambda: files.cat_file(inside)), path)
    except FileNotFoundError:
        raise DataError(f"{name}: no such object; upload it, or correct the row") from None
    except Exception as error:
        if denied(error):
            raise DataError(
                f"{name}: access is denied ({describe(error)}); check the name, and configure credentials that may "
                "read this object"
            ) from None
        raise Unreachable(f"{name}: cannot be fetched ({describe(error)}); check the network") from None


def _place(url: str) -> Path:
    """Return the file of the cache that holds the object of a URL, or will hold it."""
    return object_folder() / (hashlib.sha256(url.encode()).hexdigest() + Path(url.partition("?")[0]).suffix)


def _keep(content: bytes, path: Path) -> None:
    make_folder(path.parent)
    write_bytes(path, content, durable=False)


def fetch_all(names: Iterable[str]) -> Mapping[str, Path | DataError]:
    """Fetch many objects, several at a time; return the file of each, or why there is none. Raise Unreachable."""
    silent: list[Unreachable] = []

    def attempt(name: str) -> Path | DataError:
        if silent:  # other objects need not wait for the same server
            raise silent[0]
        try:
            return fetch(name)
        except Unreachable as error:
            silent.append(error)
            raise
        except DataError as error:
            return error

    several = list(dict.fromkeys(names))
    found: dict[str, Path | DataError] = {name: _place(name) for name in several if "://" in name}
    missing = {name: place for name, place in found.items() if isinstance(place, Path) and not place.is_file()}
    _fetch_together(missing)
    left = [name for name, place in missing.items() if not place.is_file()]
    with ThreadPoolExecutor(THREADS) as threads:
        found.update(zip(left, threads.map(attempt, left), strict=True))
    return {name: found[name] if name in found else attempt(name) for name in several}


def _fetch_together(places: Mapping[str, Path]) -> None:
    """Fetch objects from stores with coroutines, which cost less than threads. ``fetch`` tries again what fails."""
    buckets: dict[str, list[str]] = {}
    for name in places:
        if "::" not in name:  # such URLs name several file systems
            buckets.setdefault("/".join(name.split("/", 3)[:3]), []).append(name)
    for some in buckets.values():
        with contextlib.suppress(DataError):
            files, _ = RemoteFolder(some[0]).filesystem()
            if files.async_impl:
                from fsspec.asyn import sync

                objects = [(files._strip_protocol(name), places[name]) for name in some]
                sync(files.loop, _fetch_several, files, objects)


async def _fetch_several(files: Any, objects: Sequence[tuple[str, Path]]) -> None:
    """Fetch objects until one fails for another reason than that it is missing or may not be read."""
    # To fetch large objects in parts, s3fs would first ask for the size of each.
    whole = {"max_concurrency": 1} if "max_concurrency" in signature(files.cat_file).parameters else {}
    left = iter(objects)

    async def fetch_next() -> None:
        for inside, path in left:
            try:
                _keep(await files._cat_file(inside, **whole), path)
            except Exception as error:
                if not (isinstance(error, FileNotFoundError) or denied(error)):
                    raise

    await asyncio.gather(*(fetch_next() for _ in range(THREADS)), return_exceptions=True)


def fetched(found: Path | DataError) -> Path:
    """Return a file that ``fetch_all`` has found, or raise its error."""
    if isinstance(found, DataError):
        raise found
    return found
