"""Trained models in files that other programs read, checked by reading them back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Task
from hopfleet.phrases import shown
from hopfleet.runs.joining import calling, check_deviation, joined
from hopfleet.runs.opened_run import OpenedRun
from hopfleet.support.files import trouble, write_atomically

SUFFIXES = frozenset((".bin", ".ckpt", ".h5", ".joblib", ".keras", ".onnx", ".pkl", ".pt", ".pth", ".safetensors"))
"""Suffixes of files with models."""

BUNDLE = "bundle"
"""The format of a folder with everything that predictions need."""

WEIGHTS = "safetensors"
"""The format of weights alone."""


@dataclass(frozen=True)
class Exported:
    """An exported model. ``deviation`` is the largest difference of its outputs; None if it was not read back."""

    path: Path
    format: str
    deviation: float | None

    def __str__(self) -> str:
        checked = "not read back" if self.deviation is None else f"largest deviation {self.deviation:.2g}"
        return f"{self.path}: {self.format}, {checked}"


def export_models(
    results: OpenedRun[Any],
    members: Mapping[str, float],
    path: str | os.PathLike[str],
    kind: str | None,
    task: Task,
    *,
    logits: bool = False,
) -> Exported:
    """Write the models of some trials, each with its weight, as one model; it is complete or absent."""
    framework = task.framework
    own = Path(framework.weights_file).suffix.removeprefix(".")
    formats = [*dict.fromkeys([*([own] if own else []), *framework.formats, BUNDLE])]
    chosen = kind if kind is not None else own
    if chosen not in formats:
        raise UsageError(f"format={shown(kind)}: must be {' or '.join(map(repr, formats))} for a {type(task).__name__}")
    if not isinstance(path, str | os.PathLike) or (chosen != BUNDLE and Path(path).is_dir()):
        raise UsageError(
            f"path={shown(path)}: must be the name of a file to write, e.g. 'model.{chosen.split('.')[0]}'"
        )
    target = Path(path).expanduser()
    if kind is None and own and target.suffix in SUFFIXES - {f".{own}"}:
        raise UsageError(
            f"path={str(path)!r}: the file is written in the format .{own}; for another one, give the format, as in "
            f"format={formats[-2]!r}, or save what trial.model() returns with the functions of its framework"
        )
    try:
        if chosen == BUNDLE:
            from hopfleet.runs.bundle import write_bundle  # with all that prepares and reads data

            return Exported(target, chosen, write_bundle(results, members, target, task, logits=logits))
        # Files of weights are compared with the weights, and files of whole models by their outputs.
        if chosen == own and len(members) == 1 and (own == WEIGHTS or own not in framework.formats):
            with results[next(iter(members))].opened(task) as (found, config, files):
                _check_single(files, chosen, [each for each in formats if each != own])
                return Exported(target, chosen, found.export(config, files[0], target))
        return Exported(target, chosen, _converted(results, members, target, chosen, task, logits))
    except OSError as error:
        raise UsageError(trouble(path, error)) from error


def _check_single(files: Sequence[Path], kind: str, others: Sequence[str]) -> None:
    """Raise UsageError if a file of the weights of one model is asked for, and there are several."""
    if len(files) > 1:
        raise UsageError(
            f"format={kind!r}: a trial of {len(files)} folds has {len(files)} models, whose weights are not those of "
            f"one; {' or '.join(map(repr, others))} has the mean of their outputs, and results.refit() trains one "
            "model on all rows"
        )


def _converted(
    results: OpenedRun[Any], members: Mapping[str, float], path: Path, kind: str, task: Task, logits: bool
) -> float:
    model, guest = joined(results, members, task, logits=logits)
    found: list[float] = []

    def fill(place: Path) -> None:
        call = calling(results, members, task)
        with guest.within():
            found.append(task.framework.convert(model, kind, place, call))
        check_deviation(path, found[0])

    write_atomically(path, fill, durable=True)
    return found[0]
