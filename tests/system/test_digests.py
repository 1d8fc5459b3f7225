"""A damaged byte in any file that Hopfleet wrote: refused with the name of the file, or without effect."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.data.etl.workspace import Workspace
from hopfleet.errors import DataError, HopfleetError
from hopfleet.runs.verify import verify
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import parsed_json


class Line(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = torch.nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(torch.as_tensor(batch["x"])), torch.as_tensor(batch["y"]))

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(batch["x"]))


class Scaled(hop.Recipe):
    def fit(self, batch: Any) -> dict[str, Any]:
        return {"sum": np.sum(batch["a"]), "counts": np.ones(3)}

    def apply(self, batch: Any, fitted: Any) -> dict[str, Any]:
        a = np.asarray(batch["a"], np.float32).reshape(-1, 1)
        return {"x": a / np.float32(fitted["sum"]), "y": 2 * a}


class Written(NamedTuple):
    """A folder that Hopfleet wrote, and a function that returns all that it says, in words."""

    folder: Path
    used: Callable[[Path], str]


def _weights(source: object) -> str:
    return str({name: value.numpy().tobytes() for name, value in sorted(hop.state_dict(source).items())})


def _run(folder: Path) -> str:
    """Return what a user sees of a run; what ``verify`` finds counts as a refusal."""
    results = hop.load(folder)
    trials = [(trial.id, dict(trial.config), trial.seed, trial.history, trial.visits) for trial in results.trials]
    weights = [_weights(path) for path in sorted((folder / "checkpoints").glob("t*/v*.safetensors"))]
    model = [value.numpy().tobytes() for value in results.best.model(Line()).state_dict().values()]
    seen = str((trials, results.best.id, model, weights, _weights(folder), _weights(results)))
    if not (found := verify(RunFolder(folder))).ok:
        raise HopfleetError("; ".join(map(str, found.faults)))
    definition = {key: value for key, value in results.definition.items() if key != "origin"}
    return seen + json.dumps(definition, sort_keys=True)


def _prepared(folder: Path) -> str:
    again = hop.prepare({"a": np.arange(8.0)}, folder, Scaled(), partitions=2)
    again.check(checksums=True)
    recipe = hop.load_recipe(folder)
    return str((again.fingerprint, again.manifest, recipe.fitted, recipe.layout.to_json(), again.head(8)))


def _bundle(folder: Path) -> str:
    bundle = hop.load_bundle(folder, trust=True)
    bundle.model.load_state_dict(bundle.model.state_dict())
    return str((bundle.content, bundle.predict({"a": [1.0, 3.0]}).to_pydict()))


def _export(folder: Path) -> str:
    return _weights(folder / "model.safetensors")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    """A finished run folder, prepared data, a bundle and an exported model."""
    place = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLEET_HOME", str(place / "home"))
        data = hop.prepare({"a": np.arange(8.0)}, place / "data", Scaled(), partitions=2)
        run = hop.Experiment(
            Line(), space={"lr": hop.grid_search([0.01, 0.02])}, train=data, valid=data, search=hop.Grid(max_epochs=2),
            metric="loss", batch_size=2, backend="inline", run_options=hop.RunOptions(folder=place / "run"),
        ).fit(quiet=True)  # fmt: skip
        run.best.export(place / "bundle", format="bundle")
        (place / "export").mkdir()
        run.best.export(place / "export" / "model.safetensors")
    uses = {"run": _run, "data": _prepared, "bundle": _bundle, "export": _export}
    return {name: Written(place / name, used) for name, used in uses.items()}


UNREAD = ("lock", "hopfleet.json", ".log", "README.md", ".svg", "failed.jsonl", "bundle.seal", ".shared-memory")
"""Endings of files that are for people, or that tell nothing of a result."""


OTHERS = ("folder", "pipe", "device")


def _damages(path: Path, content: bytes, drawn: random.Random, count: int) -> Iterator[tuple[int, int]]:
    """Yield places and the bits that flip there: in the last byte, which is one of a tensor, and in some others.

    A digit of a JSON file also becomes another one, which leaves the file one that can be parsed.
    """
    for place in [len(content) - 1, *(drawn.randrange(len(content)) for _ in range(count))]:
        yield place, 1 << place % 8
    digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()] if path.suffix == ".json" else []
    for place in drawn.sample(digits, min(3 * count, len(digits))):
        yield place, 1


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["run", "data", "bundle", "export"])
def test_a_damaged_byte_is_named_or_changes_nothing(
    kind: str, count: int, written: dict[str, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, used = written[kind]
    monkeypatch.setenv("HOPFLEET_HOME", str(folder.parent / "home"))
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    wanted, drawn = used(copy), random.Random(count)
    for path in sorted(each for each in copy.rglob("*") if each.is_file() and each.stat().st_size):
        before = path.read_bytes()
        for place, bits in _damages(path, before, drawn, count):
            path.write_bytes(before[:place] + bytes([before[place] ^ bits]) + before[place + 1 :])
            about = f"{path.relative_to(copy)}, byte {place} of {len(before)}"
            try:
                with contextlib.chdir(tmp_path):
                    found = used(copy)
            except HopfleetError as error:
                named = {path.name, str(path.relative_to(copy))} | ({"journal"} if "journal" in path.name else set())
                assert any(name in str(error) for name in named), f"{about}: the refusal names another file: {error}"
            else:
                assert found == wanted, f"{about}: another result, without a word"
                # Journals have free pages, and a damaged record of a run counts as missing.
                needed = kind != "run" or path.name.endswith((".safetensors", "experiment.json"))
                assert path.name.endswith(UNREAD) or not needed, f"{about}: is not noticed"
            path.write_bytes(before)
    assert used(copy) == wanted


@pytest.fixture
def impatient() -> Iterator[None]:
    """End a test that waits for a pipe."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a reader waits for a pipe"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=OTHERS)
