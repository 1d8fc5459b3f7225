"""The context in which losses of stacked models are computed: some operations of torch have better rules there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode

from hopfleet.frameworks.torch.engines.stacked.attention import attend
from hopfleet.frameworks.torch.engines.stacked.cross_entropy import cross_entropy
from hopfleet.frameworks.torch.engines.stacked.dropout import dropout
from hopfleet.frameworks.torch.engines.stacked.embeddings import embedding
from hopfleet.frameworks.torch.engines.stacked.folding import Argument
from hopfleet.frameworks.torch.engines.stacked.linear import addmm, linear
from hopfleet.frameworks.torch.engines.stacked.norms import layer_norm, layer_norm_by_kernel, rms_norm
from hopfleet.frameworks.torch.engines.stacked.unbinding import unbind

FOLDED: Mapping[object, Callable[..., object]] = {
    torch.nn.functional.scaled_dot_product_attention: attend,
    torch.nn.functional.cross_entropy: cross_entropy,
    torch.nn.functional.dropout: dropout,
    torch.nn.functional.embedding: embedding,
    torch.nn.functional.layer_norm: layer_norm,
}
if hasattr(torch.nn.functional, "rms_norm"):
    FOLDED = {**FOLDED, torch.nn.functional.rms_norm: rms_norm}


KERNELS: Mapping[object, Callable[..., object]] = {
    torch.nn.functional.linear: linear,
    torch.addmm: addmm,
    torch.nn.functional.layer_norm: layer_norm_by_kernel,
    torch.Tensor.unbind: unbind,
    torch.unbind: unbind,
}


class StackedOperations(TorchFunctionMode):
    """A context in which attention, cross entropy, embeddings and norms take few operations.

    With ``kernels``, for CUDA, norms and linear layers use kernels of this package where they can, and gradients of
    slices are put together in place; a compiler finds its own ways.
    """

    def __init__(self, kernels: bool = False) -> None:
        super().__init__()
        self._rules = {**FOLDED, **KERNELS} if kernels else FOLDED

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> object:
        return self._rules.get(func, func)(*args, **(kwargs or {}))
