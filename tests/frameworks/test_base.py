"""The interface between workers and frameworks: tracked configurations and the engine cache."""

from __future__ import annotations

import weakref

import pytest

from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.tracked_config import TrackedConfig


def read(config: TrackedConfig, how: str) -> None:
    match how:
        case "item":
            config["a"]
        case "get":
            config.get("a"), config.get("none")
        case "pop":
            config.pop("a")
        case "star":
            dict(**config)
        case "items":
            list(config.items())
        case "values":
            list(config.values())
        case "copy":
            config.copy()


@pytest.mark.parametrize(
    ("how", "unused"),
    [
        ("item", {"b.c"}),
        ("get", {"b.c"}),
        ("pop", {"b.c"}),
        ("star", {"b.c"}),
        ("items", {"b.c"}),
        ("values", {"b.c"}),
        ("copy", {"b.c"}),
    ],
)
def test_reading_a_configuration_is_noticed(how: str, unused: set[str]) -> None:
    config = TrackedConfig({"a": 1, "b": {"c": 2}})
    assert set(config.unused()) == {"a", "b.c"}
    read(config, how)
    assert set(config.unused()) == unused
    assert config["b"]["c"] == 2
    assert set(config.unused()) <= {"a"}
    assert config == TrackedConfig(config)


class Part:
    """A part of an engine cache."""


def test_a_part_of_the_engine_cache_is_made_once_and_freed_when_the_cache_closes() -> None:
    one, other = EngineCache(), EngineCache()
    assert one.part(Part) is one.part(Part) is not other.part(Part)
    part = weakref.ref(one.part(Part))
    one.close()
    assert part() is None
