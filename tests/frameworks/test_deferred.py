"""Operations that wait for what follows them: a model computes what it computes without them, with fewer kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.stacked.deferred import Escaped
from hopfleet.frameworks.torch.engines.stacked.gradients import Gradients
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from tests.helpers.stand_in_kernels import StandIns, kernels_or_stand_ins

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS, WIDTH = 3, 8


class Layers(nn.Module):
    """Layers that each model below uses in its own way."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(0.0)
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._work(self, x)
        return found


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


class Doubled(torch.autograd.Function):
    """A function with a backward pass of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def before(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.two(x)
    x = x + m.one(m.norm(x))
    return x + m.drop(m.two(functional.gelu(m.one(m.other(x)))))


def after(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.norm(x + m.one(x))
    found: torch.Tensor = m.other(m.two(torch.relu(m.one(x))) + x)
    return found


def several_norms(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.one(x)
    return m.norm(x) * m.other(x) + x


def norm_of_inputs(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.norm(x) * x + m.one(x)


def norm_for_nothing(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.one(x)
    m.norm(x)
    return x.square()


def tapped(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x)
    return functional.relu(found) + found.exp() + functional.gelu(found, approximate="tanh")


def in_place(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x)
    functional.relu(found, inplace=True)
    other = m.two(x)
    other.add_(1.0).mul_(2.0)
    return found.sin() + other


def in_place_later(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x) * 2
    return functional.relu(found, inplace=True) + found


def both(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.one(x) + m.two(x)


def twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x)
    return found + found


def with_others(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x)
    return 1 + found + (m.two(x) + x[:1]) + torch.add(m.two(x), x, alpha=2) + torch.add(x, m.one(x))


def in_lists(m: Any, x: torch.Tensor) -> torch.Tensor:
    first, second = torch.cat([m.one(x), m.two(x)], -1).chunk(2, -1)
    return torch.stack(tensors=Pair(first, m.one(second)))


def of_some_form(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = m.one(x)
    rows, *_, width = found.shape
    return functional.relu(found) * found.size(0) / (rows * width)


def kept(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a product by itself."""
    found: torch.Tensor = m.one(x)
    return found


def by_function(m: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = Doubled.apply(m.one(x))  # type: ignore[no-untyped-call]
    return found


def by_name(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = functional.linear(input=x, weight=m.one.weight, bias=m.one.bias)
    return torch.add(
        input=functional.relu(input=found), other=functional.layer_norm(input=x, normalized_shape=(WIDTH,))
    )


def by_addmm(m: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, 1)
    return torch.addmm(m.one.bias, rows, m.one.weight) + rows + torch.addmm(rows[:1], rows, m.two.weight)


WAYS = (
    *(before, after, several_norms, norm_of_inputs, norm_for_nothing, tapped, in_place, in_place_later, both, twice),
    *(with_others, in_lists, of_some_form, kept, by_function, by_name, by_addmm),
)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns | None]:
    """Let stand-ins take the place of kernels where there is no GPU."""
    with kernels_or_stand_ins(monkeypatch) as found:
        yield found


def gradients(work: Any, *, deferred: bool) -> Any:
    torch.manual_seed(0)
    model = Layers(work).to(DEVICE)
    weights = {name: torch.randn(MEMBERS, *value.shape, device=DEVICE) for name, value in model.named_parameters()}
    x = torch.randn(5, 6, WIDTH, device=DEVICE)

    def loss(mine: Any) -> torch.Tensor:
        with StackedOperations(kernels=True, deferred=deferred) as operations:
            found: torch.Tensor = functional_call(model, mine, x)
            return operations.result(found if work is kept else found.square().mean())

    if work is kept:
        found, pull = torch.func.vjp(vmap(loss), weights)
        return found, pull(torch.ones_like(found))[0]
    return vmap(grad_and_value(loss))(weights)


@pytest.mark.parametrize("work", WAYS)
def test_a_model_computes_what_it_computes_one_by_one(work: Any, launches: object) -> None:
    found, expected = gradients(work, deferred=True), gradients(work, deferred=False)
    for one, other in zip(_tensors(found), _tensors(expected), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, other.abs().max().item()))


def _tensors(found: Any) -> list[torch.Tensor]:
    return [one for part in found for one in (part.values() if isinstance(part, dict) else [part])]


@pytest.mark.parametrize(
    ("work", "launched"), [(before, (4, 2)), (after, (3, 2)), (tapped, (2, 0)), (both, (2, 0)), (of_some_form, (1, 0))]
)
def test_what_follows_a_product_is_left_to_its_kernel(
    work: Any, launched: tuple[int, int], launches: StandIns | None
) -> None:
    if launches is None:
        pytest.skip("counts launches of stand-ins")
    gradients(work, deferred=True)
    assert (launches.launched.count("linear forward"), launches.launched.count("norm forward")) == launched


def escapes(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Call a function that is compiled in a way that no context sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # models of some libraries still use it
        scripted = torch.jit.script(halved)
    found: torch.Tensor = m.two(scripted(m.one(m.norm(m.other(x)))))
    return found


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def unused(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.one(x)
    found: torch.Tensor = m.two(x)
    return found


@pytest.mark.parametrize("work", [escapes, unused])
def test_a_product_that_nothing_has_used_has_escaped(work: Any, launches: object) -> None:
    with pytest.raises(Escaped):
        gradients(work, deferred=True)
    gradients(work, deferred=False)


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Layers({"escapes": escapes, "before": before}[config["work"]])
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return model(batch["x"]).square().mean()


@pytest.mark.parametrize("work", ["escapes", "before"])
def test_operations_wait_unless_something_escapes(
    work: str, monkeypatch: pytest.MonkeyPatch, launches: StandIns | None
) -> None:
    cache, place = EngineCache(), Placement.on(DEVICE)
    sessions = [
        Task().framework.open({"work": work, "lr": 0.1}, seed=n, placement=place, threads=1, cache=cache)
        for n in range(3)
    ]
    if DEVICE == "cpu":  # with stand-ins for kernels
        made = Gradients._module

        def with_kernels(self: Gradients) -> Any:
            self._kernels = True
            return made(self)

        monkeypatch.setattr(Gradients, "_module", with_kernels)
    stack = Stack(sessions)
    stack.read_settings()
    batch = {"x": torch.randn(16, WIDTH, device=DEVICE)}
    assert stack.gradients._deferred
    assert not stack.try_out(batch)
    assert stack.gradients._deferred == (work == "before")
    assert stack.gradients.deviation(batch)[0].off < 0.01
    assert Stack(sessions).gradients._deferred == (work == "before")
