"""Attributes that classes of other libraries have: where to find their counterparts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hopfleet.phrases import did_you_mean


class Signposted:
    """A class whose users may look for attributes of another library. ``ELSEWHERE`` tells what to write instead."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    def _elsewhere(self, name: str) -> str:
        """Return what to write instead of an attribute; an empty string if that is not known."""
        return self.ELSEWHERE.get(name, "")

    if not TYPE_CHECKING:  # type checkers should still find misspelt names

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised: raise its error again
            where = "" if name.startswith("_") else self._elsewhere(name)
            near = "" if name.startswith("_") else did_you_mean(name, [each for each in dir(self) if each[0] != "_"])
            remedy = f"; write {where}" if where else f"; {near.strip()}" if near else ""
            text = f"{type(self).__name__!r} object has no attribute {name!r}{remedy}"
            raise AttributeError(text, name=name, obj=self)
