"""Kernels that are compiled while models are built: the right ones, once, and without harm where that fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines import choose
from hopfleet.frameworks.torch.engines.stacked import dropout, kernels, linear, norm_kernel, products, readying
from hopfleet.frameworks.torch.engines.stacked.attention_source import sources_for
from hopfleet.frameworks.torch.session import TorchSession

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Block(hop.TorchTask):
    """A layer norm, and layers with and without a bias, with and without an activation."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 16),
            torch.nn.GELU(),
            torch.nn.Linear(16, 6, bias=False),
            torch.nn.LayerNorm(6),
            torch.nn.Linear(6, 3),
        )
        return model, config["optimizer"](model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch["x"]).square().mean()


def session(optimizer: Any = torch.optim.AdamW, cache: EngineCache | None = None) -> TorchSession:
    return Block().framework.open({"optimizer": optimizer}, seed=0, placement=CPU, threads=1, cache=cache)


def test_what_a_stack_is_likely_to_launch() -> None:
    gelu, plain = linear.source_for(4, linear.ACTIVATIONS.index("gelu")), linear.source_for(1, 0)
    norm = norm_kernel.source_for(8)  # there is none for rows of 6
    both = [(source, name) for source in (norm, gelu, plain) for name in ("forward", "backward")]
    assert list(readying.needed(session())) == [(kernels.SOURCE, "adam"), *both]
    assert list(readying.needed(session(torch.optim.SGD))) == both


def test_dropout_has_a_kernel() -> None:
    one = session()
    one.model.append(torch.nn.Dropout())
    assert (dropout.SOURCE, "drop") in list(readying.needed(one))


class Heads(torch.nn.Module):
    """Attention as people write it: a number of heads, and layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.proj = 4, torch.nn.Linear(64, 192)


@pytest.mark.parametrize(("layer", "width"), [(Heads(), 16), (torch.nn.MultiheadAttention(64, 2), 32)])
def test_attention_has_kernels_where_products_may_be_rounded(monkeypatch, layer, width) -> None:
    one = session()
    one.model.append(layer)
    assert not set(sources_for(width)) & set(readying.needed(one))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert set(sources_for(width)) <= set(readying.needed(one))


def test_large_layers_are_likely_to_be_turned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert (products.SOURCE, "turn") not in list(readying.needed(session()))
    monkeypatch.setattr(products, "WEIGHTS", 8 * 16)
    assert (products.SOURCE, "turn") in list(readying.needed(session()))


def test_the_first_model_of_a_worker_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, str, torch.device]] = []
    monkeypatch.setattr(_compat, "begin_kernel", lambda *asked: begun.append(asked))
    cache = EngineCache()
    for _ in range(2):
        readying.begin(session(cache=cache))
    assert [asked[:2] for asked in begun] == list(readying.needed(session()))
    choose.make_ready(session(cache=EngineCache()))
    assert len(begun) == len(list(readying.needed(session()))), "no kernels for a CPU"


def test_a_model_is_opened_whatever_becomes_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*asked: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(_compat, "begin_kernel", refused)
    readying.begin(session())


@pytest.mark.parametrize("error", [TypeError, ValueError, RuntimeError, OSError])
def test_what_the_compiler_raises_reaches_whoever_needs_the_kernel(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refused(*asked: Any, **options: Any) -> None:
        raise error("no")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", refused)
    device, source = torch.device("cuda:0"), f"// {error}"
    assert _compat.begin_kernel(source, "none", device) is _compat.begin_kernel(source, "none", device)
    with pytest.raises(OSError if error is OSError else RuntimeError, match="no"):
        _compat.compiled_kernel(source, "none", device)


@on_cuda
def test_a_kernel_is_compiled_in_a_thread_and_launched_in_this_one() -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    device = torch.device("cuda:0")
    future = _compat.begin_kernel(source, "twice", device)
    x = torch.ones(4, device=device)
    _compat.compiled_kernel(source, "twice", device)((1, 1, 1), (4, 1, 1), [x])
    assert future.done() and x.tolist() == [2.0] * 4
    with pytest.raises(RuntimeError, match="no_such_type"):
        _compat.compiled_kernel('extern "C" __global__ void bad(no_such_type x) {}', "bad", device)


@on_cuda
def test_kernels_of_stacks_can_be_compiled_here() -> None:
    device = torch.device("cuda:0")
    assert kernels.adam_kernel(device) is not None
    assert linear.kernels(device, 4, 2) is not None and norm_kernel.kernels(device, 256) is not None
