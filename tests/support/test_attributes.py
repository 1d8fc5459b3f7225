"""Attributes that a class does not have."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from hopfleet.support.attributes import Signposted


class Answer(Signposted):
    ELSEWHERE: ClassVar = {"result": "answer.value"}

    def __init__(self) -> None:
        self.value = 42

    @property
    def broken(self) -> int:
        return int(self.value.real.nothing)


def test_a_missing_attribute_names_its_counterpart() -> None:
    with pytest.raises(AttributeError, match=r"'Answer' object has no attribute 'result'; write answer.value"):
        _ = Answer().result  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'Answer' object has no attribute 'other'$"):
        _ = Answer().other  # type: ignore[attr-defined]


def test_everything_else_is_as_usual() -> None:
    assert not hasattr(Answer(), "result")
    assert pickle.loads(pickle.dumps(Answer())).value == 42
    with pytest.raises(AttributeError, match=r"'int' object has no attribute 'nothing'"):
        _ = Answer().broken
