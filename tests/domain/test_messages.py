"""Messages and their form in the journal."""

from __future__ import annotations

import json
import typing
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Work

text = st.text(max_size=8)
finite = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
BY_TYPE = {
    "str": text,
    "str | None": st.none() | text,
    "int": st.integers(),
    "int | None": st.none() | st.integers(),
    "float": finite,
    "bool": st.booleans(),
    "tuple[str, ...]": st.lists(text, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0), max_size=3).map(tuple),
    "tuple[int, ...] | None": st.none() | st.lists(st.integers(0), max_size=3).map(tuple),
    "Mapping[str, RowSum]": st.dictionaries(text, st.builds(RowSum.of, finite, st.integers(0, 10**6)), max_size=3),
    "Mapping[str, float]": st.dictionaries(text, finite, max_size=3),
    "Mapping[str, Any]": st.dictionaries(text, json_values, max_size=3),
    "Config": st.dictionaries(text, json_values, max_size=3),
    "TrialState": st.sampled_from(TrialState),
    "Work": st.sampled_from(Work),
}
EVERY = typing.get_args(m.Event) + typing.get_args(m.Decision) + typing.get_args(m.Command)


def test_every_kind_is_known():
    assert set(m.KINDS.values()) == set(EVERY)
    assert set(typing.get_args(m.Message)) == set(EVERY)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_round_trip_through_json(kind, data):
    message = kind(**{field.name: data.draw(BY_TYPE[field.type], field.name) for field in fields(kind)})
    name, body = m.encode(message)
    assert m.KINDS[name] is kind
    assert m.decode(name, json.loads(json.dumps(body))) == message


def test_round_trip_of_what_is_not_finite():
    metrics = {"loss": float("inf"), "accuracy": float("-inf"), "f1": float("nan")}
    kind, body = m.encode(m.EpochEnded("t", 1, 2, metrics, False))
    back = m.decode(kind, json.loads(json.dumps(body))).metrics
    assert {name: str(value) for name, value in back.items()} == {"loss": "inf", "accuracy": "-inf", "f1": "nan"}


def test_defaults_may_be_left_out():
    """A journal written before a field was added can still be read."""
    assert m.decode("WorkerJoined", {"worker": "w1"}) == m.WorkerJoined("w1", "cpu", None)


def test_unknown_kinds():
    with pytest.raises(KeyError, match="Nonsense"):
        m.decode("Nonsense", {})


def test_messages_are_frozen():
    with pytest.raises(FrozenInstanceError):
        m.Finish(complete=True).complete = False
