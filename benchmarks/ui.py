"""The page of a large experiment: when a browser has painted, how long the server reads, and what ten watchers cost.

The journal is made up: 1,000 trials of 500 epochs and 100,000 units. The first page is opened as soon as the server
listens, and shows what was read by then; the second one is opened when the journal is read. Then ten watchers load what
a page loads, all at the same time, and hear of a run that goes on at ten units a second, and a button is clicked while
real workers train. Without Chromium, its rows are left out. A list of many smaller experiments is filled twice: without
the lines that runs leave in their folders, and with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import hopfleet as hop
from benchmarks.row import Row, megabytes, milliseconds
from benchmarks.runs import endless, scratch
from benchmarks.tasks import NoWork
from hopfleet.domain.messages import (
    EpochEnded,
    Finish,
    Message,
    RequestMade,
    RunStarted,
    TrialAdded,
    UnitFinished,
    WorkerJoined,
)
from hopfleet.domain.unit import Unit
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import open_journal
from hopfleet.testing.tasks import CountingTask
from hopfleet.ui.shelf import Shelf

TOKEN = "a-token-for-the-benchmark"
PAINT_BAR, MEMORY_BAR, SHARE_BAR, BUSY_BAR, CLICK_BAR, LIST_BAR = 1.5, 150e6, 0.05, 0.1, 0.3, 1.0
WATCHERS = 10
LARGE, BEARER = "/api/experiments/large", {"authorization": f"Bearer {TOKEN}"}


def measure(quick: bool) -> list[Row]:
    trials, epochs, units = (20, 10, 400) if quick else (1000, 500, 100_000)
    size = f"{trials:,} trials x {epochs} epochs, {units:,} units"
    with scratch() as home:
        made(home / "large", trials, epochs, units)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "hopfleet", "ui", "large", "--no-browser", "--port", str(port)]
        environment = {**os.environ, "HOPFLEET_HOME": str(home), "HOPFLEET_UI_TOKEN": TOKEN}
        with chromium() as opened:
            server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            try:
                assert server.stdout is not None
                server.stdout.readline()
                began = time.perf_counter()
                rows = painted(opened, port, "as soon as the server listens") if opened else []
                ready(port)
                rows.append(Row("ui", f"the server has read {size}", milliseconds(time.perf_counter() - began)))
                if opened:
                    rows += painted(opened, port, "when the journal is read")
                    rows.append(importances(opened, port))
                rows += watched(opened, port, server.pid, RunFolder(home / "large"), 1.0 if quick else 10.0)
                if opened:
                    rows.append(clicked(opened, port, home, 3 if quick else 20))
                peak = memory(server.pid)
                rows.append(
                    Row("ui", "peak memory of the server", megabytes(peak), "", None, "< 150 MB", peak < MEMORY_BAR)
                )
            finally:
                server.terminate()
                server.wait(10)
    return [*rows, *listed(3 if quick else 200)]


def listed(count: int) -> list[Row]:
    """Return how long it takes to fill the list of that many experiments with 3,030 messages each."""
    rows = []
    with scratch() as home:
        made(home / "runs" / "first", 20, 30, 2400)
        RunFolder(home / "runs" / "first").summary_file.unlink(missing_ok=True)
        for number in range(1, count):
            shutil.copytree(home / "runs" / "first", home / "runs" / f"copy{number}")
        for lines in ("without lines in their folders", "with them"):
            began, shelf = time.perf_counter(), Shelf(home / "runs")
            shelf.scan()
            while shelf.fill(0.1):
                pass
            took = time.perf_counter() - began
            bar = ("< 1 s", took < LIST_BAR) if lines == "with them" else ("", None)
            rows.append(Row("ui", f"a list of {count} experiments, {lines}", milliseconds(took), "", None, *bar))
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


def ready(port: int) -> None:
    """Wait until the server has read the journal."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{LARGE}", headers=BEARER)
    while True:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if not json.load(answer)["reading"]:
                return
        time.sleep(1.0)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Open a browser that has started and is warm; None if there is none."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        opened.new_page().set_content("<p>warm</p>")
        yield opened
        opened.close()


def until(page: Any, condition: str) -> None:
    """Wait until an expression holds on a page. The policy of the page forbids to wait inside the page."""
    deadline = time.monotonic() + 120
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"waited in vain: {condition}"
        page.wait_for_timeout(10)


def painted(opened: Any, port: int, when: str) -> list[Row]:
    """Return when a new visitor sees the first paint, the leaderboard and all curves."""
    context = opened.new_context()
    page = context.new_page()
    began = time.perf_counter()
    page.goto(f"http://127.0.0.1:{port}/#/x/large?code={TOKEN}")
    page.wait_for_selector(".board tbody tr")
    board = time.perf_counter() - began
    until(page, "(document.querySelector('canvas[role=img]')?.ariaLabel ?? '0 trials').search(/\\b0 trials/) < 0")
    curves = time.perf_counter() - began
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0") / 1e3
    began = time.perf_counter()
    page.evaluate("location.hash = '#/x/large/schedule'")
    until(page, "/^Schedule: [1-9]/.test(document.querySelector('canvas[role=img]')?.ariaLabel)")
    schedule = time.perf_counter() - began
    context.close()
    return [
        Row("ui", f"first paint, {when}", milliseconds(first), "", None, "< 1.5 s", first < PAINT_BAR),
        Row("ui", f"leaderboard, {when}", milliseconds(board), "", None, "< 1.5 s", board < PAINT_BAR),
        Row("ui", f"learning curves, {when}", milliseconds(curves)),
        Row("ui", f"schedule, {when}", milliseconds(schedule)),
    ]


