"""Files that are read: plain ones only, of a bounded size, and with the digest that they were written with."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from hopfleet.errors import UsageError

PIECE = 1 << 22
"""Bytes read and hashed at once. Between two pieces, other threads wait."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that end when there is room on the disk again."""

LIMITS = (errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG)
"""Errors that mean a limit of the process or of the file system on one file, so that waiting does not help."""

JSON_BYTES = 1 << 28
"""Bytes of the largest JSON file that is read. A file of others may claim any size."""

DIGEST = "sha256"
"""The key of a JSON file's digest."""


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


def open_plain(
    path: str | os.PathLike[str], *, links: bool = False, own: bool = False, place: int | None = None
) -> IO[bytes]:
    """Open a file to read. Raise OSError unless it is a plain file; a named pipe or a device does not block.

    A link is followed only with ``links``. With ``own``, the file must belong to this user. A relative path is looked
    up in the folder open at the descriptor ``place``.
    """
    return os.fdopen(_descriptor(path, links=links, own=own, place=place), "rb")


def _descriptor(
    path: str | os.PathLike[str], *, links: bool = True, own: bool = False, place: int | None = None
) -> int:
    how = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, how, dir_fd=place)
    try:
        check_plain(descriptor, path, own=own)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_inside(place: int, name: str) -> IO[bytes]:
    """Open a file by its relative path in the folder open at a descriptor. Raise OSError for a link in the path."""
    *above, last = name.split("/")
    opened: list[int] = []
    try:
        for part in above:
            how = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(part, how, dir_fd=opened[-1] if opened else place))
        return open_plain(last, place=opened[-1] if opened else place)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_plain(descriptor: int, path: str | os.PathLike[str], *, own: bool = False) -> None:
    """Raise OSError unless an open file is a plain one and, with ``own``, belongs to this user."""
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a plain file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a plain file", str(path))
    if own and found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"belongs to another user ({found.st_uid})", str(path))


def read_bytes(path: Path, limit: int = JSON_BYTES) -> bytes:
    """Return the content of a plain file. Raise OSError if it cannot be read, ValueError above ``limit`` bytes."""
    with open_plain(path, links=True) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise ValueError(f"it has {size:,} bytes, and at most {limit:,} are read")
        return file.read(limit)


def read_json(path: Path, limit: int = JSON_BYTES, *, checked: bool = True) -> Any:
    """Return the content of a JSON file without its digest, which is compared unless ``checked`` is False.

    Raise OSError if the file cannot be read, and ValueError if it is damaged.
    """
    return parsed_json(read_bytes(path, limit), checked=checked)


def parsed_json(text: str | bytes, *, checked: bool = True) -> Any:
    """Return the content of a JSON file without its digest. Raise ValueError if it is damaged.

    Files of release 0.1 have no digest, and are read as they are.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or DIGEST not in content:
            if checked and isinstance(content, dict) and _is_renamed(content):
                raise ValueError(f"the key of its digest must be {DIGEST!r}, got {next(reversed(content))!r}")
            return content
        found = content.pop(DIGEST)
        if checked and found != _json_digest(content):
            raise ValueError("its content differs from its digest")
        return content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _is_renamed(content: dict[str, Any]) -> bool:
    """Whether the last value is the digest of the others under another key: the file is not one of release 0.1."""
    *others, last = content.items() if content else [("", None)]
    return isinstance(last[1], str) and last[1] == _json_digest(dict(others))


def json_text(content: dict[str, Any]) -> str:
    """Return the text of a JSON file with a digest of its content."""
    plain = json.loads(json.dumps(content, default=str))
    return json.dumps({**plain, DIGEST: _json_digest(plain)}, indent=2) + "\n"


def _json_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def trouble(path: str | os.PathLike[str], error: OSError) -> str:
    """Describe a file that cannot be written: its name, the error and the remedy."""
    remedy = "make room on that disk" if error.errno in FULL else "check that disk and the permissions"
    if error.errno in LIMITS:
        remedy = "raise the limits of the process (ulimit -a shows them)"
    if error.errno == errno.ENOENT and not Path(path).parent.exists():
        remedy = f"make the folder {Path(path).parent} first"
    return f"{path}: cannot be written ({error.strerror or error}); {remedy}"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with os.fdopen(_descriptor(path), "rb", buffering=0) as file:
        return digest_of(file)


def digest_of(file: io.RawIOBase | IO[bytes]) -> str:
    """Return the SHA-256 of an open file."""
    found = hashlib.sha256()
    # No larger than needed: clearing new memory takes longer than hashing a small file.
    buffer = memoryview(bytearray(min(PIECE, os.fstat(file.fileno()).st_size + 1)))
    while count := file.readinto(buffer):  # type: ignore[union-attr]
        found.update(buffer[:count])
    return found.hexdigest()
