"""Targets: model files, as a stranger may have made them."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.torch.framework import TorchFramework
from tests.helpers.mutation import Mutator


class Small(hop.TorchTask):
    """A model with everything that a version can hold: buffers, Adam and a schedule."""

    def build(self, config: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["x"]).sum()


@functools.cache
def original() -> bytes:
    """Return the content of a version file."""
    path = Path(tempfile.mkdtemp(prefix="original-")) / "v00001-1.safetensors"
    session = framework().open({}, seed=0, placement=Placement.on("cpu"), threads=1)
    session.save(path)
    return path.read_bytes()


@functools.cache
def framework() -> TorchFramework:
    found = Small().framework
    assert isinstance(found, TorchFramework)
    return found


def checkpoint(mutator: Mutator, folder: Path) -> None:
    """Read the weights of a damaged file, or load a model from it."""
    path = folder / "v00001-1.safetensors"
    path.write_bytes(_damaged(mutator, original()))
    if mutator.random.random() < 0.5:
        assert all(torch.is_tensor(value) for value in hop.state_dict(path).values())
    else:
        framework().model({}, path)


def _damaged(mutator: Mutator, content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = mutator.random.randrange(4)
    if kind == 0:
        return mutator.bytes(content)
    if kind == 1:
        header = mutator.json(header)
    else:
        (name,) = header["__metadata__"]
        tree = mutator.json(json.loads(header["__metadata__"][name]))
        header["__metadata__"][name] = json.dumps(tree)
    text = json.dumps(header).encode(errors="replace")
    return len(text).to_bytes(8, "little") + text + tensors
