"""Messages and their form in the journal."""

from __future__ import annotations

import json
import typing
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef

text = st.text(max_size=8)
finite = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
columns = st.lists(st.tuples(st.integers(0), finite), min_size=1, max_size=3).map(
    lambda points: (tuple(step for step, _ in points), tuple(value for _, value in points))
)
BY_TYPE = {
    "str": text,
    "str | None": st.none() | text,
    "float | None": st.none() | finite,
    "int": st.integers(),
    "int | None": st.none() | st.integers(),
    "float": finite,
    "bool": st.booleans(),
    "tuple[str, ...]": st.lists(text, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0), max_size=3).map(tuple),
    "tuple[int, ...] | None": st.none() | st.lists(st.integers(0), max_size=3).map(tuple),
    "tuple[TeamShape, ...]": st.lists(st.builds(TeamShape, text, st.integers(0)), max_size=3).map(tuple),
    "Mapping[str, RowSum]": st.dictionaries(text, st.builds(RowSum.of, finite, st.integers(0, 10**6)), max_size=3),
    "Mapping[str, int]": st.dictionaries(text, st.integers(0), max_size=3),
    "Mapping[str, float]": st.dictionaries(text, finite, max_size=3),
    "Mapping[str, Any]": st.dictionaries(text, json_values, max_size=3),
    "Config": st.dictionaries(text, json_values, max_size=3),
    "TrialState": st.sampled_from(TrialState),
    "Placement": st.builds(Placement, st.lists(text, min_size=1, max_size=1).map(tuple))
    | st.builds(Placement, st.lists(text, min_size=2, max_size=3).map(tuple), text),
    "Placement | None": st.none() | st.builds(Placement, st.lists(text, min_size=1, max_size=3).map(tuple), text),
    "Unit": st.builds(Unit, text, st.integers(), st.integers(), st.sampled_from(Work)),
    "StepValues | None": st.none() | st.builds(StepValues, st.dictionaries(text, columns, max_size=3), st.integers(1)),
    "VersionRef": st.builds(VersionRef, text, st.integers(), st.none() | st.integers()),
}
EVERY = typing.get_args(m.Event) + typing.get_args(m.Decision) + typing.get_args(m.Command)


def test_every_kind_is_known():
    assert set(typing.get_args(m.Message)) == set(EVERY)
    assert len({m.kind_of(kind) for kind in EVERY}) == len(EVERY)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_round_trip_through_json(kind, data):
    values = {field.name: data.draw(BY_TYPE[field.type], field.name) for field in fields(kind)}
    if "model" in values:  # a unit and its model are of one trial, which is written once
        values["model"] = values["model"]._replace(trial=values["unit"].trial)
    if "source" in values:  # a clone gets the version that its parent had
        values["source"] = values["source"]._replace(version=values["ref"].version)
    message = kind(**values)
    name, body = m.encode(message)
    assert name == m.kind_of(kind)
    assert m.decode(name, json.loads(json.dumps(body))) == message


def test_round_trip_of_what_is_not_finite():
    metrics = {"loss": float("inf"), "accuracy": float("-inf"), "f1": float("nan")}
    kind, body = m.encode(m.EpochEnded("t", 1, 2, metrics, False))
    back = m.decode(kind, json.loads(json.dumps(body))).metrics
    assert {name: str(value) for name, value in back.items()} == {"loss": "inf", "accuracy": "-inf", "f1": "nan"}


def test_round_trip_of_logged_values_that_are_not_finite():
    logged = StepValues({"x": ((0, 1, 2), (float("inf"), float("-inf"), float("nan")))})
    kind, body = m.encode(m.UnitFinished("w0", Unit("t", 1, 0), 1, 1, 0.0, 1.0, logged=logged))
    assert body["logged"]["batches_per_step"] == 1 and body["logged"]["columns"]["x"][0] == [0, 1, 2]
    back = m.decode(kind, json.loads(json.dumps(body))).logged
    assert [str(value) for value in back.columns["x"][1]] == ["inf", "-inf", "nan"]


def test_defaults_may_be_left_out():
    """A journal written before a field was added can still be read."""
    assert m.decode("WorkerJoined", {"worker": "w1"}) == m.WorkerJoined("w1", Placement.on("cpu"), None)


