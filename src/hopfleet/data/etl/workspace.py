"""The workspace of a preparation: results of finished pieces of work, so that a killed call goes on where it was.

The workspace is a hidden folder beside the target. It is removed when the target is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hopfleet.data.etl.pool import Pool
from hopfleet.data.folders import Folder, LocalFolder
from hopfleet.errors import DataError, HopfleetError
from hopfleet.support.cache import cache_folder
from hopfleet.support.files import (
    MARKER,
    check_private,
    claim,
    make_folder,
    remove_folder,
    remove_from,
    trouble,
    write_bytes,
    write_text,
)

DIGEST_BYTES = hashlib.sha256().digest_size


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
        make_folder(self.path / kind)
        results: dict[int, Any] = {}

        def left() -> Iterator[tuple[int, tuple[Any, ...]]]:
            for number, task in enumerate(tasks):
                with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError, ValueError):
                    results[number] = pickle.loads(_checked(self.file(kind, number, ".pickle").read_bytes()))
                    done(number, results[number])
                if number not in results:
                    yield number, task

        for number, result in pool.run(function, left(), threads=threads, homes=homes):
            if lasting(result):
                content = pickle.dumps(result)
                content = hashlib.sha256(content).digest() + content
                write_bytes(self.file(kind, number, ".pickle"), content, durable=False, private=True)
            results[number] = result
            done(number, result)
        return [results[number] for number in sorted(results)]


def _checked(content: bytes) -> bytes:
    """Return a pickle without the digest before it. Raise ValueError if the digest is that of another pickle."""
    found, pickled = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if hashlib.sha256(pickled).digest() != found:
        raise ValueError("damaged")
    return pickled


def _boot() -> str:
    """Return a text that is another one after each start of this machine: a power cut may leave files incomplete."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def workspace_for(target: Folder, job: dict[str, Any], kind: str = "prepare") -> Iterator[Workspace]:
    """Open the workspace of a target. What a call for another job has left is removed; so is all in the end.

    A call that is interrupted leaves the workspace for the next one.
    """
    if isinstance(target, LocalFolder):
        place = target.path.resolve()
        path = place.parent / f".{place.name}.{kind}"
    else:
        path = cache_folder(kind) / hashlib.sha256(target.url.encode()).hexdigest()
    try:
        make_folder(path.parent)
        handle = claim(path, f"{kind} workspace")
    except BlockingIOError:
        raise DataError(f"{target.url}: another process is writing it; wait for that process, or stop it") from None
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EPERM):
            raise DataError(f"{path}: {error.strerror}; move it elsewhere, or give another folder") from error
        raise DataError(trouble(path.parent, error)) from error
    try:
        text = json.dumps([job, _boot()], sort_keys=True, default=str)
        mark = path / "job.json"
        if not mark.is_file() or mark.read_text(encoding="utf-8") != text:
            remove_from(handle, [entry.name for entry in path.iterdir() if entry.name != MARKER])
            write_text(mark, text, durable=False)
        check_private(path, mark)
        try:
            yield Workspace(path)
        except HopfleetError:  # it would fail again in the same way
            remove_folder(path, ignore_errors=True)
            raise
        remove_folder(path, ignore_errors=True)
    except OSError as error:
        raise DataError(trouble(path, error)) from error
    finally:
        os.close(handle)