@pytest.mark.parametrize("kind", ["run", "data", "bundle", "export"])
def test_a_folder_a_pipe_or_a_device_in_place_of_a_file_is_named(
    kind: str, make: Callable[[Path], None], written: dict[str, Written], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, used = written[kind]
    monkeypatch.setenv("HOPFLEET_HOME", str(folder.parent / "home"))
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    wanted = used(copy)
    for path in sorted(each for each in copy.rglob("*") if each.is_file()):
        before = path.read_bytes()
        path.unlink()
        make(path)
        try:
            assert used(copy) == wanted, f"{path.relative_to(copy)}: another result, without a word"
        except HopfleetError as error:
            assert path.name in str(error) or path.name.endswith(UNREAD), f"the refusal of {path.name} says: {error}"
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(before)
    assert used(copy) == wanted


def test_a_changed_mean_is_refused(written: dict[str, Written], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(written["data"].folder, data)
    text = (data / "recipe.json").read_text()
    assert "28.0" in text
    (data / "recipe.json").write_text(text.replace("28.0", "29.0"))
    with pytest.raises(DataError, match=r"recipe\.json: is damaged \(its content differs from its digest\)"):
        hop.load_recipe(data)


def test_files_of_release_0_1_have_no_digest_and_are_read(written: dict[str, Written], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(written["data"].folder, data)
    for name in ("recipe.json", "manifest.json", "prepared.json"):
        content = parsed_json((data / name).read_text())
        content.pop("files", None)
        (data / name).write_text(json.dumps(content))
    assert _prepared(data)


def test_a_damaged_piece_of_an_interrupted_preparation_is_made_again(tmp_path: Path) -> None:
    class Here:
        """Does pieces of work at once."""

        def run(self, function: Any, tasks: Any, **_: Any) -> Iterator[tuple[int, Any]]:
            yield from ((number, function(*task)) for number, task in tasks)

    made: list[int] = []

    def twice(number: int) -> int:
        made.append(number)
        return 2 * number

    def finished_pieces() -> list[int]:
        tasks = [(number,) for number in range(3)]
        return Workspace(tmp_path).do(Here(), "pieces", twice, tasks, lambda *_: None)  # type: ignore[arg-type]

    assert finished_pieces() == finished_pieces() == [0, 2, 4] and made == [0, 1, 2]
    path = Workspace(tmp_path).file("pieces", 1, ".pickle")
    path.write_bytes(path.read_bytes().replace(pickle.dumps(2), pickle.dumps(3)))
    assert finished_pieces() == [0, 2, 4] and made == [0, 1, 2, 1]
