"""The experiment of ``benchmarks/ui.py`` in the pages of others: MLflow's, and TensorBoard's HParams.

MLflow's own package conflicts with the packages of Hopfleet, so it has an environment of its own, which the variable
``HOPFLEET_MLFLOW`` names: ``python -m venv mlflow && mlflow/bin/pip install mlflow``, then ``HOPFLEET_MLFLOW=mlflow``.
Without the variable, without TensorBoard or without Chromium, the rows concerned are left out.

Each server is started, and a browser opens its table of runs as soon as the server listens, as a user would. All three
have the same 1,000 runs with 500 points of one metric each. Times are those until the table has rows.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch
from benchmarks.ui import TOKEN, chromium, made

MOST_SECONDS = 150.0
"""Seconds after which a page counts as not loading."""

FILL = """
import math, sys, time
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
place, trials, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = MlflowClient(tracking_uri=place)
experiment, now = client.create_experiment("large", artifact_location="none"), int(time.time() * 1000)
for trial in range(1, trials + 1):
    run = client.create_run(experiment, tags={"mlflow.runName": f"t{trial:04d}"}).info.run_id
    values = [Metric("accuracy", 1 - math.exp(-epoch / trial), now + epoch, epoch) for epoch in range(1, epochs + 1)]
    client.log_batch(run, metrics=values, params=[Param("lr", str(1 / trial)), Param("width", "64")])
    client.set_terminated(run)
"""


def measure(quick: bool) -> list[Row]:
    trials, epochs = (20, 10) if quick else (1000, 500)
    size = f"{trials:,} runs x {epochs} points"
    rows: list[Row] = []
    with scratch() as home, chromium() as opened:
        if not opened:
            return rows
        made(home / "large", trials, epochs, 100 * trials)
        rows.append(_row("Hopfleet", size, opened, _hopfleet(home)))
        if importlib.util.find_spec("tensorboard"):
            _fill_tensorboard(home / "events", trials, epochs)
            rows.append(_row("TensorBoard's HParams", size, opened, _tensorboard(home / "events")))
        if place := os.environ.get("HOPFLEET_MLFLOW"):
            python, store = str(Path(place).absolute() / "bin" / "python"), f"sqlite:///{home / 'mlflow.db'}"
            subprocess.run([python, "-c", FILL, store, str(trials), str(epochs)], check=True, stdout=subprocess.DEVNULL)
            rows.append(_row("MLflow", size, opened, _mlflow(python, store)))
    return rows


Started = tuple[Sequence[str], str, str]
"""The command of a server, the address of its table of runs, both with PORT, and a selector of the table's rows."""


def _hopfleet(home: Path) -> Started:
    command = [sys.executable, "-m", "hopfleet", "ui", str(home / "large"), "--no-browser", "--port", "PORT"]
    return command, f"http://127.0.0.1:PORT/#/x/large?code={TOKEN}", ".board tbody tr"


def _tensorboard(folder: Path) -> Started:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "PORT"]
    return command, "http://127.0.0.1:PORT/#hparams", "vaadin-grid-cell-content >> text=t0"


def _mlflow(python: str, store: str) -> Started:
    command = [python, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", "PORT", "--workers", "1"]
    return command, "http://127.0.0.1:PORT/#/experiments/1/runs", "text=t0"


def _row(name: str, size: str, opened: Any, started: Started) -> Row:
    """Start a server, and return when its table has rows."""
    command, address, selector = started
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with _serving([part.replace("PORT", port) for part in command], int(port)) as ready:
        context = opened.new_context()
        page = context.new_page()
        began = time.perf_counter()
        page.goto(address.replace("PORT", port))
        try:
            page.wait_for_selector(selector, timeout=MOST_SECONDS * 1e3)
            shown = milliseconds(time.perf_counter() - began)
        except Exception:
            shown = f"none in {MOST_SECONDS:.0f} s"
        if pictures := os.environ.get("HOPFLEET_PICTURES"):
            page.screenshot(path=Path(pictures) / f"{name.split()[0].split(chr(39))[0]}.png")
        context.close()
    return Row("dashboards", f"{name}: table of {size}", shown, f"the server listens after {milliseconds(ready)}")


@contextlib.contextmanager
def _serving(command: Sequence[str], port: int) -> Iterator[float]:
    """Run a server; yield the seconds until it listens."""
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert server.poll() is None, f"{command[0]} has ended with {server.returncode}"
            time.sleep(0.05)
        yield time.perf_counter() - began
    finally:
        server.terminate()
        server.wait(30)


def _fill_tensorboard(folder: Path, trials: int, epochs: int) -> None:
    """Write what the tracker writes: a folder of events for each trial."""
    from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
    from hopfleet.trackers.tensorboard import TensorBoard

    tracker = TensorBoard(folder)
    tracker.write_begin(ExperimentInfo("large", folder, "accuracy", "max", False))
    for number in range(1, trials + 1):
        trial = TrialInfo(f"t{number:04d}", number, {"lr": 1 / number, "width": 64}, epochs)
        tracker.write_trial(trial)
        for epoch in range(1, epochs + 1):
            tracker.write_epoch(trial, epoch, {"accuracy": 1 - math.exp(-epoch / number)}, time.time())
        tracker._writers.pop(trial.id).close()
