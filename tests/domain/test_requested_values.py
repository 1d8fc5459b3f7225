"""Values that users ask for: what can be meant, and what cannot."""

from __future__ import annotations

import math

import pytest

from hopfleet.domain import space as spaces
from hopfleet.errors import SpaceError

SPACE = {
    "lr": spaces.loguniform(1e-4, 1e-1),
    "rate": spaces.uniform(0, 0.5),
    "shift": spaces.uniform(-1, 1),
    "net": {"width": spaces.randint(1, 9), "depth": spaces.choice([2, 4])},
    "noise": spaces.normal(0, 1),
    "kind": spaces.choice(["a", "b"]),
    "flag": spaces.choice([True, False]),
    "mixed": spaces.choice([1, "a", None]),
    "fixed": 5,
    "twice": spaces.sample_from(lambda config: 2),
}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", math.nan, "lr=nan: must be a finite number, as in loguniform"),
        ("lr", math.inf, "a finite number"),
        ("lr", 0, "lr=0: must be a number above 0, as in loguniform(0.0001, 0.1)"),
        ("lr", "x", "lr='x': must be a number, as in"),
        ("lr", True, "a number"),
        ("rate", -0.1, "rate=-0.1: must be a number of at least 0"),
        ("net.width", -3, "net.width=-3: must be an integer above 0, as in randint(1, 9)"),
        ("net.width", 2.5, "net.width=2.5: must be an integer"),
        ("net.depth", -2, "net.depth=-2: must be a number above 0, as in choice([2, 4])"),
        ("noise", "x", "noise='x': must be a number"),
        ("kind", 3, "kind=3: must be text, as in choice(['a', 'b'])"),
        ("flag", 1, "flag=1: must be True or False"),
        ("fixed", -5, "fixed=-5: must be a number above 0"),
        ("mixed", math.nan, "mixed=nan: must be a finite number"),
        ("twice", math.nan, "a finite number"),
    ],
)
def test_values_that_cannot_be_meant(name, value, words):
    with pytest.raises(SpaceError) as caught:
        spaces.check_values(SPACE, {name: value})
    assert words in str(caught.value)


def test_users_may_look_outside_the_space():
    spaces.check_values(
        SPACE, {"lr": 5, "rate": 3, "shift": -9, "net.width": 99, "noise": -1e9, "kind": "z", "mixed": 7}
    )
    spaces.check_values(lambda trial: None, {"anything": "x"})
    with pytest.raises(SpaceError, match=r"(?m)anything=nan: must be a finite number$"):
        spaces.check_values(lambda trial: None, {"anything": math.nan})


def test_a_space_is_recalled_from_its_text():
    recalled = spaces.recalled(spaces.describe(SPACE))
    assert isinstance(recalled["twice"], spaces.Derived)
    assert recalled["twice"].function({}) is None
    assert {name: recalled[name] for name in SPACE if name != "twice"} == {
        name: value for name, value in SPACE.items() if name != "twice"
    }
    assert callable(spaces.recalled(spaces.describe(lambda trial: None)))
