"""Names and texts beyond ASCII where neither the locale nor Python's UTF-8 mode knows them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import environment
from tests.helpers.warm import run

SCRIPT = """
import numpy as np, torch, hopfleet as hop

class Task(hop.TorchTask):
    def build(self, config):
        print("gr\u00f6\u00dfe")
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["l\u00e4nge"])
    def loss(self, model, batch):
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    rows = {"x": x, "y": x.sum(1)}
    results = hop.Experiment(
        Task(), train=rows, valid=rows, space={"l\u00e4nge": 0.1}, search=hop.Grid(max_epochs=1), name="e", workers=1
    ).fit()
    assert "gr\u00f6\u00dfe" in results.best.log()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("cold")
def test_a_home_and_texts_that_the_locale_does_not_know(tmp_path: Path) -> None:
    folder = tmp_path / "h\u00f8m\u00e9"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    own = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "HOPFLEET_HOME": str(folder / "runs")}
    commands = [["script.py"], ["-m", "hopfleet", "show", "e"], ["-m", "hopfleet", "verify", "e"]]
    for command in commands:
        done = run(
            [sys.executable, "-X", "utf8=0", *command], env={**environment(), **own}, cwd=os.fspath(folder), timeout=120
        )
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, said
        assert "Unicode" not in said and "warning" not in said, said
