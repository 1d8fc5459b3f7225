"""Which trials of an experiment may train together, as its ``fuse`` says, and how many: the bounds within which the
scheduler puts flotillas together.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from functools import partial

from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Task
from hopfleet.scheduler.fusion import Fusion
from hopfleet.support.machine import this_machine
from hopfleet.worker.spec import Profile

FUSES = ("exact", "fast", "off")
"""How trials train together: with the bits that they have alone, as fast as can be, not at all."""

MEMBERS = 32
"""Trials that train together on a device of its own memory, at most."""


def fusions(task: Task, batch_size: int, workers: int, profiles: Collection[Profile]) -> dict[str, Fusion]:
    """Which trials may train together: those that want the same batches; if weights are stacked, those alike.

    ``findings`` tell what trials take of memory, and ``batch_size`` is that of configurations without their own.
    """
    if task.framework.fusion_blocker:
        return {}
    # A device has memory of its own; half of it is left for what else is there.
    spare = min((profile.spare for profile in profiles), default=0) // 2
    memory = spare or this_machine().memory // (4 * workers)
    size = max((profile.memory for profile in profiles), default=0)
    # Members that step in turn are never too many: nobody should be left over for their sake.
    most = MEMBERS if spare else 2 * MEMBERS
    return {fuse: Fusion(partial(_kin, fuse, batch_size), most, memory, size) for fuse in FUSES if fuse != "off"}


def apart(task: Task, fuse: str, batch_size: int, configs: Collection[Config]) -> Iterator[str]:
    """Why no two trials can train together although they may."""
    if fuse == "off":
        return
    if blocker := task.framework.fusion_blocker:
        yield f"trials of {type(task).__name__} train one by one: {blocker}"
    if fuse == "fast" and len({_kin(fuse, batch_size, config) for config in configs}) == len(configs) > 1:
        differ = [
            key
            for key in dict.fromkeys(key for config in configs for key in config)
            if len({str(config.get(key)) for config in configs if not isinstance(config.get(key), float)}) > 1
        ]
        yield (
            f"fuse='fast': no two trials can train together, since they differ in {', '.join(differ)}; only those "
            "do that have the same batch_size and differ in numbers with a decimal point alone"
        )


def _kin(fuse: str, batch_size: int, config: Config) -> Hashable:
    """What is the same of trials that may train together."""
    words = {key: value for key, value in config.items() if not isinstance(value, float)}
    return config.get("batch_size", batch_size), str(words) if fuse == "fast" else ""
