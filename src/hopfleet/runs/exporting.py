"""Exports: the weights of a trial in a file that can be loaded without Hopfleet."""

from __future__ import annotations

import os
from pathlib import Path

from hopfleet.domain.trial import Config
from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Framework
from hopfleet.phrases import shown
from hopfleet.support.files import trouble

FORMATS = frozenset((".bin", ".ckpt", ".h5", ".joblib", ".keras", ".onnx", ".pkl", ".pt", ".pth", ".safetensors"))
"""Suffixes of files with models."""


def write_weights(framework: Framework, config: Config, checkpoint: Path, path: str | os.PathLike[str]) -> None:
    """Write the weights of a saved version to a file. Raise UsageError if the path promises another format."""
    if not isinstance(path, str | os.PathLike) or Path(path).is_dir():
        raise UsageError(f"path={shown(path)}: must be the name of a file to write, e.g. 'model.safetensors'")
    suffix = Path(framework.weights_file).suffix
    if suffix and Path(path).suffix in FORMATS - {suffix}:
        raise UsageError(
            f"path={str(path)!r}: the file is written in the format {suffix}; for another one, save what trial.model() "
            "returns with the functions of its framework"
        )
    try:
        framework.export(config, checkpoint, Path(path).expanduser())
    except OSError as error:
        raise UsageError(trouble(path, error)) from error
