"""The name of one saved model version."""

from __future__ import annotations

from typing import NamedTuple

SHARED = "shared"
"""Name of the folder, beside those of trials, with files that versions share, and of the metadata in which the file of
a version lists the names of its shared files. The name of a shared file is its SHA-256."""


class VersionRef(NamedTuple):
    """Version ``version`` of a trial, as save number ``attempt`` wrote it.

    Every save has its own number, and its file bears that number, so a late writer can never overwrite a newer file.
    ``attempt`` is None for a version that exists only in a worker's memory, and 0 in journals before format 3.
    """

    trial: str
    version: int
    attempt: int | None
