"""Requests to an experiment that does not run: what they may hold, what is refused at once, and that it goes on."""

from __future__ import annotations

import contextlib
import math
import random
import sqlite3
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import JournalError, UsageError
from hopfleet.testing.tasks import CountingTask
from tests.chaos import asking


def experiment(**more: Any) -> hop.Experiment:
    given = {
        "train": {"x": np.arange(20.0)},
        "valid": {"x": np.arange(8.0)},
        "space": {"number": hop.grid_search([1, 2])},
        "search": hop.Grid(max_epochs=2),
        "metric": "loss",
        "partitions": 2,
        "batch_size": 5,
        "backend": "inline",
        "name": "rest",
    }
    return hop.Experiment(CountingTask(), **{**given, **more})


def of_finished_run() -> hop.Control:
    experiment().fit(quiet=True)
    return hop.control("rest")


@pytest.mark.slow
def test_a_run_goes_on_after_any_requests() -> None:
    results = experiment().fit(quiet=True)
    before = {trial.id: trial.history for trial in results.trials}
    rng = random.Random(1)
    for _ in range(4):
        for _ in range(15):
            asking.ask(results.folder.path, rng, long=False)
        results = experiment().fit(quiet=True)
        assert results.finished and results.verify().ok
        asked = hop.control("rest").requests()
        assert all(request.granted is not None for request in asked)
    assert {request.granted for request in asked} == {True, False}
    for trial in results.trials:
        known = before.get(trial.id, [])
        assert repr(trial.history[: len(known)]) == repr(known[: len(trial.history)])


@pytest.mark.slow
def test_a_refused_nan_does_not_keep_a_run_from_going_on() -> None:
    results = experiment().fit(quiet=True)
    with pytest.raises(UsageError, match=r"number=nan: must be a finite number, as in grid_search\(\[1, 2\]\)"):
        hop.control("rest").clone("t0001", {"number": math.nan})
    with contextlib.closing(sqlite3.connect(results.folder.journal_file)) as database, database:
        row = (1.0, "ada", "clone", '{"trial": "t0001", "changes": {"number": NaN}}')
        database.execute(asking.INSERT, row)  # as a run that was running at the time took it
    for _ in range(2):
        results = experiment().fit(quiet=True)
        assert results.verify().ok and results.finished
        hop.control("rest").workers(2)
    refused, answered, waiting = hop.control("rest").requests()
    assert (refused.granted, waiting.granted) == (False, None) and answered.granted is not None
    assert refused.text == "number=nan: must be a finite number, as in grid_search([1, 2])"


def test_verify_and_resume_read_the_same() -> None:
    results = experiment().fit(quiet=True)
    hop.control("rest").workers(2)
    with contextlib.closing(sqlite3.connect(results.folder.journal_file)) as database, database:
        database.execute("ALTER TABLE wishes RENAME COLUMN who TO somebody")  # prose: allow, a name on disk
    assert [fault.part for fault in results.verify().faults] == ["journal"]
    with pytest.raises(JournalError, match="requests in the journal cannot be read"):
        experiment().fit(quiet=True)


def test_what_the_search_cannot_do_is_refused_at_once() -> None:
    control = of_finished_run()
    with pytest.raises(UsageError, match="trials=1: a grid has one trial per point"):
        control.extend(trials=1)
    with pytest.raises(UsageError, match=r"number=uniform.*: a grid cannot enumerate it"):
        control.extend(space={"number": hop.uniform(0, 1)})
    with pytest.raises(UsageError, match="number='banana': must be a number, as in grid_search"):
        control.extend(space={"number": "banana"})
    assert control.requests() == []
    assert "is queued" in control.extend(space={"number": hop.grid_search([1, 2, 3])})
    assert len(experiment().fit(quiet=True)) == 3


@pytest.mark.parametrize("value", [10**20, 10**5000, "9" * 5000, {"a": 1}], ids=["large", "huge", "text", "dict"])
def test_names_and_counts_of_any_size_are_refused_in_words(value: Any) -> None:
    control = of_finished_run()
    for call in (control.stop, control.workers, lambda value: control.prioritise("t0001", value)):
        with pytest.raises(UsageError, match=r"trial|workers|count|level") as caught:
            call(value)
        assert len(str(caught.value)) < 500


def test_a_misspelt_constraint_is_named() -> None:
    with pytest.raises(UsageError, match=r"constraints=\['parms <= 100'\]: .*did you mean 'params'"):
        experiment(constraints=["parms <= 100"]).fit(quiet=True)
    with pytest.raises(UsageError, match=r"constraints=\['parms <= 100'\]: did you mean 'params'"):
        experiment(constraints=["parms <= 100"], valid=None, metric="train_loss").fit(quiet=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": 10**6}, "workers=1000000: must be at most 10,000"),
        ({"search": lambda: hop.Random(trials=10**12)}, "trials=1000000000000: must be at most 1,000,000"),
        ({"search": lambda: hop.Grid(max_epochs=10**20)}, "max_epochs=100000000000000000000: must be at most"),
        ({"batch_size": 10**5000}, "batch_size=<an integer of 16,610 bits>: must be at most"),
        ({"space": {"number": 10**5000}}, "space.number=<an integer of 16,610 bits>: must be an integer of at most 64"),
        ({"space": asking.deep(900)}, "space: must have at most 20 levels"),
    ],
)
def test_arguments_of_experiments_have_the_same_bounds(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        experiment(**{name: value() if callable(value) else value for name, value in given.items()})
    assert str(caught.value).startswith(words)
