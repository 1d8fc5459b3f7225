"""Which trials of an experiment may train together, and how many: the bounds within which the scheduler forms
flotillas. ``fuse`` of the experiment selects the bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from functools import partial
from typing import get_args

from hopfleet.domain import batching
from hopfleet.domain.choices import Fuse
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Task
from hopfleet.scheduler.fusion import Fusion
from hopfleet.support.machine import this_machine
from hopfleet.worker.spec import Profile

FUSES: tuple[str, ...] = get_args(Fuse)
"""How trials train together: with the bits of each trial alone, as fast as possible, not at all."""

MEMBERS = 32
"""Most trials that train together on a device with its own memory."""


def fusions(task: Task, batch_size: int, workers: int, profiles: Collection[Profile]) -> dict[str, Fusion]:
    """Return which trials may train together: trials with the same batches, and for ``fast``, first the same model.

    On a device with its own memory, batches of different sizes are drawn from one copy of the partition. ``profiles``
    hold the memory that trials take; ``batch_size`` is that of configurations without their own.
    """
    if task.framework.fusion_blocker:
        return {}
    # Half of the memory of a device is left for everything else on the device.
    spare = min((profile.spare for profile in profiles), default=0) // 2
    memory = spare or this_machine().memory // (4 * workers)
    size = max((profile.memory for profile in profiles), default=0)
    # Members that step in turn have no upper limit of their own; twice as many leave no trial out.
    most = MEMBERS if spare else 2 * MEMBERS
    key = _any_size if spare and task.framework.mixes_batch_sizes else partial(_batch_size, batch_size)
    return {
        "exact": Fusion(key, most=most, memory=memory, size=size),
        "fast": Fusion(key, _form, whole=not spare, most=most, memory=memory, size=size),
    }


def apart(task: Task, fuse: str, batch_size: int, configs: Collection[Config]) -> Iterator[str]:
    """Yield the reasons why no two trials can train together, or may be stacked, although ``fuse`` allows it."""
    if fuse == "off":
        return
    if blocker := task.framework.fusion_blocker:
        yield f"trials of {type(task).__name__} train one at a time, not together: {blocker}"
    sizes = [_batch_size(batch_size, config) for config in configs]
    if fuse != "fast" or len(configs) < 2:
        return
    if len(set(sizes)) == len(sizes):
        yield "fuse='fast': no two trials can be stacked, since stacking needs the same batch_size"
    elif len(set(zip(sizes, map(_form, configs), strict=True))) == len(sizes):
        differ = [
            key
            for key in dict.fromkeys(key for config in configs for key in config)
            if len({str(config.get(key)) for config in configs if not isinstance(config.get(key), float)}) > 1
        ]
        yield (
            f"fuse='fast': any two trials differ in {', '.join(differ)}; they can be stacked only if they have the "
            "same batch_size, and if neither the layers of the model nor its loss depend on the other values"
        )


def _batch_size(batch_size: int, config: Config) -> Hashable:
    """Return the key that trials which may train together have in common."""
    return batching.batch_size(config, batch_size)


def _any_size(config: Config) -> Hashable:
    """Return the same key for all trials."""
    return None


def _form(config: Config) -> Hashable:
    """Return the key that trials whose weights can be stacked have in common; others may be stacked with them, too.

    Which values a model or its loss depends on is known only on a worker.
    """
    return str({key: value for key, value in config.items() if not isinstance(value, float)})
