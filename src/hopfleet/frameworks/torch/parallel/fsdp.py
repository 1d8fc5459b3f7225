"""Sharded data parallelism: every member keeps its part of each block's weights and optimizer state (FSDP2)."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.parallel.ddp import warn_of_batch_norm
from hopfleet.frameworks.torch.parallel.strategy import SpreadTrial, Strategy
from hopfleet.frameworks.torch.parallel.wire import Value
from hopfleet.frameworks.torch.snapshot import Constant


class Fsdp(Strategy):
    """FSDP2: ``fully_shard`` for each block and for the rest of the model."""

    spans_nodes = True
    unsupported = (*Strategy.unsupported, "sparse")

    def spread(self, trial: SpreadTrial) -> None:
        warn_of_batch_norm(trial)
        team, model = trial.team, trial.model
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        mesh = init_device_mesh(team.device.type, (team.size,))
        for block in self.blocks(trial):
            if block.module is not model and _has_its_own(block.module, model):
                fully_shard(block.module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Losses are weighted by rows already, so gradients are added rather than averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        sharded: dict[str, Value] = dict(model.named_parameters())
        for optimizer in trial.optimizers:
            _exchange(optimizer, names, sharded)
        trial.average = [
            _sharded(average, parameter)
            for average, parameter in zip(trial.average, model.parameters(), strict=bool(trial.average))
        ]
        for name, buffer in model.named_buffers():
            _put_buffer(model, name, buffer.to(team.device))

    def collect(self, trial: SpreadTrial) -> checkpoint.State:
        state: checkpoint.State = _whole(checkpoint.state_of(trial))
        weights, first = state["model"]["state"], dict[int, str]()
        for name, parameter in trial.model.named_parameters(remove_duplicate=False):
            if name in weights:  # a version has tied weights once
                weights[name] = weights[first.setdefault(id(parameter), name)]
        return state


def _has_its_own(block: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Whether a block has parameters, and shares none of them with the rest of the model."""
    mine = {id(parameter) for parameter in block.parameters()}
    inside = {id(module) for module in block.modules()}
    rest = (module for module in model.modules() if id(module) not in inside)
    return bool(mine) and not any(id(p) in mine for module in rest for p in module.parameters(recurse=False))


def _exchange(optimizer: Optimizer, names: dict[int, str], sharded: dict[str, Value]) -> None:
    """Let an optimizer update the sharded parameters, with its part of the state."""
    state = dict(optimizer.state)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        before = group["params"]
        group["params"] = [sharded[names[id(parameter)]] for parameter in before]
        for old, new in zip(before, group["params"], strict=True):
            if old in state:
                optimizer.state[new] = {
                    key: _sharded(value, new) if torch.is_tensor(value) and value.shape == new.shape else value
                    for key, value in state[old].items()
                }


@torch.no_grad()
def _sharded(value: torch.Tensor, like: Value) -> torch.Tensor:
    """Return this member's part of a tensor that is whole on every member, spread like a parameter."""
    value = value.to(like.device)
    # Every member has the same values, so nothing is sent.
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _put_buffer(model: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, value)


def _whole(tree: Tree) -> Tree:
    """Return a tree with the tensors of all members in place of this member's parts."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, Constant):
        return tree
    if type(tree) is dict:
        return {key: _whole(part) for key, part in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_whole(part) for part in tree)
    return tree
