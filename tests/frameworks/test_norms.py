"""Norms of many members in a few operations: the outcome that each member gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS, ROWS, WIDTH = 5, 7, 8

Inputs = dict[str, torch.Tensor]


def inputs(*names: str) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.randn(MEMBERS, WIDTH, generator=generator, dtype=torch.float64) for name in names}
    found["mix"] = torch.randn(MEMBERS, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    return {name: value.to(DEVICE) for name, value in found.items()}


def rows() -> torch.Tensor:
    return torch.randn(ROWS, 3, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE)


def layer(of: Inputs, x: torch.Tensor) -> torch.Tensor:
    found = torch.nn.functional.layer_norm(x @ of["mix"], (WIDTH,), of.get("weight"), of.get("bias"))
    return found.pow(3).mean()


def roots(of: Inputs, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x @ of["mix"], (WIDTH,), of.get("weight")).pow(3).mean()


def folded(loss: Any, of: Inputs, x: torch.Tensor) -> torch.Tensor:
    with StackedOperations():
        return loss(of, x)


@pytest.fixture(params=[layer, roots])
def loss(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rules run where torch has no operation for the RMS norm, with a stand-in for it."""
    if DEVICE != "cpu":
        return

    def forward(x: Any, shape: Any, weight: Any, eps: Any) -> Any:
        scales = x.pow(2).mean(-1, keepdim=True).add(torch.finfo(x.dtype).eps if eps is None else eps).rsqrt()
        return x * scales * (1 if weight is None else weight), scales

    def backward(grad: Any, x: Any, scales: Any, weight: Any, shape: Any) -> Any:
        grad = grad if weight is None else grad * weight
        return scales * grad - x * scales**3 * (grad * x).mean(-1, keepdim=True)

    monkeypatch.setattr(_compat, "fuses_rms_norm", lambda x: True)
    monkeypatch.setattr(_compat, "rms_norm", forward)
    monkeypatch.setattr(_compat, "rms_norm_backward", backward)


def same(loss: Any, of: Inputs, frozen: Inputs, common: Inputs) -> None:
    """Compare losses and gradients of all members with those that each has alone."""
    x = rows()

    def work(of: Inputs, frozen: Inputs) -> Any:
        return grad_and_value(lambda of: folded(loss, {**of, **frozen, **common}, x))(of)

    grads, losses = vmap(work, in_dims=(0, 0))(of, frozen)
    for number in range(MEMBERS):
        one, rest = ({name: value[number] for name, value in some.items()} for some in (of, frozen))
        alone, value = grad_and_value(lambda of, rest=rest: loss({**of, **rest, **common}, x))(one)
        assert torch.allclose(losses[number], value, rtol=1e-10)
        for name, grad in alone.items():
            assert torch.allclose(grads[name][number], grad, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("names", [(), ("weight",), ("weight", "bias"), ("bias",)])
def test_losses_and_gradients_that_each_has_alone(loss, names):
    same(loss, inputs(*names), {}, {})


def test_frozen_weights_of_each_member(loss):
    same(loss, inputs(), {"weight": inputs("weight")["weight"]}, {})


def test_frozen_weights_that_members_share(loss):
    same(loss, inputs(), {}, {"weight": inputs("weight")["weight"][0]})


def test_rows_that_members_share(loss):
    x = rows()
    of = {"mix": torch.eye(WIDTH, dtype=torch.float64, device=DEVICE), "weight": inputs("weight")["weight"][0]}
    several = vmap(lambda weight: folded(loss, {**of, "weight": weight}, x))(of["weight"].expand(MEMBERS, -1))
    assert torch.allclose(several, loss(of, x).expand(MEMBERS))


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_other_types_are_left_to_torch(loss):
    of = {name: value[0].float() for name, value in inputs("weight").items()}
    mixed = {**of, "weight": of["weight"].double()}
    if loss is roots:
        assert torch.equal(folded(loss, mixed, rows().float()), loss(mixed, rows().float()))
    else:
        with pytest.raises(RuntimeError, match="type"):
            folded(loss, mixed, rows().float())


def test_nothing_is_taken_apart():
    of, x = inputs("weight", "bias"), rows()

    def operations(work: Any) -> list[str]:
        traced = make_fx(vmap(grad_and_value(lambda of: work(of, x))))(of)
        return [str(node.target) for node in traced.graph.nodes]

    assert "aten.sub.Tensor" in operations(layer)  # else torch has a rule of its own by now
    assert "aten.sub.Tensor" not in operations(lambda of, x: folded(layer, of, x))
