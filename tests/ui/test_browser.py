"""The page in a real browser: every view, every button, both themes, narrow screens, keys, and a server that dies."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from tests.helpers.browser import SECONDS, Server, Visitor, browser, until
from tests.helpers.curve_task import GATE, SPACE, curve_experiment
from tests.helpers.marks import long
from tests.helpers.page_visits import check_points, steer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIVE = """
import hopfleet as hop
from tests.helpers.curve_task import SPACE, curve_experiment

curve_experiment(
    "live", space={**SPACE, "seconds": 0.15}, search=hop.Random(trials=4, max_epochs=6), backend="local", workers=2
).fit(quiet=True)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLEET_HOME", str(home))
        curve_experiment("asha", search=hop.ASHA(trials=20, max_epochs=9)).fit(quiet=True)
        curve_experiment("pbt", search=hop.PBT(population=4, max_epochs=8)).fit(quiet=True)
        goals: Any = {"metric": ["accuracy", "train_loss"], "mode": ["max", "min"], "constraints": ["loss <= 1"]}
        faults = {**SPACE, "fault": hop.grid_search([False, False, True])}
        logs = {**SPACE, "logs": True}
        curve_experiment("logs", space=logs, search=hop.Random(trials=2, max_epochs=5)).fit(quiet=True)
        curve_experiment("goals", **goals, space=faults, search=hop.Random(trials=9, max_epochs=3)).fit(quiet=True)
    yield home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with Server(home) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


VIEWS = {
    "home": "#/",
    "overview": "#/x/asha",
    "curves": "#/x/asha/curves?metric=loss&x=time&log=1&smooth=0.5",
    "schedule": "#/x/asha/schedule",
    "parallel": "#/x/asha/parallel",
    "history": "#/x/asha/history",
    "slice": "#/x/asha/slices",
    "contour": "#/x/asha/slices?sx=lr&sy=activation",
    "importance": "#/x/asha/importance",
    "rungs": "#/x/asha/rungs",
    "lineage": "#/x/pbt/lineage",
    "pareto": "#/x/goals/pareto",
    "workers": "#/x/goals/workers",
    "requests": "#/x/asha/requests",
    "data": "#/x/asha/data",
    "trial": "#/x/pbt/t/t0001",
    "steps": "#/x/logs/t/t0001",
    "compare": "#/compare?x=asha&x=pbt",
}
CHARTS = (*(name for name in VIEWS if name not in ("home", "workers", "requests", "data")),)


@pytest.mark.parametrize(
    ("theme", "width"),
    [("light", 1280), ("dark", 400), pytest.param("dark", 1280, marks=long), pytest.param("light", 400, marks=long)],
)
def test_every_view_in_both_themes_on_wide_and_narrow_screens(
    chromium: Any, server: Server, theme: str, width: int
) -> None:
    visitor = Visitor(chromium, server, color_scheme=theme, viewport={"width": width, "height": 900})
    page = visitor.page
    for name, place in VIEWS.items():
        visitor.go(place)
        page.wait_for_selector("main h1")
        until(lambda: "reading" not in page.inner_text("main"), "a page that is loaded")
        if name in CHARTS:
            visitor.drawn()
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} is wider than the screen"
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, a, input, select')].filter(e => !(e.textContent.trim() || "
            "e.getAttribute('aria-label') || e.closest('label') || e.title)).length"
        )
        assert unnamed == 0, f"{name} has controls without a name"
        visitor.picture(f"{name}-{theme}-{width}")
    assert visitor.problems == []
    visitor.context.close()


def test_logged_values_have_charts(chromium: Any, server: Server) -> None:
    visitor = Visitor(chromium, server, viewport={"width": 1280, "height": 1400})
    page = visitor.page
    visitor.go("#/x/logs/t/t0002")
    page.wait_for_selector("h3:text-is('<b>noise by step')")
    page.wait_for_selector("[aria-label^='lr of t0002 in 40 steps']")
    visitor.drawn()
    visitor.picture("steps")
    visitor.go("#/x/pbt/t/t0001")
    page.wait_for_selector("main h2:has-text('t0001')")
    assert page.locator("h3", has_text="by step").count() == 0
    assert visitor.problems == []
    visitor.context.close()


