"""Arguments of other types than the annotations name are refused before a function does anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from hopfleet.domain.signatures import checked, explained, signposted
from hopfleet.errors import DataError, UsageError

if TYPE_CHECKING:
    from nowhere import Unknown

called: list[str] = []


@checked
def prepare(
    source: Any,
    folder: str | os.PathLike[str] = "",
    *,
    partitions: int = 1,
    share: float = 0.5,
    overwrite: bool = False,
    mode: Literal["min", "max"] | None = None,
    names: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    engine: Unknown | None = None,
) -> None:
    called.append("prepare")


@explained
@dataclass(frozen=True, slots=True)
class Split:
    fractions: Mapping[str, float]
    column: str = ""

    def __post_init__(self) -> None:
        if self.column == self.fractions:
            raise DataError("column: knows more than its type")
        dict(self.fractions)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"overwrite": "no"}, "overwrite='no': must be True or False"),
        ({"overwrite": None}, "overwrite=None: must be True or False"),
        ({"overwrite": 1}, "overwrite=1: must be True or False"),
        ({"partitions": 2.0}, "partitions=2.0: must be an integer"),
        ({"partitions": True}, "partitions=True: must be an integer"),
        ({"partitions": np.zeros(2)}, r"partitions=array\(\[0., 0.\]\): must be an integer"),
        ({"share": "half"}, "share='half': must be a number"),
        ({"folder": 3}, "folder=3: must be a text or a path"),
        ({"mode": "maxx"}, "mode='maxx': must be 'min', 'max' or None"),
        ({"mode": []}, r"mode=\[\]: must be 'min', 'max' or None"),
        ({"names": "lr"}, "names='lr': must be a list"),
        ({"names": 1}, "names=1: must be a list"),
        ({"types": ["zip"]}, r"types=\['zip'\]: must be a dictionary or None"),
        ({"progress": 1}, "progress=1: must be a function or None"),
    ],
)
def test_a_wrong_type_is_named_before_anything_happens(wrong: dict[str, Any], text: str) -> None:
    called.clear()
    with pytest.raises(UsageError, match=text):
        prepare(None, **wrong)
    assert not called


@pytest.mark.parametrize(
    "right",
    [
        {"overwrite": True},
        {"overwrite": np.bool_(True)},
        {"partitions": np.int64(2)},
        {"share": 1},
        {"share": np.float32(1)},
        {"mode": None},
        {"mode": "max"},
        {"names": ["lr"]},
        {"names": np.array(["lr"])},
        {"names": {"lr": 1}.keys()},
        {"types": {}},
        {"progress": print},
        {"engine": object()},  # the annotation is known to type checkers alone
    ],
)
def test_whatever_can_stand_for_a_type_is_taken(right: dict[str, Any], tmp_path: os.PathLike[str]) -> None:
    called.clear()
    prepare(object(), tmp_path, **right)
    assert called == ["prepare"]


def test_a_constructor_may_say_more_than_the_type() -> None:
    with pytest.raises(DataError, match="knows more"):
        Split("a", "a")  # type: ignore[arg-type]
    for wrong in (None, [0.8, 0.2], 3):
        with pytest.raises(UsageError, match=r"(?m)^fractions=.*: must be a dictionary$"):
            Split(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"(?m)^column=5: must be a text$"):
        Split({"a": 0.5}, 5)  # type: ignore[arg-type]


def test_types_that_are_no_texts_and_calls_without_types() -> None:
    def plain(count, *rest, name="x"):  # type: ignore[no-untyped-def]
        return count

    plain.__annotations__["count"] = int
    assert signposted(plain)("a") == "a"
    with pytest.raises(UsageError, match="count='a': must be an integer"):
        checked(plain)("a")


def test_calls_that_cannot_be_bound_say_what_is_missing() -> None:
    with pytest.raises(TypeError, match="it is called as prepare"):
        prepare()  # type: ignore[call-arg]
