"""Dropout with a rate for each member: what is dropped, by a kernel or not, and models that read their rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.stacked import dropout
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.stand_in_kernels import in_place_of_kernels

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
RATES = (0.0, 0.25, 0.5, 0.9, 1.0)


@pytest.fixture(params=["kernel", "operations"])
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether dropout is left to its kernel, or on the CPU to a stand-in, or made of operations of torch."""
    torch.manual_seed(0)
    if request.param == "operations":
        monkeypatch.setattr(dropout, "launchable", lambda *tables: False)
        yield False
    elif DEVICE == "cpu":
        with in_place_of_kernels(monkeypatch) as stand_ins:
            yield True
            assert "drop" in stand_ins.launched
    else:
        assert dropout.kernel(torch.device(DEVICE)) is not None
        yield True


def both_ways(x: torch.Tensor, rates: torch.Tensor, in_dims: Any = (0, 0)) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what dropout makes of a table, and of a gradient of ones."""

    def work(one: torch.Tensor, rate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = dropout.dropped(one, rate)
        return found.sum(), found

    grads, (_, found) = vmap(grad_and_value(work, has_aux=True), in_dims, randomness="different")(x, rates)
    return found, grads


@pytest.mark.parametrize("shape", [(64, 96), (37, 3), (7,)], ids=str)
def test_the_same_numbers_are_dropped_both_ways(launched, shape):
    rates = torch.tensor(RATES, device=DEVICE)
    x = torch.rand(len(RATES), *shape, device=DEVICE) + 1
    found, grads = both_ways(x, rates)
    assert torch.equal(found[0], x[0]) and torch.equal(grads[0], torch.ones_like(x[0]))
    assert not found[4].any() and not grads[4].any()
    for rate, one, of_one, scales in zip(RATES[:4], x, found, grads, strict=False):
        kept = scales != 0
        torch.testing.assert_close(of_one, one * scales)
        torch.testing.assert_close(scales[kept], torch.full_like(scales[kept], 1 / (1 - rate)))


def test_numbers_are_dropped_at_their_rates_and_independently(launched):
    rates = torch.tensor(RATES, device=DEVICE)
    _, grads = both_ways(torch.ones(len(RATES), 100, 1000, device=DEVICE), rates)
    kept = (grads != 0).float()
    for rate, row in zip(RATES, kept, strict=True):
        deviation = (rate * (1 - rate) / row.numel()) ** 0.5
        assert abs(row.mean().item() - (1 - rate)) <= 5 * deviation
    for first, second in ((kept[2, :, 1:], kept[2, :, :-1]), (kept[2, 1:], kept[2, :-1]), (kept[1], kept[2])):
        together = ((first - first.mean()) * (second - second.mean())).mean() / (first.std() * second.std())
        assert abs(together.item()) < 5 / first.numel() ** 0.5


def test_chance_follows_the_generator_of_the_device(launched):
    x, rates = torch.ones(3, 40, 40, device=DEVICE), torch.full((3,), 0.5, device=DEVICE)
    torch.manual_seed(1)
    first, second = both_ways(x, rates)[0], both_ways(x, rates)[0]
    torch.manual_seed(1)
    assert torch.equal(both_ways(x, rates)[0], first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0)])
def test_tables_or_rates_that_all_members_share(launched, in_dims):
    x = torch.ones(*([4] if in_dims[0] == 0 else []), 50, 9, device=DEVICE)
    rates = torch.tensor([0.5] * 4 if in_dims[1] == 0 else 0.5, device=DEVICE)
    work = vmap(dropout.dropped, in_dims, randomness="different")
    found = work(x, rates)
    assert found.shape == (4, 50, 9) and set(found.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(found[0], found[1])


def test_alone_without_members(launched):
    x = torch.ones(30, 30, device=DEVICE, requires_grad=True)
    found = dropout.dropped(x, torch.tensor(0.5, device=DEVICE))
    found.sum().backward()
    assert torch.equal(found.detach(), x.grad) and set(x.grad.unique().tolist()) == {0.0, 2.0}


def test_torchs_function_takes_the_rates_of_members():
    x = torch.ones(3, 200, device=DEVICE)

    def work(one: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        with StackedOperations():
            unchanged = torch.nn.functional.dropout(one, rate, training=False) - one
            return torch.nn.functional.dropout(one, rate) + torch.nn.functional.dropout(one, 0.5) + unchanged

    found = vmap(work, randomness="different")(x, torch.tensor([0.0, 0.5, 1.0], device=DEVICE))
    assert [set(row.unique().tolist()) for row in found] == [{1.0, 3.0}, {0.0, 2.0, 4.0}, {0.0, 2.0}]


# -------------------------------------------------------------------------------------------- models that read rates


class Reader(torch.nn.Module):
    """A model that reads the rate of its dropout, as many of Hugging Face do."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.all, self.out, self.dropout = torch.nn.Linear(8, 24), torch.nn.Linear(8, 2), torch.nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.all(x).chunk(3, -1))
        rate = self.dropout.p if self.training else 0.0
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        return self.out(self.dropout(found.transpose(1, 2).flatten(2)).mean(1))


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Reader(config["rate"])
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Batches:
    rows = 160

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            x = torch.randn(32, 6, 8, generator=generator)
            yield {"x": x.to(DEVICE), "y": (x.mean((1, 2)) > 0).long().to(DEVICE)}


def sessions(rates: list[float]) -> list[TorchSession]:
    cache, task = EngineCache(), Task()
    return [
        task.framework.open({"rate": rate, "lr": 0.01}, seed=0, placement=Placement.on(DEVICE), threads=1, cache=cache)
        for rate in rates
    ]


@pytest.mark.parametrize("rates", [[0.0, 0.0, 0.0], [0.3, 0.3, 0.3], [0.0, 0.3, 0.6]], ids=str)
def test_models_that_read_their_rate_are_stacked(rates, capsys):
    together, alone = sessions(rates), sessions(rates)[0]
    found = Stacked(together).train(Batches(), last=[True] * 3)
    said = capsys.readouterr().err
    assert "are stacked; gradients deviate by" in said and "in turn" not in said
    deviation = float(said.split("deviate by ")[1].split()[0])
    assert deviation < 1e-3, "dropout is switched off where gradients are compared"
    if rates[0] == 0.0:
        expected = alone.train(Batches(), last=True)
        assert float(found[0]["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-4)
    losses = [float(one["train_loss"].mean) for one in found]
    assert len(set(losses)) == (1 if rates == [0.0] * 3 else 3), "members draw their own numbers"


def test_rates_are_given_back():
    model = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Dropout1d(0), torch.nn.Linear(2, 2))
    with dropout.without_dropout(model):
        assert [model[0].p, model[1].p, model[0].training, model[2].training] == [0.0, 0.0, False, True]
    assert [model[0].p, model[1].p, model[0].training] == [0.3, 0, True]


def test_rates_hold_in_half_of_single_precision():
    """Random numbers of that type are multiples of 1/256, and so would be rates."""
    x = torch.ones(1_000_000, dtype=torch.bfloat16, device=DEVICE)
    torch.manual_seed(0)
    found = dropout.dropped(x, torch.tensor(0.1, device=DEVICE))
    assert found.dtype == x.dtype
    assert float((found == 0).float().mean()) == pytest.approx(0.1, abs=1e-3)
