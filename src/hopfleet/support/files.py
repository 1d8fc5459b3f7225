"""Files that are either complete or absent, for data sets and run folders alike."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, TypeVar

from hopfleet.errors import UsageError

T = TypeVar("T")

ATTEMPTS = 4
"""Number of attempts at a transfer."""

PAUSE_SECONDS = 0.25
"""Seconds to wait after the first failed attempt; doubles with each further one."""

PIECE = 1 << 22
"""Bytes read and hashed at once. Between two pieces, other threads wait."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that end when there is room on the disk again."""

LIMITS = (errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG)
"""Errors that mean a limit of the process or of the file system on one file, so that waiting does not help."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to write to a full or failing disk: the first, and the longest."""

HERE, EXCHANGE = -100, 2
"""Arguments of renameat2(2): paths are relative to the working directory, and two names are exchanged."""


def write_atomically(path: Path, write: Callable[[Path], None], *, durable: bool) -> None:
    """Let ``write`` fill a temporary file beside ``path``, and rename the file; ``durable`` survives a power cut."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")  # of no other process or thread
    try:
        write(temporary)
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def write_text(path: Path, text: str, *, durable: bool) -> None:
    """Write a file of text that is either complete or absent; ``durable`` survives a power cut."""

    def write(beside: Path) -> None:
        beside.write_text(text)

    write_atomically(path, write, durable=durable)


def exchange(one: Path, other: Path) -> None:
    """Let two folders have each other's names, at once.

    Where the file system cannot do that, three renames follow each other, and between them ``other`` may be absent.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        done = False
    else:
        done = rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0
    if done:
        return
    aside = one.with_name(f"{one.name}.aside")
    other.rename(aside)
    try:
        one.rename(other)
    except OSError:
        aside.rename(other)
        raise
    aside.rename(one)


def check_private(folder: Path, file: Path) -> None:
    """Raise UsageError unless only this user could have written a file in a folder, with code that is about to run."""
    place, found = folder.stat(), file.lstat()
    user, remedy = os.getuid(), f"if you trust it, run: chown -R {os.getuid()} {folder}"
    for path, about in ((folder, place), (file, found)):
        if about.st_uid != user:
            raise UsageError(
                f"{path}: belongs to another user ({about.st_uid}), so no code that it names is run; {remedy}"
            )
    reachable = place.st_mode & 0o011
    if place.st_mode & 0o022 or (reachable and found.st_mode & 0o022) or not stat.S_ISREG(found.st_mode):
        raise UsageError(
            f"{folder}: others can write to it, so no code that it names is run; check its content, then run: "
            f"chmod -R go= {folder}"
        )


def is_private(folder: Path) -> bool:
    """Whether a folder is a real one that belongs to this user and that no other user can enter."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return False


def open_plain(path: Path, *, create: bool = False) -> IO[bytes]:
    """Open a file to read, or ``create`` it if needed to read and write. Raise OSError unless it is a plain file.

    A link is not followed, and a named pipe does not block.
    """
    how = (os.O_RDWR | os.O_CREAT) if create else os.O_RDONLY
    descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a plain file", str(path))
    return os.fdopen(descriptor, "r+b" if create else "rb")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise OSError or ValueError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return json.loads(file.read())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def back_off() -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, without end."""
    seconds = FIRST_PAUSE
    while True:
        yield seconds
        seconds = min(2 * seconds, LONGEST_PAUSE)


def trouble(path: str | os.PathLike[str], error: OSError) -> str:
    """Describe a file that cannot be written: its name, the error and the remedy."""
    remedy = "make room on that disk" if error.errno in FULL else "check that disk and the permissions"
    if error.errno in LIMITS:
        remedy = "raise the limits of the process (ulimit -a shows them)"
    if error.errno == errno.ENOENT and not Path(path).parent.exists():
        remedy = f"make the folder {Path(path).parent} first"
    return f"{path}: cannot be written ({error.strerror or error}); {remedy}"


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        # No larger than needed: clearing new memory takes longer than hashing a small file.
        buffer = memoryview(bytearray(min(PIECE, os.fstat(file.fileno()).st_size + 1)))
        while count := file.readinto(buffer):
            found.update(buffer[:count])
    return found.hexdigest()


def retried(transfer: Callable[[], T]) -> T:
    """Return what ``transfer`` returns, trying again if the network fails, but not if a file is missing.

    File systems raise the exceptions of their libraries, so any other exception counts as a network failure.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return transfer()
        except Exception as error:
            if isinstance(error, FileNotFoundError | IsADirectoryError) or denied(error):
                raise
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
    return transfer()


def limited(job: Callable[[], T], seconds: float) -> T:
    """Return what ``job`` returns. Raise TimeoutError if it has not ended after some seconds; its thread goes on."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(job())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True, name="hopfleet-limited").start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None


def has_folders(files: Any) -> bool:
    """Whether an fsspec file system has folders to create and files to rename. An object store has neither."""
    protocols = [files.protocol] if isinstance(files.protocol, str) else files.protocol
    return bool({"file", "local", "hdfs", "sftp", "smb"} & set(protocols))


def denied(error: Exception) -> bool:
    """Whether access to a file was denied, or credentials are missing."""
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__
