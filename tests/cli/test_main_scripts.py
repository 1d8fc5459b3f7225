"""Scripts that make their experiment below ``if __name__ == "__main__"``, as most scripts do."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from tests.helpers.cli import Cli

Run = Callable[..., Path]

BESIDE = """
WIDTH = 3

def rows():
    import numpy as np
    return np.arange(48, dtype="float32").reshape(12, 4)
"""

SCRIPT = """
import argparse

import numpy as np
import torch

import hopfleet as hop
from beside import WIDTH, rows


class Net(hop.TorchTask):
    {head}
    def build(self, config):
        model = torch.nn.Linear(4, WIDTH)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return self.scale(model(batch["x"])).square().mean()

    def predict(self, model, batch):
        return model(torch.as_tensor(batch["x"]))

    def scale(self, value):
        return value * {scale}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--api-key", default="")
    options = parser.parse_args()
    with open("{log}", "a") as log:
        log.write("ran\\n")
    for name in {names}:
        experiment = hop.Experiment(
            Net({given}), train={{"x": rows()}}, valid={{"x": rows()}}, space={{"lr": hop.choice([0.01])}},
            search=hop.Random(trials=1, max_epochs=1), partitions=2, batch_size=4, backend="inline", name=name,
        )
        experiment.fit(quiet=True)


if __name__ == "__main__":
    main()
"""

ARGUED = {
    "head": "def __init__(self, factor=7.0):\n        self.factor = factor\n",
    "scale": "self.factor",
    "given": "options.factor",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script as Python does, from a folder of its own, and then forgets its modules."""
    home = tmp_path / "scripts"
    home.mkdir()
    (home / "beside.py").write_text(BESIDE)

    def start(*arguments: str, names: tuple[str, ...] = ("mine",), **parts: str) -> Path:
        path, log = home / "train.py", tmp_path / "log"
        made = {"head": "", "scale": "1.0", "given": "", **parts}
        path.write_text(SCRIPT.format(names=names, log=log, **made))
        monkeypatch.setattr(sys, "path", [str(home), *sys.path])
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(home)])
        monkeypatch.delitem(sys.modules, "beside")
        return log

    return start


COMMANDS = {
    "test": ["--data", "DATA", "--backend", "inline"],
    "predict": ["--data", "DATA", "--to", "out.csv", "--backend", "inline"],
    "ensemble": ["--data", "DATA", "--backend", "inline"],
    "replay": ["--backend", "inline"],
}


def commands(tmp_path: Path) -> dict[str, list[str]]:
    data = hop.partition({"x": np.ones((4, 4), "float32")}, tmp_path / "new", partitions=1)
    return {name: [data.url if word == "DATA" else word for word in words] for name, words in COMMANDS.items()}


@pytest.mark.slow
def test_a_task_without_attributes_is_imported_and_main_does_not_run(cli: Cli, run: Run, tmp_path: Path) -> None:
    log = run()
    for name, words in commands(tmp_path).items():
        done = cli(name, "mine", *words)
        assert done.code == 0, (name, done.err)
    assert log.read_text() == "ran\n"


def test_a_task_with_arguments_is_the_one_that_main_makes(cli: Cli, run: Run, tmp_path: Path) -> None:
    log = run("--factor=2", names=("other", "mine"), **ARGUED)
    done = cli("replay", "mine", *COMMANDS["replay"])
    assert done.code == 0, done.err
    assert log.read_text() == "ran\n" * 2


def test_resume_asks_for_secrets_that_are_not_stored(cli: Cli, run: Run, tmp_path: Path) -> None:
    run("--api-key", "sesame-open-42", "--factor=2", **ARGUED)
    folder = hop.load("mine").folder.path
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"sesame" in path.read_bytes()]
    done = cli("replay", "mine", "--backend", "inline")
    assert done.code == 2
    assert "secrets among the arguments of its script are not stored (***)" in done.err
    assert "--api-key ... --factor=2" in done.err


def test_a_task_of_a_module_beside_the_script(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "scripts"
    home.mkdir()
    task = SCRIPT.partition("def main")[0].format(**{"log": "", "names": "", **ARGUED}).replace("from beside", "#")
    (home / "apart_task.py").write_text("WIDTH = 3\n" + task)
    path = home / "train.py"
    path.write_text(
        "import numpy as np\nimport hopfleet as hop\nfrom apart_task import Net\n"
        "for name, task in ('same', Net()), ('other', Net(2.0)):\n"
        "    hop.Experiment(task, train={'x': np.ones((8, 4), 'float32')}, space={'lr': hop.choice([0.01])},\n"
        "        search=hop.Random(trials=1, max_epochs=1), partitions=2, batch_size=4, backend='inline', name=name,\n"
        "    ).fit(quiet=True)\n"
    )
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(home)])
    monkeypatch.delitem(sys.modules, "apart_task")
    assert cli("replay", "same", "--backend", "inline").code == 0
    done = cli("replay", "other", "--backend", "inline")
    assert done.code == 2 and "created with other values of self.factor; pass it" in done.err
