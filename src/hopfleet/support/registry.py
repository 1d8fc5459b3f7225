"""Extensions by name: those that come with Hopfleet, and those that other packages register as entry points.

A package registers an extension in its ``pyproject.toml``:

    [project.entry-points."hopfleet.policies"]
    alphabetical = "my_package.policies:alphabetical"

The name then works wherever Hopfleet takes a name of that kind. Entry points are read when a name is looked up, so a
package that is installed while Python runs is found, and importing Hopfleet imports no other package. ``hopfleet
doctor`` reports packages that register a name of Hopfleet's own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from hopfleet.errors import UsageError, describe
from hopfleet.phrases import did_you_mean

GROUPS: Mapping[str, str] = {
    "search": "hopfleet.searches",
    "stop": "hopfleet.stopping_rules",
    "policy": "hopfleet.policies",
    "backend": "hopfleet.backends",
    "framework": "hopfleet.frameworks",
    "strategy": "hopfleet.strategies",
    "store": "hopfleet.stores",
    "observer": "hopfleet.observers",
}
"""The group of entry points of each kind of extension."""

Kind = TypeVar("Kind")


class Homes(Mapping[str, Any]):
    """Objects by name, each imported when it is first asked for."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> Any:
        return pkgutil.resolve_name(self._homes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


def find(kind: str, name: str, builtin: Mapping[str, Kind], *, argument: str = "") -> Kind:
    """Return the extension of that name; ``builtin`` holds those that come with Hopfleet, whose names are its own.

    Entry points are read for other names only, since that takes long where many packages are installed. Messages name
    the ``argument``, if its name is not the kind.

    Raise UsageError for an unknown name, for a name that is registered twice and for an extension that cannot be
    loaded. The message names the packages concerned.
    """
    if name in builtin:
        return builtin[name]
    shown = argument or kind
    found = [point for point in _registered(kind) if point.name == name]
    packages = sorted({_package(point) for point in found})
    if not found:
        known = names(kind, builtin)
        there_are = f"there are {', '.join(known)}" if known else "no package registers one"
        raise UsageError(f"{shown}={name!r}: unknown; {did_you_mean(name, known)}{there_are}")
    if len(found) > 1:
        raise UsageError(
            f"{shown}={name!r}: registered more than once, by {' and '.join(packages)}; uninstall all but one package"
        )
    extension: Kind = _load(kind, found[0])
    return extension


def names(kind: str, builtin: Mapping[str, Any]) -> list[str]:
    """Return all names of a kind, sorted."""
    return sorted({*builtin, *(point.name for point in _registered(kind))})


def registered() -> list[tuple[str, str, str]]:
    """Return the kind, the name and the package of every extension that another package registers."""
    return [(kind, point.name, _package(point)) for kind in GROUPS for point in _registered(kind)]


def clashes(builtin: Mapping[str, Iterable[str]]) -> list[str]:
    """Return what is wrong with the names that packages register; ``builtin`` holds Hopfleet's own names by kind."""
    packages: dict[tuple[str, str], list[str]] = {}
    for kind, name, package in registered():
        packages.setdefault((kind, name), []).append(package)
    found = []
    for (kind, name), theirs in packages.items():
        if name in builtin.get(kind, ()):
            found.append(f"the {kind} {name} of {theirs[0]} has a name of Hopfleet's own; rename its entry point")
        elif len(theirs) > 1:
            found.append(f"the {kind} {name} is registered by {' and '.join(theirs)}; uninstall all but one of them")
    return found


def _registered(kind: str) -> list[EntryPoint]:
    return sorted(entry_points(group=GROUPS[kind]), key=lambda point: (point.name, _package(point)))


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _load(kind: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise UsageError(
            f"{kind}={point.name!r}: the package {_package(point)} cannot load {point.value} ({describe(error)}); "
            "reinstall or upgrade the package"
        ) from error
