"""Where trained models work: the backend and its workers."""

from __future__ import annotations

from dataclasses import dataclass

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend
from hopfleet.domain.choices import Auto
from hopfleet.search.base import at_least_one
from hopfleet.support import registry
from hopfleet.support.machine import choose_workers, this_machine


@dataclass(frozen=True)
class Place:
    """Where the units of a call run. With "auto" workers, ``few`` rows do not leave this process."""

    workers: int | Auto = "auto"
    backend: Backend | str = "local"

    def found(self, units: int, device: str, devices: int, threads: int, *, few: bool) -> tuple[Backend, int]:
        """Return the backend, and how many workers it starts."""
        backend = self.backend
        if self.workers == "auto":
            count, _ = choose_workers(this_machine(), device=device, devices=devices, threads=threads, trials=units)
            backend, count = ("inline", 1) if backend == "local" and few else (backend, count)
        else:
            count = min(at_least_one("workers", self.workers), units)
        return (registry.find("backend", backend, BACKENDS)() if isinstance(backend, str) else backend), count
