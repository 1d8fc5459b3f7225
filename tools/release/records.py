"""What a release says of itself: the version, the changelog and the tag. All decisions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

UNRELEASED = "Unreleased"

VERSION_FILE = "src/hopfleet/version.py"


def version_in(text: str) -> str:
    """Return the version that the text of ``version.py`` states."""
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if found is None or not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", found[1]):
        stated = found[1] if found else "nothing"
        raise ValueError(f'{VERSION_FILE}: must say __version__ = "X.Y.Z" or "X.Y.ZrcN", got {stated}')
    return found[1]


def sections(changelog: str) -> dict[str, str]:
    """Return the text below each heading of the second level, in the order of the file."""
    parts = re.split(r"^## (.*)\n", changelog, flags=re.MULTILINE)
    return {heading.strip(): text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def changelog_problems(changelog: str, version: str) -> Iterator[str]:
    """Yield what keeps a changelog from being that of a release."""
    found = sections(changelog)
    headings = [heading for heading in found if heading != UNRELEASED]
    if text := found.get(UNRELEASED, ""):
        lines = len(text.splitlines())
        yield f"CHANGELOG.md: '{UNRELEASED}' must be empty, got {lines} lines; move them to '## {version}'"
    if not headings or headings[0] != version:
        first = f"'## {headings[0]}'" if headings else "nothing"
        yield f"CHANGELOG.md: the first section must be '## {version}', got {first}; add it, or change {VERSION_FILE}"
    elif not found[version]:
        yield f"CHANGELOG.md: '## {version}' is empty; say what users can do now"


def tag_problems(tags: Mapping[str, str], version: str, head: str) -> Iterator[str]:
    """Yield what tags say against a release of ``head``; ``tags`` are commits by the names of their tags."""
    tagged = tags.get(f"v{version}", head)
    if tagged != head:
        yield f"tag v{version}: must be at {head[:12]}, got {tagged[:12]}; this version exists: raise {VERSION_FILE}"
    later = [tag for tag in tags if _order(tag) > _order(f"v{version}")]
    if later:
        yield f"tag {max(later, key=_order)}: is later than version {version}; raise {VERSION_FILE}"


def _order(tag: str) -> tuple[int, ...]:
    """Return the place of a tag among others; that of a tag that names no version is before all versions."""
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", tag)
    if found is None:
        return ()
    major, minor, micro, candidate = found.groups()
    return (int(major), int(minor), int(micro), candidate is None, int(candidate or 0))