UNIT, EVALUATION = Unit("t1", 2, 3), Unit("t1", 2, 0, Work.EVALUATE)
REF = VersionRef("t1", 5, 9)

PINNED = [
    (
        m.RunStarted("0.2", 4, 1),
        "RunStarted",
        {"hopfleet": "0.2", "workers": 4, "wishes": 1},  # prose: allow, a wire name
    ),
    (
        m.RunStarted("0.2", 4, 1, {"seed": 0}),
        "RunStarted",
        {"hopfleet": "0.2", "workers": 4, "wishes": 1, "definition": {"seed": 0}},  # prose: allow, a wire name
    ),
    (
        m.WorkerJoined("w1", Placement.on("cpu"), (0, 2)),
        "WorkerJoined",
        {"worker": "w1", "device": "cpu", "partitions": [0, 2]},
    ),
    (
        m.WorkerJoined("w1", Placement.on("cpu"), None, (1,)),
        "WorkerJoined",
        {"worker": "w1", "device": "cpu", "partitions": None, "valid": [1]},
    ),
    (m.PlacePartition("w1", 3), "PlacePartition", {"worker": "w1", "partition": 3}),
    (m.PlacePartition("w1", 3, True), "PlacePartition", {"worker": "w1", "partition": 3, "valid": True}),
    (m.PartitionPlaced("w1", 3, True), "PartitionPlaced", {"worker": "w1", "partition": 3, "valid": True}),
    (
        m.PartitionUnavailable("w1", 3, "no room", True),
        "PartitionUnavailable",
        {"worker": "w1", "partition": 3, "reason": "no room", "valid": True},
    ),
    (m.PartitionsMissing((1,)), "PartitionsMissing", {"partitions": [1]}),
    (m.PartitionsMissing((1,), (0,)), "PartitionsMissing", {"partitions": [1], "valid": [0]}),
    (
        m.UnitFinished("w1", UNIT, 7, 6, 1.0, 2.0, True, {"loss": RowSum.of(0.5, 4)}, ("lr",), 0.5, ("rate",)),
        "UnitFinished",
        {
            "worker": "w1",
            "trial": "t1",
            "epoch": 2,
            "partition": 3,
            "work": "train",
            "attempt": 7,
            "version": 6,
            "started": 1.0,
            "ended": 2.0,
            "hopped": True,
            "unused": ["lr"],
            "absent": ["rate"],
            "share": 0.5,
            "sums": {"loss": RowSum.of(0.5, 4).encode()},
        },
    ),
    (
        m.UnitFinished("w1", EVALUATION, 7, 6, 1.0, 2.0, whole=True),
        "UnitFinished",
        {
            "worker": "w1",
            "trial": "t1",
            "epoch": 2,
            "partition": 0,
            "work": "evaluate",
            "attempt": 7,
            "version": 6,
            "started": 1.0,
            "ended": 2.0,
            "hopped": False,
            "unused": [],
            "share": 1.0,
            "sums": {},
            "whole": True,
        },
    ),
    (
        m.UnitFailed("w1", EVALUATION, 7, 1.0, 2.0, "no", "trace", "task.py:3"),
        "UnitFailed",
        {
            "worker": "w1",
            "trial": "t1",
            "epoch": 2,
            "partition": 0,
            "work": "evaluate",
            "attempt": 7,
            "started": 1.0,
            "ended": 2.0,
            "error": "no",
            "traceback": "trace",
            "place": "task.py:3",
        },
    ),
    (
        m.UnitOverdue("w1", 7, 65.0, 1.5, 60.0, True),
        "UnitOverdue",
        {"worker": "w1", "attempt": 7, "seconds": 65.0, "expected": 1.5, "limit": 60.0, "derived": True},
    ),
    (
        m.VersionSaved(REF, True, "abc", 10),
        "VersionSaved",
        {"trial": "t1", "version": 5, "attempt": 9, "durable": True, "digest": "abc", "size": 10},
    ),
    (
        m.VersionLost(VersionRef("t1", 5, None), "gone", "w1", 7),
        "VersionLost",
        {"trial": "t1", "version": 5, "saved": None, "reason": "gone", "worker": "w1", "attempt": 7},
    ),
    (
        m.RequestMade("stop", {"trial": "t1"}, "ada", 3),
        "OperatorAsked",
        {"wish": "stop", "arguments": {"trial": "t1"}, "who": "ada", "number": 3},  # prose: allow, a wire name
    ),
    (m.RequestAnswered(3, True, "done"), "WishAnswered", {"number": 3, "granted": True, "text": "done"}),
    (
        m.TrialEnded("t1", TrialState.STOPPED, "why", ""),
        "TrialEnded",
        {"trial": "t1", "state": "stopped", "reason": "why", "traceback": ""},
    ),
    (
        m.RunUnit("w1", UNIT, 7, REF, True, "abc", 6, True, True),
        "RunUnit",
        {
            "worker": "w1",
            "trial": "t1",
            "epoch": 2,
            "partition": 3,
            "work": "train",
            "attempt": 7,
            "version": 5,
            "saved": 9,
            "last": True,
            "digest": "abc",
            "flotilla": 6,
            "more": True,
            "ahead": True,
        },
    ),
    (
        m.RunUnit("w1", UNIT, 7, REF, metric=0.5),
        "RunUnit",
        {
            "worker": "w1",
            "trial": "t1",
            "epoch": 2,
            "partition": 3,
            "work": "train",
            "attempt": 7,
            "version": 5,
            "saved": 9,
            "last": False,
            "digest": "",
            "flotilla": 0,
            "more": False,
            "ahead": False,
            "metric": 0.5,
        },
    ),
    (
        m.SaveVersion("w1", REF, True, 4, "abc"),
        "SaveVersion",
        {"worker": "w1", "trial": "t1", "version": 5, "attempt": 9, "durable": True, "saved": 4, "digest": "abc"},
    ),
    (
        m.SaveVersion("w1", REF, True, waits=True, replaces=(3, 4)),
        "SaveVersion",
        {
            "worker": "w1",
            "trial": "t1",
            "version": 5,
            "attempt": 9,
            "durable": True,
            "saved": None,
            "digest": "",
            "waits": True,
            "replaces": [3, 4],
        },
    ),
    (m.DropVersion(REF), "DropVersion", {"trial": "t1", "version": 5, "attempt": 9}),
    (
        m.CopyVersion(REF, VersionRef("t2", 5, 11), "abc"),
        "CopyVersion",
        {"parent": "t1", "version": 5, "saved": 9, "trial": "t2", "attempt": 11, "digest": "abc"},
    ),
]


