"""Every argument of every request has a bound, and no request, whatever its arguments are, ends a run."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.controller import requests
from hopfleet.controller.request_arguments import ARGUMENTS, REQUIRED, check_arguments
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import DEPTH, MOST, MOST_WORKERS, SIZE, excess
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search import PBT, Grid, Random
from tests.helpers.controller_desk import Desk
from tests.helpers.processes import ROOT
from tests.helpers.requested import anything, deep

SPACE = {
    "lr": spaces.loguniform(1e-4, 0.1),
    "width": spaces.randint(1, 9),
    "clip": spaces.choice([1.0, math.inf]),
    "kind": spaces.choice(["a", "b"]),
}
CONFIG = {"lr": 0.1, "width": 2, "clip": math.inf, "kind": "a"}
GOOD = {"trial": "t0001", "config": CONFIG}

#: A value beyond the bound for each argument that a number, a text or a structure can be sent for.
BEYOND: dict[str, list[Any]] = {
    "trial": ["t" * 201, 10**20, deep(900)],
    "now": [2, "yes" * SIZE, deep(900)],
    "warm": [2, "yes" * SIZE, deep(900)],
    "config": [deep(900), {**CONFIG, "lr": math.nan}, {**CONFIG, "width": 10**400}, {**CONFIG, "kind": "x" * SIZE}],
    "changes": [deep(900), {"lr": math.nan}, {"lr": math.inf}, {"width": 10**5000}, {"kind": "x" * SIZE}],
    "epochs": [MOST + 1, 10**20, 10**5000, math.inf, math.nan, -1],
    "trials": [MOST + 1, 10**12, 10**5000, math.inf, -1],
    "level": [MOST + 1, int("9" * 3000), math.nan, -1],
    "count": [MOST_WORKERS + 1, 10**5000, 0],
    "by": [MOST_WORKERS + 1, -MOST_WORKERS - 1, 10**5000],
    "space": [
        deep(900),
        {"lr": "banana"},
        {"lr": "choice(['a', 'b'])"},
        {"width": "uniform(1, 9)"},
        {"width": "normal(5, 1)"},
        {"kind": "randint(0, 3)"},
        {"kind": 7},
        {"lr": "choice([nan])"},
        {"width": f"randint(0, {10**30})"},
        {"kind": f"choice({'[' * 5000})"},
    ],
}

CASES = [(request, name) for request, known in ARGUMENTS.items() for name in known]


@pytest.mark.parametrize(("request_", "name"), CASES)
def test_every_argument_has_a_bound(request_: str, name: str) -> None:
    assert ARGUMENTS[request_][name].bound
    rest = {key: value for key, value in GOOD.items() if key in ARGUMENTS[request_] and key != name}
    for value in BEYOND[name]:
        with pytest.raises(UsageError) as caught:
            check_arguments(request_, {**rest, name: value}, SPACE)
        text = str(caught.value)
        # A structure is named by the part that is wrong.
        parts = value if isinstance(value, dict) else {}
        assert text.startswith((name, *parts)) and "must" in text and len(text) < 700, text


def test_the_table_has_every_argument_of_every_request() -> None:
    for request, answer in requests.REQUESTS.items():
        assert [*inspect.signature(answer).parameters][1:] == [*ARGUMENTS[request]]
    assert {name for known in ARGUMENTS.values() for name in known} == BEYOND.keys() >= REQUIRED


def test_the_bounds_are_documented() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    for request, known in ARGUMENTS.items():
        for name, argument in known.items():
            assert f"| `{request}` | `{name}` | {argument.bound} |" in text


@settings(deadline=None)
@given(st.sampled_from([*ARGUMENTS, "drain", "", "\ud800"]), st.data())
def test_no_request_ends_a_run_and_each_is_read_back(request_: str, data: st.DataObject) -> None:
    names = st.sampled_from([*ARGUMENTS.get(request_, {}), "other", "1"])
    arguments = data.draw(st.dictionaries(names, anything(), max_size=4))
    desk = Desk("w1", trials=2, max_workers=8)
    asked = m.RequestMade(request_, arguments, "ada", 1)
    answer, *follow = desk.tell(asked)
    assert isinstance(answer, m.RequestAnswered) and len(answer.text) <= 2000
    assert answer.granted or not follow
    if not any(excess(value) for value in arguments.values()):
        for message in (asked, answer, *follow):
            assert repr(m.decode(*m.encode(message))) == repr(message)


def test_a_problem_of_the_queue_is_the_answer() -> None:
    (answer,) = Desk("w1").tell(m.RequestMade("stop", {}, "ada", 1, "arguments: are damaged"))
    assert answer == m.RequestAnswered(1, False, "arguments: are damaged")


def test_a_request_of_the_queue_cannot_drain_a_run() -> None:
    desk = Desk("w1")
    (answer,) = desk.tell(m.RequestMade("drain", {}, "ada", 1))
    assert not answer.granted and not desk.controller.draining


def test_a_search_that_raises_anything_refuses() -> None:
    class Broken(Random):
        def extend(self, **more: Any) -> None:
            raise KeyError("oops")

    (answer,) = Desk("w1", search=Broken(1, 1)).tell(m.RequestMade("extend", {"trials": 1}, "ada", 1))
    assert (answer.granted, answer.text) == (False, "extend: the request raised KeyError: 'oops'")


def test_a_space_that_no_draw_satisfies_is_refused() -> None:
    """Otherwise the search would raise at its next suggestion, and again whenever the run is resumed."""
    desk = Desk("w1")
    object.__setattr__(desk.search.goal, "constraints", (lambda config: config["x"] < 2,))
    (answer,) = desk.tell(m.RequestMade("extend", {"trials": 1, "space": {"x": "uniform(3, 4)"}}, "ada", 1))
    assert not answer.granted and "no configuration satisfied" in answer.text


def test_workers_are_bounded_by_the_run() -> None:
    desk = Desk("w1", max_workers=8)
    (answer,) = desk.tell(m.RequestMade("workers", {"count": 9}, "ada", 1))
    assert (answer.granted, answer.text) == (False, "workers=9: must be at most 8; this run may have 8")
    (answer,) = desk.tell(m.RequestMade("workers", {"by": 8}, "ada", 1))
    assert answer.text == "workers=9: must be at most 8; this run may have 8"
    answer, added, *_ = desk.tell(m.RequestMade("workers", {"count": 8}, "ada", 1))
    assert answer.granted and added == m.AddWorkers(7)


def test_infinity_is_allowed_where_the_space_has_it() -> None:
    check_arguments("add", {"config": CONFIG}, SPACE)
    check_arguments("add", {"config": {"clip": math.nan}}, {"clip": math.nan})
    for value in (-math.inf, math.nan, "a"):
        with pytest.raises(SpaceError, match=r"clip=.*: must be a (finite )?number, as in choice\(\[1.0, inf\]\)"):
            check_arguments("add", {"config": {**CONFIG, "clip": value}}, SPACE)
    check_arguments("add", {"config": CONFIG}, spaces.recalled(spaces.describe(SPACE)))


def test_dimensions_of_the_same_kind_may_replace_each_other() -> None:
    for name, text in (
        ("lr", "uniform(0, 1)"),
        ("lr", "normal(0, 1)"),
        ("lr", 0.5),
        ("width", "choice([3, 4])"),
        ("width", "lograndint(1, 100)"),
        ("kind", "choice(['c'])"),
        ("clip", "choice([inf, 2.0])"),
    ):
        check_arguments("extend", {"space": {name: text}}, SPACE)


def test_a_grid_of_too_many_points_is_refused_before_it_is_listed() -> None:
    wide = spaces.choice([*range(2000)])
    with pytest.raises(
        SpaceError, match=r"a grid of 4,000,000 points, a \(2,000\), b \(2,000\): must have at most 1,0"
    ):
        spaces.grid({"a": wide, "b": wide})


def test_what_a_class_of_searches_cannot_do_is_known_without_its_state() -> None:
    for space, words in (({"x": spaces.uniform(0, 1)}, "a grid cannot enumerate it"), ({}, "a grid has one trial per")):
        with pytest.raises(UsageError, match=words):
            Grid.check_extension(trials=0 if space else 1, epochs=0, space=space)
    Grid.check_extension(trials=0, epochs=1, space={"x": spaces.choice([1])})
    Random.check_extension(trials=1, epochs=1, space={"x": spaces.uniform(0, 1)})
    with pytest.raises(UsageError, match="search PBT: cannot be extended"):
        PBT.check_extension(trials=1, epochs=0, space={})


def test_values_of_any_depth_and_size_are_measured() -> None:
    assert excess(deep(DEPTH)) == "" and "at most 20 levels" in excess(deep(DEPTH + 1))
    assert excess([1] * (SIZE - 1)) == "" and "at most 1,000,000 characters" in excess([1] * SIZE)


def test_spaces_and_their_values_have_a_greatest_depth() -> None:
    with pytest.raises(SpaceError, match="space: must have at most 20 levels"):
        spaces.check(deep(900))
    with pytest.raises(SpaceError, match="value: must have at most 20 levels"):
        spaces.plain(deep(DEPTH + 1))
    with pytest.raises(SpaceError, match="two of its keys are the same text"):
        spaces.plain({1: "a", "1": "b"})
