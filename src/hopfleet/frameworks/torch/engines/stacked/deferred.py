"""Linear layers and norms of stacked models on CUDA, computed together with the operations around them.

A bias is added, an activation applied and a residual added by one kernel, if it is known what follows a product. So the
bias of a linear layer waits: the model gets the bare product, and the next operation that uses it adds the bias first,
or leaves all of it to the kernel. In the same way, the gradient of a residual is added by the kernel that computes that
of the norm beside it: whatever uses the residual after the norm uses what the norm returned in its place.

A model does not notice any of this, because all of its operations on tensors pass through the context that asks here
for their present values. An operation that does not, such as a scripted function, would get a product without its bias.
Such a product has escaped, and is noticed in the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from hopfleet.frameworks.torch.engines.stacked import norm_kernel, norms
from hopfleet.frameworks.torch.engines.stacked.folding import Argument
from hopfleet.frameworks.torch.engines.stacked.linear import ACTIVATIONS, epilogue, is_layer, kernels, suits, vector_of
from hopfleet.frameworks.torch.engines.stacked.products import product
from hopfleet.frameworks.torch.engines.stacked.updates import Table

FORMS = frozenset(
    {
        *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.is_floating_point),
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "requires_grad")),
    }
)
"""Operations that ask for the form of a tensor, whatever its values are."""


class Escaped(Exception):
    """An operation got a product without its bias, or nothing used a product."""


@dataclass(eq=False)
class Bias:
    """A bias that waits to be added to a product."""

    value: Table
    used: bool = False


class Deferred:
    """What waits for its next operation while the loss of stacked models is computed."""

    def __init__(self) -> None:
        #: The bias of each product that lacks one, and what stands for other tensors from now on.
        self._lacking: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._present: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._biases: list[Bias] = []
        #: The operations that take care of what waits. All others must be passed present values.
        self.rules: Mapping[object, Callable[..., object]] = {
            functional.linear: self._linear,
            torch.addmm: self._addmm,
            functional.layer_norm: self._layer_norm,
            functional.gelu: self._gelu,
            **dict.fromkeys((functional.relu, torch.relu, torch.Tensor.relu), self._relu),
            **dict.fromkeys((torch.add, torch.Tensor.add), self._add),
            **{func: func for func in FORMS},
        }

    def present(self, value: Argument) -> Argument:
        """Return the present value of a tensor, or of all tensors in a list or a dict; anything else as it is."""
        if isinstance(value, list | tuple):
            parts = list(map(self.present, value))
            if all(map(operator.is_, parts, value)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict):
            return {name: self.present(part) for name, part in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        while value in self._present:
            value = self._present[value]
        if value not in self._lacking:
            return value
        self._present[value] = found = epilogue(value, self._used(value))
        del self._lacking[value]
        return found

    def check(self) -> None:
        """Raise Escaped if something has used a product behind our back."""
        if not all(bias.used for bias in self._biases):
            raise Escaped

    # ---------------------------------------------------------------------------------------------------- operations

    def _linear(self, x: Table, weight: Table, bias: Table | None = None) -> Table:
        x, weight, bias = self.present([x, weight, bias])
        if bias is None:
            return product(x, weight)
        if not suits(x, weight, bias):
            return functional.linear(x, weight, bias)
        return self._without_bias(product(x, weight), bias)

    def _addmm(self, bias: Table, x: Table, weight: Table, **options: Argument) -> Table:
        bias, x, weight = self.present([bias, x, weight])
        if options or not is_layer(bias, x, weight) or not suits(x, weight, bias):
            return torch.addmm(bias, x, weight, **options)
        return self._without_bias(x @ weight, bias)

    def _without_bias(self, found: Table, bias: Table) -> Table:
        self._lacking[found] = waiting = Bias(bias)
        self._biases.append(waiting)
        return found

    def _layer_norm(self, x: Table, *args: Argument, **kwargs: Argument) -> Table:
        x, args, kwargs = self.present((x, args, kwargs))
        found = norm_kernel.layer_norm(x, *args, **kwargs)
        if found is None:
            return norms.layer_norm(x, *args, **kwargs)
        normal, same = found
        if x.requires_grad:
            self._present[x] = same
        return normal

    def _relu(self, x: Table, inplace: bool = False) -> Table:
        found = self._activated(x, "relu")
        if found is None:
            return functional.relu(self.present(x), inplace)
        if inplace:
            del self._lacking[x]
            self._present[x] = found
        return found

    def _gelu(self, x: Table, *, approximate: str = "none") -> Table:
        found = self._activated(x, {"none": "gelu", "tanh": "tanh-gelu"}.get(approximate, ""))
        return functional.gelu(self.present(x), approximate=approximate) if found is None else found

    def _activated(self, x: Table, activation: str) -> Table | None:
        """Apply an activation to a product that lacks its bias; return None if that is not what ``x`` is."""
        number = ACTIVATIONS.index(activation)
        if x not in self._lacking or not number or kernels(x.device, vector_of(x.shape[-1]), number) is None:
            return None
        return epilogue(x, self._used(x), number)

    def _add(self, x: Argument, other: Argument, **options: Argument) -> Table:
        for one, beside in ((x, other), (other, x)):
            if not options and isinstance(one, torch.Tensor) and one in self._lacking:
                beside = self.present(beside)
                if one in self._lacking and _alike(one, beside):
                    return epilogue(one, self._used(one), beside=beside)
        return torch.add(self.present(x), self.present(other), **self.present(options))

    def _used(self, x: Table) -> Table:
        """Return the bias that a product lacks, which is added elsewhere."""
        bias: Bias = self._lacking[x]
        bias.used = True
        return bias.value


def _alike(one: Table, other: Argument) -> bool:
    """Whether a tensor can be added to another by a kernel."""
    if not isinstance(other, torch.Tensor) or other.shape != one.shape:
        return False
    return other.dtype == one.dtype and other.device == one.device
