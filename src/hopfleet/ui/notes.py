"""Notes and tags of an experiment and of its trials, which people write on the page. A run never reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfleet.errors import UsageError
from hopfleet.store.folder import RunFolder

LONGEST_NOTE, MOST_TAGS, LONGEST_TAG = 4000, 20, 40
"""Characters of a note, tags of an experiment or a trial, and characters of a tag."""

MOST_NOTED = 10_000
"""Trials with notes or tags."""

Noted = dict[str, Any]
"""``note``, a text, and ``tags``, a list of texts."""


def read_notes(folder: RunFolder) -> dict[str, Noted]:
    """Return notes and tags by trial, those of the experiment under an empty name; without what is damaged."""
    return {name: noted for name, noted in folder.notes().items() if _is_noted(noted)}


def write_note(folder: RunFolder, trial: str, note: Any, tags: Any) -> dict[str, Noted]:
    """Replace the note and the tags of a trial, or of the experiment, and return all. Raise UsageError if too long."""
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise UsageError(f"note: must be a text of at most {LONGEST_NOTE:,} characters")
    if not isinstance(tags, list) or len(tags) > MOST_TAGS or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"tags: must be at most {MOST_TAGS} texts")
    cleaned = list(dict.fromkeys(" ".join(tag.split()) for tag in tags if tag.strip()))
    if long := [tag for tag in cleaned if len(tag) > LONGEST_TAG]:
        raise UsageError(f"tags: must have at most {LONGEST_TAG} characters, {long[0][:20]}… has {len(long[0])}")
    found = read_notes(folder)
    if note.strip() or cleaned:
        found[trial] = {"note": note.strip(), "tags": cleaned}
    else:
        found.pop(trial, None)
    if len(found) > MOST_NOTED:
        raise UsageError(f"notes: must be of at most {MOST_NOTED:,} trials; remove some")
    folder.keep_notes(found)
    return found


def _is_noted(noted: object) -> bool:
    if not isinstance(noted, Mapping) or not isinstance(noted.get("note"), str):
        return False
    tags = noted.get("tags")
    return isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
