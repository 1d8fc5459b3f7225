"""When workers may be told what comes next, and what a controller is before it has heard anything."""

from __future__ import annotations

import math

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import ASHA, Random
from tests.helpers.controller_desk import Desk


def test_the_next_look_is_when_half_of_a_unit_is_over() -> None:
    desk = Desk(trials=4, lookahead=True)
    for number in (0, 1):  # each has a partition of its own, so every trial hops
        desk.tell(m.WorkerJoined(f"w{number + 1}", partitions=(number,)))
    look = desk.controller.next_look
    assert look({}) == math.inf, "nothing was measured"
    desk.finished("w1", took=4.0)
    half = look({})
    assert half == look({"w1": 0.0, "w2": 0.0}) == pytest.approx(2.0)
    assert look({"w1": 0.5, "w2": 1.5}) == pytest.approx(half - 1.5)
    assert look({"w1": 0.5, "w2": half}) == pytest.approx(half - 0.5), "w2 may be told by now"
    assert look({"w1": half, "w2": half + 1}) == math.inf
    assert desk.controller.look_ahead({"w1": half, "w2": 0.0})
    assert look({"w1": half, "w2": 0.5}) == pytest.approx(half - 0.5), "w1 has been told"


def test_nobody_is_told_ahead_unless_that_is_asked_for() -> None:
    desk = Desk("w1", "w2", trials=4)
    desk.finished("w1", took=4.0)
    assert desk.controller.next_look({}) == math.inf and desk.controller.look_ahead({"w1": 9.0}) == []


def test_a_new_controller_has_neither_ended_nor_paused() -> None:
    for search in (Random(1, 1), ASHA(trials=3)):
        made = Controller(search, POLICIES["longest-remaining"](), partitions=2, valid_partitions=1)
        assert (made.finished, made.draining, made.held) == (False, False, False)
        assert made.state.in_rounds is False and made.state.losses.hopeless == "" and made.state.losses.in_a_row == 0
