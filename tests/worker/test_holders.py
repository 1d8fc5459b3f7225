"""What dicts and plain objects contain is put back in place."""

from __future__ import annotations

import argparse
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hopfleet.worker.surroundings.holders import MOST_ITEMS, holder_of


@dataclass(frozen=True)
class Options:
    rate: float = 0.1
    layers: list[int] = field(default_factory=lambda: [8, 8])


class Vocabulary:
    def __init__(self) -> None:
        self.table = np.zeros(3)


@pytest.mark.parametrize(
    ("made", "change"),
    [
        ({"a": 1}, lambda held: held.update(a=2)),
        ({"a": 1}, lambda held: held.update(a=True)),
        ({"a": 1, "b": 2}, lambda held: held.update({"a": held.pop("a")})),
        ({"a": {"b": [1, {2}]}}, lambda held: held["a"]["b"][1].add(3)),
        ({"a": {"b": [1]}}, lambda held: held.update(a={"b": [1]})),
        ({"a": (1, 2)}, lambda held: held.clear()),
        (OrderedDict(a=1), lambda held: held.move_to_end("a") or held.update(b=1)),
        (Counter("aab"), lambda held: held.update("a")),
        (defaultdict(list), lambda held: held["new"]),
        (SimpleNamespace(a=1), lambda held: setattr(held, "b", 1)),
        (argparse.Namespace(dtype=torch.float32), lambda held: setattr(held, "dtype", torch.float64)),
        (Options(), lambda held: held.layers.append(3)),
        (Options(), lambda held: object.__setattr__(held, "rate", 0.2)),
    ],
)
def test_a_change_is_seen_and_put_back_in_place(made: Any, change: Any) -> None:
    before, holder = repr(made), holder_of(made)
    assert holder is not None and holder.is_current
    lists = [part for part in vars(made).values() if isinstance(part, list)] if isinstance(made, Options) else []
    change(made)
    assert not holder.is_current and holder_of(made) != holder
    assert holder.restore() is made
    assert repr(made) == before and holder.is_current and holder_of(made) == holder
    assert all(part is made.layers for part in lists)


@pytest.mark.parametrize(
    "made",
    [
        {"a": torch.zeros(2)},
        {"a": [object()]},
        dict.fromkeys(range(MOST_ITEMS + 1)),
        {"a": [0] * MOST_ITEMS},
        [1, 2],
        {1, 2},
        Vocabulary(),
        Options,
        torch.nn.Linear(2, 2),
        print,
        1,
    ],
)
def test_what_holds_no_settings(made: Any) -> None:
    assert holder_of(made) is None


def test_a_dict_that_contains_itself_holds_no_settings() -> None:
    made: dict[str, Any] = {}
    made["self"] = made
    assert holder_of(made) is None


def test_a_holder_that_gets_a_tensor_is_another_one() -> None:
    made: dict[str, Any] = {"a": 1}
    holder = holder_of(made)
    made["a"] = torch.zeros(1)
    assert holder is not None and not holder.is_current and holder_of(made) is None
    assert holder.restore() == {"a": 1}


def test_equal_dicts_are_two_holders() -> None:
    assert holder_of({"a": 1}) != holder_of({"a": 1})


def test_a_set_is_the_same_in_whatever_order_it_was_filled() -> None:
    made = {"layers": {0, 8}}  # these two share a place in the table, so the first one stands first
    holder = holder_of(made)
    assert holder is not None
    made["layers"].clear()
    made["layers"].update([8, 0])
    assert [*made["layers"]] == [8, 0] and holder.is_current
    made["layers"].clear()
    made["layers"].update([0, 8.0])
    assert not holder.is_current
