"""What an experiment returns and leaves behind, and what the package exports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from hopfleet.experiment.running import looks_ahead
from hopfleet.forecast.profiling import Profiles
from hopfleet.worker.spec import Profile
from tests.helpers.sample_experiment import experiment
from tests.helpers.sample_tasks import Plain, Printing, arrays

# --------------------------------------------------------------------------------------------- what comes back


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
