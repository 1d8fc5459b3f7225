"""How a worker serves its backend: one order after another, with reports in return."""

from __future__ import annotations

import time
from collections.abc import Callable

from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import Framework
from hopfleet.support.gpu_load import gpu_load
from hopfleet.support.processes import resident_memory
from hopfleet.worker.protocol import Beat, Execute, GiveUp, Order, Probe, Profiled, Report, Stop
from hopfleet.worker.worker import Worker


def carry_out(worker: Worker, order: Order, report: Callable[[Report], None]) -> bool:
    """Carry out an order; return whether the worker goes on. Raise Broken if it cannot."""
    match order:
        case Execute():
            worker.execute(order.command, order.trial)
        case GiveUp():
            pass  # the unit has ended, or it would have heard the order
        case Probe():
            report(Profiled(worker.probe(order.trial, order.batches, order.partition, order.valid)))
        case Stop():
            worker.close()
            return False
        case _:
            raise AssertionError(f"{order}: is not for a worker")
    return True


def sign_of_life(framework: Framework, placement: Placement) -> Beat:
    """Return a beat with the memory and the load of this process.

    A device in trouble is left to the unit that uses it.
    """
    try:
        on_device = framework.used_memory(placement)
    except Exception:
        on_device = 0
    load = gpu_load(placement.device)
    return Beat(resident_memory(), on_device, time.process_time(), time.monotonic(), load)
