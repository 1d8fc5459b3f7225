"""A version store that forwards every call to another store: the base of stores that add something to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from hopfleet.domain.version_ref import VersionRef
from hopfleet.store.base import VersionStore


class ForwardingVersions:
    """The versions of ``inner``. Derive from the class and override the methods that differ."""

    def __init__(self, inner: VersionStore) -> None:
        self._inner = inner

    @property
    def sends(self) -> bool:
        return self._inner.sends

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        return self._inner.path(ref, durable=durable)

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        return self._inner.write(ref, write, durable=durable, size=size)

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        return self._inner.find(ref, expected)

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        return self._inner.keep(ref, saved, expected)

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        return self._inner.copy(source, ref, expected)

    def send(self, ref: VersionRef) -> None:
        self._inner.send(ref)

    def collect(self, trial: str = "") -> None:
        self._inner.collect(trial)

    def drop(self, ref: VersionRef) -> None:
        self._inner.drop(ref)

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        self._inner.tidy(needed)

    def forget(self, trial: str) -> None:
        self._inner.forget(trial)

    def release(self) -> None:
        self._inner.release()
