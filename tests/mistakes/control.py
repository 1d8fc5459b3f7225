"""Mistakes in requests to an experiment."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from tests.helpers.mistakes import Mistake, copy_finished

MISTAKES = [
    Mistake("control of a number", lambda: hop.control(3), UsageError, ("name=3", "name of an experiment")),  # type: ignore[arg-type]
    Mistake(
        "a wait as text",
        lambda: (copy_finished(), hop.control("e", wait="10")),  # type: ignore[arg-type]
        UsageError,
        ("wait='10'", "a number of seconds"),
    ),
    Mistake(
        "killing a trial",
        lambda: (copy_finished(), hop.control("e").kill(1)),  # type: ignore[attr-defined]
        AttributeError,
        ("'kill'", "write control.stop(TRIAL, now=True)"),
    ),
    Mistake(
        "control of an experiment that does not exist",
        lambda: (copy_finished(), hop.control("ee")),
        NotFound,
        ("ee", "no such experiment", "there are: e"),
    ),
    Mistake(
        "epochs of a resumed trial as text",
        lambda: (copy_finished(), hop.control("e").resume(1, epochs="x")),  # type: ignore[arg-type]
        UsageError,
        ("epochs='x'", "must be an integer of at least 1"),
    ),
    Mistake(
        "a space that is text",
        lambda: (copy_finished(), hop.control("e").extend(space="x")),  # type: ignore[arg-type]
        UsageError,
        ("space='x'", "must be a dict of names to dimensions", "loguniform"),
    ),
    Mistake(
        "a clone with a value that is not a number",
        lambda: (copy_finished(), hop.control("e").clone(1, {"lr": float("nan")})),
        UsageError,
        ("lr=nan", "must be a finite number"),
    ),
    Mistake(
        "a clone with a negative value",
        lambda: (copy_finished(), hop.control("e").clone(1, {"lr": -3})),
        UsageError,
        ("lr=-3", "must be a number above 0"),
    ),
]
