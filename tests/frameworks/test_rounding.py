"""What rounding explains: deviations of gradients from those alone, and from those in double precision."""

from __future__ import annotations

import pytest
import torch

from hopfleet.frameworks.torch.engines.stacked import gradients
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.engines.stacked.rounding import Deviation, Drawn, Draws, compared
from tests.helpers.stacked_tasks import Batches, Task, configs, several

EXACT = [torch.ones(100, dtype=torch.float64) for _ in range(100)]


def off_by(*errors: float, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return a gradient for each of 100 parameters, with some errors; the last one is that of all others."""
    each = [*errors, *[errors[-1]] * (100 - len(errors))]
    return [(one + error).to(dtype) for one, error in zip(EXACT, each, strict=True)]


@pytest.mark.parametrize(
    ("alone", "stacked", "explained"),
    [
        ((1e-4,), (-3e-4,), True),
        ((1e-4,), (-5e-4,), False),
        ((1e-4,), (0.0015, 1e-4), True),  # for one parameter it may be more
        ((1e-4,), (0.0018, 1e-4), False),
        ((0.0, 1e-4), (3e-4, 1e-4), True),  # close by chance
        ((1e-4,), (float("nan"), 1e-4), False),
        ((1e-7,), (5e-6,), True),  # next to nothing
    ],
)
def test_distances_from_double_precision(alone, stacked, explained):
    found = compared(off_by(*stacked), off_by(*alone), lambda: EXACT)
    assert found.explained is explained
    if found.rounding:
        assert found.rounding == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 0.01), (torch.float16, 0.01), (torch.float64, 4e-8)]
)
def test_without_double_precision_the_type_decides(dtype, most):
    alone = off_by(0.0, dtype=dtype)
    for part, explained in ((0.9, True), (1.2, False)):
        stacked = [one.double() * (1 + part * most) for one in alone]
        assert compared(stacked, alone, lambda: None).explained is explained


@pytest.mark.parametrize(("tells", "explained"), [(3, True), (4, False)])
def test_one_of_three_members_is_enough(tells, explained, monkeypatch, capsys):
    calls: list[int] = []

    def some(*_: object) -> Deviation:
        calls.append(1)
        return Deviation(0.1, 0.0, len(calls) == tells)

    monkeypatch.setattr(gradients, "compared", some)
    Stacked(several(Task(), configs("adam"))).train(Batches(), last=[True] * 4)
    assert ("are stacked" in capsys.readouterr().err) is explained


def test_random_numbers_are_drawn_again_in_another_type():
    """If an operation draws something else, or one is left, the numbers are not the same."""

    def drawn(dtype: torch.dtype, *, more: bool = False) -> torch.Tensor:
        x = torch.zeros(20, dtype=dtype)
        noise = torch.randn_like(x) + x.normal_() + torch.bernoulli(torch.full((20,), 0.5, dtype=dtype))
        return noise + torch.rand(20, dtype=dtype) if more else noise

    with Draws() as draws:
        expected = drawn(torch.float32)
    for more in (False, True):
        with Drawn(draws.values) as again:
            found = drawn(torch.float64, more=more)
        assert again.complete is not more
        if not more:
            torch.testing.assert_close(found.float(), expected)
    with Drawn(draws.values) as again:
        torch.randn(20)
    assert not again.complete
