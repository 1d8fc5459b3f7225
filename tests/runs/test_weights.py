"""Weights that load without Hopfleet: a plain file beside the best version, and ``hop.state_dict``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import hopfleet as hop
from hopfleet.errors import CheckpointError, UsageError
from tests.helpers.sample_tasks import Plain, arrays


class Tied(torch.nn.Module):
    """Tied weights, a buffer, and state that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = torch.nn.Flatten()
        self.norm = torch.nn.BatchNorm1d(36)
        self.first = torch.nn.Linear(36, 36)
        self.second = torch.nn.Linear(36, 36)
        self.second.weight = self.first.weight
        self.head = torch.nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.second(torch.relu(self.first(self.norm(self.flatten(x))))))
        return found


class TiedTask(Plain):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Tied()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


class Averaged(TiedTask):
    ema = 0.5


def experiment(task: hop.TorchTask, **options: Any) -> hop.Experiment:
    return hop.Experiment(
        task,
        train=arrays(96),
        valid=arrays(30, seed=1),
        space={"lr": hop.grid_search([0.01, 0.02])},
        search=hop.Grid(max_epochs=2),
        metric="loss",
        name="weights",
        backend="inline",
        batch_size=16,
        **options,
    )


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("task", [TiedTask, Averaged])
def test_the_best_weights_load_with_safetensors_alone(task: Any) -> None:
    results = experiment(task()).fit(quiet=True)
    file = results.folder.path / "best" / "model.safetensors"
    model = Tied()
    model.load_state_dict(load_file(file))
    assert same(model.state_dict(), results.best.model().state_dict())
    assert [path.name for path in file.parent.iterdir()] == ["model.safetensors"]
    for place in (results.folder.path, str(file.parent), file):
        assert same(hop.state_dict(place), model.state_dict())


def test_the_state_dict_of_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = experiment(TiedTask()).fit(quiet=True)
    expected = results.best.model().state_dict()
    for source in (results, results.best, results.best.checkpoint, str(results.best.checkpoint)):
        assert same(hop.state_dict(source), expected)
    model = Tied()
    model.load_state_dict(hop.state_dict(results.best.last_checkpoint))
    version = results.best.checkpoint
    content = version.read_bytes()
    version.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for source in (results, results.best, version, str(version)):
        with pytest.raises(CheckpointError, match=f"{version.name}: is damaged: another SHA-256 than in the journal"):
            hop.state_dict(source)
    shutil.copy(version, tmp_path / "copy.safetensors")
    assert hop.state_dict(tmp_path / "copy.safetensors").keys() == expected.keys(), "it is outside of its run"
    version.write_bytes(content)
    results.folder.journal_file.write_bytes(b"not a database" * 100)
    assert same(hop.state_dict(version), expected)
    assert f"{version.name}: is not compared with its digest (" in capsys.readouterr().err


@pytest.mark.slow
def test_the_file_follows_the_best_trial(tmp_path: Path) -> None:
    results = experiment(TiedTask()).fit(quiet=True)
    file = results.folder.path / "best" / "model.safetensors"
    file.write_bytes(b"of an earlier best trial")
    hop.control("weights").extend(epochs=1)
    results = experiment(TiedTask()).fit(quiet=True)
    assert same(load_file(file), hop.state_dict(results.best))
    results.best.export(tmp_path / "elsewhere.safetensors")
    assert same(load_file(tmp_path / "elsewhere.safetensors"), hop.state_dict(results.best))


def test_what_has_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no best/model.safetensors, which is written when"):
        hop.state_dict(tmp_path)
    with pytest.raises(UsageError, match=r"state_dict\(3\): pass a file"):
        hop.state_dict(3)
    with pytest.raises(UsageError, match="there is no such file or folder"):
        hop.state_dict(tmp_path / "absent")
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="has no weights of a PyTorch model"):
        hop.state_dict(tmp_path / "foreign")


def test_a_run_completes_even_if_the_weights_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hopfleet.frameworks.torch.weights.write", full)
    results = experiment(TiedTask()).fit(quiet=True)
    assert results.finished
    assert "model.safetensors: cannot be written (No space left on device); make room" in capsys.readouterr().err
