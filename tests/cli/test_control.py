"""The commands that steer experiments: finished ones, and one that runs in another thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.errors import HopfleetError
from tests.helpers.cli import Cli, counting, fitted

PATIENCE = 60.0
LOCAL = {"backend": "local", "workers": 2}


def wait_until(holds: Callable[[hop.Results], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(HopfleetError):
            if holds(hop.load("mine")):
                return
        time.sleep(0.01)
    raise AssertionError("it did not come to pass")


@pytest.fixture
def running() -> Iterator[threading.Thread]:
    """An experiment that never ends by itself, however slow this process is."""
    asked = counting(
        "mine", {"number": hop.grid_search([1, 2]), "seconds": 0.05}, search=hop.Grid(max_epochs=300), **LOCAL
    )
    run = threading.Thread(target=lambda: asked.fit(quiet=True))
    run.start()
    wait_until(lambda results: results.trials and all(trial.history for trial in results.trials))
    yield run
    with contextlib.suppress(HopfleetError):
        control = hop.control("mine")
        for trial in hop.load("mine").trials:
            with contextlib.suppress(HopfleetError):
                control.stop(trial.id)
        with contextlib.suppress(HopfleetError):
            control.proceed()
    run.join(PATIENCE)


@pytest.mark.slow
def test_a_run_executes_requests(cli: Cli, running: threading.Thread) -> None:
    assert cli("pause", "mine").out == "running units end, no other starts\n"
    assert cli("show", "mine", "--json").json["paused"] is True
    assert "paused on request" in cli("show", "mine").out
    refused = cli("pause", "mine")
    assert (refused.code, refused.err) == (2, "hopfleet: the experiment is paused already [HF110]\n")
    assert cli("clone", "mine", "1", "--set", "number=7", "--epochs", "2").out.startswith("t0003 starts afresh")
    assert cli("clone", "mine", "2", "--warm").out.startswith("t0004 goes on from epoch")
    assert cli("add", "mine", "--set", "number=8", "--set", "seconds=0.01").out == "t0005 is added\n"
    assert cli("prioritise", "mine", "t0005", "3").out == "t0005 has level 3\n"
    assert cli("workers", "mine", "+1").out.endswith("workers\n")
    assert cli("workers", "mine", "-1").out.endswith("workers\n")
    assert cli("stop", "mine", "4", "--now").out == "t0004 stops now\n"
    assert cli("delete", "mine", "t0004").out == "t0004 and its models are deleted\n"
    assert cli("extend", "mine", "--epochs", "1").out == "all train until epoch 301\n"
    assert cli("resume", "mine").out == "the experiment goes on\n"
    assert cli("resume", "mine").code == 2, "it is running, and not paused"
    assert cli("stop", "mine", "t0001").out == "t0001 stops after what it is doing\n"
    wait_until(lambda results: results["t0001"].state is hop.TrialState.STOPPED)
    assert cli("resume", "mine", "t0001", "--epochs", "301").out.startswith("t0001 goes on from epoch")
    trail = cli("requests", "mine", "--json").json
    assert [request["granted"] for request in trail].count(False) == 1
    first = {"number": 1, "request": "pause", "arguments": {}, "granted": True}
    assert trail[0] == {**trail[0], **first, "wish": "pause"}  # prose: allow, the old key
    table = cli("requests", "mine").out
    assert "clone trial=t0001 number=7 epochs=2" in table
    assert "refused" in table and "granted" in table
    shown = cli("show", "mine").out
    assert "from" in shown and "t0001" in shown
    show = cli("show", "mine", "--trial", "3").out
    assert "t0001, from scratch" in show
    assert cli("show", "mine", "--trial", "3", "--json").json["parent"] == "t0001"


@pytest.mark.slow
def test_a_finished_experiment_goes_on(cli: Cli, script: Callable[..., Path]) -> None:
    assert cli("run", str(script("backend='inline', name='mine'"))).code == 0
    waits = cli("extend", "mine", "--set", "number=grid_search([1, 2, 3, 4])", "--epochs", "1")
    assert (waits.code, waits.out) == (0, "request 1 is queued for the next run: hopfleet resume mine\n")
    assert "queued" in cli("requests", "mine").out
    old_name = r"Request\.wish is deprecated .* use Request\.request"  # prose: allow, the old name
    with pytest.warns(FutureWarning, match=old_name):
        assert hop.control("mine").requests()[0].wish == "extend"
    old = cli("wishes", "mine")  # prose: allow, the old name
    assert (old.code, old.out) == (0, cli("requests", "mine").out)
    assert "deprecated" in old.err
    done = cli("resume", "mine")
    assert done.code == 0, done.err
    results = hop.load("mine")
    assert [trial.config["number"] for trial in results.trials] == [1, 2, 3, 4]
    assert [len(trial.history) for trial in results.trials] == [3] * 4
    assert "is already finished" in cli("resume", "mine").out
    cli("add", "mine", "--set", "number=9")
    assert cli("run", str(script("backend='inline', name='mine'"))).code == 0
    assert hop.load("mine")["t0005"].config == {"number": 9}


@pytest.mark.slow
def test_a_script_that_was_run_by_python_goes_on(cli: Cli, script: Callable[..., Path]) -> None:
    from hopfleet.cli.scripts import run_script

    path = script("backend='inline', name='mine'", below="experiment.fit(quiet=True)\n")
    run_script(path, [], resumed="")
    cli("resume", "mine", "t0001", "--epochs", "4")
    assert cli("resume", "mine").code == 0
    assert len(hop.load("mine")["t0001"].history) == 4
    # A file that does not define it any more is noticed.
    path.write_text("")
    cli("resume", "mine", "t0001", "--epochs", "5")
    assert "did not continue it" in cli("resume", "mine").err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stop", "mine", "t0009"], "'t0009': no such trial"),
        (["stop", "yours", "t0001"], "no such experiment"),
        (["clone", "mine", "1", "--set", "nonsense=1"], "no 'nonsense'; it has number"),
        (["clone", "mine", "1", "--set", "number"], "--set number: must be KEY=VALUE"),
        (["add", "mine", "--set", "net.width=1"], "net.width is unknown, number is missing; the keys are number"),
        (["extend", "mine"], "extend: nothing to add"),
        (["extend", "mine", "--set", "number=choice(1, 2)"], "choice"),
        (["workers", "mine", "many"], "must be a number"),
        (["pause", "mine"], "is not running"),
        (["resume", "mine", "--epochs", "3"], "needs a trial"),
        (["resume", "mine", "t0002", "--epochs", "2"], "has already trained for 2 epochs"),
    ],
)
def test_what_cannot_be(cli: Cli, words: list[str], text: str) -> None:
    fitted("mine")
    outcome = cli(*words)
    assert outcome.code == 2
    assert text in outcome.err
    if words[1] == "mine":
        assert cli("requests", "mine").out == "No requests have been made.\n"


def test_values_are_json_or_text(cli: Cli) -> None:
    fitted("mine", {"number": 1, "name": "a", "list": (1,), "net": {"width": 1}})
    words = ["--set", "number=1e-3", "--set", "name=adam", "--set", "list=[1, 2]", "--set", "net.width=5"]
    cli("add", "mine", *words)
    (request,) = cli("requests", "mine", "--json").json
    config = {"number": 0.001, "name": "adam", "list": [1, 2], "net": {"width": 5}}
    assert (request["arguments"], request["granted"], request["text"]) == ({"config": config}, None, None)
