"""Checkpoints: the state of a trial in one safetensors file, and back, bit for bit and without pickle.

Frozen tensors are in files of their own, which the checkpoints of many trials refer to; see ``shared``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer

from hopfleet.domain.version_ref import SHARED
from hopfleet.errors import CheckpointError, TaskError, describe
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.state.tree import Arrays, Tree, flatten, unflatten
from hopfleet.frameworks.torch import randomness, shared
from hopfleet.frameworks.torch.model_state import Reference, load_model, model_state
from hopfleet.frameworks.torch.randomness import SeededStreams
from hopfleet.frameworks.torch.shared import SharedTensor, SharedTensors
from hopfleet.frameworks.torch.snapshot import Constant, identity
from hopfleet.frameworks.torch.trial import LiveTrial

FORMAT = "hopfleet-torch-1"

State = dict[str, Tree]
"""The parts of a trial that a version stores, by name."""

Array = torch.Tensor | SharedTensor
"""An array of a state."""

Write = Callable[[Path, Mapping[str, torch.Tensor], Mapping[str, str]], None]
"""A function that writes tensors and text to a file."""


def state_of(trial: LiveTrial) -> State:
    """Collect the parts of a trial that a version stores. Nothing is copied."""
    frozen = {identity(one.tensor): one for one in shared.intact(trial.shared)}
    return {
        "model": model_state(trial.model, frozen),
        "optimizer": [_optimizer_state(optimizer) for optimizer in trial.optimizers],
        "scheduler": [scheduler.state_dict() for scheduler in trial.schedulers],
        "scaler": trial.scaler.state_dict() if trial.scaler else None,
        "average": [frozen.get(identity(mean), mean) for mean in trial.average],
        # Each unit puts new streams in place of the old ones and changes none of them.
        "random": Constant(trial.random),
        "counters": trial.counters,
        "extra": trial.extra_state(),
    }


def on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in the memory of the host."""
    return tensor.device.type == "cpu"


def save(
    path: Path,
    state: State,
    device: torch.device,
    cache: EngineCache,
    write: Write,
    host: Callable[[torch.Tensor], bool] = on_host,
) -> None:
    """Write a state to a file; frozen tensors go to files that versions share, if there is a folder for them.

    ``host`` tells which tensors stay on the host when the others are loaded to a device.
    """
    tree, arrays = described(state, device, cache, host)
    frozen = {name: value for name, value in arrays.items() if isinstance(value, SharedTensor)}
    tensors = {name: value for name, value in arrays.items() if isinstance(value, torch.Tensor)}
    metadata: dict[str, str] = {}
    folder = shared.folder_of(path)
    if not frozen:
        pass
    elif folder.is_dir():
        cache.part(SharedTensors).save(frozen.values(), folder)
        tree[SHARED] = {name: one.digest for name, one in frozen.items()}
        metadata[SHARED] = " ".join(sorted({one.digest for one in frozen.values()}))
    else:
        tensors |= {name: one.tensor for name, one in frozen.items()}
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write(path, contiguous, {**metadata, FORMAT: json.dumps(tree)})
    if not metadata:
        shared.check_intact(list(frozen.values()))


def described(
    state: State, device: torch.device, cache: EngineCache, host: Callable[[torch.Tensor], bool] = on_host
) -> tuple[State, dict[str, Array]]:
    """Return a state as JSON, and its tensors by name."""
    arrays = Arrays(lambda value: isinstance(value, Array), _identity)
    tree = {
        "model": flatten(state["model"], arrays, "model"),
        "optimizer": [flatten(part, arrays, f"optimizer.{i}") for i, part in enumerate(state["optimizer"])],
        "scheduler": [flatten(part, arrays, f"scheduler.{i}") for i, part in enumerate(state["scheduler"])],
        "scaler": flatten(state["scaler"], arrays, "scaler"),
        "average": flatten(state["average"], arrays, "average"),
        "random": flatten(randomness.pack(state["random"].value, cache.part(SeededStreams)), arrays, "random"),
        "counters": state["counters"],
        **({"extra": flatten(state["extra"], arrays, "extra")} if state["extra"] is not None else {}),
        "host": [],
    }
    if device.type != "cpu":
        found = [(name, one) for name, one in arrays.named.items() if isinstance(one, torch.Tensor)]
        tree["host"] = [name for name, tensor in found if host(tensor)]
    return tree, arrays.named


def _identity(value: Array) -> Hashable:
    return identity(value) if isinstance(value, torch.Tensor) else id(value)


def load(trial: LiveTrial, path: Path, *, optimizers: Sequence[bool] | None = None, schedulers: bool = True) -> None:
    """Restore a trial from a file.

    ``optimizers`` names the optimizers to restore (all, if it is None) and ``schedulers`` whether to restore the
    schedules; the others stay as they were built. Raises CheckpointError for a damaged or foreign file, and
    RuntimeError if the model does not fit.
    """
    tree, saved = _content(path)
    with _readable(path):
        _load(trial, tree, saved, optimizers, schedulers)


def _content(path: Path) -> tuple[State, dict[str, torch.Tensor | Reference]]:
    """Return the JSON of a file, and its tensors and references by name."""
    tensors, metadata = safetensors.read(path)
    if FORMAT not in metadata:
        raise CheckpointError(f"{path}: is not a {FORMAT} checkpoint")
    with _readable(path):
        tree = json.loads(metadata[FORMAT])
        return tree, {**tensors, **{name: Reference(one, path) for name, one in tree.get(SHARED, {}).items()}}


def _load(
    trial: LiveTrial,
    tree: Mapping[str, Tree],
    saved: Mapping[str, torch.Tensor | Reference],
    optimizers: Sequence[bool] | None,
    schedulers: bool,
) -> None:
    host = set(tree["host"])
    tensors = {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}

    # The tensors may be mappings of the file, which is written over once the model has trained on: copy them.
    def array(name: str) -> torch.Tensor | Reference:
        value = saved[name]
        if isinstance(value, Reference):
            return value
        return value.to("cpu" if name in host else trial.device, copy=True)

    before = {identity(one.tensor) for one in trial.shared}
    load_model(trial, unflatten(tree["model"], lambda name: saved[name]))
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
    _load_average(trial, unflatten(tree.get("average") or [], array), before)
    packed = unflatten(tree["random"], lambda name: tensors[name].clone())
    trial.random = randomness.unpack(packed, trial.cache.part(SeededStreams))
    trial.counters = dict(tree["counters"])
    if "extra" in tree:
        trial.load_extra_state(unflatten(tree["extra"], array))


def _load_average(trial: LiveTrial, values: Sequence[torch.Tensor | Reference], before: Collection[Hashable]) -> None:
    """Restore the moving averages. ``before`` tells the tensors that the trial had shared until now."""
    frozen = {identity(one.tensor) for one in trial.shared}
    for index, (weight, value) in enumerate(zip(trial.model.parameters(), values, strict=bool(trial.average))):
        mean = trial.average[index]
        if isinstance(value, Reference):  # a frozen weight is its own average
            trial.average[index] = weight.detach() if identity(weight) in frozen else weight.detach().clone()
        elif identity(mean) not in before:
            mean.copy_(value)
        elif identity(weight) != identity(mean) or not shared.same_bits(mean, value):
            trial.average[index] = value


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the state dict of the model in a file, as far as it consists of tensors."""
    tree, saved = _content(path)

    def array(name: str) -> torch.Tensor:
        value = saved[name]
        return (value.read() if isinstance(value, Reference) else value).clone()

    with _readable(path):
        state = unflatten(tree["model"]["state"], array)
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
