"""Programs compute, bit for bit, what the recorded functions compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap

from hopfleet.frameworks.torch.engines.stacked.programs import Unwritable, quickened, recorded

ELSEWHERE = torch.full((3,), 0.5)


def everything(x: Any, y: Any, kept: Any) -> Any:
    """Use views, chance, a tensor from outside, one that is written into, and an operation with several results."""

    def loss(x: Any) -> Any:
        hidden = torch.nn.functional.dropout(x.t().t() @ y, 0.5) * ELSEWHERE
        largest, _ = hidden.max(dim=1)
        return (hidden.relu() + largest[:, None].view(-1, 1)).square().mean()

    grads, losses = vmap(grad_and_value(loss), randomness="different")(x)
    kept.mul_(0.9).add_(losses.detach())
    first, second = grads.chunk(2)
    return [first, second.clone().add_(1)], losses.detach()


def inputs(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((4, 5, 6), (6, 3), (4,))]


def outcome(function: Callable[..., Any], values: list[Any]) -> list[Any]:
    torch.manual_seed(0)
    (first, second), losses = function(*values)
    return [first, second, losses, values[2], torch.get_rng_state()]


@pytest.mark.parametrize("script", [True, False])
def test_a_program_does_what_the_function_does(script, monkeypatch):
    def removed(*args: Any, **options: Any) -> None:
        raise RuntimeError("there is no TorchScript any more")

    if not script:
        monkeypatch.setattr(torch.jit, "trace", removed)
    program = recorded(everything, inputs(0))
    quick = quickened(program, inputs(0))
    assert (quick is program) is not script
    for seed in (1, 2, 3):
        expected = outcome(everything, inputs(seed))
        assert all(map(torch.equal, outcome(quick, inputs(seed)), expected))


def test_views_of_the_same_places_are_one():
    program = recorded(lambda x: x.t().t().view(2, 3).detach() + x.expand(2, 3), [torch.ones(2, 3)])
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.add.Tensor"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, y: x * 2 if x.sum() > 0 else y, "depends on values"),
        (lambda x, y: x.nonzero(), "depends on values"),
        (lambda x, y: x + y, "the same tensor"),
    ],
)
def test_functions_that_go_by_values_are_refused(function, reason):
    x = torch.ones(3)
    with pytest.raises(Unwritable, match=reason):
        recorded(function, [x, x if "same" in reason else x.clone()])
