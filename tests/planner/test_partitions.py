"""Partitions go to nodes in proportion to what nodes can do."""

from __future__ import annotations

from hopfleet.planner.partitions import place_partitions, place_valid


def test_partitions_go_where_the_workers_are() -> None:
    assert place_partitions([1] * 6, {"a": 2, "b": 1}, 1) == {"a": (0, 1, 3, 4), "b": (2, 5)}
    twice = place_partitions([1] * 4, {"a": 1, "b": 1, "c": 1}, 2)
    assert sorted(partition for mine in twice.values() for partition in mine) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert place_partitions([1] * 1, {"a": 1, "b": 1}, 1) == {"a": (0,), "b": (0,)}, "no node is left without work"
    assert place_partitions([1] * 2, {"a": 1}, 3) == {"a": (0, 1)}


def test_faster_nodes_get_more() -> None:
    assert place_partitions([1] * 8, {"cpu": 1.0, "gpu": 3.0}, 1) == {"cpu": (2, 6), "gpu": (0, 1, 3, 4, 5, 7)}
    held = {"cpu": (5,), "gpu": (0,)}
    assert place_partitions([1] * 6, {"cpu": 1.0, "gpu": 2.0}, 1, held) == {"cpu": (3, 5), "gpu": (0, 1, 2, 4)}


def test_who_is_too_slow_for_a_partition_shares_one() -> None:
    placed = place_partitions([1] * 4, {"slow": 1.0, "fast": 50.0, "middle": 40.0}, 1)
    assert len(placed["slow"]) == 1
    assert set(placed["slow"]) < {*placed["fast"], *placed["middle"]}, "other nodes hold it as well"
    assert sum(map(len, placed.values())) == 5
    assert place_partitions([1] * 2, {"slow": 1.0}, 1) == {"slow": (0, 1)}, "there is no other node to share with"


def test_what_a_slow_node_held_goes_to_another_one_as_well() -> None:
    placed = place_partitions([1] * 4, {"slow": 1.0, "fast": 50.0, "middle": 40.0}, 1, {"slow": (0,)})
    assert placed["slow"] == (0,)
    assert sorted(placed["fast"] + placed["middle"]) == [0, 1, 2, 3]


def test_partitions_go_to_nodes_of_their_size() -> None:
    assert place_partitions([100, 100, 200], {"b": 2, "a": 4, "c": 2}, 1) == {"b": (0,), "a": (2,), "c": (1,)}
    assert place_partitions([50, 150, 100], {"a": 1, "b": 2}, 1) == {"a": (2,), "b": (0, 1)}
    assert place_partitions([300, 100], {"a": 3, "b": 1}, 2) == {"a": (0, 1), "b": (0, 1)}


def test_validation_data_is_on_every_node_unless_it_is_large_and_divided() -> None:
    train, nodes = [100] * 4, dict.fromkeys("abcd", 1)
    assert place_valid([], train, nodes, 1) is None
    assert place_valid([25] * 4, train, nodes, 1) is None, "as large as a node's share of the training data"
    assert place_valid([26] * 4, train, nodes, 1) == {"a": (0,), "b": (1,), "c": (2,), "d": (3,)}
    assert place_valid([35] * 3, train, nodes, 1) is None, "a node would have nothing to evaluate on"
    assert place_valid([50] * 4, train, nodes, 2) is None, "each node has twice the training data"
    twice = place_valid([51] * 4, train, nodes, 2)
    assert twice is not None and sorted(part for mine in twice.values() for part in mine) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert place_valid(train, train, nodes, 1) == place_partitions(train, nodes, 1), "folds need no further copies"
    assert place_valid([1] * 9, [1], {"a": 1}, 1) == {"a": tuple(range(9))}, "one node has all"
    assert place_valid([1] * 9, [1], {}, 1) is None
