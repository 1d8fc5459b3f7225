"""Trackers: their output after whole runs, after a kill, and runs that do not notice trackers that fail or hang."""

from __future__ import annotations

import csv
import http.server
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.monitor.steps import Curves
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.support.logging import messages
from hopfleet.testing.observers import CallbackSuite
from hopfleet.trackers import TRACKERS, Csv, JsonLines, MLflow, TensorBoard, WandB, Webhook
from hopfleet.trackers import base as trackers
from hopfleet.trackers.base import Tracker
from hopfleet.trackers.wandb import run_id
from tests.helpers.browser import until
from tests.helpers.curve_task import SPACE, asked, curve_experiment

Points = dict[tuple[str, int], float]


class TestJsonLines(CallbackSuite):
    experiments = 4

    def make(self) -> hop.Callback:
        return JsonLines(Path(os.environ["HOPFLEET_HOME"]) / "metrics.jsonl")


def expected(results: hop.Results) -> Points:
    return {(trial.id, row["epoch"]): row["accuracy"] for trial in results.trials for row in trial.history}


def json_points(folder: Path) -> list[tuple[tuple[str, int], float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [((row["trial"], row["epoch"]), row["metrics"]["accuracy"]) for row in rows if row["kind"] == "epoch"]


def csv_points(folder: Path) -> list[tuple[tuple[str, int], float]]:
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
    return [((row["trial"], int(row["epoch"])), float(row["value"])) for row in rows]


def tensorboard_points(folder: Path) -> list[tuple[tuple[str, int], float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: list[Any] = []
    for path in sorted((folder / "tensorboard").glob("*/events.out.*")):
        for event in EventFileLoader(str(path)).Load():
            values = [value for value in event.summary.value if value.tag == "accuracy"]
            found += [((path.parent.name, event.step), value.tensor.float_val[0]) for value in values]
    return found


def mlflow_points(folder: Path) -> list[tuple[tuple[str, int], float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    found: list[Any] = []
    for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
        if trial := run.data.tags.get("hopfleet.trial"):
            found += [
                ((trial, point.step), point.value) for point in client.get_metric_history(run.info.run_id, "accuracy")
            ]
    return found


def wandb_points(folder: Path) -> list[tuple[tuple[str, int], float]]:
    rows = [(trial, row) for trial, row in wandb_rows(folder) if "accuracy" in row]
    return [((trial, row["_step"]), row["accuracy"]) for trial, row in rows]


def wandb_rows(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: list[Any] = []
    for path in (folder / "wandb").rglob("*.wandb"):
        store, trial = DataStore(), ""
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            trial = record.run.display_name or trial
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if row:
                found.append((trial, row))
    return found


def tensorboard_steps(folder: Path) -> list[tuple[str, str, int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        (path.parent.name, value.tag, event.step, value.tensor.float_val[0])
        for path in sorted((folder / "tensorboard").glob("*/events.out.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag.startswith("step/")
    ]


def mlflow_steps(folder: Path) -> list[tuple[str, str, int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    return [
        (run.data.tags["hopfleet.trial"], name, point.step, point.value)
        for run in client.search_runs([each.experiment_id for each in client.search_experiments()])
        for name in run.data.metrics
        if name.startswith("step/")
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def wandb_steps(folder: Path) -> list[tuple[str, str, int, float]]:
    return [
        (trial, name, int(row["step"]), float(row[name]))
        for trial, row in wandb_rows(folder)
        for name in row
        if name.startswith("step/")
    ]


STEP_READERS = {"tensorboard": tensorboard_steps, "mlflow": mlflow_steps, "wandb": wandb_steps}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STEP_READERS)
def test_every_step_is_tracked_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of steps have a prefix; metrics of epochs are as ever."""
    monkeypatch.setattr(trackers, "END_SECONDS", 120.0)
    search, space = hop.Random(trials=2, max_epochs=3), {**SPACE, "logs": True}
    results = curve_experiment("mine", space=space, search=search, callbacks=[name], partitions=2).fit(quiet=True)
    expected = {
        (t.id, f"step/{n}", step): value for t in results for n, points in t.logged.items() for step, value in points
    }
    if name == "mlflow":  # it accepts few characters
        expected = {(trial, each.replace("<b>", "_b_"), step): value for (trial, each, step), value in expected.items()}
    found = STEP_READERS[name](results.folder.path)
    assert len(found) == len(expected) == 2 * 2 * 2 * 3 * 2 and {each[:3] for each in found} == expected.keys()
    for *place, value in found:
        wanted = expected[tuple(place)]
        assert value == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    if name == "wandb":
        rows = [(trial, row) for trial, row in wandb_rows(results.folder.path) if "accuracy" in row]
        same([((trial, row["epoch"]), row["accuracy"]) for trial, row in rows], results)


def same(found: list[tuple[tuple[str, int], float]], results: hop.Results) -> None:
    assert len(found) == len(dict(found)), "doubled points"
    wanted = expected(results)
    assert dict(found).keys() == wanted.keys()
    assert all(abs(value - wanted[place]) < 1e-6 for place, value in found)


READERS: dict[str, Callable[[Path], list[tuple[tuple[str, int], float]]]] = {
    "csv": csv_points,
    "jsonl": json_points,
    "tensorboard": pytest.param(tensorboard_points, marks=pytest.mark.slow),  # type: ignore[dict-item]
    "mlflow": pytest.param(mlflow_points, marks=pytest.mark.slow),  # type: ignore[dict-item]
}


def cases() -> list[Any]:
    return [
        pytest.param(name, read.values[0], marks=read.marks, id=name)  # type: ignore[attr-defined]
        if hasattr(read, "marks")
        else pytest.param(name, read, id=name)
        for name, read in READERS.items()
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "read"), cases())
def test_every_epoch_is_tracked_once(name: str, read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "END_SECONDS", 120.0)
    search = hop.Random(trials=3, max_epochs=3)
    results = curve_experiment("mine", search=search, callbacks=[name], partitions=2).fit(quiet=True)
    same(read(results.folder.path), results)


KILLED = """
import hopfleet as hop
from hopfleet.trackers import base
from tests.helpers.curve_task import SPACE, asked, curve_experiment

base.END_SECONDS = 240.0

curve_experiment(
    "killed", space={{**SPACE, "seconds": 0.05}}, search=hop.Random(trials=3, max_epochs=8), partitions=2,
    callbacks={names!r}, backend="local", workers=2,
).fit(quiet=True)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [["csv", "jsonl", "tensorboard", "mlflow", "wandb"]], ids=["all"])
def test_a_killed_run_continues_without_gaps_and_doubled_points(names: list[str], own_home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # W&B offers its service to the children of a process that used it; there, the killed run would never end.
    environment.pop("WANDB_SERVICE", None)
    command = [sys.executable, "-c", KILLED.format(names=names)]
    run = subprocess.Popen(command, env=environment)
    folder = own_home / "killed"
    until(lambda: (folder / "metrics.jsonl").exists() and len(json_points(folder)) >= 5, "some epochs")
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not hop.load("killed").finished
    subprocess.run(command, env=environment, check=True, timeout=300)
    results = hop.load("killed")
    assert results.finished
    for read in (csv_points, json_points, tensorboard_points, mlflow_points, wandb_points):
        same(read(folder), results)
    kept = sorted(path.name for path in (folder / "mlflow").rglob("*.*"))
    assert kept == ["config.json"] * 3 + ["experiment.json", "t0001.log", "t0002.log", "t0003.log"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_writes_a_run_per_trial_offline(
    monkeypatch: pytest.MonkeyPatch, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service of W&B still holds the run of the second trial, as it does after the process that began it died."""
    import wandb

    monkeypatch.setattr(trackers, "END_SECONDS", 120.0)
    held, given = run_id(own_home / "mine", "t0002"), {"mode": "offline", "reinit": "create_new"}
    with wandb.init(id=held, dir=own_home.parent, settings=wandb.Settings(silent=True, console="off"), **given):
        search = hop.Random(trials=2, max_epochs=2)
        results = curve_experiment("mine", search=search, callbacks=[WandB()], partitions=1).fit(quiet=True)
    files = list((results.folder.path / "wandb").rglob("*.wandb"))
    assert sorted(file.stem.removeprefix("run-") for file in files) == sorted(
        [run_id(own_home / "mine", "t0001"), run_id(own_home / "mine", "t0002", 1)]
    )
    same(wandb_points(results.folder.path), results)
    assert f"writes another run for t0002: W&B still holds {held}" in " ".join(capsys.readouterr().err.split())


def tensorboard_names(folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (path,) = (folder / "tensorboard").glob("*/events.out.*")
    found = [value.metadata for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    contents = [each.plugin_data.content for each in found if each.plugin_data.plugin_name == "hparams"]
    return {name for content in contents for name in HParamsPluginData.FromString(content).session_start_info.hparams}


def mlflow_names(folder: Path) -> set[str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return {name for run in runs for name in run.data.params}


def wandb_names(folder: Path) -> set[str]:
    """Return the names in the configuration, for which W&B's service may take longer than the run."""
    until = time.monotonic() + 60
    while not (found := wandb_config(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def wandb_config(folder: Path) -> set[str]:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store, found = DataStore(), set()
    store.open_for_scan(str(next((folder / "wandb").rglob("*.wandb"))))
    while (data := store.scan_data()) is not None:
        found |= {item.key for item in Record.FromString(data).run.config.update}
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", [tensorboard_names, mlflow_names, wandb_names])
def test_the_names_that_a_space_asked_for_are_tracked(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "END_SECONDS", 120.0)
    name, search = read.__name__.split("_")[0], hop.Random(trials=1, max_epochs=1)
    results = curve_experiment("mine", space=asked, search=search, callbacks=[name], partitions=1).fit(quiet=True)
    names = {each for each in read(results.folder.path) if not each.startswith("_")}
    assert names == {*results.best.chosen} >= {"act.name", "blocks", "log_lr"}


def test_an_epoch_that_the_journal_told_is_not_written_again() -> None:
    """A run that continues reads the journal while epochs end, which come as calls, too."""
    written: list[tuple[str, int]] = []

    class Kept(Tracker):
        def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
            written.append(("epoch", epoch))

        def write_steps(self, trial: TrialInfo, epoch: int, curves: Curves, time: float) -> None:
            written.append(("steps", epoch))

    tracker, trial = Kept(), TrialInfo("t0001", 0, {}, 2)
    for epoch in (1, 1, 2, 1, 2):
        tracker._steps(trial, epoch, {"lr": ([0], [0.1])}, 0.0)
        tracker._epoch(trial, epoch, {"loss": 1.0}, 0.0)
    assert written == [("steps", 1), ("epoch", 1), ("steps", 2), ("epoch", 2)]


class Broken(Tracker):
    """Fails in every method, or hangs for ever in one."""

    def __init__(self, hang: bool) -> None:
        super().__init__()
        self.hang = hang

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        if self.hang:
            threading.Event().wait()
        raise RuntimeError("no disk, no network")

    def write_begin(self, experiment: ExperimentInfo) -> None:
        if not self.hang:
            raise RuntimeError("no disk, no network")


@pytest.mark.parametrize("hang", [False, True], ids=["fails", "hangs"])
def test_a_tracker_that_fails_or_hangs_is_left_behind(
    hang: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "END_SECONDS", 0.2)
    monkeypatch.setattr(trackers, "MOST_WAITING", 3)
    messages().addHandler(caplog.handler)
    try:
        search = hop.Random(trials=2, max_epochs=3)
        results = curve_experiment("mine", search=search, callbacks=[Broken(hang)], partitions=1).fit(quiet=True)
    finally:
        messages().removeHandler(caplog.handler)
    assert results.finished
    assert results.verify().ok
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    wanted = "is left behind" if hang else "cannot write: RuntimeError: no disk, no network"
    assert sum(wanted in text for text in said) == 1, said


def test_a_webhook_is_called(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = Webhook(f"http://127.0.0.1:{server.server_port}/", events=["begin", "epoch", "trial_end", "end"])
    try:
        search = hop.Random(trials=1, max_epochs=2)
        curve_experiment("mine", search=search, callbacks=[hook], partitions=1).fit(quiet=True)
        until(lambda: len(got) == 5, "five calls")
    finally:
        server.shutdown()
        server.server_close()
    assert [each["event"] for each in got] == ["begin", "epoch", "epoch", "trial_end", "end"]
    assert all(each["experiment"] == "mine" for each in got)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="must begin with http"):
        Webhook("ftp://example.com")
    with pytest.raises(UsageError, match="must be a list of begin"):
        Webhook("http://example.com", events=["explosion"])
    with pytest.raises(UsageError, match="callbacks='cvs': unknown; did you mean"):
        curve_experiment("mine", callbacks=["cvs"])
    assert set(TRACKERS) == {"csv", "jsonl", "log", "mlflow", "otel", "tensorboard", "wandb"}
    assert all(issubclass(kind, Tracker) for kind in (Csv, JsonLines, MLflow, TensorBoard, WandB, Webhook))
