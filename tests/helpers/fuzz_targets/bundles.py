"""Targets: the files of a bundle. It predicts as before, or is refused in words."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from tests.helpers.mutation import Mutator

ROWS = {"x": np.array([[1.0], [3.0]], "f4")}


class Line(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = torch.nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch["x"]).square().mean()

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(batch["x"]))


@functools.cache
def original() -> tuple[Path, str]:
    """Return a bundle, made once in this process, and its predictions."""
    place = Path(tempfile.mkdtemp(prefix="original-"))
    results = hop.Experiment(
        Line(), space={"lr": 0.1}, train={"x": np.ones((8, 1), "f4")}, search=hop.Grid(max_epochs=1), partitions=2,
        batch_size=4, backend="inline", name="line", run_options=hop.RunOptions(folder=place / "run"),
    ).fit(quiet=True)  # fmt: skip
    results.best.export(place / "bundle", format="bundle")
    return place / "bundle", predictions(place / "bundle")


def predictions(folder: Path) -> str:
    return str(hop.load_bundle(folder, trust=True).predict(ROWS).to_pydict())


def description(mutator: Mutator, folder: Path) -> None:
    """Load a bundle with a damaged or crafted description, whose digest may be missing."""
    bundle = Path(shutil.copytree(original()[0], folder / "bundle"))
    path = bundle / "bundle.json"
    if mutator.random.random() < 0.5:
        path.write_text(path.read_text().replace('"sha256"', '"other"'))
    mutator.file(path)
    hop.load_bundle(bundle, trust=True).predict(ROWS)


def other_files(mutator: Mutator, folder: Path) -> None:
    """Load a bundle in which another file is damaged, missing, a folder or a link."""
    bundle = Path(shutil.copytree(original()[0], folder / "bundle"))
    files = sorted(path for path in bundle.rglob("*") if path.is_file() and path.name != "bundle.json")
    path = mutator.random.choice(files)
    kind = mutator.random.randrange(6)
    if kind > 2:
        path.write_bytes(mutator.bytes(path.read_bytes()))
    else:
        path.unlink()
        if kind == 1:
            path.mkdir()
        elif kind == 2:
            path.symlink_to("/etc/passwd")
    assert predictions(bundle) == original()[1]
