"""A private folder for the bytecode of the framework, where Python finds none and writes none.

Without bytecode, each import of a framework compiles its source anew, which takes seconds. Some installers write none,
and many containers set PYTHONDONTWRITEBYTECODE. Bytecode is code, so the folder is used only if no other user can write
to it or put another one in its place.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from hopfleet.store.folder import home
from hopfleet.support.files import create_folder, is_private, make_folder

PACKAGE = "hopfleet"

MADE_UP_BEFORE = 1e9
"""Times of files before this one (2001) are not when they were written, so bytecode that is too old would go unnoticed.

Tools that build the same image twice set such times.
"""


def bytecode_folder(preload: Sequence[str]) -> str:
    """Return the folder in which a process that imports these modules keeps bytecode; empty if it needs or has none."""
    # Without a folder, the import is slower, and that is all.
    with contextlib.suppress(Exception):
        if lacks_bytecode(preload):
            return private_folder()
    return ""


def lacks_bytecode(preload: Sequence[str]) -> bool:
    """Whether a framework that is imported here has no bytecode, and Python writes none.

    The framework is known by the packages of the modules; if that is Hopfleet alone, Hopfleet stands for it.
    """
    packages = {module.partition(".")[0] for module in preload}
    specs = [getattr(sys.modules.get(name), "__spec__", None) for name in sorted(packages - {PACKAGE} or packages)]
    return any(
        spec is not None
        and spec.origin is not None
        and spec.cached is not None
        and not Path(spec.cached).exists()
        and (sys.dont_write_bytecode or not _is_writable(Path(spec.cached)))
        and Path(spec.origin).stat().st_mtime >= MADE_UP_BEFORE
        for spec in specs
    )


def private_folder() -> str:
    """Return the folder for bytecode in the home folder, created if needed; empty if other users could change it."""
    make_folder(home(), private=True)
    make_folder(home() / "cache", private=True)
    folder = (home() / "cache").resolve() / "bytecode"
    with contextlib.suppress(FileExistsError):
        create_folder(folder, private=True)
    return str(folder) if is_private(folder) and not any(map(_is_open, folder.parents)) else ""


def _is_open(folder: Path) -> bool:
    """Whether another user, except root, can rename what this user has in a folder."""
    found = folder.stat()
    shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    return bool(shared) or found.st_uid not in (0, os.getuid())


def _is_writable(file: Path) -> bool:
    """Whether this process can write a file, creating its folders."""
    return os.access(next(folder for folder in file.parents if folder.exists()), os.W_OK | os.X_OK)
