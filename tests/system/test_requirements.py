"""The versions that constraints name are ones that the project allows, and the oldest ones are its lower bounds."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = [
    (extra, Requirement(text))
    for extra, texts in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
    for text in texts
    if not text.startswith("hopfleet[")
]
"""Every requirement, with its extra."""


def pins(name: str) -> dict[str, str]:
    """Return the versions in a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [line.partition("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(package): version for package, _, version in found}


def test_constraints_name_all_packages_and_keep_to_their_bounds() -> None:
    locked = pins("constraints.txt")
    for extra, requirement in REQUIRED:
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"[{extra}] {requirement}: the constraint is {version}"


def test_the_oldest_versions_are_those_that_the_project_allows() -> None:
    oldest = pins("constraints-oldest.txt")
    assert {canonicalize_name(requirement.name) for extra, requirement in REQUIRED if not extra} <= oldest.keys()
    for package, version in oldest.items():
        (bound,) = {str(each.specifier) for _, each in REQUIRED if canonicalize_name(each.name) == package}
        assert f"{version}.".startswith(f"{bound.removeprefix('>=')}."), package
