"""Files and folders that are created, replaced and deleted. Other modules leave that to this package: see lint.

No link is followed at the name that is written: neither at its own name nor at its temporary one, which cannot be
guessed and must be new. Links above it, in the path that the user gave, are the user's own business, except for links
of other users in a folder that everyone can write to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from hopfleet.support.files.reading import check_plain, open_plain

HERE, EXCHANGE = -100, 2
"""Arguments of renameat2(2): paths are relative to the working directory, and two names are exchanged."""

LONGEST_NAME = 220
"""Bytes of a name that its temporary name may contain: a name has at most 255."""

PIECES = 512
"""Pieces that one system call writes."""

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


# ---------------------------------------------------------------------------------------------------------------- files


def temporary_name(path: Path) -> Path:
    """Return a name beside a path that cannot be guessed."""
    kept = path.name if len(os.fsencode(path.name)) <= LONGEST_NAME else "long"
    return path.with_name(f".{kept}.{secrets.token_hex(8)}")


def write_atomically(path: Path, write: Callable[[Path], None], *, durable: bool, private: bool = False) -> None:
    """Let ``write`` fill a temporary file beside ``path``, and rename the file; ``durable`` survives a power cut.

    A link at ``path`` is replaced, not followed; a device or a pipe is refused. A ``private`` file is for this user
    alone.
    """
    _check_target(path)
    temporary = temporary_name(path)
    os.close(os.open(temporary, os.O_WRONLY | _NEW, 0o600 if private else 0o666))
    try:
        write(temporary)
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    if durable:
        sync(path.parent)


def _check_target(path: Path) -> None:
    """Raise OSError if a path is or leads to a device, a pipe or a socket, e.g. /dev/stdout, which must not go away."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise OSError(errno.EINVAL, "is not a plain file", str(path))


def write_bytes(path: Path, content: bytes, *, durable: bool, private: bool = False) -> None:
    """Write a file that is either complete or absent; ``durable`` survives a power cut."""
    write_atomically(path, lambda beside: overwrite(beside, [content]), durable=durable, private=private)


def write_text(path: Path, text: str, *, durable: bool, private: bool = False) -> None:
    """Write a file of text that is either complete or absent; ``durable`` survives a power cut."""
    write_bytes(path, text.encode(), durable=durable, private=private)


def write_once(path: Path, content: bytes) -> bool:
    """Write a private file unless there is one of that name, and return whether it was written."""
    if os.path.lexists(path):
        return False
    temporary = temporary_name(path)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | _NEW, 0o600), "wb") as file:
            file.write(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            with os.fdopen(os.open(path, os.O_WRONLY | _NEW, 0o600), "wb") as file:
                file.write(content)
    finally:
        remove_file(temporary)
    return True


def overwrite(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write pieces over the content of a file, which is faster than new memory, and cut off the rest.

    The file is created for this user alone if there is none.
    """
    left = [memoryview(piece) for piece in pieces]
    size = sum(piece.nbytes for piece in left)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        check_plain(descriptor, path)
        while left:
            count = os.writev(descriptor, left[:PIECES])
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if count:
                left[0] = left[0][count:]
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def create_file(path: Path) -> IO[bytes]:
    """Create a file to write, in place of any file or link of that name."""
    remove_file(path)
    return os.fdopen(os.open(path, os.O_WRONLY | _NEW, 0o666), "wb")


def start_text(path: Path) -> TextIO:
    """Start a file of text anew, to be written line by line. Raise OSError unless there is none, or a plain one.

    The new file takes the place of an old one, so whatever else the old file is linked to stays as it is.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "is a link or no file, and is not overwritten", str(path))
    temporary = temporary_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | _NEW, 0o666)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.close(descriptor)
        remove_file(temporary)
        raise
    return os.fdopen(descriptor, "w", encoding="utf-8", newline="")


def open_to_append(path: str | Path) -> int:
    """Return the descriptor of a private plain file that is written at its end, and created if there is none."""
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return _checked(os.open(path, how, 0o600), path)


def open_nowhere() -> int:
    """Return a descriptor that takes output and keeps nothing."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def shorten(descriptor: int, size: int) -> None:
    """Cut an open file off at a number of bytes."""
    os.ftruncate(descriptor, size)


def append(path: Path, content: bytes) -> None:
    """Write at the end of a private plain file, which is created if there is none."""
    with os.fdopen(open_to_append(path), "ab") as file:
        file.write(content)


def open_lock(path: Path, place: int | None = None) -> IO[bytes]:
    """Open a plain file to read and write, and create it for this user alone if there is none."""
    how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(_checked(os.open(path, how, 0o600, dir_fd=place), path), "r+b")


def _checked(descriptor: int, path: str | Path) -> int:
    try:
        check_plain(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def replace_content(file: IO[bytes], content: bytes) -> None:
    """Write over the content of an open file."""
    file.seek(0)
    file.truncate()
    file.write(content)
    file.flush()


def remove_file(path: Path) -> None:
    """Delete a file or a link, if there is one; a link's target stays."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def move(source: Path, target: Path) -> None:
    """Rename a file or a folder. A file, an empty folder or a link that has the name is replaced."""
    os.rename(source, target)


