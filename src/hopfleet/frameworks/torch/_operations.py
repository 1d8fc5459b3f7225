"""Operations of torch as they come beneath autograd, where most names are private; the rest of these is in ``_compat``.

``tests/frameworks/test_compat.py`` has tests for them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Operation = Any
"""An operation of torch. Most attributes of its type are private."""

Value = Any
"""An argument or a result of an operation: a tensor, a number, a text, None, or a list of these."""

_aten = torch.ops.aten

VIEWS = frozenset({_aten._unsafe_view.default})
"""Operations that view a tensor in another way, although torch does not say so."""

COPIES = frozenset(
    {
        *(_aten._to_copy.default, _aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default),
        *(_aten.masked_fill_.Scalar, _aten.masked_fill_.Tensor),
    }
)
"""Operations on each number by itself, although torch does not say so."""

ALONG = {
    _aten._softmax.default: 1,
    _aten._log_softmax.default: 1,
    _aten._softmax_backward_data.default: 2,
    _aten._log_softmax_backward_data.default: 2,
}
"""Operations on each row along a dimension, and the place of the dimension among their arguments."""

LIKE = frozenset({_aten.ones_like.default, _aten.zeros_like.default, _aten.empty_like.default})
"""Operations that make a tensor of the form of another."""

STACK, CAT = _aten.stack.default, _aten.cat.default
PRODUCT, PRODUCT_AND_SUM, PRODUCTS = _aten.mm.default, _aten.addmm.default, _aten.bmm.default

INTO = {PRODUCT: _aten.mm.out, PRODUCT_AND_SUM: _aten.addmm.out, PRODUCTS: _aten.bmm.out}
"""Operations that write into a tensor what another operation returns."""

READ = _aten._local_scalar_dense.default
"""Reads the only number of a tensor."""

CHOICE_OF_ATTENTION = _aten._fused_sdp_choice.default
"""Chooses a kernel, by shapes and types alone."""

ATTENTION = frozenset(
    {
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
ATTENTION_BACKWARD = frozenset(
    {
        _aten._scaled_dot_product_efficient_attention_backward.default,
        _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    }
)
"""Attention that computes each sequence by itself."""


def is_view(operation: Operation) -> bool:
    """Whether an operation returns its first argument, viewed in another way."""
    return operation.is_view or operation in VIEWS


def is_pointwise(operation: Operation) -> bool:
    """Whether an operation computes each number by itself."""
    return torch.Tag.pointwise in operation.tags or operation in COPIES


def writes(operation: Operation) -> list[int]:
    """Return the places of the arguments that an operation writes into."""
    arguments = operation._schema.arguments
    return [place for place, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]


def obstacle(operation: Operation, arguments: Sequence[Value]) -> str:
    """Return what keeps an operation from being the same for several trials; empty if nothing does."""
    if torch.Tag.data_dependent_output in operation.tags:
        return "reads values"
    if "batch_norm" in str(operation):
        return "keeps statistics"
    if torch.Tag.nondeterministic_seeded in operation.tags and _draws(operation, arguments):
        return "draws random numbers"
    return ""


def _draws(operation: Operation, arguments: Sequence[Value]) -> bool:
    """Whether an operation that may draw random numbers does: attention without dropout does not."""
    if operation not in ATTENTION | ATTENTION_BACKWARD:
        return True
    place = [one.name for one in operation._schema.arguments].index("dropout_p")
    return place < len(arguments) and bool(arguments[place])


# --------------------------------------------------------------------------------------------------------- attention


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    rate: float,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """Return the outcome of attention, the logarithms that the backward pass needs, and seed and offset of dropout."""
    tensors = query, key, value
    if query.is_cuda:
        return _aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
            *tensors, mask, True, rate, causal, scale=scale
        )
    assert mask is None and not rate
    return _aten._scaled_dot_product_flash_attention_for_cpu(*tensors, 0.0, causal, scale=scale)  # type: ignore[no-any-return]


def attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    found: Sequence[torch.Tensor],
    rate: float,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of query, key and value, given all that ``attention`` has ``found``, and its options.

    Torch chooses in how many parts keys are gone through.
    """
    tensors = grad, query, key, value
    if grad.is_cuda:
        out, logs, seed, offset = found
        wanted = True, True, True, False
        inputs = *tensors, mask, out, logs, seed, offset
        return efficient_backward(*inputs, rate, wanted, causal, scale=scale, shares=_alike(query, key, value))[:3]
    out, logs, *_ = found
    grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(*tensors, out, logs, 0.0, causal, scale=scale)
    return tuple(grads[:3])


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether all three have one shape, so that their gradients can lie side by side."""
    return query.shape == key.shape == value.shape


def efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    found: torch.Tensor,
    logs: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    rate: float,
    wanted: Sequence[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
    shares: bool = False,
    parts: int | None = None,
) -> tuple[Value, ...]:
    """Return the gradients of query, key, value and mask; with ``shares``, the first three lie side by side.

    Keys are gone through in ``parts``; None leaves that to torch.
    """
    swapped = [one.transpose(1, 2) for one in (grad, query, key, value, found)]
    lengths = None, None, query.shape[2], key.shape[2]
    inputs = *swapped[:4], mask, swapped[4], *lengths, logs, rate, seed, offset, int(causal), wanted[3]
    options = {"scale": scale, "num_splits_key": parts, **({"shared_storage_dqdkdv": True} if shares else {})}
    *grads, of_mask = _aten._efficient_attention_backward(*inputs, **options)
    return *(one.transpose(1, 2) for one in grads), of_mask


def flash_backward(*inputs: Value, scale: float | None = None) -> tuple[torch.Tensor, ...]:
    """Return the gradients of query, key and value, given all that attention in half precision has found."""
    swapped = [one.transpose(1, 2) for one in inputs[:5]]
    grads = _aten._flash_attention_backward(*swapped, *inputs[5:], scale=scale)
    return tuple(one.transpose(1, 2) for one in grads)


def repeatable_backward(operation: Operation, *inputs: Value, **options: Value) -> Sequence[torch.Tensor | None]:
    """Return the gradients of attention, those of query, key and value side by side where that is possible."""
    _, query, key, value, *_ = inputs
    if not query.is_cuda:
        return operation(*inputs, **options)  # type: ignore[no-any-return]
    return efficient_backward(*inputs, **options, parts=1, shares=_alike(query, key, value))


@contextlib.contextmanager
def only_deterministic() -> Iterator[None]:
    """Let operations choose deterministic kernels, without the work of filling new memory."""
    mode, memory = torch.get_deterministic_debug_mode(), torch.utils.deterministic
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch._C._set_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(bool(mode), warn_only=mode == 1)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def remove(library: torch.library.Library) -> None:
    """Let operations have the kernels again that they had before those of a library."""
    library._destroy()  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------------------------------- tensors of other classes


class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that notes operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[Operation] = set()

    def __torch_dispatch__(self, func: Operation, types: Value, args: Value = (), kwargs: Value = None) -> Value:
        self.operations.add(func)
        return func(*args, **(kwargs or {}))


@functools.cache
def begin_wrappers() -> threading.Thread:
    """Begin to import, in a thread, what torch imports at the first operation on a wrapper: that takes a second."""

    def work() -> None:
        with contextlib.suppress(ImportError):  # releases of torch differ
            importlib.import_module("torch.distributed.tensor")

    thread = threading.Thread(target=work, name="importer", daemon=True)
    thread.start()
    return thread


class WrapperTensor(torch.Tensor):
    """A tensor without memory of its own. Operations on it come to ``__torch_dispatch__`` alone."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


Wrapper = TypeVar("Wrapper", bound=WrapperTensor)


def wrapper(cls: type[Wrapper], like: torch.Tensor) -> Wrapper:
    """Return a tensor of a class that has the form of another."""
    return torch.Tensor._make_wrapper_subclass(
        cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
    )
