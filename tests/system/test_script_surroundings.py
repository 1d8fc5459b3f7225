"""What a script configures in its own process holds in its workers: a real script, run by Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

# One script with all of this takes a process of its own and 15 seconds.
pytestmark = pytest.mark.slow

SETTINGS = """
SIZE = 1
LAYERS = [1]
calls = 0

def activate(x):
    return x

def count():
    global calls
    calls += 1
"""

SCRIPT = """
import json
import logging
import sys
import warnings

import numpy as np
import torch

import hopfleet as hop
import own_settings

logging.basicConfig(level=logging.INFO, format="<%(levelname)s %(name)s> %(message)s")
logging.getLogger("quiet").setLevel(logging.ERROR)
torch.set_float32_matmul_precision("high")
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = True
warnings.filterwarnings("ignore", message="of no use")
own_settings.SIZE = 3
own_settings.activate = torch.relu
own_settings.count()
aten = torch.ops.aten


class Task(hop.TorchTask):
    def build(self, config):
        found = {
            "dtype": str(torch.get_default_dtype()),
            "matmul": torch.get_float32_matmul_precision(),
            "deterministic": torch.get_deterministic_debug_mode(),
            "benchmark": torch.backends.cudnn.benchmark,
            "size": own_settings.SIZE,
            "calls": own_settings.calls,
        }
        print("found", json.dumps(found))
        torch.backends.cuda.matmul.allow_tf32 = True
        logging.getLogger("train").info("a record for the log")
        logging.getLogger("train").warning("the learning rate %s is large", config["lr"])
        logging.getLogger("quiet").warning("not wanted")
        for number in range(100):
            logging.getLogger("flood").warning("again %d", number)
        warnings.warn("of some use")
        warnings.warn("of no use")
        model = torch.nn.Linear(4, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        off = torch.ops.aten.sub(model(batch["x"].double()).squeeze(1), batch["y"])
        return aten.mul(off, off).mean()


x = np.random.default_rng(0).normal(size=(64, 4))
results = hop.Experiment(
    Task(),
    train={"x": x, "y": x.sum(1)},
    space={"lr": hop.grid_search([0.5, 0.7])},
    search=hop.Grid(max_epochs=1),
    name="surroundings",
    workers=1,
    worker_options=hop.WorkerOptions(device="cpu", fuse="off"),
).fit()
for trial in results.trials:
    print("log of", trial.id, json.dumps(trial.log()), trial.state.value, trial.error)
print("settings", json.dumps(results.definition["settings"]))
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("script")
    (folder / "own_settings.py").write_text(SETTINGS)
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "HOPFLEET_HOME": str(folder / "runs"), "TERM": "dumb", "COLUMNS": "300"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def log_of(output: str, trial: str) -> str:
    found = re.search(rf'log of {trial} "(.*)" completed', output)
    assert found is not None, output
    return found[1].encode().decode("unicode_escape")


@pytest.mark.parametrize("trial", ["t0001", "t0002"])
def test_settings_of_the_framework_and_of_modules(output: str, trial: str) -> None:
    first = '"dtype": "torch.float64", "matmul": "high", "deterministic": 1, "benchmark": true, "size": 3, "calls": 0'
    assert f"found {{{first}}}" in log_of(output, trial)


def test_settings_are_recorded(output: str) -> None:
    (line,) = [line for line in output.splitlines() if line.startswith("settings ")]
    assert '"default_dtype": "float64"' in line
    assert '"float32_matmul_precision": "high"' in line


@pytest.mark.parametrize(("trial", "rate"), [("t0001", "0.5"), ("t0002", "0.7")])
def test_records_and_warnings_are_in_the_log_of_each_trial(output: str, trial: str, rate: str) -> None:
    log = log_of(output, trial)
    assert "<INFO train> a record for the log" in log
    assert f"<WARNING train> the learning rate {rate} is large" in log
    assert "UserWarning: of some use" in log
    assert "not wanted" not in log
    assert "of no use\n" not in log.replace('warnings.warn("of no use")', "")


def test_records_at_warning_and_above_are_shown_once(output: str) -> None:
    shown = output[: output.index("log of")]
    for trial, rate in (("t0001", "0.5"), ("t0002", "0.7")):
        assert shown.count(f"WARNING train: the learning rate {rate} is large") == 1, shown
        assert re.search(rf"(probe|{trial}): WARNING train: the learning rate {rate}", shown)
    assert "a record for the log" not in shown
    assert shown.count("WARNING flood: again") == 5
    assert "again 4; further ones are in the logs of trials" in shown


def test_what_cannot_travel_is_named(output: str) -> None:
    assert "own_settings.activate was replaced by the script, but workers import the module anew" in output
    assert "own_settings.calls" not in output
    assert "own_settings.LAYERS" not in output
