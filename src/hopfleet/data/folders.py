"""Folders of data sets: local, or behind an fsspec URL with a local cache of partitions.

Both kinds offer readers the same methods: the text of the manifest, and a local path for each partition file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from hopfleet.data import manifest
from hopfleet.data.manifest import PartitionFile
from hopfleet.errors import DataError, MissingExtra, describe
from hopfleet.safe_text import HIDDEN
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import (
    check_folder,
    denied,
    digest,
    make_folder,
    move,
    new_file,
    open_lock,
    remove_file,
    retried,
)

PARTS = re.compile(
    rf"{re.escape(manifest.FILE)}|part-\d+\.arrow|recipe\.(json|safetensors|pickle)|prepared\.json|failed\.jsonl"
)
"""Names of the files in the folder of a data set."""


def open_folder(url: str | os.PathLike[str]) -> LocalFolder | RemoteFolder:
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise DataError(f"folder={url!r}: must be a folder or a URL, e.g. 'data/train'")
    text = os.fspath(url)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text and HIDDEN in text:
        raise DataError(
            f"{text}: passwords of URLs are not stored; pass the data set with its password again, or keep the "
            "password where the file system finds it by itself, such as an environment variable"
        )
    return RemoteFolder(text) if "://" in text else LocalFolder(Path(text).expanduser().absolute())


class LocalFolder:
    """A folder on this host, or mounted on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    def has_entries(self) -> bool:
        """Whether the folder exists and is not empty. Raise DataError if no data set may be written there."""
        try:
            check_folder(self.path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            if not (self.path.exists() or self.path.is_symlink()):
                return False  # a file is above it
            what = "is a file" if self.path.exists() else "is a link that leads nowhere"
            raise DataError(f"{self.path}: {what}; give the path of a folder") from None
        except PermissionError as error:
            raise DataError(f"{self.path}: {error.strerror}; give another folder") from error
        return any(self.path.iterdir())

    def check_replaceable(self) -> None:
        """Raise DataError if the folder holds files that no data set consists of: they would be deleted with it."""
        if found := sorted(_foreign(self.path)):
            raise DataError(
                f"{self.path}: overwrite=True replaces the data set, and the folder also holds {', '.join(found)}, "
                "which Hopfleet did not write; move these files elsewhere, or give another folder"
            )

    def manifest(self) -> bytes:
        """Return the text of the manifest. Raise DataError if there is none."""
        if self.path.is_file():
            raise DataError(
                f"{self.path}: is a file, not the folder of a data set; make a data set with "
                f"hop.prepare({str(self.path)!r}, FOLDER) or hopfleet prepare"
            )
        if not self.path.is_dir():
            raise DataError(f"{self.path}: no such folder; make a data set with hop.partition(source, folder)")
        path = self.path / manifest.FILE
        if not path.exists():
            raise DataError(f"{self.path}: has no {manifest.FILE}; make a data set with hop.partition(source, folder)")
        try:
            if not path.is_file():
                raise DataError(f"{path}: is not a file; restore it or partition again")
            _check_size(str(path), path.stat().st_size)
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error

    def file(self, partition: PartitionFile) -> Path:
        """Return the partition's file after checking its size."""
        path = self.path / partition.name
        if not path.is_file():
            raise DataError(f"{path}: is missing; restore it or partition again")
        if (size := path.stat().st_size) != partition.size:
            raise DataError(f"{path}: has {size} bytes instead of {partition.size}; restore it or partition again")
        return path

    def probe(self, partition: PartitionFile) -> None:
        """Raise DataError unless the file exists and has the right size."""
        self.file(partition)

    def verify(self, partition: PartitionFile) -> None:
        """Raise DataError unless the file has the right checksum."""
        path = self.file(partition)
        if digest(path) != partition.sha256:
            raise DataError(f"{path}: has the wrong checksum (sha256); restore it or partition again")


class RemoteFolder:
    """A folder behind an fsspec URL. Each host fetches and verifies a partition once, on first use."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def url(self) -> str:
        return self._url

    def has_entries(self) -> bool:
        """Whether the folder exists and is not empty. Raise DataError if the file system does not answer."""
        files, path = self.filesystem()
        try:
            return bool(files.exists(path) and files.ls(path))
        except Exception as error:
            raise DataError(f"{self._url}: {why(error)}") from error

    def manifest(self) -> bytes:
        files, path = self.filesystem()
        try:
            _check_size(f"{self._url}/{manifest.FILE}", retried(lambda: files.size(f"{path}/{manifest.FILE}")) or 0)
            return bytes(retried(lambda: files.cat_file(f"{path}/{manifest.FILE}")))
        except FileNotFoundError:
            raise DataError(f"{self._url}: no such folder, or no {manifest.FILE} in it") from None
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self._url}: {why(error)}") from error

    def file(self, partition: PartitionFile) -> Path:
        path = cache_folder("data") / partition.sha256
        if not _whole(path, partition):
            with _locked(path):
                # Another process may have fetched the file while this one waited for the lock.
                if not _whole(path, partition):
                    self._fetch(partition, path)
        return path

    def probe(self, partition: PartitionFile) -> None:
        files, path = self.filesystem()
        try:
            size = retried(lambda: files.info(f"{path}/{partition.name}"))["size"]
        except FileNotFoundError:
            self._refuse(partition, "is missing")
        except Exception as error:
            raise DataError(f"{self._url}/{partition.name}: {why(error)}") from error
        if size != partition.size:
            self._refuse(partition, f"has {size} bytes instead of {partition.size}")

    def verify(self, partition: PartitionFile) -> None:
        path = self.file(partition)
        if digest(path) != partition.sha256:
            self._fetch(partition, path)

    def filesystem(self) -> tuple[Any, str]:
        """Return the fsspec file system and the folder's path in it."""
        import fsspec

        try:
            files, path = fsspec.core.url_to_fs(self._url)
        except ImportError as error:
            if self._url.startswith(("s3://", "s3a://")):
                raise MissingExtra("s3fs", "s3") from error
            raise DataError(f"{self._url}: needs a package that is not installed ({error})") from error
        except ValueError as error:
            raise DataError(f"{self._url}: cannot be opened ({error})") from error
        return files, str(path).rstrip("/")

    def _fetch(self, partition: PartitionFile, target: Path) -> None:
        files, path = self.filesystem()
        source = f"{path}/{partition.name}"
        make_folder(target.parent)
        fetched = new_file(f".{partition.sha256[:16]}.", target.parent)
        try:
            try:
                retried(lambda: files.get_file(source, str(fetched)))
            except FileNotFoundError:
                self._refuse(partition, "is missing")
            except Exception as error:
                raise DataError(f"{self._url}/{partition.name}: {why(error)}") from error
            if (size := fetched.stat().st_size) != partition.size:
                self._refuse(partition, f"has {size} bytes instead of {partition.size}")
            if digest(fetched) != partition.sha256:
                self._refuse(partition, "has the wrong checksum (sha256)")
            move(fetched, target)
        finally:
            remove_file(fetched)

    def _refuse(self, partition: PartitionFile, fault: str) -> NoReturn:
        raise DataError(f"{self._url}/{partition.name}: {fault}; restore it or partition again") from None


Folder = LocalFolder | RemoteFolder


def _foreign(folder: Path) -> Iterator[str]:
    """Yield the files and links in the folder of a data set, or of its splits, that no data set consists of."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink() and (entry / manifest.FILE).is_file():
            yield from (f"{entry.name}/{name}" for name in _foreign(entry))
        elif not PARTS.fullmatch(entry.name) or entry.is_dir():
            yield entry.name


def _check_size(where: str, size: int) -> None:
    if size > manifest.LIMIT_BYTES:
        raise DataError(f"{where}: has {size} bytes, more than any manifest ({manifest.LIMIT_BYTES}); partition again")


def _whole(path: Path, partition: PartitionFile) -> bool:
    return path.is_file() and path.stat().st_size == partition.size


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process of this host at a time fetch a file. The lock ends with its holder's process."""
    locks = path.parent.parent / "locks"
    make_folder(locks)
    with open_lock(locks / path.name[:16]) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def why(error: Exception, done: str = "read") -> str:
    """Describe an error of a file system and its remedy."""
    if denied(error):
        return f"access is denied ({error}); configure credentials for this file system on every machine"
    return f"cannot be {done} ({describe(error)})"
