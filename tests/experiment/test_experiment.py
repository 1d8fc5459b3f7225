"""What a user meets: errors before any work starts, trials that fail alone, and everything handed back."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import DataError, ExperimentExists, MissingExtra, SpaceError, TaskError, UsageError
from hopfleet.runtime import loop
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from tests.helpers.sample_experiment import experiment
from tests.helpers.sample_tasks import Faulty, HangOnce, KillOnce, Plain, arrays

# ------------------------------------------------------------------------------------------------- wrong values


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"space": {}}, SpaceError, r"space=\{\}: is empty.*loguniform"),
        ({"space": {"lr": hop.uniform(0, 1)}, "search": hop.Grid()}, SpaceError, r"lr=.*grid_search"),
        ({"space": {"act": torch.nn.ReLU}}, SpaceError, r"act=.*use a name"),
        ({"workers": 0}, UsageError, "workers=0: must be an integer of at least 1"),
        ({"workers": "many"}, UsageError, "workers='many'"),
        ({"worker_options": {"threads": 0}}, UsageError, "threads=0"),
        ({"run_options": {"checkpoint_every": -1}}, UsageError, "checkpoint_every=-1: must be a number of seconds; 0"),
        ({"run_options": {"checkpoint_every": True}}, UsageError, "checkpoint_every=True: must be a number of seconds"),
        ({"run_options": {"unit_timeout": 0}}, UsageError, "unit_timeout=0: must be 'auto'"),
        ({"run_options": {"unit_timeout": "soon"}}, UsageError, "unit_timeout='soon': must be 'auto'"),
        ({"run_options": {"unit_timeout": True}}, UsageError, "unit_timeout=True: must be 'auto'"),
        ({"partitions": 0}, UsageError, "partitions=0"),
        ({"batch_size": 0}, UsageError, "batch_size=0: must be an integer of at least 1"),
        ({"seed": "x"}, UsageError, "seed='x': must be an integer"),
        ({"search": "magic"}, UsageError, "search='magic': unknown; there are .*grid, .*random"),
        ({"search": 3}, UsageError, "search=3: must be a search"),
        ({"backend": "cloud"}, UsageError, "backend='cloud': unknown; there are inline, local, ray, simulated"),
        ({"run_options": {"policy": "best"}}, UsageError, "policy='best': unknown; there are auto, "),
        ({"run_options": {"order": "any"}}, UsageError, "order='any': must be 'open'"),
        ({"mode": "up"}, UsageError, "mode='up': must be 'min' or 'max'"),
        ({"mode": None}, UsageError, "metric='accuracy': set mode="),
        ({"name": "../up"}, UsageError, r"name='\.\./up': use letters"),
        ({"train": None}, UsageError, "train=None"),
        ({"train": "/no/such/folder"}, DataError, "/no/such/folder"),
    ],
)
def test_wrong_values_are_refused_at_once(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    groups = {"run_options": hop.RunOptions, "worker_options": hop.WorkerOptions}
    with pytest.raises(error, match=words):
        experiment(**{key: groups[key](**value) if key in groups else value for key, value in changes.items()})


def test_options_have_a_type_of_their_own() -> None:
    for key in ("run_options", "worker_options"):
        with pytest.raises(UsageError, match=rf"{key}=\{{\}}: must be hop\.\w+Options\(\.\.\.\)"):
            experiment(**{key: {}})
    with pytest.raises(TypeError, match="unexpected keyword argument 'polcy'"):
        experiment(polcy="random")


KEYWORDS_OF_0_1 = ("folder", "policy", "order", "unit_timeout", "device", "threads", "fuse", "drop_last")


@pytest.mark.parametrize("keyword", KEYWORDS_OF_0_1)
def test_an_old_keyword_is_refused_and_its_place_is_named(keyword: str) -> None:
    argument = "run_options" if hasattr(hop.RunOptions(), keyword) else "worker_options"
    group = {"run_options": "RunOptions", "worker_options": "WorkerOptions"}[argument]
    with pytest.raises(TypeError) as caught:
        experiment(**{keyword: None})
    assert str(caught.value) == (
        f"Experiment() got an unexpected keyword argument {keyword!r}; pass {argument}=hop.{group}({keyword}=...)"
    )


def test_options_that_never_were_keywords_are_answered_alike() -> None:
    with pytest.raises(TypeError, match=r"; pass worker_options=hop\.WorkerOptions\(transform_workers=\.\.\.\)$"):
        experiment(feeders=1)
    with pytest.raises(TypeError, match=r"; pass run_options=hop\.RunOptions\(fail_fast=\.\.\.\)$"):
        experiment(fail_fast=False)


def test_points_are_initial_configs() -> None:
    with pytest.warns(FutureWarning, match=r"use Experiment\(initial_configs=\.\.\.\)") as told:
        old = experiment(points=[{"lr": 0.01}])
    assert [Path(warning.filename) for warning in told] == [Path(experiment.__code__.co_filename)]
    assert old.definition.points == experiment(initial_configs=[{"lr": 0.01}]).definition.points
    with pytest.raises(UsageError, match=r"points=\[\]: is the old name of initial_configs, .* remove points="):
        experiment(points=[], initial_configs=[])


def test_the_signature_has_no_catch_all() -> None:
    parameters = inspect.signature(hop.Experiment).parameters.values()
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters)


def test_use_changes_options() -> None:
    one = experiment()
    one.use(workers=5, backend="local", policy="random", unit_timeout="none", fuse="off")
    made = one.definition
    assert (made.workers, made.backend) == (5, hop.Local)
    assert made.run_options == hop.RunOptions(policy="random", unit_timeout=None)
    assert made.worker_options == hop.WorkerOptions(fuse="off")
    one.use(unit_timeout=7)
    assert one.definition.run_options.unit_timeout == 7.0


def test_a_missing_solver_is_told_before_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment(run_options=hop.RunOptions(policy="exact"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"hopfleet\[solver\]"):
        experiment(run_options=hop.RunOptions(policy="exact"))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"batch_size": 100}, UsageError, r"batch_size=100: is larger than the smallest partition \(80 rows\)"),
        (
            {"space": {"lr": 0.1, "batch_size": hop.grid_search([16, 500])}},
            UsageError,
            "batch_size=500: is larger than the smallest partition",
        ),
        (
            {"space": {"lr": hop.sample_from(lambda config: 1 / 0)}},
            SpaceError,
            "lr: sample_from raised ZeroDivisionError",
        ),
        ({"partitions": 999}, DataError, "999"),
        ({"train": {"x": np.zeros(4), "y": np.zeros(5)}}, DataError, "columns 'x' and 'y': have 4 and 5 rows"),
        ({"train": {"x": np.zeros(0)}}, DataError, "empty|no rows"),
        ({"valid": {"x": np.zeros((60, 1, 6, 6))}}, UsageError, "valid has the columns x, train has x, y"),
        ({"metric": "f1"}, UsageError, "metric='f1': metrics.* returns accuracy, loss"),
        ({"valid": None}, UsageError, "metric='accuracy': there is no valid="),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(
    own_home: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    asked = experiment(**changes)
    with pytest.raises(error, match=words):
        asked.fit(quiet=True)
    # Nothing stands in the way of the corrected experiment of the same name.
    assert experiment().fit(quiet=True).finished


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "foreign"])
def test_a_damaged_data_set_is_named(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "data"
    hop.partition(arrays(), folder, partitions=3)
    victim = folder / "part-00001.arrow"
    content = victim.read_bytes()
    match damage:
        case "missing":
            victim.unlink()
        case "truncated":
            victim.write_bytes(content[:-100])
        case "flipped":
            victim.write_bytes(content[:2000] + bytes([content[2000] ^ 1]) + content[2001:])
        case "foreign":
            victim.write_bytes((folder / "part-00002.arrow").read_bytes())
    with pytest.raises(DataError, match=r"part-00001\.arrow"):
        experiment(train=folder).fit(quiet=True)


def test_a_task_that_is_not_one() -> None:
    with pytest.raises(UsageError, match="must be an instance"):
        hop.Experiment(Plain, train=arrays(), space={"lr": 0.1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="derived from"):
        hop.Experiment(object(), train=arrays(), space={"lr": 0.1})  # type: ignore[arg-type]


def test_a_task_that_workers_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vanishing.py").write_text("from tests.helpers.sample_tasks import Plain\nclass Mine(Plain): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from vanishing import Mine  # type: ignore[import-not-found]

    monkeypatch.undo()
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    with pytest.raises(TaskError, match=r"vanishing.*can be imported"):
        experiment(Mine(), backend="local").fit(quiet=True)
    del sys.modules["vanishing"]


def test_a_task_that_cannot_be_sent() -> None:
    task = Plain()
    task.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=r"cannot be sent to workers.*make them in build"):
        experiment(task, backend="local").fit(quiet=True)


def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ExperimentExists, match=r"contains files and is not a run folder.*; choose another folder"):
        experiment(run_options=hop.RunOptions(folder=tmp_path)).fit(overwrite=True, quiet=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


# ---------------------------------------------------------------------------------------- trials that go wrong


FAULTS = {
    "build": "RuntimeError: no such architecture",
    "nan": "the loss is nan in batch 1",
    "vector": r"shape \(2,\): must be a scalar",
    "detached": "without gradient",
    "number": "float: must be a scalar tensor",
    "raise": "ValueError: a bad batch",
    "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
    "base": "BaseException: of no ordinary kind",
    "metrics": "ValueError: no metric today",
}


NO_TERMINAL = {
    "input": r"input\(\) needs a terminal, and a worker has none; use backend='inline'",
    "breakpoint": r"breakpoint\(\) needs a terminal, and a worker has none; use backend='inline'",
}


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_bad_configuration_fails_alone(backend: str) -> None:
    expected = FAULTS if backend == "inline" else FAULTS | NO_TERMINAL
    faults = [*expected, "none", *(["kill"] if backend == "local" else [])]
    space = {"fault": hop.grid_search(faults)}
    results = experiment(Faulty(), space=space, search=hop.Grid(max_epochs=2), backend=backend).fit(quiet=True)
    by_fault = {trial.config["fault"]: trial for trial in results.trials}
    for fault, words in expected.items():
        trial = by_fault[fault]
        assert trial.state is hop.TrialState.FAILED
        assert trial.error is not None
        assert re.search(words, trial.error), trial.error
        if fault in ("build", "raise", "exit", "interrupt", "base", "metrics"):
            assert "Traceback" in trial.error
            assert "sample_tasks.py" in trial.error
    assert by_fault["none"].state is hop.TrialState.COMPLETED
    assert results.best.id == by_fault["none"].id
    if backend == "local":
        assert "3 workers in a row were lost" in (by_fault["kill"].error or "")
        others = [trial.error or "" for fault, trial in by_fault.items() if fault != "kill"]
        assert not any("workers in a row" in error for error in others)


def test_a_killed_worker_costs_one_unit(tmp_path: Path, own_home: Path) -> None:
    space = {"lr": 0.1, "mark": hop.grid_search([str(tmp_path / "first"), str(tmp_path / "second")])}
    results = experiment(KillOnce(), space=space, search=hop.Grid(max_epochs=2), backend="local").fit(quiet=True)
    assert all(trial.state is hop.TrialState.COMPLETED for trial in results.trials)
    journal = Journal(own_home / "e" / "journal.sqlite")
    messages = [message for _, _, message in journal.read()]
    journal.close()
    assert sum(type(message).__name__ == "WorkerLost" for message in messages) == 2
    validate_history(messages, partitions=3)


@pytest.mark.slow
def test_a_hung_unit_runs_again(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes only after the unit hangs, and only for one unit, so units that are merely slow are never overdue."""
    mark = tmp_path / "mark"
    ticks = iter(range(15))
    clock = partial(loop.Stopwatch, lambda: float(next(ticks, 15)) if mark.exists() else 0.0)
    monkeypatch.setattr(loop, "Stopwatch", clock)
    space = {"lr": 0.1, "mark": str(mark)}
    search = hop.Random(trials=1, max_epochs=1)
    timeout = hop.RunOptions(unit_timeout=10)
    results = experiment(HangOnce(), space=space, search=search, backend="local", run_options=timeout).fit()
    assert [trial.state for trial in results.trials] == [hop.TrialState.COMPLETED]
    with contextlib.closing(Journal(own_home / "e" / "journal.sqlite")) as journal:
        messages = [message for _, _, message in journal.read()]
    (overdue,) = [message for message in messages if type(message).__name__ == "UnitOverdue"]
    assert overdue.seconds == 11
    assert sum(type(message).__name__ == "WorkerLost" for message in messages) == 1
    assert f"worker {overdue.worker} hangs: running for" in capsys.readouterr().out


def test_unused_keys_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    experiment(space={"lr": 0.1, "batch_size": 16, "momentun": 0.9, "nested": {"a": 1}}).fit()
    output = capsys.readouterr().out + capsys.readouterr().err
    assert "config['momentun']" in output
    assert "config['nested.a']" in output
    assert "config['lr']" not in output
    assert "batch_size" not in output.replace("batch_size=", "")