def importances(opened: Any, port: int) -> Row:
    """Return how long it takes from the click on their tab until the importances of parameters are drawn."""
    page = opened.new_page()
    page.goto(f"http://127.0.0.1:{port}/#/x/large?code={TOKEN}")
    page.wait_for_selector(".board tbody tr")
    began = time.perf_counter()
    page.evaluate("location.hash = '#/x/large/importance'")
    chart = "document.querySelector('.frame[data-drawn] canvas[role=img]')"
    until(page, f"/^Importance of [1-9]/.test({chart}?.ariaLabel)")
    took = time.perf_counter() - began
    page.close()
    return Row("ui", "importances of parameters", milliseconds(took))


def watched(opened: Any, port: int, server: int, folder: RunFolder, seconds: float) -> list[Row]:
    """Return what watchers cost the server, and what the page costs a browser, while a run goes on."""
    with ThreadPoolExecutor(WATCHERS) as pool:
        streams = [each.result() for each in [pool.submit(watching, port) for _ in range(WATCHERS)]]
    page = devtools = None
    if opened:
        page = opened.new_page()
        page.goto(f"http://127.0.0.1:{port}/#/x/large?code={TOKEN}")
        page.wait_for_selector(".board tbody tr")
        page.wait_for_timeout(1000)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
    journal = open_journal(folder, writable=True)
    spent, busy, began = processor(server), main_thread(devtools), time.perf_counter()
    for place in range(int(seconds * 10)):
        now, name = time.time(), f"t{place % 20 + 1:04d}"
        done = UnitFinished(f"w{place % 8}", Unit(name, 1000 + place, 0), 10**6 + place, 1000, now - 0.5, now)
        journal.append(
            now, [done, EpochEnded(name, 1000 + place, 1000, {"train_units": 0.5, "train_loss": 0.5}, False)]
        )
        pause = began + (place + 1) / 10 - time.perf_counter()
        if page:
            page.wait_for_timeout(max(0.0, pause * 1e3))
        else:
            time.sleep(max(0.0, pause))
    passed = time.perf_counter() - began
    share, blocked = (processor(server) - spent) / passed, (main_thread(devtools) - busy) / passed
    journal.close()
    for stream in streams:
        stream.close()
    name = f"of a core for {WATCHERS + bool(page)} watchers"
    rows = [Row("ui", f"the server's share {name}", f"{share:.1%}", "", None, "< 5%", share < SHARE_BAR)]
    if page:
        page.close()
        rows.append(
            Row(
                "ui",
                "the browser's main thread, per second",
                milliseconds(blocked),
                "",
                None,
                "< 100 ms",
                blocked < BUSY_BAR,
            )
        )
    return rows


def watching(port: int) -> HTTPConnection:
    """Load what a page loads, and return a connection that hears of changes."""
    stream = HTTPConnection("127.0.0.1", port, timeout=60)
    for part in ("", "/epochs?metric=train_units", "/spans"):
        stream.request("GET", f"{LARGE}{part}", headers=BEARER)
        stream.getresponse().read()
    stream.request("GET", f"{LARGE}/events", headers=BEARER)
    stream.getresponse().readline()
    return stream


def clicked(opened: Any, port: int, home: Path, count: int) -> Row:
    """Return how long the click on a button takes to reach the controller of a running experiment."""
    space = {"number": hop.grid_search([0, 1, 2, 3]), "seconds": 0.5}
    experiment, run = endless(NoWork(), home, space)
    page = opened.new_page()
    page.goto(f"http://127.0.0.1:{port}/#/nothing?code={TOKEN}")
    while not experiment.folder.journal_file.exists():
        page.wait_for_timeout(50)
    page.evaluate("location.hash = '#/x/run/t/t0001'")
    button = page.get_by_role("button", name="Train first")
    button.wait_for()
    clicks = []
    for place in range(count):
        page.wait_for_timeout(370 + 37 * (place % 7))  # out of step with the units, and below the limit of the server
        clicks.append(button.evaluate("button => { button.click(); return Date.now() / 1e3 }"))
        page.locator(".message", has_text=f"t0001 has level {place + 1}").wait_for()
        until(page, f"document.querySelector('main').innerText.match(/PRIORITY\\s+{place + 1}/i) !== null")
    page.close()
    with contextlib.closing(open_journal(experiment.folder)) as journal:
        heard = [time for _, time, message in journal.read() if isinstance(message, RequestMade)]
    for number in range(1, 5):
        hop.control(experiment.folder.path).stop(number, now=True)
    run.join()
    waits = sorted(after - before for before, after in zip(clicks, heard, strict=True))
    what = f"{count} clicks on a button: until the controller has the request, median"
    worst = f"worst {milliseconds(waits[-1])}"
    return Row("ui", what, milliseconds(median(waits)), worst, None, "worst < 300 ms", waits[-1] < CLICK_BAR)


def processor(process: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main_thread(devtools: Any) -> float:
    """Return the seconds that a page's main thread has worked."""
    if devtools is None:
        return 0.0
    found = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def memory(process: int) -> float:
    """Return the peak resident memory of a process in bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return float(status.split("VmHWM:")[1].split()[0]) * 1024
