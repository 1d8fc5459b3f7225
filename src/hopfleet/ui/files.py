"""The files of a run that a page lists and serves: those of a trial, and those of the experiment.

Only plain files below a few folders of the run folder are served, found by descriptors without following any link.
A browser shows an image only if its content is one of a few kinds of picture; all else, SVG included, is downloaded.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import IO, Any

from hopfleet.errors import NotFound
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import open_folder, open_inside

MOST_FILES = 200
"""Files of a list."""

PIECE_BYTES = 1 << 18

FOLDERS = ("best", "plots", "tests")
"""The folders of an experiment whose files are listed, beside those of its trials."""

TRIAL = re.compile(r"t\d{1,12}")

KINDS = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
)
"""Kinds of pictures that a page shows, and how their files begin."""

PLAIN = "application/octet-stream"


def kind_of(beginning: bytes) -> str:
    """Return the type of a file by its first bytes; the name of a file says nothing."""
    return next((kind for kind, pattern in KINDS if pattern.match(beginning)), PLAIN)


def trial_files(folder: RunFolder, trial: str) -> list[dict[str, Any]]:
    """Return the files of a trial: its checkpoints, its record and its log."""
    if not TRIAL.fullmatch(trial):
        return []
    return _listed(folder, [*_names(folder, f"checkpoints/{trial}"), f"trials/{trial}.json", f"logs/{trial}.log"])


def experiment_files(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the files of an experiment: its best model, pictures and metrics on other data."""
    return _listed(folder, [name for place in FOLDERS for name in _names(folder, place)])


def open_file(folder: RunFolder, path: str) -> tuple[IO[bytes], int, str]:
    """Open a file by its path in the run folder; return it, its size and its type. Raise NotFound unless it is served.

    Whatever is listed is served, and nothing else: neither hidden files nor links, journals or definitions.
    """
    place, _, rest = path.partition("/")
    inside, _, name = rest.rpartition("/")
    served = (
        (place in FOLDERS and not inside)
        or (place == "checkpoints" and TRIAL.fullmatch(inside) is not None)
        or (place, inside, TRIAL.sub("t", name)) in (("trials", "", "t.json"), ("logs", "", "t.log"))
    )
    if served and _is_name(name):
        with contextlib.suppress(OSError, ValueError), _inside(folder) as base:
            file = open_inside(base, path)
            size, beginning = os.fstat(file.fileno()).st_size, file.read(16)
            file.seek(0)
            return file, size, kind_of(beginning)
    raise NotFound(f"{path[:80]!r}: no such file of this experiment; it may have been deleted")


def pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the first ``size`` bytes of a file, and close it; a file that is written meanwhile does not go on."""
    with file:
        while size > 0 and (piece := file.read(min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


def _is_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not any(sign in name for sign in "/\\\0")


@contextlib.contextmanager
def _inside(folder: RunFolder) -> Iterator[int]:
    """Open a run folder, which may itself be a link."""
    place = open_folder(folder.path, links=True)
    try:
        yield place
    finally:
        os.close(place)


def _names(folder: RunFolder, place: str) -> list[str]:
    """Return the paths of the files in a folder of the run folder, without following links."""
    with contextlib.suppress(OSError), _inside(folder) as above, contextlib.ExitStack() as opened:
        for part in place.split("/"):
            above = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            opened.callback(os.close, above)
        return [f"{place}/{name}" for name in sorted(os.listdir(above)) if _is_name(name)]  # noqa: PTH208, a descriptor
    return []


def _listed(folder: RunFolder, paths: list[str]) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        with contextlib.suppress(NotFound):
            file, size, kind = open_file(folder, path)
            with file:
                written = os.fstat(file.fileno()).st_mtime
            found.append({"path": path, "bytes": size, "type": kind, "time": written})
        if len(found) == MOST_FILES:
            break
    return found
