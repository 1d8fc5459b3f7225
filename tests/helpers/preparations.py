"""What tests that kill preparations of data look at."""

from __future__ import annotations

import contextlib
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a data set, except the code of its recipe."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "recipe.pickle")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def done(target: Path) -> int:
    """Return how many pieces of work are finished in the workspace, which may go away meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return len(list((target.parent / f".{target.name}.prepare").glob("*/*.pickle")))
    return 0
