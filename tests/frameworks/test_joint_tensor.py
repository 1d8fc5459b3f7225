"""Tensors of several members behind one: each operation on it has the bits that it has for each member alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.joint_tensor import JointTensor, Lanes, Unfit, computing
from tests.helpers.recorded_capture import RecordedCapture, recorded_capture

COUNT = 3
DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cache() -> EngineCache:
    cache = EngineCache()
    if DEVICE.type == "cpu":
        recorded_capture(cache)
    return cache


@pytest.fixture
def lanes(cache: EngineCache) -> Lanes:
    return Lanes(COUNT, cache.part(GraphCache), DEVICE)


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


Work = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

INDEX = torch.tensor([[0, 2, 1], [3, 3, 0]], device=DEVICE)
MASK = torch.ones(6, 6, device=DEVICE).tril().bool()


def attended(x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    query, key, value = (x @ w).view(4, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return found.transpose(1, 2).reshape(4, 6, 8)


def in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made.add_(x)
    made[:, 0] = 1.0
    made[:, 1].zero_()
    made += w[0, 0]
    return made.masked_fill_(x > 1, 0.5).relu_()


WORKS: dict[str, Work] = {
    "numbers": lambda x, w: (x.sigmoid() * 2 - x.exp() / 3).clamp(min=0.1) + torch.where(x > 0, x, -x),
    "broadcast": lambda x, w: x * w[0, :8] + x.mean(-1, keepdim=True),
    "plain": lambda x, w: x * torch.arange(8, device=DEVICE) + torch.ones(6, 1, device=DEVICE) * w[1, :8],
    "single": lambda x, w: x * w[0, 0] + w[0, 1].double() * 2,
    "types": lambda x, w: (x.double() @ w.double()).float(),
    "product": lambda x, w: x @ w,
    "linear": lambda x, w: F.linear(x, w.t(), w[0]),
    "products": lambda x, w: torch.bmm(x, x.transpose(1, 2)) @ x,
    "einsum": lambda x, w: torch.einsum("bid,de->bie", x, w),
    "layer norm": lambda x, w: F.layer_norm(x, (8,), w[0, :8], w[1, :8]),
    "batch of one": lambda x, w: F.layer_norm(x, (6, 8)),
    "softmax": lambda x, w: (x @ w).softmax(1) + (x @ w).log_softmax(-1),
    "cross entropy": lambda x, w: F.cross_entropy((x @ w).flatten(0, 1), torch.arange(24, device=DEVICE)),
    "embedding": lambda x, w: F.embedding(INDEX, w) * 3,
    "index": lambda x, w: x[:, INDEX[0]] + x[INDEX[0][:1], :3],
    "views": lambda x, w: torch.cat([one.flip(0) for one in x.chunk(2, 1)], 1).narrow(2, 1, 3).unfold(2, 2, 1),
    "split": lambda x, w: torch.stack((x @ w)[:, :, :9].chunk(3, 2)[::-1], 1),
    "stack of one tensor's parts": lambda x, w: torch.stack(x.unbind(1), 2) * 2,
    "parts": lambda x, w: torch.stack([x.cumsum(1), x.cumsum(2)], -1).expand(4, 6, 8, 2).permute(3, 0, 1, 2),
    "attention": attended,
    "attention with a mask": lambda x, w: attended(x, w, MASK),
    "activation": lambda x, w: F.gelu(x @ w) + F.silu(x @ w) + F.leaky_relu(x @ w),
    "norm": lambda x, w: x / x.norm(dim=-1, keepdim=True),
    "in place": in_place,
    "like": lambda x, w: x + torch.ones_like(x) + torch.zeros_like(x) + x.new_zeros(8) + torch.full_like(x, 2.0),
    "padding": lambda x, w: F.pad(x, (1, 1)) * 2,
    "detached": lambda x, w: x * x.detach() + x.clone(),
    "several": lambda x, w: sum(torch.var_mean(x, -1)) + x.max(-1).values + x.topk(1, dim=-1).values[..., 0],
}


@pytest.mark.parametrize("together", [False, True], ids=["anywhere", "side by side"])
@pytest.mark.parametrize("name", WORKS)
def test_operations_have_the_bits_of_each_member_alone(lanes: Lanes, name: str, together: bool) -> None:
    xs, ws = [some(4, 6, 8, seed=n) for n in range(COUNT)], [some(8, 24, seed=n + 9) for n in range(COUNT)]
    expected = []
    for x, w in zip(xs, ws, strict=True):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        found = WORKS[name](x, w)
        grads = torch.autograd.grad((found * found).sum(), (x, w), allow_unused=True)
        expected.append((found.detach(), *grads))

    if together:
        x, w = (JointTensor.of_rows(lanes, torch.stack(one)).requires_grad_() for one in (xs, ws))
    else:
        x, w = (JointTensor.of_parts(lanes, one, given=True).requires_grad_() for one in (xs, ws))
    with computing(lanes):
        result = WORKS[name](x, w)
        columns = [result.detach(), *torch.autograd.grad((result * result).sum(), (x, w), allow_unused=True)]
    for number, values in enumerate(expected):
        for column, value in zip(columns, values, strict=True):
            assert (column is None) == (value is None)
            if value is not None:
                assert isinstance(column, JointTensor)
                assert (column.shape, column.dtype) == (value.shape, value.dtype)
                assert torch.equal(column.parts[number], value)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: F.dropout(x, 0.5),
        lambda x: x + torch.rand_like(x),
        lambda x: x[x > 0],
        lambda x: torch.zeros(4, 6, 8, device=DEVICE).add_(x),
        lambda x: F.batch_norm(x, torch.zeros(6, device=DEVICE), torch.ones(6, device=DEVICE), training=True),
        lambda x: x.cumsum_(1),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda x: x.view(torch.int16),
        lambda x: torch.view_as_complex(x.view(4, 6, 4, 2)),
    ],
    ids=[
        "item",
        "branch",
        "dropout",
        "random",
        "values",
        "outside",
        "statistics",
        "not by number",
        "attention",
        "bits",
        "complex",
    ],
)
def test_what_is_not_the_same_for_all_members_is_refused(lanes: Lanes, work: Callable[[torch.Tensor], object]) -> None:
    x = JointTensor.of_parts(lanes, [some(4, 6, 8, seed=n) for n in range(COUNT)])
    with pytest.raises(Unfit), computing(lanes):
        work(x * 1)


def test_tensors_of_members_have_one_shape(lanes: Lanes) -> None:
    with pytest.raises(Unfit, match="different shapes"):
        JointTensor.of_parts(lanes, [some(2), some(3), some(2)])
    assert repr(JointTensor.of_rows(lanes, some(COUNT, 2, 5))) == "JointTensor(3 x (2, 5))"


def test_weights_are_not_written_into(lanes: Lanes) -> None:
    x = JointTensor.of_parts(lanes, [some(4) for _ in range(COUNT)], given=True)
    for view in (x, x[:2], x.chunk(2)[1]):
        with pytest.raises(Unfit, match="outside"):
            view.add_(1)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="looks at the stand-in for streams")
def test_streams_are_joined_before_anything_else_is_computed(cache: EngineCache, lanes: Lanes) -> None:
    backend = cache.part(GraphCache).backend
    assert isinstance(backend, RecordedCapture)
    x = JointTensor.of_parts(lanes, [some(4, 4, seed=n) for n in range(COUNT)])
    plain = some(4, 4)
    with computing(lanes):
        found = x @ x @ x
        assert len(backend.unjoined()) == COUNT  # two products, and no join between them
        plain + 1
        assert not backend.unjoined()
        found = found @ x
        assert len(backend.unjoined()) == COUNT
        found + 1
        assert not backend.unjoined()
        found @ x
    assert not backend.unjoined()
    with contextlib.suppress(Unfit), computing(lanes):
        (x @ x).sum().item()
    assert not backend.unjoined()


def test_memory_that_streams_use_is_kept_until_they_are_joined(lanes: Lanes) -> None:
    x = JointTensor.of_parts(lanes, [some(4, 4, seed=n) for n in range(COUNT)])
    made = x * 1
    assert isinstance(made, JointTensor)
    place = made.first.untyped_storage()
    made @ x
    del made
    held = lanes._held
    assert any(one.untyped_storage().data_ptr() == place.data_ptr() for group in held for one in group[0][0])  # type: ignore[index]
    lanes.join()
    assert not held
