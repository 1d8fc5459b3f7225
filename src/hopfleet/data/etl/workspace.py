"""The workspace of a preparation: results of finished pieces of work, so that a killed call goes on where it was.

The workspace is a hidden folder beside the target. It is removed when the target is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hopfleet.data.etl.pool import Pool
from hopfleet.data.folders import Folder, LocalFolder, cache_folder
from hopfleet.errors import DataError, HopfleetError
from hopfleet.support.files import check_private, trouble, write_atomically, write_text


class Workspace:
    """A folder with the results of finished pieces of work, by kind and number."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, kind: str, number: int, suffix: str) -> Path:
        return self.path / kind / f"{number:06d}{suffix}"

    def do(
        self, pool: Pool, kind: str, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]],
        done: Callable[[int, Any], None], *, threads: bool = True, homes: Sequence[int] = (),
        lasting: Callable[[Any], bool] = lambda _: True,
    ) -> list[Any]:  # fmt: skip
        """Return the results of all tasks; those that an earlier call has finished are not done again.

        ``done`` gets the number of each task and its result. A result that is not ``lasting`` is lost with this call.
        """
        (self.path / kind).mkdir(exist_ok=True)
        results: dict[int, Any] = {}

        def left() -> Iterator[tuple[int, tuple[Any, ...]]]:
            for number, task in enumerate(tasks):
                with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError, ValueError):
                    results[number] = pickle.loads(self.file(kind, number, ".pickle").read_bytes())
                    done(number, results[number])
                if number not in results:
                    yield number, task

        for number, result in pool.run(function, left(), threads=threads, homes=homes):
            if lasting(result):
                content = pickle.dumps(result)
                write_atomically(self.file(kind, number, ".pickle"), _writer(content), durable=False)
            results[number] = result
            done(number, result)
        return [results[number] for number in sorted(results)]


def _boot() -> str:
    """Return a text that is another one after each start of this machine: a power cut may leave files incomplete."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _writer(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


@contextlib.contextmanager
def workspace_for(target: Folder, job: dict[str, Any], kind: str = "prepare") -> Iterator[Workspace]:
    """Open the workspace of a target. What a call for another job has left is removed; so is all in the end.

    A call that is interrupted leaves the workspace for the next one.
    """
    if isinstance(target, LocalFolder):
        place = target.path.resolve()
        path = place.parent / f".{place.name}.{kind}"
    else:
        path = cache_folder().parent / kind / hashlib.sha256(target.url.encode()).hexdigest()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise DataError(trouble(path.parent, error)) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{target.url}: another process is writing it; wait for that process, or stop it") from None
        text = json.dumps([job, _boot()], sort_keys=True, default=str)
        mark = path / "job.json"
        if not mark.is_file() or mark.read_text() != text:
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            write_text(mark, text, durable=False)
        check_private(path, mark)
        try:
            yield Workspace(path)
        except HopfleetError:  # it would fail again in the same way
            shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise DataError(trouble(path, error)) from error
    finally:
        os.close(handle)
