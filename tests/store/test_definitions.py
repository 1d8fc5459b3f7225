"""A definition on disk is refused at the first part that no experiment has."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.store.definitions import OPTIONAL, REQUIRED, problem
from tests.helpers.definitions import definition

DATA = {"url": "/data", "rows": 9, "partitions": 3, "fingerprint": "abc"}
WARM = {"names": ["a"], "trials": [{"config": {}, "metrics": {}}]}

#: Values that experiments have, and values that none has, by key.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "name": (["a", "a.b-c_1", "a" * 128], ["", "-a", "a/b", "a" * 129, 1, None]),
    "created": (["2026-01-15T09:30:12+00:00"], ["soon", 7, None]),
    "task": ([{"module": "m", "name": "n"}], [{}, {"module": "m"}, {"module": "m", "name": 1}, [], "m"]),
    "space": ([{}, "a function"], [None, [], True]),
    "search": ([{}], ["grid", None]),
    "metric": (["loss"], [1, None]),
    "mode": (["min", "max"], ["mean", "", None]),
    "partition_rows": ([[], [3, 4]], [3, [None], [0.5], "3"]),
    "bare_task": ([True, False], [0, None, "yes"]),
    "seed": ([0, -1, 10**30], [True, 0.5, "0"]),
    "batch_size": ([1, 2**63 - 1], [0, -1, 2**63, True, 1.0, "1"]),
    "drop_last": ([True, False], [0, None, "yes"]),
    "train": ([DATA], [None, {}, DATA | {"rows": 0}, DATA | {"partitions": True}, DATA | {"fingerprint": 1}]),
    "valid": ([None, DATA], [{}, DATA | {"url": None}, False]),
    "device": (["cpu"], [0]),
    "threads": ([1], [0, None]),
    "origin": (
        [{}, {"how": "script", "arguments": ["a"], "workers": None}, {"workers": 2}, {"workers": "2", "other": 1}],
        [None, {"how": 1}, {"arguments": "a"}, {"arguments": [1]}, {"overrides": []}, {"workers": True}],
    ),
    "settings": ([{}], [[]]),
    "code": ([{}], [None]),
    "others": ([[], [["loss", "min"]]], [[["loss"]], [["loss", "mean"]], [[1, "min"]], [["a", "min", 1]], ["ab"], {}]),
    "limits": ([[], ["a"]], ["a", [1]]),
    "rules": ([[]], [[None]]),
    "points": ([[{}]], [["a"], {}]),
    "warm_start": ([WARM], [{}, WARM | {"names": [1]}, WARM | {"trials": [{"config": {}}]}, {"names": []}]),
    "fuse": (["off"], [None]),
    "store": ([""], [1]),
    "order": (["a"], [1]),
    "policy": (["a"], [1]),
    "backend": (["a"], [1]),
}


def test_every_key_is_tested() -> None:
    assert set(VALUES) == {*REQUIRED, *OPTIONAL}


@pytest.mark.parametrize("key", VALUES)
def test_values_that_experiments_have_and_others(key: str) -> None:
    good, bad = VALUES[key]
    for value in good:
        assert problem(definition("mine") | {key: value}) == ""
    for value in bad:
        told = problem(definition("mine") | {key: value})
        assert told.startswith(f"{key!r} has a value that no experiment has: "), value


def test_what_is_missing_is_named() -> None:
    assert problem([]) == "it is not a JSON object"
    for key in REQUIRED:
        left = {name: value for name, value in definition("mine").items() if name != key}
        assert problem(left) == f"it has no {key!r}"


def test_long_values_are_cut() -> None:
    assert problem(definition("mine", metric=["x" * 76])).endswith(": " + ascii(["x" * 76]))
    assert problem(definition("mine", metric=["x" * 77])).endswith(": ['" + "x" * 75 + "...")
