"""Snapshots: copies of a trial's state in memory, made in an instant so that training can go on while a version is
written.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
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


class Snapshot:
    """A copy of a state, from which the state is rebuilt. Tensors that share memory share it in the copy, too.

    All tensors of one type and device are copied by a single operation, since training waits for the copy; the rest of
    the work is left to ``rebuilt``. Copies of fewer than ``fetched`` bytes leave their device at once.
    """

    @torch.no_grad()
    def __init__(self, state: Tree, *, fetched: int = 0) -> None:
        tensors: list[torch.Tensor] = []
        self._tree = _numbered(state, tensors, {})
        kinds: dict[Hashable, list[int]] = {}
        for number, tensor in enumerate(tensors):
            kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
        self._numbers = list(kinds.values())
        self._rows: list[torch.Tensor] = []
        self._fetched: list[torch.Tensor] = []
        fetches = sum(tensor.nbytes for tensor in tensors) < fetched
        for some in self._numbers:
            row = _in_a_row([tensors[number] for number in some])
            if fetches and row.device.type != "cpu":
                row = row.cpu()
                self._fetched.append(row)
            self._rows.append(row)
        self._shapes = [tensor.shape for tensor in tensors]

    @property
    def on_cuda(self) -> bool:
        """Whether some of the copies are on a GPU."""
        return any(row.is_cuda for row in self._rows)

    def rebuilt(self) -> Tree:
        """Return the state, which consists of views of the copies."""
        copies: dict[int, torch.Tensor] = {}
        for row, numbers in zip(self._rows, self._numbers, strict=True):
            pieces = torch.split(row, [self._shapes[number].numel() for number in numbers])
            copies |= {number: piece.view(self._shapes[number]) for number, piece in zip(numbers, pieces, strict=True)}
        return _rebuilt(self._tree, copies)

    def of_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the rebuilt state was in the memory of the host before the copy."""
        places = {row.untyped_storage().data_ptr() for row in self._fetched}
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() not in places


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
