"""Which requests are granted, with which steps: what is left out, what has ended, and who is about to leave."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.controller.request_arguments import check_arguments
from hopfleet.domain import messages as m
from hopfleet.domain.bounds import NAME
from hopfleet.domain.space import uniform
from hopfleet.errors import UsageError
from hopfleet.search import Random
from hopfleet.search.base import Suggestion
from tests.helpers.controller_desk import Desk, of


def ask(desk: Desk, request: str, **arguments: Any) -> tuple[str, list[m.Message]]:
    """Return the answer to a request that is granted, and what follows."""
    answer, *follow = desk.tell(m.RequestMade(request, arguments, "ada", 1))
    assert answer.granted, answer.text
    return answer.text, follow


def refusal(desk: Desk, request: str, **arguments: Any) -> str:
    (answer,) = desk.tell(m.RequestMade(request, arguments, "ada", 1))
    assert not answer.granted
    return answer.text


class Rungs(Random):
    """Trials pause after one epoch."""

    def suggest(self, number: int) -> Suggestion | None:
        suggestion = super().suggest(number)
        return suggestion and Suggestion(suggestion.config, 1)


def test_an_argument_that_is_none_is_one_that_is_left_out() -> None:
    desk = Desk("w1")
    assert ask(desk, "prioritise", trial="t0001", level=None)[0] == "t0001 has level 1"
    assert ask(desk, "stop", trial="t0001", now=None)[0] == "t0001 stops after what it is doing"


@pytest.mark.parametrize("request_", ["stop", "delete"])
@pytest.mark.parametrize("now", [False, True])
def test_a_unit_is_given_up_only_if_that_is_asked_for(request_: str, now: bool) -> None:
    desk = Desk("w1")
    given = {"now": True} if now else {}
    text, follow = ask(desk, request_, trial="t0001", **given)
    assert of(follow, m.StopUnit) == ([m.StopUnit("w1", "t0001", 1)] if now else [])
    if request_ == "stop":
        assert text == f"t0001 stops {'now' if now else 'after what it is doing'}"


def test_a_trial_that_waits_is_stopped_now() -> None:
    desk = Desk("w1", trials=2)
    text, follow = ask(desk, "stop", trial="t0002", now=True)
    assert text == "t0002 stops now" and of(follow, m.TrialEnded)


def test_a_trial_that_is_resumed_trains_as_long_as_the_search_or_a_person_wanted() -> None:
    desk = Desk("w1", search=Rungs(2, 3), max_live=1)
    desk.epoch(loss=1.0)
    desk.saved(2)
    assert ask(desk, "resume", trial="t0001")[0] == "t0001 goes on from epoch 1 until epoch 3"
    ask(desk, "resume", trial="t0002", epochs=7)
    ask(desk, "stop", trial="t0002", now=True)
    slot = desk.controller.schedule.slots["w1"]
    assert slot.unit is not None and slot.unit.trial == "t0002"
    desk.tell(m.UnitStopped("w1", slot.unit, slot.attempt, 0.0, 0.5))
    assert ask(desk, "resume", trial="t0002")[0] == "t0002 goes on from epoch 0 until epoch 7"


def test_a_cold_clone_may_train_for_one_epoch() -> None:
    desk = Desk("w1", epochs=1)
    assert ask(desk, "clone", trial="t0001")[0].endswith("until epoch 1")
    assert ask(desk, "clone", trial="t0001", epochs=1)[0].endswith("until epoch 1")


def test_more_epochs_are_for_trials_that_are_complete_or_go_on() -> None:
    desk = Desk("w1", trials=4, epochs=1, partitions=1, valid=0)
    desk.finished(loss=1.0)
    desk.saved(1)
    ask(desk, "stop", trial="t0002")  # it runs
    ask(desk, "stop", trial="t0003")
    states = {name: desk.controller.schedule.find(name).state.value for name in ("t0001", "t0003")}
    assert states == {"t0001": "completed", "t0003": "stopped"} and desk["t0002"].outcome is not None
    _, follow = ask(desk, "extend", epochs=2)
    assert of(follow, m.TrialResumed) == [m.TrialResumed("t0001", 3), m.TrialResumed("t0004", 3)]


def test_a_worker_that_is_about_to_leave_does_not_count() -> None:
    desk = Desk("w1", "w2", trials=2)
    ask(desk, "workers", count=1)
    assert desk.controller.schedule.slots["w2"].retired and desk.controller.schedule.slots["w2"].unit is not None
    assert refusal(desk, "workers", count=1) == "there is 1 worker already"
    assert ask(desk, "workers", count=2) == ("from 1 to 2 workers", [m.AddWorkers(1)])


def test_a_request_for_workers_says_how_many() -> None:
    assert refusal(Desk("w1"), "workers").startswith("workers=0: must be an integer of at least 1")
    assert refusal(Desk("w1"), "workers", by=0).startswith("workers=0: must be an integer of at least 1")


def test_what_is_checked_before_a_request_is_queued() -> None:
    space = {"x": uniform(0, 1), "y": uniform(0, 1)}
    check_arguments("stop", {"trial": "t" * NAME}, space)
    check_arguments("workers", {"by": 0}, space)
    check_arguments("add", {"config": {"x": 0.5, "y": 0.5}}, space)
    for request, given, words in [
        ("extend", {"space": {"z": 1}}, "z=1: the space has no 'z'; it has x, y"),
        ("add", {"config": {"x": 0.5, "z": 1}}, "config: z is unknown, y is missing; the keys are x, y"),
    ]:
        with pytest.raises(UsageError) as raised:
            check_arguments(request, given, space)
        assert str(raised.value) == words