def test_tables_sort_and_filter(chromium: Any, server: Server) -> None:
    visitor = Visitor(chromium, server)
    page = visitor.page
    visitor.go("#/x/asha")
    page.wait_for_selector(".board tbody tr")
    page.get_by_role("button", name="lr", exact=True).click()
    page.wait_for_selector("th[aria-sort=ascending]")
    assert "sort=lr" in page.url
    page.fill("#filter", "lr<0.01 relu")
    until(lambda: 0 < page.locator(".board tbody tr").count() < 20, "a filtered table")
    assert "q=lr" in page.url
    page.reload()
    page.wait_for_selector(".board tbody tr")
    assert page.input_value("#filter") == "lr<0.01 relu"
    assert visitor.problems == []
    visitor.context.close()


def test_columns_views_notes_and_search(chromium: Any, server: Server, home: Path) -> None:
    visitor = Visitor(chromium, server)
    page = visitor.page
    visitor.go("#/x/asha/t/t0003")
    page.wait_for_selector("main h2:has-text('t0003')")
    page.get_by_role("button", name="Add a note or tags…").click()
    page.get_by_label("Tags, with commas").fill("x" * 50)
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_selector("dialog [role=alert] >> text=must have at most 40 characters")
    page.get_by_label("Tags, with commas").fill("odd, try again")
    page.get_by_label("Note", exact=True).fill("<b>bold</b>")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_selector(".note >> text=<b>bold</b>")
    visitor.go("#/x/asha")
    page.fill("#filter", "tags=odd")
    until(lambda: page.locator(".board tbody tr").count() == 1, "the trial with the tag")
    page.get_by_role("button", name="Columns…").click()
    page.get_by_label("width", exact=True).uncheck()
    page.get_by_role("button", name="Move lr to the left").click()
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Save view…").click()
    page.get_by_label("Name").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    visitor.go("#/x/pbt")
    page.locator("select", has_text="mine").select_option("mine")
    names = ["trial", "state", "epochs", "accuracy", "lr", "activation", "dropout", "train_units", "train_loss", "loss"]
    until(lambda: page.locator(".board th button").all_inner_texts() == names, "the columns of the view")
    visitor.go("#/")
    page.fill("#filter", "pbt finished")
    until(lambda: page.locator(".list tbody tr").count() == 1, "one experiment")
    assert [each for each in visitor.problems if "400" not in each] == []
    visitor.context.close()
    (home / "asha" / "notes.json").unlink()


def test_pinned_trials_are_deleted_together(chromium: Any, home: Path) -> None:
    import shutil

    shutil.copytree(home / "asha", home / "bulk")
    with Server(home) as own:
        visitor = Visitor(chromium, own)
        page = visitor.page
        visitor.go("#/x/bulk")
        page.get_by_label("Pin t0002", exact=True).check()
        page.get_by_label("Pin t0003", exact=True).check()
        page.get_by_role("button", name="Delete 2…").click()
        page.get_by_role("button", name="Delete 2 trials").dblclick()
        visitor.says("deleted 2 trials")
        page.wait_for_selector(".bulk", state="detached")
        visitor.go("#/x/bulk/requests")
        until(lambda: page.locator("main tbody tr").count() == 2, "two requests, in spite of the double click")
        visitor.go("#/x/bulk")
        page.get_by_label("Pin all").check()
        page.wait_for_selector("text=20 pinned")
        assert visitor.problems == []
        visitor.context.close()
    shutil.rmtree(home / "bulk")


def test_a_chart_is_explored_with_the_keyboard(chromium: Any, server: Server) -> None:
    visitor = Visitor(chromium, server, forced_colors="active")
    page = visitor.page
    visitor.go("#/x/asha/curves")
    visitor.drawn()
    page.locator("canvas.over").focus()
    said = []
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        said.append(page.locator(".frame [role=status]").inner_text())
    assert all(re.match(r"t\d{4} \w+, accuracy = 0\.\d+ at epoch \d", each) for each in said), said
    assert len(set(said)) > 2
    page.keyboard.press("+")
    page.get_by_role("button", name="show all").wait_for()
    page.keyboard.press("-")
    page.get_by_role("button", name="show all").wait_for(state="detached")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="unpin 1").wait_for()
    assert visitor.problems == []
    visitor.context.close()


