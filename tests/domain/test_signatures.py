"""Calls with wrong arguments name the argument that was meant, or the whole call."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hopfleet.domain.signatures import explained


@explained
def search(space, trials=16, *rest, seed, **options):
    return operator_of(space)


def operator_of(space):
    return space + 1


@explained
@dataclass
class Options:
    trials: int = 3
    max_epochs: int = 4


class Plain:
    """Has no constructor of its own."""


@explained
def closed(space, trials=16):
    return space


@explained
def named(*, seed=0, quiet=False):
    """Take arguments by name."""


@explained
def nothing():
    """Take no arguments."""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Options(trails=1), "Options() got an unexpected keyword argument 'trails'; did you mean 'trials'?"),
        (lambda: Options(max_t=1), "Options() got an unexpected keyword argument 'max_t'; did you mean 'max_epochs'?"),
        (lambda: Options(x=1), "Options() got an unexpected keyword argument 'x'; it takes trials, max_epochs"),
        (
            lambda: closed(),
            "missing 1 required positional argument: 'space'; it is called as closed(space, ...)",
        ),
        (lambda: closed(1, 2, 3), "closed() takes from 1 to 2 positional arguments but 3 were given; it is called as"),
        (
            lambda: search(1),
            "keyword-only argument: 'seed'; it is called as search(space, seed=..., ...)",
        ),
        (lambda: named(1), "named() takes 0 positional arguments but 1 was given; it takes seed, quiet by name alone"),
        (lambda: nothing(x=1), "nothing() got an unexpected keyword argument 'x'; it takes no arguments"),
    ],
    ids=["misspelt", "another library", "unknown", "missing", "too many", "keyword", "by name", "none"],
)
def test_a_wrong_call(call, text):
    with pytest.raises(TypeError) as refused:
        call()
    assert text in str(refused.value)


def test_other_errors_stay_as_they_are():
    with pytest.raises(TypeError, match="can only concatenate"):
        search("x", seed=1)
    assert search(1, seed=1) == 2 and Options(5).trials == 5
    assert explained(Plain) is Plain and isinstance(Plain(), Plain)
