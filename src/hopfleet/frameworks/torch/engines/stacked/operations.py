"""The context in which losses of stacked models are computed: some operations of torch have better rules there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.attention import attend
from hopfleet.frameworks.torch.engines.stacked.cross_entropy import cross_entropy
from hopfleet.frameworks.torch.engines.stacked.deferred import Deferred
from hopfleet.frameworks.torch.engines.stacked.dropout import dropout
from hopfleet.frameworks.torch.engines.stacked.embeddings import embedding
from hopfleet.frameworks.torch.engines.stacked.folding import Argument
from hopfleet.frameworks.torch.engines.stacked.linear import addmm, linear
from hopfleet.frameworks.torch.engines.stacked.norms import layer_norm, layer_norm_by_kernel, rms_norm
from hopfleet.frameworks.torch.engines.stacked.unbinding import unbind
from hopfleet.frameworks.torch.engines.stacked.updates import Table

Rules = Mapping[object, Callable[..., object]]

FOLDED: Rules = {
    functional.scaled_dot_product_attention: attend,
    functional.cross_entropy: cross_entropy,
    functional.dropout: dropout,
    functional.embedding: embedding,
    functional.layer_norm: layer_norm,
}
if hasattr(functional, "rms_norm"):
    FOLDED = {**FOLDED, functional.rms_norm: rms_norm}


KERNELS: Rules = {
    functional.scaled_dot_product_attention: partial(attend, kernels=True),
    functional.linear: linear,
    torch.addmm: addmm,
    functional.layer_norm: layer_norm_by_kernel,
    torch.Tensor.unbind: unbind,
    torch.unbind: unbind,
}

COMPOSED: Rules = {functional.multi_head_attention_forward: _compat.unchecked(functional.multi_head_attention_forward)}
"""Functions that are written in terms of others, which have rules."""


class Operations(TorchFunctionMode):
    """A context in which some operations of torch follow other rules."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if not args and "input" in kwargs:  # the first one of most operations, under a name that rules do not have
            args = (kwargs.pop("input"),)
        if func in COMPOSED:
            with self:
                return COMPOSED[func](*args, **kwargs)
        return self._apply(func, args, kwargs)

    def _apply(self, func: Callable[..., object], args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> object:
        return self._rules.get(func, func)(*args, **kwargs)


def _same(x: Table, *args: Argument, **kwargs: Argument) -> Table:
    return x


def _without_dropout(attention: Callable[..., object]) -> Callable[..., object]:
    def work(
        query: Table,
        key: Table,
        value: Table,
        attn_mask: Table | None = None,
        dropout_p: object = 0.0,
        is_causal: bool = False,
        **options: Argument,
    ) -> object:
        return attention(query, key, value, attn_mask, 0.0, is_causal, **options)

    return work


DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")

CERTAIN: Rules = {
    **{getattr(functional, name): _same for name in DROPOUTS},
    functional.scaled_dot_product_attention: _without_dropout(functional.scaled_dot_product_attention),
}
"""Rules without dropout."""


class CertainOperations(Operations):
    """A context in which functions of torch drop nothing: chance would hide the effect of rounding."""

    def __init__(self) -> None:
        super().__init__(CERTAIN)


class StackedOperations(Operations):
    """A context in which attention, cross entropy, embeddings and norms take few operations.

    With ``kernels``, for CUDA, attention, norms and linear layers use kernels of this package where they can, and
    gradients of slices are put together in place; a compiler finds its own ways. With ``certain``, nothing is dropped.
    With ``deferred``, linear layers and norms wait for what follows them. At the end, Escaped is raised if some
    operation could not be told to wait.
    """

    def __init__(self, kernels: bool = False, certain: bool = False, deferred: bool = False) -> None:
        rules = {**FOLDED, **KERNELS} if kernels else FOLDED
        of_attention = functional.scaled_dot_product_attention
        attention: Rules = {of_attention: _without_dropout(rules[of_attention])}
        super().__init__({**rules, **CERTAIN, **attention} if certain else rules)
        self._deferred = Deferred() if deferred else None

    def _apply(self, func: Callable[..., object], args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> object:
        if self._deferred is None:
            return super()._apply(func, args, kwargs)
        if func in self._deferred.rules:
            return self._deferred.rules[func](*args, **kwargs)
        return super()._apply(func, self._deferred.present(args), self._deferred.present(kwargs))

    def result(self, loss: Table) -> Table:
        """Return a loss that was computed in this context, for use outside of it."""
        if self._deferred is None:
            return loss
        found: Table = self._deferred.present(loss)
        self._deferred.check()
        return found
