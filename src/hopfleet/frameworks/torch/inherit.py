"""Inheritance: how a clone continues from a version of its parent although their configurations differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from hopfleet.errors import TaskError
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.trial import LiveTrial


class Settings(NamedTuple):
    """The settings of each group of each optimizer, and the state of each schedule."""

    groups: list[list[dict[str, Tree]]]
    schedules: list[dict[str, Tree]]


def inherit(clone: LiveTrial, path: Path, parent: LiveTrial, load_parent: Callable[[], None]) -> None:
    """Load a version of ``parent`` into ``clone``; where the configurations differ, keep the settings of ``clone``.

    ``load_parent`` loads the version into ``parent``. Raises TaskError if the model does not fit.
    """
    mine, theirs = _settings(clone), _settings(parent)
    load_parent()
    then = _settings(parent)
    # The momenta of another kind of optimizer and the progress of another kind of schedule have no meaning here: both
    # start afresh.
    same_schedules = [type(own) for own in clone.schedulers] == [type(other) for other in parent.schedulers]
    optimizers = [_shape(own) == _shape(other) for own, other in _pairs(clone.optimizers, parent.optimizers)]
    try:
        checkpoint.load(clone, path, optimizers=optimizers, schedulers=same_schedules)
    except (RuntimeError, LookupError, ValueError) as error:
        text = " ".join(str(error).split())
        raise TaskError(f"the parent's model does not fit this configuration; clone it cold ({text})") from None
    for optimizer, *of_three in zip(clone.optimizers, then.groups, mine.groups, theirs.groups, strict=False):
        for group, *three in zip(optimizer.param_groups, *of_three, strict=False):
            settings = _became_of(three[0], three[1], three[2]) if same_schedules else three[1]
            group.update({name: value for name, value in settings.items() if name in group})
    if same_schedules:
        for scheduler, *states in zip(clone.schedulers, then.schedules, mine.schedules, theirs.schedules, strict=True):
            scheduler.load_state_dict(_became(states[0], states[1], states[2]))


def _settings(trial: LiveTrial) -> Settings:
    """Copy the settings that optimizers and schedules have now."""
    groups = [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in trial.optimizers
    ]
    return copy.deepcopy(Settings(groups, [scheduler.state_dict() for scheduler in trial.schedulers]))


def _pairs(mine: Sequence[Optimizer], theirs: Sequence[Optimizer]) -> list[tuple[Optimizer, Optimizer]]:
    """Pair the optimizers; return nothing if their numbers differ."""
    return list(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) else []


def _shape(optimizer: Optimizer) -> Hashable:
    """Return what two optimizers must have in common for one to continue with the state of the other."""
    return type(optimizer), tuple(len(group["params"]) for group in optimizer.param_groups)


def _same(one: Tree, other: Tree) -> bool:
    if torch.is_tensor(one) or torch.is_tensor(other):
        return torch.is_tensor(one) and torch.is_tensor(other) and torch.equal(one, other)
    return bool(one == other)


def _became_of(then: Mapping[str, Tree], mine: Mapping[str, Tree], theirs: Mapping[str, Tree]) -> Tree:
    """Apply ``_became`` to each setting that all three have."""
    result: Tree = copy.copy(then)
    for name in [name for name in then if name in mine and name in theirs]:
        result[name] = _became(then[name], mine[name], theirs[name])
    return result


def _became(then: Tree, mine: Tree, theirs: Tree) -> Tree:
    """Return what training would have made of the setting ``mine``, given that it turned ``theirs`` into ``then``.

    A setting that clone and parent share keeps the value of the version. A setting that differs keeps the clone's
    value; if training changed it, as a schedule changes a learning rate, it is changed by the same factor.
    """
    three = (then, mine, theirs)
    if all(isinstance(part, dict) for part in three) and then.keys() == theirs.keys() == mine.keys():
        return _became_of(then, mine, theirs)
    if all(isinstance(part, list | tuple) for part in three) and len(then) == len(mine) == len(theirs):
        return type(mine)(_became(*parts) for parts in zip(*three, strict=True))
    if _same(mine, theirs):
        return then
    if not all(torch.is_tensor(part) or type(part) in (int, float) for part in three):
        return mine
    return mine if _same(then, theirs) or not theirs else mine * (then / theirs)
