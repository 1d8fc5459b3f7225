"""Checkpoints: the state of a trial in one safetensors file, and back, bit for bit and without pickle."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer

from hopfleet.errors import CheckpointError, TaskError, describe
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.state.tree import Arrays, Tree, flatten, unflatten
from hopfleet.frameworks.torch import randomness
from hopfleet.frameworks.torch.randomness import SeededStreams
from hopfleet.frameworks.torch.snapshot import Constant, identity
from hopfleet.frameworks.torch.trial import LiveTrial

FORMAT = "hopfleet-torch-1"

State = dict[str, Tree]
"""The parts of a trial that a version stores, by name."""


def state_of(trial: LiveTrial) -> State:
    """Collect the parts of a trial that a version stores. Nothing is copied."""
    return {
        "model": _model_state(trial.model),
        "optimizer": [_optimizer_state(optimizer) for optimizer in trial.optimizers],
        "scheduler": [scheduler.state_dict() for scheduler in trial.schedulers],
        "scaler": trial.scaler.state_dict() if trial.scaler else None,
        "average": trial.average,
        # Each unit puts new streams in place of the old ones and changes none of them.
        "random": Constant(trial.random),
        "counters": trial.counters,
    }


def described(
    state: State,
    device: torch.device,
    cache: EngineCache,
    host: Callable[[str, torch.Tensor], bool] = lambda name, tensor: tensor.device.type == "cpu",
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a state as named tensors and as text, ready to be written.

    ``host`` tells which tensors stay in the memory of the host when the rest is loaded to a device.
    """
    arrays = Arrays(torch.is_tensor, identity)
    tree = {
        "model": flatten(state["model"], arrays, "model"),
        "optimizer": [flatten(part, arrays, f"optimizer.{i}") for i, part in enumerate(state["optimizer"])],
        "scheduler": [flatten(part, arrays, f"scheduler.{i}") for i, part in enumerate(state["scheduler"])],
        "scaler": flatten(state["scaler"], arrays, "scaler"),
        "average": flatten(state["average"], arrays, "average"),
        "random": flatten(randomness.pack(state["random"].value, cache.part(SeededStreams)), arrays, "random"),
        "counters": state["counters"],
        "host": [name for name, tensor in arrays.named.items() if host(name, tensor)],
    }
    if device.type == "cpu":
        tree["host"] = []
    tensors = {name: tensor.detach().contiguous() for name, tensor in arrays.named.items()}
    return tensors, {FORMAT: json.dumps(tree)}


def load(trial: LiveTrial, path: Path, *, optimizers: Sequence[bool] | None = None, schedulers: bool = True) -> None:
    """Restore a trial from a file.

    ``optimizers`` names the optimizers to restore (all, if it is None) and ``schedulers`` whether to restore the
    schedules; the others stay as they were built. Raises CheckpointError for a damaged or foreign file, and
    RuntimeError if the model does not fit.
    """
    tensors, metadata = safetensors.read(path)
    if FORMAT not in metadata:
        raise CheckpointError(f"{path}: is not a {FORMAT} checkpoint")
    with _readable(path):
        _load(trial, json.loads(metadata[FORMAT]), tensors, optimizers, schedulers)


def _load(
    trial: LiveTrial,
    tree: Mapping[str, Tree],
    tensors: Mapping[str, torch.Tensor],
    optimizers: Sequence[bool] | None,
    schedulers: bool,
) -> None:
    host = set(tree["host"])

    # The tensors may be mappings of the file, which is written over once the model has trained on: copy them.
    def array(name: str) -> torch.Tensor:
        return tensors[name].to("cpu" if name in host else trial.device, copy=True)

    _load_model(trial.model, unflatten(tree["model"], lambda name: tensors[name]))
    if optimizers is None:
        _check_count("optimizer", tree, trial.optimizers)
        _check_count("scheduler", tree, trial.schedulers)
        optimizers = [True] * len(trial.optimizers)
    for optimizer, state, wanted in zip(trial.optimizers, tree["optimizer"], optimizers, strict=False):
        if wanted:
            _load_optimizer(optimizer, unflatten(state, array))
    for scheduler, state in zip(trial.schedulers if schedulers else (), tree["scheduler"], strict=False):
        scheduler.load_state_dict(unflatten(state, array))
    if trial.scaler is not None and tree["scaler"] is not None:
        trial.scaler.load_state_dict(unflatten(tree["scaler"], array))
    for average, value in zip(trial.average, unflatten(tree.get("average") or [], array), strict=True):
        average.copy_(value)
    packed = unflatten(tree["random"], lambda name: tensors[name].clone())
    trial.random = randomness.unpack(packed, trial.cache.part(SeededStreams))
    trial.counters = dict(tree["counters"])


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the state dict of the model in a file, as far as it consists of tensors."""
    tensors, metadata = safetensors.read(path)
    with _readable(path):
        state = unflatten(json.loads(metadata[FORMAT])["model"]["state"], lambda name: tensors[name].clone())
        return {name: value for name, value in state.items() if torch.is_tensor(value)}


def averages(path: Path) -> bool:
    """Whether a file has a moving average of the weights."""
    with _readable(path):
        return bool(json.loads(safetensors.read(path)[1][FORMAT]).get("average"))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise CheckpointError for a file whose content has another form than ``described`` gives it."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be loaded ({describe(error)}); the file is damaged, or the task has changed"
        ) from error


def _check_count(kind: str, tree: Mapping[str, Tree], mine: Sequence[object]) -> None:
    if len(tree[kind]) != len(mine):
        raise TaskError(f"the saved version has {len(tree[kind])} {kind}(s), build() returned {len(mine)}")


def _model_state(model: torch.nn.Module) -> State:
    """Return the state dict and the buffers that the state dict leaves out."""
    state = dict(model.state_dict())
    hidden = {name: buffer for name, buffer in model.named_buffers() if name not in state}
    return {"state": state, "hidden": hidden}


def _load_model(model: torch.nn.Module, saved: Mapping[str, Tree]) -> None:
    """Copy saved values into the model's own tensors."""
    extra = {name: copy.deepcopy(value) for name, value in saved["state"].items() if name.endswith("_extra_state")}
    model.load_state_dict({**saved["state"], **extra})
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in saved["hidden"].items():
            buffers[name].copy_(value)


def _optimizer_state(optimizer: Optimizer) -> Tree:
    """Return the state by the position of each parameter; for an optimizer with a format of its own, that format."""
    if type(optimizer).state_dict is not Optimizer.state_dict:
        return optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "state": {index: optimizer.state[p] for index, p in enumerate(parameters) if p in optimizer.state},
    }


def _load_optimizer(optimizer: Optimizer, saved: Tree) -> None:
    """Restore without the casts of ``load_state_dict``, which would round a state wider than its parameter."""
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(saved)
        return
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        group.update(values)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    for index, state in saved["state"].items():
        optimizer.state[parameters[index]] = state