def move_across(source: Path, target: Path) -> None:
    """Move a file or a folder, to another file system if need be."""
    shutil.move(source, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file. A file of the name is overwritten; a link is not followed."""
    with open_plain(source, links=True) as file:
        how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(_checked(os.open(target, how, 0o666), target), "wb") as copied:
            copied.truncate()
            shutil.copyfileobj(file, copied, 1 << 20)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, in place of any file of that name; a file system without hard links gets a copy."""
    remove_file(target)
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)


def link_file(source: Path, name: Path) -> None:
    """Make a new name for a file: a hard link, or a symbolic link to a file on another file system."""
    try:
        os.link(source, name)
    except OSError:
        os.symlink(source, name)


def link_folder(name: Path, folder: Path) -> None:
    """Make a symbolic link that leads to a folder."""
    os.symlink(folder, name, target_is_directory=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    aside = temporary_name(one)
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


# -------------------------------------------------------------------------------------------------------------- folders


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and those above it, unless it is there; a ``private`` one is for this user alone.

    In a folder that everyone can write to, a link of another user is not followed, and a folder of another user is not
    used as a private one.
    """
    try:
        create_folder(path, private=private)
    except FileNotFoundError:
        make_folder(path.parent)
        make_folder(path, private=private)
    except FileExistsError:
        check_folder(path, private=private)
    except OSError:  # e.g. of a read-only disk, on which the folder may be there
        if not path.is_dir():
            raise
        check_folder(path, private=private)


def create_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder. Raise FileExistsError if there is anything of that name."""
    os.mkdir(path, 0o700 if private else 0o777)


def check_folder(path: Path, *, private: bool = False) -> None:
    """Raise OSError unless there is a folder that may be used: see ``make_folder``."""
    found = os.lstat(path)
    is_link = stat.S_ISLNK(found.st_mode)
    if found.st_uid != os.geteuid() and (is_link or private):
        above = os.stat(path.parent)
        if above.st_mode & stat.S_IWOTH and found.st_uid != above.st_uid:
            what = "is a link" if is_link else "is a folder"
            raise PermissionError(
                errno.EPERM, f"{what} of another user ({found.st_uid}), where everyone can write", str(path)
            )
    if not stat.S_ISDIR(found.st_mode) and not (is_link and path.is_dir()):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", str(path))


def open_folder(path: Path, *, links: bool = False) -> int:
    """Return the descriptor of a folder. A link is followed only with ``links``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, "is a link or a file, not a folder", str(path)) from None


def check_own(place: int, path: Path) -> None:
    """Raise PermissionError unless the folder open at a descriptor belongs to this user."""
    owner = os.fstat(place).st_uid
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"belongs to another user ({owner}), so nothing in it is deleted", str(path))


def remove_folder(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder of this user with all that it contains. Links are removed, not followed.

    A link, or a folder of another user, is left as it is: that raises OSError unless errors are ignored.
    """
    with contextlib.suppress(*([OSError] if ignore_errors else [])):
        place = open_folder(path)
        try:
            check_own(place, path)
            remove_from(place, os.listdir(place), ignore_errors=ignore_errors)
        finally:
            os.close(place)
        os.rmdir(path)


def remove_from(place: int, names: Sequence[str], *, ignore_errors: bool = False) -> None:
    """Delete files, links and folders in the folder open at a descriptor. Links are not followed."""
    for name in names:
        try:
            os.unlink(name, dir_fd=place)
        except FileNotFoundError:
            pass
        except OSError:  # a folder, for one
            shutil.rmtree(name, ignore_errors=ignore_errors, dir_fd=place)


def remove_empty_folder(path: Path) -> None:
    """Delete a folder. Raise OSError unless it is empty."""
    os.rmdir(path)


def set_mode(path: Path, mode: int) -> None:
    """Set the permissions of a file or folder that this process has made."""
    os.chmod(path, mode)


# ------------------------------------------------------------------------------------------------------ temporary files


@contextlib.contextmanager
def temporary_folder(prefix: str = "hopfleet-", parent: Path | None = None) -> Iterator[Path]:
    """Make a private folder with a name that cannot be guessed, and delete it on exit."""
    path = new_folder(prefix, parent)
    try:
        yield path
    finally:
        remove_folder(path, ignore_errors=True)


def new_folder(prefix: str, parent: Path | None = None) -> Path:
    """Make a private folder whose name begins with ``prefix`` and ends with random characters."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def new_file(prefix: str, parent: Path) -> Path:
    """Make a private empty file whose name begins with ``prefix`` and ends with random characters."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=parent)
    os.close(descriptor)
    return Path(name)


def temporary_place() -> Path:
    """Return the folder for temporary files, which all users share."""
    return Path(tempfile.gettempdir())


def unnamed_file(parent: Path) -> IO[Any]:
    """Open a file without a name, which ends with its descriptor."""
    return tempfile.TemporaryFile(dir=parent)
