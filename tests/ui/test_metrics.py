"""The dashboard of Grafana asks for figures that the server has, and the commands of the page answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import hopfleet as hop
from hopfleet.ui.application import STATIC
from hopfleet.ui.board import Board
from hopfleet.ui.details import worker_health
from hopfleet.ui.metrics import FAMILIES, _labels, _number, exposition
from hopfleet.ui.shelf import Shelf
from tests.helpers.cli import FAULTY, Cli, fitted

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"


def scraped(home: Path) -> str:
    shelf = Shelf(home)
    shelf.summaries(60.0)
    return exposition(shelf.figures(), shelf.lines())


def test_the_dashboard_asks_for_figures_that_exist() -> None:
    asked = set(re.findall(r"hopfleet_\w+", DASHBOARD.read_text()))
    assert asked
    assert asked <= FAMILIES.keys()
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)


def test_labels_and_numbers_are_escaped() -> None:
    assert _labels({"a": 'x"y\\z\n'}) == 'a="x\\"y\\\\z\\n"'
    assert [_number(value) for value in (1, float("inf"), float("-inf"), float("nan"))] == [
        "1.0",
        "+Inf",
        "-Inf",
        "NaN",
    ]


def test_a_running_experiment_has_memory_and_workers_that_report(own_home: Path) -> None:
    class Scrape(hop.Callback):
        figures = ""

        def on_epoch_end(self, *arguments: object) -> None:
            self.figures = scraped(own_home)

    scrape = Scrape()
    results = fitted("mine", callbacks=[scrape])
    memory = re.search(r'hopfleet_memory_bytes\{experiment="mine"\} (\S+)', scrape.figures)
    assert memory is not None
    assert 10e6 < float(memory[1]) < 1e12
    heard = re.findall(r'hopfleet_worker_last_report_seconds\{experiment="mine",worker="(\w+)"\} (\S+)', scrape.figures)
    assert {worker for worker, _ in heard} == set(results.history.workers)
    assert all(results.history.started <= float(when) <= results.history.updated for _, when in heard)
    assert "hopfleet_memory_bytes{" not in scraped(own_home), "it does not run any more"


def test_workers_have_memory_and_faults(own_home: Path) -> None:
    folder = fitted("mine", FAULTY).folder
    health = {"w1": {"host": "box", "memory": 5 << 20, "device_memory": 7 << 20, "heard": 4e9}, "w2": {"memory": "x"}}
    folder.keep_health(health)
    board = Board(folder)
    board.advance(60.0)
    assert worker_health(board) == {}, "it does not run"
    with folder.lock():
        assert worker_health(board) == {"w1": health["w1"]}
        figures = scraped(own_home)
    assert f'hopfleet_worker_memory_bytes{{experiment="mine",worker="w1"}} {float(5 << 20)}' in figures
    assert f'hopfleet_worker_device_memory_bytes{{experiment="mine",worker="w1"}} {float(7 << 20)}' in figures
    assert 'hopfleet_worker_last_report_seconds{experiment="mine",worker="w1"} 4000000000.0' in figures
    assert sum(worker["faults"] for worker in board.workers()) == board.history.faults.total() > 0


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 220_000
    for path in files:
        if path.suffix in (".js", ".css", ".html"):
            assert not re.findall(r"""(?:src|href|import|url\()\s*[=(]?\s*["']?https?://""", path.read_text()), path
    assert {path.name for path in files} >= {"htm-LICENSE", "preact-LICENSE"}


def test_all_modules_of_the_page_load_at_once() -> None:
    page = (STATIC / "index.html").read_text()
    modules = {path.name for path in STATIC.glob("*.js")} - {"theme.js"}
    assert set(re.findall(r'rel="modulepreload" href="static/(\w+\.js)"', page)) == modules


def test_top_draws_once_where_there_is_no_terminal(cli: Cli) -> None:
    fitted("mine")
    shown = cli("top", "mine")
    assert shown.code == 0
    assert "24/24 units" in shown.out
    assert "finished" in shown.out
    assert "worker" in shown.out
    assert cli("top", "none").code == 2
