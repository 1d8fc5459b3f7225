"""Kernels of this package for stacked models: when they can be launched, and tables as they read them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch

from hopfleet.frameworks.torch.engines.stacked.updates import Table

Compiled = TypeVar("Compiled")


def or_none(compile_for: Callable[..., Compiled]) -> Callable[..., Compiled | None]:
    """Let a function that compiles kernels do so once for the same arguments; None where they cannot be compiled."""

    @functools.cache
    @functools.wraps(compile_for)
    def found(*arguments: Hashable) -> Compiled | None:
        try:
            return compile_for(*arguments)
        except (AttributeError, OSError, RuntimeError):
            return None

    return found


def launchable(x: Table, *others: Table) -> bool:
    """Whether tables are on a device and in a type that kernels are made for."""
    return x.is_cuda and {x.dtype, *(other.dtype for other in others)} == {torch.float32}


def whole(table: Table) -> Table:
    """Return a table that a kernel can read as vectors, one after another."""
    found = table.contiguous()
    return found if found.data_ptr() % 16 == 0 else found.clone()


def aligned(rows: Table) -> Table:
    """Return weights of all members as rows that a kernel can read as vectors; there may be gaps between rows."""
    fits = rows.stride(-1) == 1 and rows.stride(0) % 4 == 0 and rows.data_ptr() % 16 == 0
    return rows if fits else whole(rows)


def bits(number: float) -> int:
    """Return the bits of a number in single precision: releases of torch pass numbers to kernels in different types."""
    found: int = struct.unpack("i", struct.pack("f", number))[0]
    return found
