"""Profiling: time some configurations on one real worker before a run, and keep nothing but the measurements.

The profile is stored in the run folder, so that nothing is timed twice on the same kind of device.
"""

from __future__ import annotations

import dataclasses
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, Trial
from hopfleet.version import __version__
from hopfleet.worker.spec import Profile

BATCHES = 4
"""Mini-batches of training to time, after one to warm up."""

MOST = 16
"""Maximum number of configurations to profile."""

ARCHITECTURES = 8
"""Maximum number of architectures to check."""

Architecture = tuple[tuple[str, Any], ...]
"""Names of the values of a configuration, with the values that are not numbers."""

Probe = Callable[[Trial, int], Profile]
"""Builds a trial and times a number of batches of training: ``Backend.probe``."""


@dataclass(frozen=True)
class Profiles:
    """Profiles by trial number. An unmeasured trial is assumed to be like the mean of the measured ones."""

    found: Mapping[int, Profile]
    failed: Mapping[int, Profile] = field(default_factory=dict)
    tried: int = 0  #: different configurations
    seconds: float = 0.0  #: of profiling

    @property
    def timed(self) -> bool:
        """Whether any trial was timed."""
        return any(profile.seconds_per_row for profile in self.found.values())

    @property
    def timings(self) -> int:
        """The number of profiles; trials with equal configurations share one."""
        return len({id(profile) for profile in self.found.values()})

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
        """Return the seconds per row to prepare batches, for any trial."""
        return median([profile.feeding_seconds_per_row for profile in self.found.values()])

    def share(self, fuse: str) -> float:
        """Return the time of one more member of a flotilla, relative to its time alone; 1 if it was not measured."""
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
    """Time configurations drawn at random until ``budget``, which may depend on the profiles so far, is spent.

    Trials with equal configurations share the profile of the first. ``known`` are profiles of earlier runs.
    """
    groups: dict[str, list[int]] = {}
    for number, config in configs.items():
        groups.setdefault(repr(config), []).append(number)
    drawn = list(groups.values())
    random.Random(derive(seed, "pilot")).shuffle(drawn)  # prose: allow, it decides which configurations are drawn
    drawn.sort(key=lambda numbers: not any(number in known for number in numbers))
    found: dict[int, Profile] = {}
    failed: dict[int, Profile] = {}
    began, longest, tried = clock(), 0.0, 0
    for numbers in drawn[:MOST]:
        profile = next((known[number] for number in numbers if number in known), None)
        if profile is None:
            before = clock()
            # Assume that the next one is as slow as the slowest so far.
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


def architectures(configs: Mapping[int, Config]) -> dict[int, Config]:
    """Return one configuration per architecture, by number: those that differ in more than numbers."""
    found: dict[Architecture, int] = {}
    for number, config in configs.items():
        found.setdefault(architecture(config), number)
    return {number: configs[number] for number in list(found.values())[:ARCHITECTURES]}


def distinct(configs: Mapping[int, Config]) -> dict[int, Config]:
    """Return the first configurations that differ in anything, by number."""
    found: dict[str, int] = {}
    for number, config in configs.items():
        found.setdefault(repr(config), number)
    return {number: configs[number] for number in list(found.values())[:MOST]}


def architecture(config: Config) -> Architecture:
    """Return what a configuration has beside numbers; equal for configurations of one architecture."""
    return tuple(_choices(config))


def _choices(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names of a configuration's values, with the values that are not numbers."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _choices(value, f"{prefix}{key}.")
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            yield f"{prefix}{key}", None if is_number else repr(value)


def unsteady(made_by: str, column: str) -> str:
    """Return the warning about a transform, or a live data set, whose output differs between two calls."""
    drawn = "random, numpy.random and torch" if made_by == "the live data set" else "its rng"
    return (
        f"{made_by} is not reproducible: column {column!r} differs if one batch is made twice; let it draw from "
        f"{drawn} alone and depend on nothing that it changes. Until then no result can be reproduced, and "
        "the batches of a trial depend on the trials that train beside it"
    )


# -------------------------------------------------------------------------------------------------------- the profile


def to_record(found: Profiles, configs: Mapping[int, Config], device: str) -> dict[str, Any]:
    """Return profiles as JSON."""
    by_config = {repr(configs[number]): dataclasses.asdict(profile) for number, profile in found.found.items()}
    return {"hopfleet": __version__, "device": _device_class(device), "found": by_config}


def from_record(record: Mapping[str, Any], configs: Mapping[int, Config], device: str) -> Profiles:
    """Return the stored profiles of these configurations, if they were made on the same kind of device."""
    if (record.get("hopfleet"), record.get("device")) != (__version__, _device_class(device)):
        return Profiles({})
    known = {
        config: Profile(**{**found, "metrics": tuple(found["metrics"])}) for config, found in record["found"].items()
    }
    return Profiles({number: known[repr(config)] for number, config in configs.items() if repr(config) in known})


def _device_class(device: str) -> str:
    return f"{device} of {platform.node()}"
