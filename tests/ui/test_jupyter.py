"""Real notebooks: a kernel that shows the page, the static HTML beside it, and JupyterLab in a real browser.

JupyterLab is not among the packages of the tests. ``HOPFLEET_JUPYTER`` names an environment that has it and Hopfleet;
without one, the last test is skipped: ``python -m venv jupyter && jupyter/bin/pip install jupyterlab 'hopfleet[ui]'``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from hopfleet.runs.control import Control
from hopfleet.store.folder import RunFolder
from hopfleet.ui import companion
from tests.helpers.browser import SECONDS, browser, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CODE = """
import hopfleet as hop
from tests.helpers.curve_task import SPACE, curve_experiment

space = {**SPACE, "seconds": 0.2}
search = hop.Random(trials=2, max_epochs=SIZE)
results = curve_experiment("mine", space=space, search=search, backend="local", workers=2).fit()
"""


@pytest.fixture(autouse=True)
def surroundings(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")


def test_a_cell_shows_the_page_and_plain_html_and_a_kernel_has_one_server(tmp_path: Path) -> None:
    """Front ends that run no scripts and reach no server, as for saved notebooks, still have the table."""
    look = (
        "import re, urllib.request\n"
        "from IPython.display import HTML\n"
        "from hopfleet.ui.companion import show_page\n"
        "told = [show_page(results.folder), show_page(results.folder)]\n"
        "addresses = [text.split('?code=')[0] for text in told]\n"
        "assert addresses[0] == addresses[1] and told[0] != told[1], told\n"
        "print(urllib.request.urlopen(re.search('http://[^#]+', told[0])[0]).status)\n"
    )
    cells = [nbformat.v4.new_code_cell(code) for code in (CODE.replace("SIZE", "1"), "results", look)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    first, again, looked = [
        [output.get("data", {}) or {"text/plain": output.get("text", "")} for output in cell.outputs]
        for cell in notebook.cells
    ]
    frame, table = [output["text/html"] for output in first if "text/html" in output][:2]
    assert re.search(r'"mine in Hopfleet", "http://127\.0\.0\.1:\d+/frame#/x/mine\?code=[\w-]+"\]', frame)
    assert "code=" not in table, "the table of a saved notebook opens nothing"
    assert "t0002" in table and "<script" not in table and "<iframe" not in table
    assert all(output["text/plain"] for output in [*first, *again])
    assert "<table" in again[-1]["text/html"]
    assert any(output["text/plain"].strip() == "200" for output in looked)


def test_a_notebook_whose_machine_is_out_of_reach_shows_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "in_notebook", lambda: True)
    assert companion.suits_page()
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert not companion.suits_page()
    monkeypatch.delitem(sys.modules, "google.colab")
    monkeypatch.setattr(companion, "_installed", lambda module: module != "uvicorn")
    assert not companion.suits_page()


def test_jupyterlab_shows_a_running_experiment_and_its_buttons_work(tmp_path: Path, own_home: Path) -> None:
    place = os.environ.get("HOPFLEET_JUPYTER")
    if not place:
        pytest.skip("HOPFLEET_JUPYTER names no environment with JupyterLab")
    cells = [nbformat.v4.new_code_cell(CODE.replace("SIZE", "10_000"))]  # it runs until it is paused
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "mine.ipynb")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [f"--port={port}", "--no-browser", "--allow-root", "--IdentityProvider.token=secret"]
    command = [str(Path(place) / "bin" / "jupyter-lab"), *options, f"--notebook-dir={tmp_path}"]
    with (tmp_path / "jupyter.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: _answers(port), "a server")
        with browser() as opened:
            _use(opened.new_page(viewport={"width": 1400, "height": 1200}), port)
        requests = Control(RunFolder(own_home / "mine")).requests()
        assert [(each.request, each.granted) for each in requests] == [("pause", True)]
    finally:
        server.terminate()
        server.wait(SECONDS)


def _use(page: Any, port: int) -> None:
    """Run the cell, and pause the experiment with the button in its output."""
    page.set_default_timeout(SECONDS * 1000)
    # On a busy machine JupyterLab may ask for a kernel, or say that it was not ready; its first answer will do.
    page.add_locator_handler(page.locator(".jp-Dialog"), lambda: page.locator(".jp-Dialog .jp-mod-accept").click())
    page.goto(f"http://localhost:{port}/lab/tree/mine.ipynb?token=secret")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
    until(lambda: _started(page), "a cell that runs")
    inside = page.frame_locator("iframe[title='mine in Hopfleet']")
    inside.locator(".board tbody tr").first.wait_for()
    inside.get_by_role("button", name="Pause").click()
    inside.locator(".messages", has_text="running units end").wait_for()
    page.locator(".jp-OutputArea-output pre", has_text="t0001").first.wait_for()
    pictures = Path(os.environ.get("HOPFLEET_PICTURES", ROOT / "build" / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=pictures / "jupyterlab.png")


def _started(page: Any) -> bool:
    """Press the keys that run the cell; then a star is shown. JupyterLab loses them while it opens the notebook."""
    from playwright.sync_api import TimeoutError as Late

    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    cell.click()
    page.keyboard.press("Shift+Enter")
    try:
        cell.locator(".jp-InputPrompt", has_text="*").wait_for(timeout=10_000)
    except Late:
        return False
    return True


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5) as answer:
            return "version" in json.load(answer)
    except OSError:
        return False
