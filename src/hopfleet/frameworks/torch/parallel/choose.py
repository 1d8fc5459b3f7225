"""The strategies by name: those that come with Hopfleet, and those that other packages register."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.support import registry

if TYPE_CHECKING:
    from hopfleet.frameworks.torch.parallel.strategy import Strategy

_HERE = "hopfleet.frameworks.torch.parallel"

STRATEGIES: Mapping[str, tuple[str, str]] = {
    "ddp": (f"{_HERE}.ddp", "Ddp"),
    "fsdp": (f"{_HERE}.fsdp", "Fsdp"),
    "gpipe": (f"{_HERE}.pipeline", "Gpipe"),
    "pipeline": (f"{_HERE}.pipeline", "Pipeline"),
    "ps": (f"{_HERE}.ps", "Ps"),
    "ps_async": (f"{_HERE}.ps_async", "PsAsync"),
    "spill": (f"{_HERE}.spill", "Spill"),
}
"""Module and class of each strategy; "single" is the absence of one."""

SERVED = "ps"
"""The strategy whose name may tell a number of servers."""


def find(name: str) -> Callable[..., Strategy]:
    """Return what makes a strategy of that name. Raise UsageError for an unknown name.

    ``"ps/2"`` stands for parameter servers on two of the members, ``"ps/2+1"`` for one more that only serves.
    """
    base, slash, servers = name.partition("/")
    if base == SERVED and slash:
        counts = [int(count) for count in servers.split("+") if count.isdecimal()]
        if len(counts) != servers.count("+") + 1 or len(counts) > 2 or not any(counts):
            raise UsageError(
                f"parallelism={name!r}: after the slash must come a number of servers, at least 1, as in 'ps/1:4', or "
                "the numbers of those that train and of those that only serve, as in 'ps/0+1:4'"
            )
        return functools.partial(find(base), *counts)
    found: object = registry.find("strategy", name, STRATEGIES, argument="parallelism")
    if isinstance(found, tuple):
        module, kind = found
        found = getattr(importlib.import_module(module), kind)
    assert callable(found)
    return found


def names() -> tuple[str, ...]:
    """Return the names of all strategies."""
    return (SINGLE.strategy, *registry.names("strategy", STRATEGIES))


def team_shape(name: str, devices: int = 0) -> TeamShape:
    """Return the shape of teams with a strategy. Raise UsageError for a name or a number of devices that is wrong."""
    if name == SINGLE.strategy:
        if devices > 1:
            raise UsageError(f"parallelism='single:{devices}': 'single' trains on one device; name another strategy")
        return SINGLE
    strategy = find(name)()
    if devices and devices < strategy.fewest:
        raise UsageError(
            f"parallelism='{name}:{devices}': {name!r} needs at least {strategy.fewest} devices, as in "
            f"'{name}:{strategy.fewest}'"
        )
    if strategy.most and devices > strategy.most:
        raise UsageError(f"parallelism='{name}:{devices}': {name!r} uses {strategy.most} device(s) at most")
    return TeamShape(name, strategy.most if strategy.most == strategy.fewest else devices)


def modules(name: str) -> list[str]:
    """Return the modules that a strategy needs, so that workers can import them before they fork."""
    base = name.partition("/")[0]
    return [f"{_HERE}.session", STRATEGIES[base][0]] if base in STRATEGIES else []