def test_axe_finds_nothing(chromium: Any, server: Server) -> None:
    """The rules of axe-core, which tools/install_browser.sh installs."""
    axe = ROOT / "build" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed: run tools/install_browser.sh where npm is")
    check = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map(
        ({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`)"""
    visitor = Visitor(chromium, server)
    page = visitor.page
    page.evaluate(axe.read_text())
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for name in VIEWS if theme == "light" else ("home", "overview", "trial"):
            visitor.go(VIEWS[name])
            page.wait_for_selector("main h1")
            until(lambda: "reading" not in page.inner_text("main"), "a page that is loaded")
            assert page.evaluate(check) == [], f"{name}, {theme}"
    visitor.go("#/x/asha")
    for button in ("Extend…", "Add trial…", "Columns…", "Add a note or tags…", "Keys"):
        page.get_by_role("button", name=button).click()
        page.wait_for_selector("dialog[open]")
        assert page.evaluate(check) == [], button
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
    visitor.context.close()


def test_every_chart_downloads(chromium: Any, server: Server) -> None:
    """One window for each chart, because Chromium drops the eleventh download of a window within one second."""
    for view in CHARTS:
        visitor = Visitor(chromium, server, accept_downloads=True)
        visitor.go(VIEWS[view])
        visitor.drawn()
        for kind, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"")):
            with visitor.page.expect_download() as download:
                buttons = visitor.page.get_by_role("group", name="Download the chart").first
                buttons.get_by_role("button", name=kind, exact=True).click()
            content = Path(download.value.path()).read_bytes()
            assert content.startswith(begins), view
            assert len(content) > 40, view
        assert visitor.problems == [], view
        visitor.context.close()


def test_the_page_can_be_used_with_the_keyboard_alone(chromium: Any, server: Server) -> None:
    visitor = Visitor(chromium, server)
    page = visitor.page
    page.wait_for_selector(".list a")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tabs")
    for key, view in (("2", "curves"), ("3", "schedule"), ("5", "history"), ("1", "overview")):
        page.keyboard.press(key)
        page.wait_for_selector(f".tabs a[aria-current]:has-text('{view}')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    before = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--dark')")
    page.keyboard.press("t")
    after = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--dark')")
    assert before != after
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")
    page.keyboard.press("h")
    page.wait_for_selector(".list")
    assert visitor.problems == []
    visitor.context.close()


@contextlib.contextmanager
def live_run(home: Path) -> Iterator[Path]:
    """Start an experiment. It does not end before there is the file that is returned."""
    gate = home / "go"
    environment = {
        **os.environ,
        "HOPFLEET_HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        GATE: str(gate),
    }
    with subprocess.Popen([sys.executable, "-c", LIVE], env=environment) as run:
        try:
            until(lambda: (home / "live" / "journal.sqlite").exists(), "a journal")
            yield gate
            assert run.wait(SECONDS) == 0
        finally:
            run.kill()


def test_a_run_is_watched_and_steered_to_its_end_by_two_browsers(chromium: Any, home: Path, server: Server) -> None:
    """Both see the same points as the journal, although the server is killed and comes back meanwhile."""
    with live_run(home) as gate, Server(home) as own:
        first, second = Visitor(chromium, own), Visitor(chromium, own, viewport={"width": 1280, "height": 800})
        for visitor in (first, second):
            visitor.go("#/x/live")
            visitor.page.wait_for_selector(".board tbody tr")
        page = first.page
        steer(first, gate)
        second.drawn()
        second.picture("live")
        own.kill()
        page.wait_for_selector("text=The server does not answer")
        assert page.get_by_role("button", name="Extend…").is_disabled()
        own.start()
        page.wait_for_selector("text=The server does not answer", state="detached")
        for visitor in (first, second):
            visitor.page.wait_for_selector("header .state.finished")
        results = hop.load(home / "live")
        for visitor in (first, second):
            check_points(visitor, results)
            network = [each for each in visitor.problems if "Failed to load resource" not in each]
            assert network == []
            visitor.context.close()


def test_a_read_only_page_has_no_buttons_and_a_deleted_run_is_told(chromium: Any, home: Path) -> None:
    import shutil

    shutil.copytree(home / "pbt", home / "doomed")
    with Server(home, "--read-only") as own:
        visitor = Visitor(chromium, own)
        visitor.go("#/x/doomed")
        visitor.page.wait_for_selector(".board tbody tr")
        assert visitor.page.get_by_role("button", name="Extend…").count() == 0
        shutil.rmtree(home / "doomed")
        visitor.page.wait_for_selector("text=no such experiment here")
        visitor.go("#/x/asha/t/t9999")
        visitor.page.wait_for_selector("text=no such trial")
        visitor.context.close()


def test_fit_shows_the_run_on_a_page(home: Path) -> None:
    code = (
        "import re, sys, urllib.request\n"
        "from tests.helpers.curve_task import curve_experiment\n"
        "curve_experiment('shown').fit(ui=True)\n"
    )
    environment = {**os.environ, "HOPFLEET_HOME": str(home), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "watch it on http://127.0.0.1:" in done.stdout
    assert "/#/x/shown?code=" in done.stdout
