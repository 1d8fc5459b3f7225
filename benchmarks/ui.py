"""The page of a large experiment: how long the server reads, how much memory it takes, and when a browser has painted.

The journal is made up: 1,000 trials of 500 epochs and 100,000 units. Without Chromium, the browser's rows are left out.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import hopfleet as hop
from benchmarks.row import Row, megabytes, milliseconds
from benchmarks.runs import scratch
from hopfleet.domain.messages import EpochEnded, Finish, Message, RunStarted, TrialAdded, UnitFinished, WorkerJoined
from hopfleet.domain.unit import Unit
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import open_journal
from hopfleet.testing.tasks import CountingTask

TOKEN = "a-token-for-the-benchmark"
PAINT_BAR, MEMORY_BAR = 1.5, 150e6


def measure(quick: bool) -> list[Row]:
    trials, epochs, units = (20, 10, 400) if quick else (1000, 500, 100_000)
    size = f"{trials:,} trials x {epochs} epochs, {units:,} units"
    with scratch() as home:
        made(home / "large", trials, epochs, units)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "hopfleet", "ui", "large", "--no-browser", "--port", str(port)]
        environment = {**os.environ, "HOPFLEET_HOME": str(home), "HOPFLEET_UI_TOKEN": TOKEN}
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            server.stdout.readline()
            reading = ready(port)
            rows = [
                Row("ui", f"the server reads {size}", milliseconds(reading)),
                *painted(f"http://127.0.0.1:{port}/?token={TOKEN}#/x/large", size),
            ]
            peak = memory(server.pid)
            rows.append(
                Row("ui", "peak memory of the server", megabytes(peak), "", None, "< 150 MB", peak < MEMORY_BAR)
            )
        finally:
            server.terminate()
            server.wait(10)
    return rows


def made(path: Path, trials: int, epochs: int, units: int) -> None:
    """Make a run folder with a journal of that size."""
    experiment = hop.Experiment(
        CountingTask(),
        train={"x": list(range(40))},
        space={"lr": hop.loguniform(1e-4, 1e-1), "width": hop.choice([64, 128])},
        search=hop.Random(trials=1, max_epochs=1),
        metric="train_units",
        mode="max",
        batch_size=5,
        backend="inline",
        run_options=hop.RunOptions(folder=path),
    )
    experiment.fit(quiet=True)
    folder, draw = RunFolder(path), random.Random(0)
    for file in path.glob("journal*"):
        file.unlink()
    journal = open_journal(folder, writable=True)
    begin = time.time() - 3600
    names = [f"t{number:04d}" for number in range(1, trials + 1)]
    added = [
        TrialAdded(name, number, {"lr": 10 ** draw.uniform(-4, -1), "width": draw.choice([64, 128])}, number, epochs)
        for number, name in enumerate(names, 1)
    ]
    journal.append(begin, [RunStarted("0", 8), *(WorkerJoined(f"w{number}") for number in range(8)), *added])
    rate = {name: draw.uniform(0.002, 0.05) for name in names}
    each = max(1, units // epochs)
    for epoch in range(1, epochs + 1):
        when = begin + epoch * 3600 / epochs
        step: list[Message] = []
        for place in range(each):
            started = when - 7 + 7 * (place // 8) / (each / 8)
            unit = Unit(names[(epoch * each + place) % trials], epoch, place % 4)
            step.append(UnitFinished(f"w{place % 8}", unit, epoch * each + place, epoch, started, started + 0.25))
        for name in names:
            value = 1 - (1 - rate[name]) ** epoch + draw.gauss(0, 0.005)
            step.append(EpochEnded(name, epoch, epoch, {"train_units": value, "train_loss": 1 - value}, True))
        journal.append(when, step)
    journal.append(begin + 3601, [Finish(True)])
    journal.close()


def ready(port: int) -> float:
    """Return the seconds until the server has read the journal."""
    began = time.perf_counter()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/experiments/large", headers={"authorization": f"Bearer {TOKEN}"}
    )
    while True:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status == 200:
                return time.perf_counter() - began
        time.sleep(0.02)


def painted(address: str, size: str) -> list[Row]:
    """Return when a browser has painted first, and when leaderboard and curves are complete."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page()
        page.goto(address.replace("#/x/large", "#/nothing"))  # the browser starts, and its caches are warm
        page.wait_for_selector("main")
        page = opened.new_context().new_page()
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector(".board tbody tr")
        board = time.perf_counter() - began
        page.wait_for_selector(".frame[data-drawn]")
        while page.get_by_label("Learning curves").count() and "of 0 trials" in (
            page.locator("canvas[role=img]").get_attribute("aria-label") or ""
        ):
            time.sleep(0.01)
        curves = time.perf_counter() - began
        first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0") / 1e3
        began = time.perf_counter()
        page.evaluate("location.hash = '#/x/large/schedule'")
        label = ""
        while "Schedule" not in label or "Schedule: 0 units" in label:
            label = page.locator("canvas[role=img]").first.get_attribute("aria-label") or ""
        schedule = time.perf_counter() - began
        opened.close()
    return [
        Row("ui", "first paint", milliseconds(first), "", None, "< 1.5 s", first < PAINT_BAR),
        Row("ui", f"leaderboard of {size}", milliseconds(board), "", None, "< 1.5 s", board < PAINT_BAR),
        Row("ui", "all learning curves drawn", milliseconds(curves)),
        Row("ui", "the schedule drawn", milliseconds(schedule)),
    ]


def memory(process: int) -> float:
    """Return the peak resident memory of a process in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) * 1024
