"""The context in which losses of stacked models are computed: some operations of torch have better rules there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode

from hopfleet.frameworks.torch.engines.stacked.attention import attend
from hopfleet.frameworks.torch.engines.stacked.cross_entropy import cross_entropy
from hopfleet.frameworks.torch.engines.stacked.embeddings import embedding
from hopfleet.frameworks.torch.engines.stacked.folding import Argument
from hopfleet.frameworks.torch.engines.stacked.norms import layer_norm, rms_norm

FOLDED: Mapping[object, Callable[..., object]] = {
    torch.nn.functional.scaled_dot_product_attention: attend,
    torch.nn.functional.cross_entropy: cross_entropy,
    torch.nn.functional.embedding: embedding,
    torch.nn.functional.layer_norm: layer_norm,
}
if hasattr(torch.nn.functional, "rms_norm"):
    FOLDED = {**FOLDED, torch.nn.functional.rms_norm: rms_norm}


class StackedOperations(TorchFunctionMode):
    """A context in which attention, cross entropy, embeddings and norms take few operations."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> object:
        return FOLDED.get(func, func)(*args, **(kwargs or {}))
