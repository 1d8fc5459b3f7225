"""What a user meets: errors before any work starts, trials that fail alone, and everything handed back."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import DataError, ExperimentExists, MissingExtra, NotFound, SpaceError, TaskError, UsageError
from hopfleet.experiment.options import MOVED
from hopfleet.experiment.running import looks_ahead
from hopfleet.forecast.profiling import Profiles
from hopfleet.runtime import loop
from hopfleet.scheduler.invariants import validate_history
from hopfleet.store.journal import Journal
from hopfleet.worker.spec import Profile
from tests.helpers.sample_tasks import Faulty, HangOnce, KillOnce, Plain, Printing, arrays


def experiment(task: Any = None, **changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(),
        "valid": arrays(60, seed=1),
        "space": {"lr": hop.loguniform(1e-3, 1e-1)},
        "search": hop.Random(trials=2, max_epochs=2),
        "metric": "accuracy",
        "mode": "max",
        "name": "e",
        "backend": "inline",
        "workers": 2,
        "partitions": 3,
        **changes,
    }
    return hop.Experiment(task or Plain(), **given)


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


OLD_KEYWORDS = {
    "folder": ("run_options", "folder", "/tmp/elsewhere"),
    "policy": ("run_options", "policy", "random"),
    "order": ("run_options", "order", "fixed"),
    "unit_timeout": ("run_options", "unit_timeout", 60.0),
    "device": ("worker_options", "device", "cpu"),
    "threads": ("worker_options", "threads", 2),
    "fuse": ("worker_options", "fuse", "off"),
    "drop_last": ("worker_options", "drop_last", True),
    "transform_workers": ("worker_options", "transform_workers", 3),
    "feeders": ("worker_options", "transform_workers", 3),
}


@pytest.mark.parametrize("keyword", OLD_KEYWORDS)
def test_an_old_keyword_still_works_and_names_the_new_one(keyword: str) -> None:
    argument, field, value = OLD_KEYWORDS[keyword]
    group = {"run_options": hop.RunOptions, "worker_options": hop.WorkerOptions}[argument]
    new = rf"Experiment\({argument}=hop\.{group.__name__}\({field}=\.\.\.\)\)"
    with pytest.warns(FutureWarning, match=rf"Experiment\({keyword}=\.\.\.\) is deprecated.*; use {new}") as warned:
        old = experiment(**{keyword: value})
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)]
    assert (
        getattr(old.definition, argument)
        == group(**{field: value})
        == getattr(experiment(**{argument: group(**{field: value})}).definition, argument)
    )
    with pytest.raises(UsageError, match=rf"{keyword}=.*: {field} is given twice; keep {argument}=hop\."):
        experiment(**{keyword: value, argument: group(**{field: value})})


def test_every_old_keyword_is_tested() -> None:
    assert OLD_KEYWORDS.keys() == MOVED.keys()
    with pytest.raises(UsageError, match="transform_workers is given twice"), pytest.warns(FutureWarning):
        experiment(feeders=1, transform_workers=1)


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


# --------------------------------------------------------------------------------------------- what comes back


def test_results_hold_everything(own_home: Path) -> None:
    results = experiment(space={"lr": hop.grid_search([0.001, 0.1])}).fit(quiet=True)
    assert [trial.id for trial in results.trials] == ["t0001", "t0002"]
    for trial in results.trials:
        assert [row["epoch"] for row in trial.history] == [1, 2]
        assert set(trial.history[0]) == {"epoch", "train_loss", "accuracy", "loss"}
        assert [sorted(epoch) for epoch in trial.visits] == [[0, 1, 2], [0, 1, 2]]
        assert trial.error is None
        assert trial.checkpoint.is_file()
    best = results.best
    assert best.metrics["accuracy"] == max(row["accuracy"] for trial in results.trials for row in trial.history)
    model = best.model()
    valid = arrays(60, seed=1)
    with torch.no_grad():
        right = (model(torch.from_numpy(valid["x"])).argmax(1).numpy() == valid["y"]).mean()
    assert right == pytest.approx(best.metrics["accuracy"], abs=1e-6)
    frame = results.dataframe()
    assert list(frame["trial"]) == ["t0001", "t0002"]
    assert list(frame["config/lr"]) == [0.001, 0.1]
    assert results.plot() is not None
    assert results.gantt() is not None
    assert {path.name for path in (own_home / "e" / "plots").iterdir()} == {"curves.png", "gantt.png"}
    assert results["t0002"].config == {"lr": 0.1}
    with pytest.raises(NotFound, match="t0009"):
        results["t0009"]


def test_another_process_opens_the_results(own_home: Path) -> None:
    experiment().fit(quiet=True)
    for opened in (hop.load("e"), hop.load(own_home / "e")):
        assert opened.finished
        assert opened.best.model() is not None, "the task can be imported here"
        assert opened.best.model(Plain()) is not None
    with pytest.raises(NotFound, match=r"no such experiment.*there are: e"):
        hop.load("f")


def test_only_the_last_and_the_best_versions_are_kept(own_home: Path) -> None:
    results = experiment(search=hop.Random(trials=3, max_epochs=5)).fit(quiet=True)
    for trial in results.trials:
        kept = sorted(path.name[:6] for path in (own_home / "e" / "checkpoints" / trial.id).iterdir())
        best = 3 * (trial.best_epoch or 0)
        assert kept == sorted({f"v{best:05d}", "v00015"})


def test_a_run_folder_is_private_and_readable(own_home: Path) -> None:
    experiment().fit(quiet=True)
    folder = own_home / "e"
    assert folder.stat().st_mode & 0o077 == 0
    definition = json.loads((folder / "experiment.json").read_text())
    assert definition["metric"] == "accuracy"
    assert "loguniform" in definition["space"]["lr"] or "Float" in definition["space"]["lr"]


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_prints_are_kept_per_trial(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    space = {"lr": 0.1, "word": hop.grid_search(["anna", "bert"])}
    results = experiment(Printing(), space=space, search=hop.Grid(max_epochs=1), backend=backend).fit(quiet=True)
    for trial in results.trials:
        log = trial.log()
        assert f"a word from {trial.config['word']}" in log
        assert log.count("a word from") == log.count(f"a word from {trial.config['word']}")
    shown = capfd.readouterr().out
    assert ("a word from" in shown) == (backend == "inline")


def test_without_validation_the_training_loss_counts() -> None:
    results = experiment(valid=None, metric=None, mode=None).fit(quiet=True)
    assert set(results.best.metrics) == {"train_loss"}


def test_same_seed_same_experiment_inline() -> None:
    first = experiment(name="a").fit(quiet=True)
    second = experiment(name="b").fit(quiet=True)
    for one, other in zip(first.trials, second.trials, strict=True):
        assert (one.config, one.seed, one.visits, one.history) == (
            other.config,
            other.seed,
            other.visits,
            other.history,
        )
        assert one.checkpoint.read_bytes() == other.checkpoint.read_bytes()


def test_fixed_orders_give_the_same_bits_on_any_number_of_workers() -> None:
    fixed = hop.RunOptions(order="fixed")
    runs = [
        experiment(name=f"w{workers}", run_options=fixed, backend=backend, workers=workers).fit(quiet=True)
        for backend, workers in (("inline", 1), ("inline", 3), ("local", 2))
    ]
    for one, *others in zip(*(run.trials for run in runs), strict=True):
        for other in others:
            assert other.visits == one.visits
            assert other.last_checkpoint.read_bytes() == one.last_checkpoint.read_bytes()
    assert runs[0].trials[0].visits != runs[0].trials[1].visits


def test_the_same_seed_gives_the_same_search_with_other_workers() -> None:
    runs = [
        experiment(
            name=f"w{workers}",
            space={"lr": hop.loguniform(1e-3, 1e-1)},
            search=hop.ASHA(6, 2, 2, sampler=hop.TPE(n_startup_trials=2), concurrency=3),
            run_options=hop.RunOptions(deterministic=True),
            backend=backend,
            workers=workers,
        ).fit(quiet=True)
        for backend, workers in (("inline", 1), ("local", 2))
    ]
    for one, other in zip(*(run.trials for run in runs), strict=True):
        assert (one.config, one.visits, one.history, one.state) == (
            other.config,
            other.visits,
            other.history,
            other.state,
        )
        assert other.last_checkpoint.read_bytes() == one.last_checkpoint.read_bytes()
    assert hop.load("w1").definition["deterministic"]
    with pytest.raises(UsageError, match="deterministic=1: must be True or False"):
        hop.RunOptions(deterministic=1)  # type: ignore[arg-type]


def test_drop_last_and_default_batch_size() -> None:
    results = experiment(batch_size=64, worker_options=hop.WorkerOptions(drop_last=True)).fit(quiet=True)
    assert results.finished


def test_simulated_backend_runs_an_experiment() -> None:
    backend = hop.Simulated(lambda command, trial: 2.0, lambda trial, epoch: {"accuracy": trial.config["lr"]})
    results = experiment(backend=backend, workers=2).fit(quiet=True)
    assert results.finished
    assert results.best.metrics["accuracy"] == max(trial.config["lr"] for trial in results.trials)


def test_public_names_are_complete_and_sorted() -> None:
    assert list(hop.__all__) == sorted(hop.__all__)
    # The tests of other frameworks import their tasks, each in a process of its own: they do not all get along.
    others = {name for name in hop.__all__ if name.startswith(("Jax", "Keras", "Lightning", "Transformers"))}
    assert len(others) == 5
    for name in set(hop.__all__) - others:
        assert getattr(hop, name) is not None
    assert set(hop.__all__) <= set(dir(hop))
    with pytest.raises(AttributeError, match="no attribute 'Tuner'"):
        hop.Tuner  # noqa: B018


def test_import_is_light() -> None:
    heavy = "{'torch', 'pyarrow', 'pandas', 'matplotlib', 'rich', 'typer', 'sklearn', 'safetensors', 'cloudpickle'}"
    code = f"import sys, hopfleet; hopfleet.choice; hopfleet.Random; print(sorted(set(sys.modules) & {heavy}))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_on_a_cluster_models_travel_while_others_train_unless_trials_gain_by_training_together():
    gain, none = Profiles({0: Profile()}), Profiles({0: Profile(gains=False)})
    off = experiment(backend=hop.Ray(), worker_options=hop.WorkerOptions(fuse="off"))
    exact = experiment(backend=hop.Ray())
    assert not exact.task.framework.fusion_blocker
    assert [looks_ahead(exact.definition, found) for found in (none, gain, Profiles({}))] == [True, False, False]
    assert looks_ahead(off.definition, gain)
    assert not looks_ahead(experiment().definition, none), "hops cost nothing here"
