"""The arguments of requests: their names, kinds and bounds, checked alike before a request is queued and when it is
answered. The one table ``ARGUMENTS`` drives the checks, the documentation and the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import DEPTH, MOST, MOST_WORKERS, NAME, SIZE, excess, integer
from hopfleet.domain.space import Space
from hopfleet.errors import UsageError
from hopfleet.phrases import listed, shown


def check_arguments(request: str, arguments: Any, space: Space) -> None:
    """Raise UsageError, whatever ``arguments`` are, unless the request can be made with them.

    ``space`` is the space of the experiment. Whether the request makes sense at the moment is another question.
    """
    if request not in ARGUMENTS:
        raise UsageError(f"request {shown(request)}: unknown; there are {', '.join(sorted(ARGUMENTS))}")
    known = ARGUMENTS[request]
    takes = f"{request} takes {', '.join(known) or 'no arguments'}"
    if not isinstance(arguments, Mapping):
        raise UsageError(
            f"request {request!r}: its arguments are {shown(arguments)}; must be a dict of names to values"
        )
    for name, value in arguments.items():
        if name not in known:
            raise UsageError(f"{_short(name)}={shown(value)}: unknown; {takes}")
        if wrong := excess(value, name):
            raise UsageError(wrong)
        if value is not None:
            known[name].check(name, value, space)
    for name in REQUIRED.intersection(known):
        if arguments.get(name) is None:
            raise UsageError(f"{name}: is missing; {takes}")


Check = Callable[[str, Any, Space], object]
"""Raises UsageError unless a value suits an argument, given by name, in an experiment with this space."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What an argument must be: in words that name its bound, and as a check."""

    bound: str
    check: Check


def _short(name: Any) -> str:
    return shown(name).strip("'")


def _trial(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, str) or not value or len(value) > NAME:
        raise UsageError(f"{name}={shown(value)}: must be the name of a trial, e.g. 't0003'; hopfleet show lists them")


def _flag(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={shown(value)}: must be True or False")


def _change(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name}={shown(value)}: must be an integer, e.g. 2 or -1")
    integer(name, abs(value), 0, MOST_WORKERS)


def _number(least: int, most: int = MOST) -> Argument:
    return Argument(
        f"an integer from {least} to {most:,}", lambda name, value, space: integer(name, value, least, most)
    )


def _config(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping) or (callable(space) and not value):
        raise UsageError(f"{name}={shown(value)}: must be a dict of names to values")
    given = spaces.flatten(spaces.plain(value, [name]))
    if not callable(space):  # what a function asks for depends on its own answers
        wanted = spaces.flatten(space)
        wrong = [f"{_short(key)} is unknown" for key in sorted(given) if not any(_below(key, leaf) for leaf in wanted)]
        wrong += [f"{leaf} is missing" for leaf in sorted(wanted) if not any(_below(key, leaf) for key in given)]
        if wrong:
            raise UsageError(f"{name}: {listed('', wrong)}; the keys are {listed('', wanted)}")
    spaces.check_values(space, given)


def _below(key: str, leaf: str) -> bool:
    """Whether a key of a configuration is a leaf of the space, or a part of a dict that the leaf yields."""
    return key == leaf or key.startswith(f"{leaf}.")


def _changes(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}={shown(value)}: must be a dict of names to values, e.g. {{'lr': 0.01}}")
    spaces.check_values(space, spaces.flatten(spaces.plain(value, [name])))


def _dimensions(name: str, value: Any, space: Space) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{name}={shown(value)}: must be a dict of names to dimensions, e.g. {{'lr': 'loguniform(1e-4, 0.1)'}}"
        )
    dimensions = spaces.parse(value)
    spaces.widened(space, dimensions)
    spaces.check_dimensions(space, dimensions)


_VALUES = f"{DEPTH} levels and {SIZE:,} characters at most; finite numbers, integers of at most 64 bits"

TRIAL = Argument(f"the name of a trial, of at most {NAME} characters", _trial)
FLAG = Argument("true or false", _flag)

ARGUMENTS: Mapping[str, Mapping[str, Argument]] = {
    "add": {"config": Argument(f"a configuration: {_VALUES}", _config)},
    "clone": {
        "trial": TRIAL,
        "changes": Argument(f"values by dotted path: {_VALUES}", _changes),
        "warm": FLAG,
        "epochs": _number(1),
    },
    "delete": {"trial": TRIAL, "now": FLAG},
    "extend": {
        "trials": _number(0),
        "epochs": _number(0),
        "space": Argument(f"dimensions that yield values of the same kind as before: {_VALUES}", _dimensions),
    },
    "pause": {},
    "prioritise": {"trial": TRIAL, "level": _number(0)},
    "proceed": {},
    "resume": {"trial": TRIAL, "epochs": _number(1)},
    "stop": {"trial": TRIAL, "now": FLAG},
    "workers": {
        "count": _number(1, MOST_WORKERS),
        "by": Argument(f"an integer from -{MOST_WORKERS:,} to {MOST_WORKERS:,}", _change),
    },
}
"""The arguments of each request."""

REQUIRED = frozenset({"trial", "config"})
"""Arguments that a request must have."""
