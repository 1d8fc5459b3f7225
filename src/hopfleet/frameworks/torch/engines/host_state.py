"""What the hooks and the modules of a trial keep on the host: counters, lists, tensors that are no buffers.

A captured step runs none of the Python that changes these, and a stacked step runs it once for several trials. So a
step that changes them is neither captured nor stacked.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque

import torch

from hopfleet.frameworks.torch.engines.alike import PLAIN
from hopfleet.frameworks.torch.session import TorchSession

CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict, Counter)
"""Types of attributes that are often changed in place."""


class HostState:
    """The attributes of a trial's hooks and modules at some time, with what lists, dicts and the like contained."""

    def __init__(self, session: TorchSession) -> None:
        names = [
            "the task",
            *(f"module {name!r}" if name else "the model" for name, _ in session.model.named_modules()),
        ]
        holders = [session.hooks, *session.model.modules()]
        self._before = [(name, vars(holder), dict(vars(holder))) for name, holder in zip(names, holders, strict=True)]
        self._inside = [
            (value, copy.copy(value))
            for _, _, values in self._before
            for value in values.values()
            if type(value) in CONTAINERS
        ]

    def changes(self, *, tensors: bool) -> str:
        """Return an attribute that has changed since, in words; empty if there is none.

        Tensors that have taken the place of others count if ``tensors`` is set.
        """
        inside = {id(value): contents for value, contents in self._inside}
        for holder, now, before in self._before:
            for name in {**before, **now}:
                old, new = before.get(name), now.get(name)
                if old is new and id(old) in inside:
                    found = _difference(old, inside[id(old)], tensors)
                    if found is not None:
                        return f"{(found or name)!r} of {holder}"
                elif not _same(old, new, tensors):
                    return f"{name!r} of {holder}"
        return ""

    def restore(self) -> None:
        """Put back what has changed."""
        for _, now, before in self._before:
            now.clear()
            now.update(before)
        for value, contents in self._inside:
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(contents)


def _difference(now: object, before: object, tensors: bool) -> str | None:
    """Return which part of a container has changed, as far as it has a name; None if no part has."""
    if isinstance(now, dict) and isinstance(before, dict):
        missing = object()
        changed = (
            str(name)
            for name in {**before, **now}
            if not _same(now.get(name, missing), before.get(name, missing), tensors)
        )
        return next(changed, None)
    if isinstance(now, list | deque) and isinstance(before, list | deque):
        alike = len(now) == len(before) and all(_same(*pair, tensors) for pair in zip(now, before, strict=True))
        return None if alike else ""
    return None if now == before else ""


def _same(one: object, other: object, tensors: bool) -> bool:
    if one is other:
        return True
    if torch.is_tensor(one) and torch.is_tensor(other):
        return not tensors
    return type(one) is type(other) and isinstance(one, PLAIN) and one == other