@pytest.mark.parametrize(("message", "kind", "body"), PINNED, ids=lambda value: value if type(value) is str else "")
def test_kinds_and_fields_in_the_journal_never_change(message, kind, body):
    assert m.encode(message) == (kind, body)


def test_teams_of_devices():
    team = m.WorkerJoined("w1", Placement(("cuda:0", "cuda:1"), "ddp"))
    body = {"worker": "w1", "device": "cuda:0", "devices": ["cuda:0", "cuda:1"], "strategy": "ddp", "partitions": None}
    assert m.encode(team) == ("WorkerJoined", body)
    assert (str(team.placement), team.placement.kind) == ("cuda:0+cuda:1 (ddp)", "cuda")
    assert str(Placement.on("cpu")) == "cpu"


def test_evaluations_of_journals_before_format_4():
    start = {"worker": "w1", "trial": "t1", "epoch": 2, "partition": 0, "attempt": 7, "version": 5, "saved": 9}
    assert m.decode("Evaluate", start) == m.RunUnit("w1", EVALUATION, 7, REF)
    ended = {"worker": "w1", "trial": "t1", "epoch": 2, "partition": 0, "attempt": 7, "started": 1.0, "ended": 2.0}
    assert m.decode("Evaluated", {**ended, "sums": {}}) == m.UnitFinished("w1", EVALUATION, 7, 0, 1.0, 2.0)


def test_a_body_without_a_field_that_must_be_there():
    with pytest.raises(TypeError, match="reason"):
        m.decode("WorkerLost", {"worker": "w1"})


def test_unknown_kinds():
    with pytest.raises(KeyError, match="Nonsense"):
        m.decode("Nonsense", {})


def test_messages_are_frozen():
    with pytest.raises(FrozenInstanceError):
        m.Finish(complete=True).complete = False
