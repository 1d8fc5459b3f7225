"""Linear layers and layer norms of many members by kernels: the outcome that each member gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import linear, norm_kernel
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from tests.helpers.stand_in_kernels import kernels_or_stand_ins

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS = 5

MODELS: dict[str, Any] = {
    "relu": lambda: nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(12, 260), nn.GELU(), nn.Dropout(0.0), nn.Linear(260, 8)),
    "tanh-gelu": lambda: nn.Sequential(nn.Linear(12, 7), nn.GELU(approximate="tanh"), nn.Linear(7, 1)),
    "no bias": lambda: nn.Sequential(nn.Linear(12, 8, bias=False), nn.ReLU(inplace=True), nn.Linear(8, 4)),
    "norm": lambda: nn.Sequential(nn.Linear(12, 36), nn.LayerNorm(36), nn.Linear(36, 8), nn.LayerNorm(8, bias=False)),
    "wide norm": lambda: nn.Sequential(nn.Linear(12, 1024), nn.LayerNorm(1024, eps=1e-3), nn.Linear(1024, 4)),
    "wider norm": lambda: nn.Sequential(nn.Linear(12, 1028), nn.LayerNorm(1028), nn.Linear(1028, 4)),
    "norm of tables": lambda: nn.Sequential(nn.Linear(12, 16), nn.LayerNorm([6, 16]), nn.GELU(), nn.Linear(16, 2)),
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let stand-ins take the place of kernels where there is no GPU."""
    with kernels_or_stand_ins(monkeypatch):
        yield


def gradients(model: nn.Module, weights: Any, x: torch.Tensor, *, kernels: bool, deferred: bool = False) -> Any:
    def loss(mine: Any) -> torch.Tensor:
        with StackedOperations(kernels=kernels, deferred=deferred) as operations:
            return operations.result(functional_call(model, mine, x).pow(2).mean())

    return vmap(grad_and_value(loss))(weights)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_without_kernels(kind: str, rows: int, deferred: bool, launches: None) -> None:
    torch.manual_seed(0)
    plain = MODELS[kind]().to(DEVICE)
    # Weights lie in the rows of a table, as those of a stack do.
    weights = {
        name: torch.randn(MEMBERS, value.numel() + 32, device=DEVICE)[:, : value.numel()].view(MEMBERS, *value.shape)
        for name, value in plain.named_parameters()
    }
    x = torch.randn(rows, 6, 12, device=DEVICE)
    expected, losses = gradients(plain, weights, x, kernels=False)
    found, others = gradients(plain, weights, x, kernels=True, deferred=deferred)
    torch.testing.assert_close(others, losses, rtol=1e-4, atol=1e-5)
    for name, value in expected.items():
        scale = value.abs().max().item()
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5 * max(1.0, scale))


def test_kernels_are_used(monkeypatch: pytest.MonkeyPatch, launches: None) -> None:
    used: list[str] = []
    for kind in (linear.Kernels, norm_kernel.Kernels):
        for name in ("forward", "backward"):
            real = getattr(kind, name)

            def noted(*args: Any, real: Any = real, text: str = f"{kind.__module__} {name}", **options: Any) -> Any:
                used.append(text.rpartition(".")[2])
                return real(*args, **options)

            monkeypatch.setattr(kind, name, noted)
    model = MODELS["norm"]().to(DEVICE)
    weights = {name: torch.randn(MEMBERS, *value.shape, device=DEVICE) for name, value in model.named_parameters()}
    gradients(model, weights, torch.randn(4, 12, device=DEVICE), kernels=True)
    assert set(used) == {f"{kind} {way}" for kind in ("linear", "norm_kernel") for way in ("forward", "backward")}


def test_there_are_no_kernels_where_they_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(_compat, "compiled_kernel", refused)
    for cached, arguments in ((linear.kernels, (4, 0)), (norm_kernel.kernels, (8,))):
        cached.cache_clear()
        assert cached(torch.device("cuda:0"), *arguments) is None
        cached.cache_clear()
