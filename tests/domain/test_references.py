"""References to secret values."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from hopfleet.domain.secrets import hidden, place, references, revealed, secret
from hopfleet.domain.space import configure, describe
from hopfleet.errors import SpaceError


def test_a_reference_says_where_and_not_what():
    assert secret(env="TOKEN") == "*** (env TOKEN)"
    assert place(secret(env="TOKEN")) == ("env", "TOKEN")
    assert place(secret(file=PurePath("/run/my (own) key"))) == ("file", "/run/my (own) key")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "must have exactly one of"),
        ({"env": "A", "file": "/b"}, "must have exactly one of"),
        ({"env": "A B"}, r"secret\(env='A B'\): must be the name"),
        ({"env": 3}, r"secret\(env=3\): must be the name"),
        ({"file": "relative"}, r"secret\(file='relative'\): must be an absolute path"),
        ({"file": 3}, "must be an absolute path"),
        ({"file": "/a\nb"}, "must be an absolute path"),
    ],
)
def test_what_names_nothing(given, words):
    with pytest.raises(SpaceError, match=words):
        secret(**given)


def test_a_value_is_refused_and_not_repeated():
    with pytest.raises(SpaceError) as caught:
        secret("hunter2")
    assert "hunter2" not in str(caught.value)


def test_it_is_a_constant_like_any_other():
    space = {"lr": 0.1, "hub": {"token": secret(env="TOKEN")}}
    config = configure(space, seed=0, number=0)
    assert config == {"lr": 0.1, "hub": {"token": "*** (env TOKEN)"}}
    assert describe(space)["hub"] == {"token": "*** (env TOKEN)"}


def test_references_are_found_and_replaced_wherever_they_are():
    config = {"a": secret(env="A"), "b": [1, secret(env="B"), {"c": secret(env="A")}], "d": "***", "e": None}
    assert references(config) == {"*** (env A)", "*** (env B)"}
    values = {"*** (env A)": "one", "*** (env B)": "two"}
    assert revealed(config, values) == {"a": "one", "b": [1, "two", {"c": "one"}], "d": "***", "e": None}
    assert config["a"] == "*** (env A)"


def test_no_form_of_a_value_is_left():
    assert hidden("ab or a or b", ["a", "ab"]) == "*** or *** or b"
    assert hidden("key='x\\ny' x\ny", ["x\ny"]) == "key='***' ***"
    assert hidden("nothing", []) == "nothing"
