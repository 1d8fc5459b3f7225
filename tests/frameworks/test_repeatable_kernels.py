"""Kernels that replace those of CUDA compute what torch computes; on a GPU, with the same bits each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from hopfleet.frameworks.torch.repeatable_kernels import KERNELS, _Registered, nll_loss2d, repeatable_kernels

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

aten = torch.ops.aten


def compare(name: str, *inputs: object) -> None:
    expected = getattr(aten, name)(*inputs)
    found = KERNELS[name](*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


SIZES = {"linear1d": ([5], [13]), "bilinear2d": ([5, 7], [11, 3]), "bicubic2d": ([6, 5], [9, 20])}
SIZES |= {"trilinear3d": ([3, 5, 4], [7, 4, 9])}


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_the_way_back_through_interpolation(name: str, scaled: bool, align: bool) -> None:
    sizes, out = SIZES[name]
    scales = [to / of * 1.05 for of, to in zip(sizes, out, strict=True)] if scaled else [None] * len(out)
    grad = torch.randn(2, 3, *out, dtype=torch.float64)
    compare(f"upsample_{name}_backward", grad, out, [2, 3, *sizes], align, *scales)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_the_way_back_through_padding(kind: str, dims: int) -> None:
    x = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64)[(0,) * (3 - dims)]
    padding = [1, 3, 2, 0, 1, 2][: 2 * dims]
    shape = [size + padding[2 * place] + padding[2 * place + 1] for place, size in enumerate(reversed(x.shape[-dims:]))]
    grad = torch.randn(*x.shape[:-dims], *reversed(shape), dtype=torch.float64)
    compare(f"{kind}_pad{dims}d_backward", grad, x, padding)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_way_back_through_adaptive_pooling(dims: int) -> None:
    x, out = torch.randn(2, 3, 7, 9, 5, dtype=torch.float64)[(0,) * (3 - dims)], [3, 4, 5][:dims]
    grad = torch.randn(*x.shape[:-dims], *out, dtype=torch.float64)
    compare(f"_adaptive_avg_pool{dims}d_backward", grad, x)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_pixels(weighted: bool, reduction: int) -> None:
    logs = torch.randn(3, 4, 5, 6, dtype=torch.float64).log_softmax(1)
    logs[0, :, 0, 0] = -torch.inf
    target = torch.randint(0, 4, (3, 5, 6))
    target[torch.rand(target.shape) < 0.3] = -100
    target[0, 0, 0] = -100
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    expected, total = aten.nll_loss2d_forward(logs, target, weight, reduction, -100)
    found, weights = KERNELS["nll_loss2d_forward"](logs, target, weight, reduction, -100)
    torch.testing.assert_close(found, expected)
    if reduction:
        torch.testing.assert_close(weights, total)


def test_the_mean_of_no_pixel_is_no_number_as_that_of_torch() -> None:
    logs, target = torch.zeros(1, 2, 1, 1), torch.full((1, 1, 1), 7)
    found, weights = KERNELS["nll_loss2d_forward"](logs, target, None, 1, 7)
    assert found.isnan()
    assert weights == 0


def test_gradients_in_half_precision_are_summed_in_single_precision() -> None:
    grad = torch.randn(1, 1, 64, 64).bfloat16()
    inputs = [64, 64], [1, 1, 4, 4], False
    found = KERNELS["upsample_bilinear2d_backward"](grad, *inputs)
    expected = aten.upsample_bilinear2d_backward(grad.double(), *inputs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)


def test_what_is_not_a_number_stays_where_it_comes_from() -> None:
    grad = torch.zeros(1, 1, 6, 6)
    grad[..., 5, 5] = torch.nan
    found = KERNELS["upsample_bilinear2d_backward"](grad, [6, 6], [1, 1, 3, 3], False)
    expected = aten.upsample_bilinear2d_backward(grad, [6, 6], [1, 1, 3, 3], False)
    assert torch.equal(found.isnan(), expected.isnan())


# ----------------------------------------------------------------------------------------------------------- on a GPU


def _unet(x: torch.Tensor) -> torch.Tensor:
    found = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    target = (torch.arange(found[:, 0].numel(), device=x.device) % 4).view_as(found[:, 0])
    return functional.cross_entropy(found, target)


def _attend(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*(x.bfloat16() for _ in range(3)), is_causal=True).float().sum()


WORK: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "unet": ((16, 4, 64, 64), _unet),
    "attention": ((1, 8, 512, 64), _attend),
    "padding": ((8, 4, 64, 64), lambda x: functional.pad(x, (3, 3, 3, 3), "reflect").square().sum()),
    "pooling": ((8, 64, 60, 60), lambda x: functional.adaptive_avg_pool2d(x, 7).square().sum()),
}


@cuda
@pytest.mark.parametrize("name", WORK)
def test_bits_repeat_on_a_gpu(name: str) -> None:
    shape, work = WORK[name]
    x = torch.randn(shape, device="cuda").requires_grad_()

    def once() -> tuple[torch.Tensor, torch.Tensor]:
        loss = work(x)
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    usual = once()
    with repeatable_kernels():
        first = once()
        assert all(torch.equal(one, other) for _ in range(20) for one, other in zip(first, once(), strict=True))
    torch.testing.assert_close(first, usual)
    assert not torch.are_deterministic_algorithms_enabled()


@cuda
def test_the_process_of_a_user_has_the_kernels_of_torch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(*inputs: Any) -> Any:
        calls.append(1)
        return nll_loss2d(*inputs)

    monkeypatch.setitem(KERNELS, "nll_loss2d_forward", counted)
    x, target = torch.randn(2, 4, 8, 8, device="cuda"), torch.zeros(2, 8, 8, dtype=torch.int64, device="cuda")
    with repeatable_kernels():
        mine = functional.cross_entropy(x, target)
    assert len(calls) == 1 and _Registered.library is None
    torch.testing.assert_close(functional.cross_entropy(x, target), mine)
    assert len(calls) == 1


def test_kernels_replace_operations_that_torch_has() -> None:
    with repeatable_kernels(), repeatable_kernels():
        assert _Registered.library is not None
    assert _Registered.library is None
    assert all(hasattr(aten, name) for name in KERNELS)
