"""What surrounds the kernels of stacked models, with stand-ins for the kernels: the outcome that plain torch has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from hopfleet.frameworks.torch.engines.stacked import launching, linear, norm_kernel, products
from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from tests.helpers.stand_in_kernels import StandIns, in_place_of_kernels

MEMBERS, ROWS = 5, 11
OF_LINEAR = {"linear forward", "linear backward"}
OF_BOTH = OF_LINEAR | {"norm forward", "norm backward"}

MODELS: dict[str, Any] = {
    "relu": lambda: nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(12, 132), nn.GELU(), nn.Linear(132, 8)),
    "tanh-gelu": lambda: nn.Sequential(nn.Linear(12, 35), nn.GELU(approximate="tanh"), nn.Linear(35, 1)),
    "norms": lambda: nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 36), nn.LayerNorm(36, eps=0.5)),
    "norm of tables": lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm([6, 8]), nn.GELU(), nn.Linear(8, 2)),
}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    with in_place_of_kernels(monkeypatch) as found:
        yield found


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def stacked(model: nn.Module, gap: int = 0, offset: int = 0) -> dict[str, torch.Tensor]:
    """Return weights of all members in the rows of a table, with some columns left out."""
    found = {}
    for name, value in model.named_parameters():
        columns = slice(offset, offset + value.numel())
        table = torch.randn(MEMBERS, value.numel() + gap)
        found[name] = table[:, columns].unflatten(1, value.shape)
    return found


def loss(model: nn.Module, of: Any, x: torch.Tensor, *, kernels: bool, cubes: bool = True) -> torch.Tensor:
    with StackedOperations(kernels=True, deferred=True) if kernels else contextlib.nullcontext():
        found = functional_call(model, of, x)
        return found.pow(3).sum() if cubes else found.sum()


def close(found: Any, expected: Any) -> None:
    """Compare gradients and losses."""
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
    assert found[0].keys() == expected[0].keys()
    for name, value in expected[0].items():
        atol = 1e-5 * max(1.0, value.abs().max().item())
        torch.testing.assert_close(found[0][name], value, rtol=1e-4, atol=atol)


def compare(kind: str, of: Any, x: torch.Tensor, in_dims: Any = (0, None), cubes: bool = True) -> None:
    """Compare gradients of all members with those of plain torch."""
    model = MODELS[kind]()
    found = vmap(grad_and_value(lambda of, x: loss(model, of, x, kernels=True, cubes=cubes)), in_dims)(of, x)
    expected = vmap(grad_and_value(lambda of, x: loss(model, of, x, kernels=False, cubes=cubes)), in_dims)(of, x)
    close(found, expected)


@pytest.mark.parametrize("cubes", [True, False], ids=["dense gradients", "one number for all gradients"])
@pytest.mark.parametrize("kind", MODELS)
def test_losses_and_gradients_of_all_members(kind: str, cubes: bool, stand_ins: StandIns) -> None:
    compare(kind, stacked(MODELS[kind](), gap=32), torch.randn(ROWS, 6, 12), cubes=cubes)
    assert set(stand_ins.launched) == (OF_BOTH if "norm" in kind else OF_LINEAR)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (5, 0), (8, 1)], ids=["no gaps", "odd gaps", "not aligned"])
def test_weights_wherever_they_lie(kind: str, gap: int, offset: int, stand_ins: StandIns) -> None:
    compare(kind, stacked(MODELS[kind](), gap, offset), torch.randn(ROWS, 6, 12))
    assert stand_ins.launched


@pytest.mark.parametrize("kind", MODELS)
def test_members_in_another_dimension(kind: str, stand_ins: StandIns) -> None:
    of = {name: value.movedim(0, -1).contiguous() for name, value in stacked(MODELS[kind]()).items()}
    compare(kind, of, torch.randn(ROWS, 6, MEMBERS, 12), in_dims=(-1, 2))
    assert stand_ins.launched


@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_members_share(kind: str, stand_ins: StandIns) -> None:
    of = {name: value[0] for name, value in stacked(MODELS[kind]()).items()}
    compare(kind, of, torch.randn(MEMBERS, ROWS, 6, 12), in_dims=(None, 0))
    assert stand_ins.launched


@pytest.mark.parametrize("kind", MODELS)
def test_one_member(kind: str, stand_ins: StandIns) -> None:
    """Compute gradients of a single model, by torch.func and by a backward pass."""
    model = MODELS[kind]()
    of = {name: value[0] for name, value in stacked(model).items()}
    x = torch.randn(ROWS, 6, 12)
    expected = grad_and_value(lambda of: loss(model, of, x, kernels=False))(of)
    close(grad_and_value(lambda of: loss(model, of, x, kernels=True))(of), expected)
    mine = {name: value.clone().requires_grad_() for name, value in of.items()}
    value = loss(model, mine, x, kernels=True)
    value.backward()
    close(({name: one.grad for name, one in mine.items()}, value.detach()), expected)
    assert stand_ins.launched


@pytest.fixture
def turning(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """Turn the weights of all layers around, however small they are."""
    monkeypatch.setattr(products, "ROWS", 1)
    monkeypatch.setattr(products, "WEIGHTS", 1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield stand_ins
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("rows", [(ROWS, 6), (ROWS, 2, 6), (6,)], ids=["tables", "more dimensions", "rows"])
@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_are_turned_around(kind: str, rows: tuple[int, ...], turning: StandIns) -> None:
    compare(kind, stacked(MODELS[kind](), gap=32), torch.randn(*rows, 12))
    layers = sum(isinstance(module, nn.Linear) for module in MODELS[kind]().modules())
    first = isinstance(next(MODELS[kind]().children()), nn.Linear)
    assert turning.launched.count("turn") == layers - first, "what the first layer gets has no gradient"


def test_which_weights_are_turned_around(turning: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    of, x = stacked(MODELS["gelu"]()), torch.randn(ROWS, 6, 12)

    def turned() -> int:
        turning.launched.clear()
        compare("gelu", of, x)
        return turning.launched.count("turn")

    assert turned() == 1
    torch.set_float32_matmul_precision("highest")
    assert turned() == 0, "without TF32 nothing is gained"
    torch.set_float32_matmul_precision("high")
    monkeypatch.setattr(products, "ROWS", ROWS * 6 + 1)
    assert turned() == 0, "too few rows"
    monkeypatch.setattr(products, "ROWS", ROWS * 6)
    monkeypatch.setattr(products, "WEIGHTS", 132 * 8 + 1)
    assert turned() == 0, "too few weights"


@pytest.mark.parametrize("kind", ["gelu", "norms"])
def test_weights_of_one_member_that_are_turned_around(kind: str, turning: StandIns) -> None:
    test_one_member(kind, turning)
    test_members_in_another_dimension(kind, turning)
    test_weights_that_members_share(kind, turning)
    assert "turn" in turning.launched


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 32, 64), (4, 33, 31), (1, 256, 1024)])
def test_the_kernel_turns_weights_around(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, device="cuda")
    turned = products.turn(weight.device)
    assert turned is not None and torch.equal(turned(weight), weight.transpose(1, 2).contiguous())
    part = torch.randn(*shape[:2], shape[2] + 3, device="cuda")[..., 1:-2]
    assert torch.equal(turned(part), part.transpose(1, 2).contiguous())
    table = torch.randn(shape[0], shape[1] * shape[2] + 5, device="cuda")
    apart = table[:, 1:-4].unflatten(1, shape[1:])
    assert torch.equal(turned(apart), apart.transpose(1, 2).contiguous())


@pytest.mark.parametrize("blocks", [1, 3 * MEMBERS])
@pytest.mark.parametrize("kind", ["gelu", "norms"])
def test_few_blocks_for_many_rows(kind: str, blocks: int, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "BLOCKS", blocks)
    monkeypatch.setattr(norm_kernel, "BLOCKS", blocks)
    compare(kind, stacked(MODELS[kind](), gap=32), torch.randn(ROWS, 6, 12))
    assert stand_ins.launched


def test_gradients_of_what_a_layer_gets(stand_ins: StandIns) -> None:
    model, x = MODELS["norms"](), torch.randn(MEMBERS, ROWS, 6, 12)
    of = stacked(model)
    found = vmap(grad_and_value(lambda x, of: loss(model, of, x, kernels=True)))(x, of)
    expected = vmap(grad_and_value(lambda x, of: loss(model, of, x, kernels=False)))(x, of)
    close(({"x": found[0]}, found[1]), ({"x": expected[0]}, expected[1]))
    assert "norm backward" in stand_ins.launched


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(12, 8, bias=False),
        nn.LayerNorm(12, bias=False),
        nn.Sequential(nn.Linear(12, 10, bias=False), nn.LayerNorm(10)),
        nn.Sequential(nn.Linear(12, 1028, bias=False), nn.LayerNorm(1028)),
    ],
    ids=["no bias", "norm without bias", "odd norm", "wide norm"],
)
def test_layers_that_kernels_are_not_made_for(model: nn.Module, stand_ins: StandIns) -> None:
    of, x = stacked(model), torch.randn(ROWS, 12)
    found = vmap(grad_and_value(lambda of: loss(model, of, x, kernels=True)))(of)
    close(found, vmap(grad_and_value(lambda of: loss(model, of, x, kernels=False)))(of))
    assert not stand_ins.launched


def test_layers_that_do_not_learn_other_types_and_no_rows(stand_ins: StandIns) -> None:
    layers, x = nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8)), torch.randn(ROWS, 12)
    with StackedOperations(kernels=True):
        assert torch.equal(layers[0].requires_grad_(False)(x), nn.functional.linear(x, *layers[0].parameters()))
        layers.requires_grad_(True)
        assert layers(x[:0]).shape == (0, 8)
        assert layers.double()(x.double()).dtype == torch.float64
    assert not stand_ins.launched


def test_kernels_are_compiled_once_for_each_kind(stand_ins: StandIns) -> None:
    for _ in range(2):
        for kind in ("relu", "gelu", "norms"):
            compare(kind, stacked(MODELS[kind]()), torch.randn(ROWS, 6, 12))
    # Layers with relu, with gelu and with none, rows of 3 and of 8 or 36; norms of 12 and of 36.
    assert sorted(stand_ins.compiled) == sorted([*OF_LINEAR] * 4 + [*(OF_BOTH - OF_LINEAR)] * 2)


def test_what_cannot_be_compiled_is_tried_once_and_mistakes_are_raised() -> None:
    tried: list[int] = []

    @launching.or_none
    def compiled(number: int) -> int:
        tried.append(number)
        if number > 1:
            raise (RuntimeError("no compiler") if number == 2 else ValueError("a mistake"))
        return number

    assert [compiled(1), compiled(2), compiled(1), compiled(2)] == [1, None, 1, None]
    assert tried == [1, 2]
    with pytest.raises(ValueError, match="a mistake"):
        compiled(3)


def test_tables_are_copied_only_where_vectors_cannot_be_read() -> None:
    table = torch.randn(4, 16)
    assert launching.whole(table) is table and launching.aligned(table[:, 4:]).data_ptr() == table[:, 4:].data_ptr()
    for rows in (table[:, 1:9], table[:, ::4], table.T, table.flatten()[1:50].unflatten(0, (7, 7))[:, :4]):
        for found in (launching.whole(rows), launching.aligned(rows)):
            assert torch.equal(found, rows) and found.is_contiguous() and found.data_ptr() % 16 == 0
    odd = table.flatten()[1:9]
    assert launching.whole(odd).data_ptr() % 16 == 0 and torch.equal(launching.whole(odd), odd)
    assert not launching.launchable(table), "it is on the CPU"
