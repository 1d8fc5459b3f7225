"""The arguments of requests: their names, kinds and ranges, checked alike before a request is queued and when it is
answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.space import Space
from hopfleet.errors import UsageError
from hopfleet.search.base import at_least, at_least_one


def check_arguments(request: str, arguments: Any, space: Space) -> None:
    """Raise UsageError, whatever ``arguments`` are, unless the request can be made with them.

    ``space`` is the space of the experiment. Whether the request makes sense at the moment is another question.
    """
    if request not in ARGUMENTS:
        raise UsageError(f"request {request!r}: unknown; there are {', '.join(sorted(ARGUMENTS))}")
    known = ARGUMENTS[request]
    takes = f"{request} takes {', '.join(known) or 'no arguments'}"
    if not isinstance(arguments, Mapping):
        raise UsageError(f"request {request!r}: its arguments are {arguments!r}; must be a dict of names to values")
    for name, value in arguments.items():
        if name not in known:
            raise UsageError(f"{name}={value!r}: unknown; {takes}")
        if value is not None:
            known[name](name, value, space)
    for name in REQUIRED.intersection(known):
        if arguments.get(name) is None:
            raise UsageError(f"{name}: is missing; {takes}")


Check = Callable[[str, Any, Space], object]
"""Raises UsageError unless a value suits an argument, given by name, in an experiment with this space."""


def _trial(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name}={value!r}: must be the name of a trial, e.g. 't0003'; hopfleet show lists them")


def _flag(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: must be True or False")


def _integer(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: must be an integer, e.g. 2 or -1")


def _positive(name: str, value: Any, space: Space) -> None:
    at_least_one(name, value)


def _count(name: str, value: Any, space: Space) -> None:
    at_least(0, name, value)


def _config(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping) or (callable(space) and not value):
        raise UsageError(f"{name}={value!r}: must be a dict of names to values")
    given = spaces.flatten(spaces.plain(value, [name]))
    if not callable(space):  # what a function asks for depends on its own answers
        wanted = spaces.flatten(space)
        wrong = [f"{key} is unknown" for key in sorted(given) if not any(_below(key, leaf) for leaf in wanted)]
        wrong += [f"{leaf} is missing" for leaf in sorted(wanted) if not any(_below(key, leaf) for key in given)]
        if wrong:
            raise UsageError(f"{name}: {', '.join(wrong)}; the keys are {', '.join(wanted)}")
    spaces.check_values(space, given)


def _below(key: str, leaf: str) -> bool:
    """Whether a key of a configuration is a leaf of the space, or a part of a dict that the leaf yields."""
    return key == leaf or key.startswith(f"{leaf}.")


def _changes(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}={value!r}: must be a dict of names to values, e.g. {{'lr': 0.01}}")
    spaces.check_values(space, spaces.flatten(spaces.plain(value, [name])))


def _dimensions(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{name}={value!r}: must be a dict of names to dimensions, e.g. {{'lr': 'loguniform(1e-4, 0.1)'}}"
        )
    spaces.widened(space, spaces.parse(value))


ARGUMENTS: Mapping[str, Mapping[str, Check]] = {
    "add": {"config": _config},
    "clone": {"trial": _trial, "changes": _changes, "warm": _flag, "epochs": _positive},
    "delete": {"trial": _trial, "now": _flag},
    "extend": {"trials": _count, "epochs": _count, "space": _dimensions},
    "pause": {},
    "prioritise": {"trial": _trial, "level": _count},
    "proceed": {},
    "resume": {"trial": _trial, "epochs": _positive},
    "stop": {"trial": _trial, "now": _flag},
    "workers": {"count": _positive, "by": _integer},
}
"""The arguments of each request, with their checks."""

REQUIRED = frozenset({"trial", "config"})
"""Arguments that a request must have."""
