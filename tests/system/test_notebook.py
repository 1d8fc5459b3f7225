"""The first experiment in a real Jupyter kernel, and under the debugger."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers import warm

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "README.md"


def first_experiment() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.usefixtures("warm_compiler")
def test_the_first_script_runs_twice(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(first_experiment())
    outputs = []
    for _ in range(2):
        process = warm.Popen(
            [sys.executable, "first.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        outputs.append(out)
    assert "digits is finished already: nothing was trained" in outputs[1]
    assert outputs[1].splitlines()[-1] == outputs[0].splitlines()[-1]


def test_a_notebook_shows_a_table_and_a_cell_runs_twice(tmp_path: Path) -> None:
    code = first_experiment()
    changed = code.replace('config["width"], 10)', 'config["width"], 12)')
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (code, code, changed)])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, resources=resources, allow_errors=True).execute()
    _, again, refused = [list(cell.outputs) for cell in notebook.cells]
    assert not any(output.output_type == "error" for output in again), again
    assert any("nothing was trained" in output.get("data", {}).get("text/html", "") for output in again)
    (error,) = [output for output in refused if output.output_type == "error"]
    assert error.ename == "ExperimentExists" and "code: Digits.build changed" in error.evalue
    outputs = notebook.cells[0].outputs
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("accuracy" in page and "t0001" in page for page in pages), outputs
    assert any("checkpoints" in output.get("text", "") for output in outputs)


FITTED = """
import numpy as np
import hopfleet as hop
from hopfleet.testing.tasks import CountingTask

experiment = hop.Experiment(
    CountingTask(), train={"x": np.arange(8.0)}, valid={"x": np.arange(4.0)}, space={"number": hop.grid_search([1, 2])},
    search=hop.Grid(max_epochs=1), partitions=2, batch_size=2, backend="inline", name="shown",
)
results = experiment.fit(quiet=True)
"""


def test_a_notebook_shows_charts_and_tables_once(tmp_path: Path) -> None:
    shown = ["experiment", "results", "results.best", "results.plot()", "import matplotlib.pyplot; results.gantt()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in (FITTED, *shown)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [[output.data for output in cell.outputs] for cell in notebook.cells[1:]]
    for (page,) in outputs[:3]:
        assert "<table" in page["text/html"]
    for (picture,) in outputs[3:]:
        assert picture["image/png"]


@pytest.mark.usefixtures("warm_compiler")
@pytest.mark.parametrize("how", ["breakpoint", "pdb"])
def test_the_debugger_stops_in_the_task(tmp_path: Path, how: str) -> None:
    code = first_experiment().replace('name="digits")', 'name="digits", backend="inline", workers=1)')
    build = '        model = torch.nn.Sequential(torch.nn.Linear(64, config["width"])'
    assert build in code
    if how == "breakpoint":
        code = code.replace(build, f"        breakpoint()\n{build}")
        commands = "p sorted(config)\nq\n"
    else:
        line = code[: code.index(build)].count("\n") + 1
        commands = f"b {line}\nc\np sorted(config)\nq\n"
    script = tmp_path / "script.py"
    script.write_text(code)
    start = [sys.executable, str(script)] if how == "breakpoint" else [sys.executable, "-m", "pdb", str(script)]
    done = warm.run(start, input=commands, cwd=tmp_path, text=True, timeout=120)
    assert "['batch_size', 'lr', 'width']" in done.stdout, done.stdout + done.stderr
