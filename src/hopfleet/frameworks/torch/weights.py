"""Plain weights: the state dict of a model, out of a version and in a file of its own, without pickle."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import torch

from hopfleet.domain.signatures import explained
from hopfleet.errors import CheckpointError, UsageError
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.torch import checkpoint
from hopfleet.support.files import open_plain, write_atomically

FILE = "model.safetensors"

METADATA, DIGEST = {"format": "pt"}, "sha256"
"""What files of plain weights say about themselves, as others write them, and the key of a digest of their content."""
"""Name of a file with plain weights."""

Weights = dict[str, torch.Tensor]


@explained
def state_dict(source: object) -> Weights:
    """Return the weights of a model as ``model.load_state_dict`` takes them, on the CPU.

    ``source`` is the file of a version, a file of plain weights, a run folder or its folder ``best``, or a trial or
    the results of an experiment, whose best version counts. The file of a version has the weights as the last update
    left them, even if the task averages its weights.
    """
    source = getattr(source, "best", source)
    source = getattr(source, "checkpoint", source)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"state_dict({source!r}): pass a file, a run folder, a trial or results")
    path = Path(source).expanduser()
    if not path.exists():
        raise UsageError(f"state_dict({str(path)!r}): there is no such file or folder")
    if not path.is_dir():
        return _read(path)
    for file in (path / FILE, path / "best" / FILE):
        if file.is_file():
            return _read(file)
    raise UsageError(
        f"state_dict({str(path)!r}): there is no best/{FILE}, which is written when the experiment is complete; "
        "pass a trial, e.g. hop.load(...).best, or the file of a version"
    )


def write(path: Path, weights: Weights) -> None:
    """Write weights to a file that ``safetensors.torch.load_file`` reads. Weights that are tied are written twice."""
    plain = {name: value.detach().cpu().contiguous() for name, value in weights.items() if torch.is_tensor(value)}

    number = safetensors.digest(plain, METADATA)

    def fill(place: Path) -> None:
        safetensors.write(place, plain, {**METADATA, DIGEST: number})
        check_equal(path, plain, safetensors.read(place)[0])

    write_atomically(path, fill, durable=True, private=True)


def check_equal(path: Path, weights: Weights, found: Weights) -> None:
    """Raise CheckpointError unless a file that was read back has the very weights that were written."""
    for name, value in weights.items():
        if name not in found or bits(found[name]) != bits(value):
            raise CheckpointError(f"{path}: {name} differs from what was written; check that disk, and export again")


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _read(path: Path) -> Weights:
    try:
        with open_plain(path, links=True) as file:
            of_folds = zipfile.is_zipfile(file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if of_folds:
        raise UsageError(f"{path}: holds a model for each fold; results.refit() trains one model on all rows")
    tensors, metadata = safetensors.read(path)
    if checkpoint.FORMAT in metadata:
        return checkpoint.weights(path)
    if metadata.get("format") == "pt":
        number = metadata.pop(DIGEST, None)
        if number is not None and number != safetensors.digest(tensors, metadata):
            raise CheckpointError(f"{path}: is damaged: its content differs from its digest; export the model again")
        return {name: tensor.clone() for name, tensor in tensors.items()}
    raise CheckpointError(f"{path}: has no weights of a PyTorch model")
