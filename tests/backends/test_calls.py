"""Answers are delivered when the backend polls for them, in the order in which they came."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from hopfleet.backends.ray.calls import Calls


def asked() -> tuple[Future[Any], Any]:
    """A call whose answer can be given, and a reference to it like Ray's."""
    future: Future[Any] = Future()
    return future, SimpleNamespace(future=lambda: future)


def test_what_comes_is_heard_when_somebody_listens() -> None:
    calls, heard = Calls(), list[Any]()
    (first, one), (second, two) = asked(), asked()
    calls.then(one, heard.append)
    calls.then(two, heard.append)
    calls.hear(0.0)
    error = OSError("gone")
    second.set_exception(error)
    first.set_result(1)
    assert heard == []
    calls.hear(0.0)
    assert heard == [error, 1]


def test_of_several_calls_the_last_is_heard_and_each_that_fails() -> None:
    calls, heard = Calls(), list[Any]()
    answers = [asked() for _ in range(3)]
    calls.then_all([ref for _, ref in answers], heard.append)
    answers[2][0].set_result("third")
    answers[0][0].set_result("first")
    calls.hear(0.0)
    assert heard == []
    answers[1][0].set_result("second")
    calls.hear(0.0)
    assert heard == ["second"]
    fine, bad = asked(), asked()
    calls.then_all([bad[1], fine[1]], heard.append)
    error = OSError("gone")
    bad[0].set_exception(error)
    fine[0].set_result("fine")
    calls.hear(0.0)
    assert heard == ["second", error], "they are not all done"
