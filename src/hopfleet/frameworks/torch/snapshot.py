"""Snapshots: copies of a trial's state in memory, made in an instant so that training can go on while a version is
written.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import torch

from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.torch import _compat


class Constant(NamedTuple):
    """A part of a state that is never changed in place, and therefore not copied."""

    value: Tree


PLAIN = frozenset({bool, int, float, str, type(None)})
"""The immutable types that most of a state consists of, apart from tensors."""


class CopiedTensor(NamedTuple):
    """A tensor of a snapshot: its number among the copies."""

    number: int


@torch.no_grad()
def snapshot(state: Tree) -> Callable[[], Tree]:
    """Copy a state; return a function that rebuilds the copy. Tensors that share memory share it in the copy, too.

    All tensors of one type and device are copied by a single operation, since training waits for the copy. The rest
    of the work is left to the function returned.
    """
    tensors: list[torch.Tensor] = []
    tree = _numbered(state, tensors, {})
    kinds: dict[Hashable, list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    rows = [_in_a_row([tensors[number] for number in some]) for some in kinds.values()]
    shapes = [tensor.shape for tensor in tensors]
    tensors.clear()

    def rebuilt() -> Tree:
        copies: dict[int, torch.Tensor] = {}
        for row, numbers in zip(rows, kinds.values(), strict=True):
            pieces = torch.split(row, [shapes[number].numel() for number in numbers])
            copies |= {number: piece.view(shapes[number]) for number, piece in zip(numbers, pieces, strict=True)}
        return _rebuilt(tree, copies)

    return rebuilt


def identity(tensor: torch.Tensor) -> Hashable:
    """Return what two tensors have in common if and only if they are the same view of the same memory."""
    if tensor.numel() == 0:
        return ("empty", id(tensor))
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _in_a_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copy the elements of some tensors, one tensor after another."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1).clone()
    return _compat.flatten_dense_tensors(tensors)


def _numbered(value: Tree, tensors: list[torch.Tensor], numbers: dict[int, list[int]]) -> Tree:
    """Copy the containers of a state and replace its tensors by their numbers.

    ``tensors`` collects the tensors; ``numbers`` has the numbers of those at each address.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        here = numbers.setdefault(value.data_ptr(), [])
        for number in here:
            if identity(tensors[number]) == identity(value):
                return CopiedTensor(number)
        here.append(len(tensors))
        tensors.append(value)
        return CopiedTensor(here[-1])
    if isinstance(value, Constant):
        return value
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, dict):
        return {key: part if type(part) in PLAIN else _numbered(part, tensors, numbers) for key, part in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(_numbered(part, tensors, numbers) for part in value)
    return value.copy() if isinstance(value, set) else value


def _rebuilt(tree: Tree, copies: Mapping[int, torch.Tensor]) -> Tree:
    if isinstance(tree, CopiedTensor):
        return copies[tree.number]
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        return {key: _rebuilt(part, copies) for key, part in tree.items()}
    if type(tree) in (list, tuple, deque):
        return type(tree)(_rebuilt(part, copies) for part in tree)
    return tree
