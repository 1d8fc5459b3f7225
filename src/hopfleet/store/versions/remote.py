"""A folder of files behind an fsspec URL. Each operation has a time limit: a storage may stall and never answer."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hopfleet.errors import CheckpointError, MissingExtra, UsageError, describe
from hopfleet.support.files import has_folders, limited, make_folder, move, remove_file, retried, temporary_name

T = TypeVar("T")

STALL_SECONDS = 30.0
"""Seconds after which an operation counts as stalled."""

SLOW_BYTES = 1 << 20
"""Bytes of a file for which an operation gets another second."""


class Remote:
    """A folder of files behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            if url.startswith(("s3://", "s3a://")):
                raise MissingExtra("s3fs", "s3") from error
            raise UsageError(f"storage={url!r}: needs a package that is not installed ({error})") from error
        except ValueError as error:
            raise UsageError(f"storage={url!r}: cannot be opened ({error})") from error
        self._path = str(path).rstrip("/")

    def upload(self, path: Path, name: str) -> None:
        """Send a file. No reader sees half a file: where uploads are not atomic, the file is renamed at the end."""
        target = f"{self._path}/{name}"

        def put() -> None:
            if has_folders(self._files):
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
                beside = f"{target}.{secrets.token_hex()}"
                self._files.put_file(str(path), beside)
                self._files.mv(beside, target)
            else:
                self._files.put_file(str(path), target)

        try:
            self._limited(put, path.stat().st_size)
        except Exception as error:
            raise OSError(f"{self.url}/{name}: cannot be sent ({describe(error)})") from error

    def download(self, name: str, target: Path) -> None:
        """Fetch a file. Raise CheckpointError if there is none, and OSError if the storage does not answer."""
        make_folder(target.parent, private=True)
        source, beside = f"{self._path}/{name}", temporary_name(target)
        try:
            size = self._limited(lambda: self._files.size(source))
            self._limited(lambda: self._files.get_file(source, str(beside)), size or 0)
            move(beside, target)
        except FileNotFoundError:
            raise CheckpointError(f"{self.url}/{name}: is not there") from None
        except Exception as error:
            raise OSError(f"{self.url}/{name}: cannot be fetched ({describe(error)})") from error
        finally:
            remove_file(beside)

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return a part of a file."""
        return bytes(self._limited(lambda: self._files.cat_file(f"{self._path}/{name}", start=start, end=end)))

    def remove_file(self, name: str) -> None:
        """Delete a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._limited(lambda: self._files.rm_file(f"{self._path}/{name}"))

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with all its content, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._limited(lambda: self._files.rm(f"{self._path}/{name}", recursive=True))

    def names(self, folder: str = "") -> list[str]:
        """Return the relative paths of all version files, or of those in one subfolder."""
        self._files.invalidate_cache()
        try:
            found: list[str] = self._limited(lambda: self._files.find(f"{self._path}/{folder}".rstrip("/")))
        except Exception as error:
            raise OSError(f"{self.url}: cannot be listed ({describe(error)})") from error
        return [path.removeprefix(self._path).lstrip("/") for path in found if path.endswith(".safetensors")]

    def put_text(self, name: str, text: str) -> None:
        """Write a small file. A bucket that does not exist is not created: its name may be mistyped."""
        if has_folders(self._files):
            self._files.makedirs(self._path, exist_ok=True)
        self._limited(lambda: self._files.pipe_file(f"{self._path}/{name}", text.encode()))

    def read_text(self, name: str) -> str:
        return bytes(self._limited(lambda: self._files.cat_file(f"{self._path}/{name}"))).decode()

    def _limited(self, operation: Callable[[], T], size: int = 0) -> T:
        """Return what an operation on ``size`` bytes returns; try again if the network fails, up to the time limit."""
        return limited(lambda: retried(operation), STALL_SECONDS + size / SLOW_BYTES)
