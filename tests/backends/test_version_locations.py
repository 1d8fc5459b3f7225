"""Which nodes hold which versions."""

from __future__ import annotations

import threading

from hopfleet.backends.ray.version_locations import VersionLocations
from hopfleet.domain.version_ref import VersionRef

SAVE, OTHER = VersionRef("t0", 4, 1), VersionRef("t1", 4, 1)


def test_a_version_is_dropped_where_it_is_and_each_node_is_told_once() -> None:
    where = VersionLocations()
    where.add(SAVE, "one")
    where.add(SAVE, "two")
    assert where.nodes(SAVE) == {"one", "two"}
    assert where.drop(SAVE)
    assert where.nodes(SAVE) == frozenset()
    assert where.drops("one") == [SAVE] and where.drops("one") == []
    assert where.drops_elsewhere(["one"]) == {"two": [SAVE]} and where.drops_elsewhere(["one"]) == {}
    assert not where.drop(SAVE)


def test_with_a_node_goes_what_was_there_alone() -> None:
    where = VersionLocations()
    where.add(SAVE, "one")
    where.add(OTHER, "one")
    where.add(OTHER, "two")
    where.add(VersionRef("t2", 1, 1), "one")
    where.drop(VersionRef("t2", 1, 1))
    assert where.alone("one") and not where.alone("two")
    assert where.lose("one") == [SAVE]
    assert where.nodes(OTHER) == {"two"}
    assert where.drops("one") == []


def test_a_version_is_fetched_from_elsewhere_only_if_it_is_not_here() -> None:
    where = VersionLocations()
    assert where.source(SAVE, "one") is None
    where.add(SAVE, "two")
    where.add(SAVE, "three")
    assert where.source(SAVE, "one") == "three", "always the same"
    assert where.source(SAVE, "two") is None


def test_a_version_that_is_in_the_storage_too() -> None:
    where = VersionLocations()
    where.add(SAVE, "one")
    where.add_durable(SAVE)
    where.add_durable(OTHER)
    assert where.source(SAVE, "two") == "one", "other nodes get it from there"
    assert where.source(OTHER, "two") is None, "no node holds it"
    assert not where.alone("one") and where.lose("one") == []
    assert where.nodes(SAVE) == frozenset() and not where.drop(SAVE)
    where.add(SAVE, "one")
    assert where.alone("one"), "what was known of the lost file does not count for a new one"
    where.add_durable(SAVE)
    assert not where.drop(SAVE), "the storage must drop it as well"
    assert where.drops("one") == [SAVE]


def test_a_trial_is_forgotten() -> None:
    where = VersionLocations()
    where.add(SAVE, "one")
    where.add_durable(SAVE)
    where.add(OTHER, "one")
    where.forget("t0")
    assert not where.nodes(SAVE) and where.nodes(OTHER)
    where.add(SAVE, "one")
    assert where.drop(SAVE)


def test_versions_are_dropped_by_another_thread() -> None:
    where, count = VersionLocations(), 3000
    told: list[tuple[str, int, int]] = []

    def drop() -> None:
        for number in range(count):
            where.add(("t0", number, 1), f"n{number % 50}")
            where.drop(("t0", number, 1))

    thread = threading.Thread(target=drop)
    thread.start()
    while thread.is_alive():
        told += [save for saves in where.drops_elsewhere(["n0"]).values() for save in saves]
    told += [save for saves in where.drops_elsewhere([]).values() for save in saves]
    assert sorted(version for _, version, _ in told) == list(range(count))
