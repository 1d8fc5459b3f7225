"""The kernels for attention in TF32: the outcome and the gradients of attention, whatever its shape.

On the CPU, a stand-in takes the place of the kernels. Their own arithmetic needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from hopfleet.frameworks.torch.engines.stacked import attention_kernel
from hopfleet.frameworks.torch.engines.stacked.attention import attend
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from tests.helpers.stand_in_kernels import StandIns, kernels_or_stand_ins

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
CLOSE = 2e-3
"""The part of the largest number by which TF32 may deviate."""

SHAPES = {
    "one tile": (8, 4, 7, 7, 40),
    "some tiles": (8, 4, 128, 128, 64),
    "parts of tiles": (8, 4, 100, 100, 32),
    "more keys": (8, 4, 65, 130, 24),
    "more queries": (16, 2, 130, 65, 8),
    "one key": (16, 2, 33, 1, 56),
    "long": (8, 4, 600, 600, 16),
}


@pytest.fixture(autouse=True)
def rounded() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns | None]:
    with kernels_or_stand_ins(monkeypatch) as found:
        yield found


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def inputs(sequences: int, heads: int, queries: int, keys: int, width: int) -> list[torch.Tensor]:
    """Return query, key and value, parts of one tensor if they can be."""
    if queries == keys:
        return list(drawn(sequences, queries, 3, heads, width).permute(2, 0, 3, 1, 4))
    lengths = queries, keys, keys
    return [drawn(sequences, length, heads, width, seed=at).transpose(1, 2) for at, length in enumerate(lengths)]


def by_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    assert attention_kernel.fits(query, key, value)
    return attend(query, key, value, **options, kernels=True)


def close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Compare tensors with the largest number of all in mind: the gradient of a query with one key is zero."""
    largest = max(float(one.abs().max()) for one in expected)
    return all(float((one - other).abs().max()) <= CLOSE * largest for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_outcome_and_gradients(kernels, shape, causal):
    tensors = [one.requires_grad_() for one in inputs(*SHAPES[shape])]
    found = by_kernel(*tensors, is_causal=causal, scale=0.3)
    back = drawn(*found.shape, seed=5)
    grads, again = (torch.autograd.grad(found, tensors, back, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, grads, again))  # the same bits each time
    exact = [one.detach().double().requires_grad_() for one in tensors]
    expected = functional.scaled_dot_product_attention(*exact, is_causal=causal, scale=0.3)
    assert close([found.detach()], [expected.detach()])
    assert close(grads, torch.autograd.grad(expected, exact, back.double()))


def test_gradients_of_one_tensor_lie_side_by_side_and_others_by_themselves(kernels):
    together, apart = inputs(8, 4, 16, 16, 8), [one.contiguous() for one in inputs(8, 4, 16, 16, 8)]
    for tensors, side_by_side in ((together, True), (apart, False)):
        one = attention_kernel.kernels(tensors[0].device, 8)
        assert one is not None
        out = one.forward(*tensors, False, 1.0)
        grads = one.backward(drawn(8, 4, 16, 8), *tensors, out, False, 1.0)
        assert (len({grad.untyped_storage().data_ptr() for grad in grads}) == 1) is side_by_side


def test_tensors_that_cannot_be_read_as_vectors_are_copied(kernels):
    odd = [drawn(8, 4, 9, 9, seed=seed)[..., 1:] for seed in range(3)]
    found = by_kernel(*odd, is_causal=True)
    exact = [one.double() for one in odd]
    assert close([found], [functional.scaled_dot_product_attention(*exact, is_causal=True)])


def test_members_are_more_sequences(kernels):
    weights, x = 0.2 * drawn(5, 16, 96), drawn(8, 7, 16, seed=1)

    def loss(weights: Any, x: Any) -> Any:
        query, key, value = (x @ weights).view(8, 7, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True).square().sum()

    def stacked(weights: Any) -> Any:
        with StackedOperations(kernels=True):
            return loss(weights, x)

    found = vmap(grad(stacked))(weights)
    assert close(list(found), [grad(loss)(one, x.double()) for one in weights.double()])
    if kernels is not None:
        assert kernels.launched == ["attend", "attend_back"]


OTHERS: dict[str, Any] = {
    "few heads": ((4, 4, 7, 7, 8), {}),
    "wide heads": ((8, 4, 7, 7, 72), {}),
    "odd heads": ((8, 4, 7, 7, 12), {}),
    "very long": ((32, 1, 1100, 8, 8), {}),
    "a mask": ((8, 4, 7, 7, 8), {"attn_mask": torch.ones(7, 7, dtype=torch.bool, device=DEVICE)}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others_are_left_to_torch(kernels, monkeypatch, kind):
    monkeypatch.setattr(attention_kernel.Kernels, "forward", lambda *arguments: pytest.fail("launched"))
    shape, options = OTHERS[kind]
    tensors = inputs(*shape)
    expected = functional.scaled_dot_product_attention(*tensors, **options)
    assert close([attend(*tensors, **options, kernels=True)], [expected])


def test_nothing_is_rounded_unless_the_user_allows_it(kernels):
    tensors = inputs(8, 4, 7, 7, 8)
    assert attention_kernel.fits(*tensors)
    torch.set_float32_matmul_precision("highest")
    assert not attention_kernel.fits(*tensors)


def test_what_is_not_a_number_is_not_lost(kernels):
    query, key, value = inputs(8, 4, 7, 7, 8)
    value[0, 0, 0, 0] = float("nan")
    found = by_kernel(query, key, value)
    assert found[0, 0, :, 0].isnan().all() and not found[1:].isnan().any()
