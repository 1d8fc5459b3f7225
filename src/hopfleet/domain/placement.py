"""Where a trial's model lives."""

from __future__ import annotations

from dataclasses import dataclass


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
    def device(self) -> str:
        """The first device, e.g. ``cuda:1``; the only one unless the placement is a team."""
        return self.devices[0]

    @property
    def kind(self) -> str:
        """The kind of the devices, e.g. ``cuda``."""
        return self.device.partition(":")[0]

    def __str__(self) -> str:
        return self.device if len(self.devices) == 1 else f"{'+'.join(self.devices)} ({self.strategy})"


CPU = Placement.on("cpu")
