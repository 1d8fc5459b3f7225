"""A folder of files behind an fsspec URL."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from hopfleet.errors import CheckpointError, MissingExtra, UsageError, describe
from hopfleet.support.files import retried


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
            if _renames(self._files):
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
                beside = f"{target}.{os.uname().nodename}.{os.getpid()}"
                self._files.put_file(str(path), beside)
                self._files.mv(beside, target)
            else:
                self._files.put_file(str(path), target)

        try:
            retried(put)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.url}/{name}: {describe(error)}") from error

    def download(self, name: str, target: Path) -> None:
        """Fetch a file. Raise CheckpointError if there is none, or if the file cannot be fetched."""
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            retried(lambda: self._files.get_file(f"{self._path}/{name}", str(beside)))
            beside.replace(target)
        except FileNotFoundError:
            raise CheckpointError(f"{self.url}/{name}: is not there") from None
        except Exception as error:
            raise CheckpointError(f"{self.url}/{name}: cannot be fetched ({describe(error)})") from error
        finally:
            beside.unlink(missing_ok=True)

    def remove_file(self, name: str) -> None:
        """Delete a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with all its content, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(f"{self._path}/{name}", recursive=True)

    def names(self, folder: str = "") -> list[str]:
        """Return the relative paths of all version files, or of those in one subfolder."""
        self._files.invalidate_cache()
        found: list[str] = self._files.find(f"{self._path}/{folder}".rstrip("/"))
        return [path.removeprefix(self._path).lstrip("/") for path in found if path.endswith(".safetensors")]

    def write_text(self, name: str, text: str) -> None:
        self._files.makedirs(self._path, exist_ok=True)
        retried(lambda: self._files.pipe_file(f"{self._path}/{name}", text.encode()))

    def read_text(self, name: str) -> str:
        return bytes(retried(lambda: self._files.cat_file(f"{self._path}/{name}"))).decode()


def _renames(files: Any) -> bool:
    protocols = [files.protocol] if isinstance(files.protocol, str) else files.protocol
    return bool({"file", "local", "hdfs", "sftp", "smb"} & set(protocols))
