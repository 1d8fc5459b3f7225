"""Profiling: trying some configurations on one real worker, and keeping nothing but their profiles.

A profile holds what a trial takes in time and memory. The run folder records profiles, so that no configuration is
timed twice on the same kind of device.
"""

from __future__ import annotations

import dataclasses
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, Trial
from hopfleet.version import __version__
from hopfleet.worker.spec import Profile

BATCHES = 4
"""Batches of training that profiling times, after one batch to warm up."""

MOST = 16
"""Most configurations that profiling tries."""

Probe = Callable[[Trial, int], Profile]
"""Try a trial and time a number of batches of training: ``Backend.probe``."""


@dataclass(frozen=True)
class Profiles:
    """Profiles by trial number. A trial without a profile counts as the mean of the others."""

    found: Mapping[int, Profile]
    failed: Mapping[int, Profile] = field(default_factory=dict)
    tried: int = 0  #: different configurations tried
    seconds: float = 0.0  #: seconds that profiling took

    @property
    def timed(self) -> bool:
        """Whether any profile has a time."""
        return any(profile.seconds_per_row for profile in self.found.values())

    def of(self, number: int) -> Profile:
        return self.found.get(number, self.mean)

    @cached_property
    def mean(self) -> Profile:
        names = [each.name for each in dataclasses.fields(Profile) if each.type in ("float", "int")]
        means: dict[str, Any] = {name: fmean(getattr(each, name) for each in self.found.values()) for name in names}
        whole = [each.name for each in dataclasses.fields(Profile) if each.type == "int"]
        passed_on = any(each.passed_on for each in self.found.values())
        return Profile(**{**means, **{name: round(means[name]) for name in whole}}, passed_on=passed_on)

    @cached_property
    def feeding(self) -> float:
        """Seconds per row to produce the batches, for any trial."""
        return median([profile.feeding_seconds_per_row for profile in self.found.values()])

    def share(self, fuse: str) -> float:
        """Return the share of its time alone that another member adds to a flotilla; 1 if unmeasured."""
        shares = [getattr(profile, f"{fuse}_share", 0.0) for profile in self.found.values()]
        return next(filter(None, shares), 1.0)


def profile_trials(
    probe: Probe,
    configs: Mapping[int, Config],
    *,
    seed: int,
    known: Mapping[int, Profile],
    budget: Callable[[Mapping[int, Profile]], float],
    clock: Callable[[], float] = time.perf_counter,
) -> Profiles:
    """Profile configurations in random order until the seconds that ``budget`` allows are spent.

    ``budget`` gets the profiles so far. Trials of equal configurations share one profile. ``known`` holds profiles of
    earlier runs.
    """
    groups: dict[str, list[int]] = {}
    for number, config in configs.items():
        groups.setdefault(repr(config), []).append(number)
    drawn = list(groups.values())
    random.Random(derive(seed, "pilot")).shuffle(drawn)  # prose: allow, part of the seed
    drawn.sort(key=lambda numbers: not any(number in known for number in numbers))
    found: dict[int, Profile] = {}
    failed: dict[int, Profile] = {}
    began, longest, tried = clock(), 0.0, 0
    for numbers in drawn[:MOST]:
        profile = next((known[number] for number in numbers if number in known), None)
        if profile is None:
            before = clock()
            # Assume that the next configuration is as slow as the slowest so far.
            if tried and before - began + longest > budget(found):
                break
            profile = probe(trial_for_probe(numbers[0], configs[numbers[0]]), BATCHES)
            longest = max(longest, clock() - before)
        tried += 1
        if profile.error:
            failed.update(dict.fromkeys(numbers, profile))
        elif profile.seconds_per_row > 0:
            found.update(dict.fromkeys(numbers, profile))
    return Profiles(found, failed, tried, clock() - began)


def trial_for_probe(number: int, config: Config) -> Trial:
    return Trial(f"t{number + 1:04d}", number, config, 0, 1)


def unsteady(transform: str, column: str) -> str:
    """Return the warning about a transform that gives different results for the same batch."""
    return (
        f"{transform} is not reproducible: column {column!r} differs if one batch is transformed twice; let it "
        "draw from its rng alone, and depend on nothing that it changes. Until then no result can be reproduced, and "
        "the batches of a trial depend on the trials that train beside it"
    )


# -------------------------------------------------------------------------------------------------------- the record


def to_record(found: Profiles, configs: Mapping[int, Config], device: str) -> dict[str, Any]:
    """Return profiles as JSON, by configuration."""
    by_config = {repr(configs[number]): dataclasses.asdict(profile) for number, profile in found.found.items()}
    return {"hopfleet": __version__, "device": _device_class(device), "found": by_config}


def from_record(record: Mapping[str, Any], configs: Mapping[int, Config], device: str) -> Profiles:
    """Return the recorded profiles of these configurations, if the record was made on such a device."""
    if (record.get("hopfleet"), record.get("device")) != (__version__, _device_class(device)):
        return Profiles({})
    known = {
        config: Profile(**{**found, "metrics": tuple(found["metrics"])}) for config, found in record["found"].items()
    }
    return Profiles({number: known[repr(config)] for number, config in configs.items() if repr(config) in known})


def _device_class(device: str) -> str:
    return f"{device} of {platform.node()}"
