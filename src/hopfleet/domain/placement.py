"""Where a trial's model lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TeamShape(NamedTuple):
    """How a worker trains each trial: the strategy, and the number of devices."""

    strategy: str = "single"
    #: 0 stands for all devices that each worker can have.
    devices: int = 1

    def __str__(self) -> str:
        return self.strategy if self.devices in (0, 1) else f"{self.strategy}:{self.devices}"


STRATEGY = "parallelism"
"""The key of a configuration that names the strategy of its trial."""

Strategies = Mapping[str, Mapping[str, str]]
"""Strategies by the value of a key, as text: ``{"width": {"512": "ddp"}}``. Other values train on one device."""


def strategy_of(config: Mapping[str, Any], strategies: Strategies, usual: str) -> str:
    """Return the strategy of a trial; ``usual`` if neither its configuration nor ``strategies`` names one."""
    if STRATEGY in config:
        return str(config[STRATEGY]).partition(":")[0]
    named = (by_value.get(str(config.get(key)), SINGLE.strategy) for key, by_value in strategies.items())
    return next(named, usual)


SINGLE = TeamShape()
"""A whole model on one device."""

AUTO = TeamShape("auto", 0)
"""The strategy and the devices that trial runs find to be best."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices that a unit occupies, and the strategy that spreads its model over them."""

    devices: tuple[str, ...]
    strategy: str = "single"

    @classmethod
    def on(cls, device: str) -> Placement:
        """Return the placement of a whole model on one device."""
        return cls((device,))

    @property
    def shape(self) -> TeamShape:
        """The strategy and the number of devices; the arithmetic of a visit depends on nothing else here."""
        return TeamShape(self.strategy, len(self.devices))

    @property
    def device(self) -> str:
        """The first device, e.g. ``cuda:1``; the only one unless the placement is a team."""
        return self.devices[0]

    @property
    def kind(self) -> str:
        """The kind of the devices, e.g. ``cuda``."""
        return self.device.partition(":")[0]

    def __str__(self) -> str:
        devices = "+".join(self.devices)
        return devices if self.strategy == "single" else f"{devices} ({self.strategy})"


CPU = Placement.on("cpu")
