"""The layout of a stack: where the parameters of all members lie in tables with a row for each member."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.stacked.updates import Table
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.trial import ParameterGroup

ALIGNED = 32
"""Elements. Each parameter begins at a multiple of this; matrix products are slow on unaligned parameters."""


Shape = tuple[int, ...]


class Group(NamedTuple):
    """A group of parameters: its positions among all parameters and in the table, and its settings, a row per member.

    Gradients come in ``pieces``: where steps are captured, one for each parameter, elsewhere one for each group.
    """

    parameters: slice
    columns: slice
    pieces: slice
    settings: dict[str, Table]


class StackLayout:
    """The columns of all parameters that the optimizers of the members train."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self._sessions = sessions
        first = sessions[0]
        #: Whether gradients come in one piece for each parameter, as captured steps use them.
        self.by_parameter = first.cache.part(GraphCache).backend.captures_on(first.device)
        self.rows = range(len(sessions))
        names = {id(parameter): name for name, parameter in first.model.named_parameters()}
        #: The shapes of all parameters: the largest among the members. Those of a smaller one are padded with zeros.
        self.shapes = [largest(shapes) for shapes in zip(*map(self._shapes, self.rows), strict=True)]
        self.padded = any(self._shapes(row) != self.shapes for row in self.rows)
        self.groups: list[Group] = []
        self.names: list[str] = []
        self.columns: list[slice] = []
        for group in first.optimizers[0].param_groups:
            number, start, first_name = len(self.groups), self.width, len(self.names)
            for parameter in trained(group):
                first_column, count = self.width, math.prod(self.shapes[len(self.names)])
                self.names.append(names[id(parameter)])
                self.columns.append(slice(first_column, first_column + count))
            parameters = slice(first_name, len(self.names))
            pieces = parameters if self.by_parameter else slice(number, number + 1)
            self.groups.append(Group(parameters, slice(start, self.width), pieces, {}))

    @property
    def width(self) -> int:
        return -(-self.columns[-1].stop // ALIGNED) * ALIGNED if self.columns else 0

    def parameters(self, row: int) -> list[torch.nn.Parameter]:
        """Return the parameters of one member, in the order of the columns."""
        return [p for group in self._sessions[row].optimizers[0].param_groups for p in trained(group)]

    def _shapes(self, row: int) -> list[Shape]:
        return [tuple(parameter.shape) for parameter in self.parameters(row)]

    def own(self, table: Table, row: int, number: int, shape: Shape) -> Table:
        """Return the part of a table that belongs to a parameter of one member, given by its number and shape."""
        whole = table[row, self.columns[number]].view(self.shapes[number])
        return whole[tuple(slice(size) for size in shape)]

    def views(self, table: Table) -> dict[str, Table]:
        """Return the part of each parameter in a table, by its name in the loss module."""
        places = zip(self.names, self.columns, self.shapes, strict=True)
        return {f"model.{name}": table[:, columns].view(len(self.rows), *shape) for name, columns, shape in places}

    def pieces(self, row: Table) -> list[Table]:
        """Return the pieces of one row of a table, as gradients come."""
        return [
            row[columns]
            for columns in (self.columns if self.by_parameter else [group.columns for group in self.groups])
        ]

    def in_columns(self, values: Sequence[Table], some: slice = slice(None), rows: tuple[int, ...] = ()) -> Table:
        """Lay out values for some parameters, of one member or of all, as in the table, with zeros in the gaps."""
        pieces: list[Table] = []
        ends = [*(columns.start for columns in self.columns[1:]), self.width]
        for value, columns, end, shape in zip(values, self.columns[some], ends[some], self.shapes[some], strict=True):
            pieces.append((value if rows else _grown(value, shape)).reshape(*rows, -1))
            if columns.stop < end:
                pieces.append(value.new_zeros(*rows, end - columns.stop))
        return torch.cat(pieces, dim=-1)

    def joined(self, pieces: Sequence[Table], group: Group) -> Table:
        """Lay out one piece for each parameter of a group, for all members."""
        return self.in_columns(pieces[group.parameters], group.parameters, (len(self.rows),))

    def flat(self, grads: Mapping[str, Table], losses: Table) -> list[Table]:
        """Return gradients in pieces, each with a row for each member, and the losses."""
        pieces = [grads[f"model.{name}"].reshape(len(self.rows), -1) for name in self.names]
        if not self.by_parameter:
            pieces = [self.joined(pieces, group) for group in self.groups]
        return [*pieces, losses.detach()]


def trained(group: ParameterGroup) -> list[torch.nn.Parameter]:
    """Return the parameters of a group that need gradients: an optimizer leaves frozen ones alone."""
    return [parameter for parameter in group["params"] if parameter.requires_grad]


def largest(shapes: Sequence[Shape]) -> Shape:
    """Return a shape into which all shapes fit."""
    return tuple(map(max, zip(*shapes, strict=True)))


def _grown(value: Table, shape: Shape) -> Table:
    """Pad a parameter with zeros to a shape; leave values that are laid out already as they are."""
    if value.ndim != len(shape) or value.shape == shape:
        return value
    missing = [wanted - size for wanted, size in zip(shape, value.shape, strict=True)]
    return torch.nn.functional.pad(value, [each for count in reversed(missing) for each in (0, count)])
