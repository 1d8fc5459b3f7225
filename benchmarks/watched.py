"""What a page costs the run that it shows: the same experiment with and without one, in turns.

A worker does real work on one core and reports a unit every few hundredths of a second. In every second run, a server
reads the journal beside it for a browser that follows the events; in the others, the server is stopped by a signal. The
time of a run is that from its first unit to its last.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch, tiny_data, units_of
from benchmarks.tasks import Products
from benchmarks.ui import TOKEN

BAR = 1.01


def measure(quick: bool) -> list[Row]:
    rounds, epochs, products = (1, 2, 10) if quick else (8, 8, 500)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with scratch() as home:
        data = tiny_data(home, 4)
        configs = [{"products": products, "number": number} for number in range(3)]
        with _server(home) as (process, port):
            for place in range(rounds):
                for shown in (True, False) if place % 2 else (False, True):
                    os.kill(process, signal.SIGCONT if shown else signal.SIGSTOP)
                    name = f"run-{place}-{'shown' if shown else 'alone'}"
                    with _follower(port, name) if shown else contextlib.nullcontext():
                        units = units_of(Products(), data, configs, home / name, epochs=epochs, workers=1)
                    ended = [unit.ended for _, unit in units]
                    seconds[shown].append(max(ended) - min(unit.started for _, unit in units))
            os.kill(process, signal.SIGCONT)
    # Neighbours in time had the same machine.
    ratio = median(shown / alone for shown, alone in zip(seconds[True], seconds[False], strict=True))
    count = f"{len(configs) * epochs * 4} units on one worker, {rounds} pairs of runs"
    alone = f"without a page {milliseconds(median(seconds[False]))}"
    shown_text = milliseconds(median(seconds[True]))
    return [Row("watched", f"a run that a page shows: {count}", shown_text, alone, ratio, "<= 1.01", ratio <= BAR)]


@contextlib.contextmanager
def _server(home: Path) -> Iterator[tuple[int, int]]:
    """Run the server for all experiments of a folder; yield its process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hopfleet", "ui", "--no-browser", "--port", str(port)]
    environment = {**os.environ, "HOPFLEET_HOME": str(home), "HOPFLEET_UI_TOKEN": TOKEN}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        yield server.pid, port
    finally:
        server.terminate()
        server.wait(10)


@contextlib.contextmanager
def _follower(port: int, name: str) -> Iterator[None]:
    """Follow the events of an experiment, as soon as it is there, until the context ends."""
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            connection = HTTPConnection("127.0.0.1", port, timeout=1.0)
            with contextlib.suppress(OSError, HTTPException), contextlib.closing(connection):
                path = f"/api/experiments/{name}/events"
                connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
                answer = connection.getresponse()
                while not over.is_set() and answer.status == 200 and answer.readline():
                    pass
            time.sleep(0.05)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
