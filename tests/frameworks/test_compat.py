"""PyTorch internals: each one does what Hopfleet relies on, or a test names the one that has vanished or changed."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import hopfleet
from hopfleet.frameworks.torch import _compat, _operations
from hopfleet.frameworks.torch.repeatable_kernels import repeatable_kernels

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((3,), value) for value in values]


def same(found: list[torch.Tensor], *expected: float) -> bool:
    return all(map(torch.equal, found, tensors(*expected)))


@pytest.mark.slow
def test_as_written() -> None:
    """In the context, a function that torch.compile has wrapped runs as it is written."""
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        calls.append(1)
        return graph

    double = torch.compile(lambda x: 2 * x, backend=backend)
    with _compat.as_written():
        assert same([double(torch.ones(3))], 2.0) and not calls
    assert same([double(torch.ones(3))], 2.0) and calls


def test_foreach_lerp() -> None:
    some = tensors(0.0, 2.0)
    _compat.foreach_lerp_(some, tensors(1.0, 4.0), 0.5)
    assert same(some, 0.5, 3.0)


def test_foreach_copy() -> None:
    some = tensors(0.0, 0.0)
    _compat.foreach_copy_(some, tensors(1.0, 2.0))
    assert same(some, 1.0, 2.0)


def test_foreach_mul() -> None:
    some = tensors(1.0, 2.0)
    _compat.foreach_mul_(some, 3.0)
    assert same(some, 3.0, 6.0)


def test_foreach_addcdiv() -> None:
    some = tensors(1.0, 1.0)
    _compat.foreach_addcdiv_(some, tensors(4.0, 6.0), tensors(2.0, 3.0), [1.0, 0.5])
    assert same(some, 3.0, 2.0)


def test_foreach_add() -> None:
    some = tensors(1.0, 2.0)
    assert same(list(_compat.foreach_add(some, tensors(2.0, 2.0), alpha=0.5)), 2.0, 3.0)
    _compat.foreach_add_(some, 1)
    assert same(some, 2.0, 3.0)


def test_flatten_dense_tensors() -> None:
    row = _compat.flatten_dense_tensors([torch.ones(2, 2), torch.zeros(1)])
    assert row.tolist() == [1, 1, 1, 1, 0]


def test_writes_into_a_tensor_are_counted() -> None:
    tensor = torch.ones(2)
    before = _compat.written(tensor)
    tensor.view(1, 2).mul_(2)
    assert _compat.written(tensor) == before + 1


def test_views_share_memory() -> None:
    tensor = torch.ones(4)
    assert _compat.memory_of(tensor[1:]) == _compat.memory_of(tensor) != _compat.memory_of(tensor.clone())


def test_convolutions_are_recognized() -> None:
    assert _compat.convolves(torch.nn.Sequential(torch.nn.ConvTranspose1d(1, 1, 1)))
    assert not _compat.convolves(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("kind", _compat.FUSED)
def test_fused_updates(kind: type[torch.optim.Optimizer]) -> None:
    weight, grad = torch.nn.Parameter(torch.ones(2, 3)), torch.linspace(-1, 1, 6).view(2, 3)
    weight.grad = grad.clone()
    kind([weight], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1).step()  # type: ignore[call-arg]
    mine, first, second = torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)
    _compat.fused_update(decoupled=kind is torch.optim.AdamW)(
        [mine], [grad], [first], [second], [], [torch.tensor(1.0)],
        lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.1, eps=1e-6, amsgrad=False, maximize=False,
    )  # fmt: skip
    torch.testing.assert_close(mine, weight.detach())


def test_hooks_of_optimizers_are_noticed() -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])

    plain, scheduled, before, after, replaced = (optimizer() for _ in range(5))
    torch.optim.lr_scheduler.ExponentialLR(scheduled, 0.9)
    before.register_step_pre_hook(lambda *args: None)
    after.register_step_post_hook(lambda *args: None)
    replaced.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    found = [_compat.has_step_hooks(one) for one in (plain, scheduled, before, after, replaced)]
    assert found == [False, False, True, True, True]
    for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(lambda *args: None)
        assert _compat.has_step_hooks(plain)
        handle.remove()


def test_hooks_that_are_known_do_not_count() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    class Known:
        def hook(self, *_: object) -> None:
            pass

    known = Known()
    optimizer.register_step_pre_hook(known.hook)
    assert _compat.has_step_hooks(optimizer) and not _compat.has_step_hooks(optimizer, known)


def test_a_scaler_forgets_an_update_that_was_begun() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    _compat.supports_scaling(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    assert _compat.scaler_tensors(scaler) == _compat.scaler_tensors(None) == []
    for _ in range(2):
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        _compat.abandon_update(scaler)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert len(_compat.scaler_tensors(scaler)) == 2


def test_a_schedule_does_not_warn_of_an_optimizer_that_counts_as_stepped() -> None:
    """Warnings are errors in these tests."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    _compat.count_as_stepped(optimizer)
    schedule.step()


def test_onednn_can_be_switched() -> None:
    before = _compat.onednn_enabled()
    try:
        for wanted in (False, before):
            _compat.enable_onednn(wanted)
            assert _compat.onednn_enabled() is wanted
    finally:
        _compat.enable_onednn(before)


@on_cuda
def test_workspaces_of_cublas_can_be_cleared() -> None:
    square = torch.ones(64, 64, device="cuda")
    expected = square @ square
    _compat.clear_cublas_workspaces()
    assert torch.equal(square @ square, expected)


@on_cuda
def test_eager_work_uses_the_memory_of_graphs() -> None:
    device, stream, pool = torch.device("cuda:0"), torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    graph, many = torch.cuda.CUDAGraph(), 1 << 22
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        torch.zeros(many, device=device)
        graph.capture_end()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with torch.cuda.stream(stream), _compat.allocating_from(pool, device):
        torch.zeros(many, device=device)
    assert torch.cuda.memory_reserved() == before
    with torch.cuda.stream(stream):
        torch.zeros(many, device=device)
    assert torch.cuda.memory_reserved() > before


def test_layer_norm_and_its_gradient() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.layer_norm(x, (4,))
    found, *rest = _compat.layer_norm(x.detach(), (4,), 1e-5)
    assert torch.equal(found, expected)
    (grad,) = torch.autograd.grad(expected.pow(3).sum(), x)
    assert torch.allclose(_compat.layer_norm_backward(3 * found**2, x.detach(), rest[0], rest[1], (4,)), grad)


@on_cuda
@pytest.mark.parametrize("weighs", [False, True])
def test_rms_norm_and_its_gradient(weighs: bool) -> None:
    x = torch.randn(3, 8, device="cuda:0", requires_grad=True)
    weight = torch.randn(8, device="cuda:0") if weighs else None
    assert _compat.fuses_rms_norm(x) and not _compat.fuses_rms_norm(x.cpu())
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-5)
    found, scales = _compat.rms_norm(x.detach(), (8,), weight, 1e-5)
    assert torch.allclose(found, expected)
    (grad,) = torch.autograd.grad(expected.pow(3).sum(), x)
    mine = _compat.rms_norm_backward(3 * found**2, x.detach(), scales, weight, (8,))
    assert torch.allclose(mine, grad, rtol=1e-3, atol=1e-4)


@on_cuda
def test_a_generator_of_its_own() -> None:
    device = torch.device("cuda:0")
    before, mine = torch.cuda.get_rng_state(device), torch.Generator(device).manual_seed(3)
    with _compat.own_generator(device, mine):
        drawn = torch.rand(4, device=device)
    assert torch.equal(drawn, torch.rand(4, device=device, generator=torch.Generator(device).manual_seed(3)))
    assert torch.equal(torch.cuda.get_rng_state(device), before)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=on_cuda)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(device: str, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 8, 8, generator=generator).to(device).requires_grad_() for _ in range(3)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    grads = torch.autograd.grad(expected.sum(), inputs)
    plain = [tensor.detach() for tensor in inputs]
    query, key, value = plain
    out, *rest = _operations.attention(query, key, value, None, 0.0, causal, None)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-3, atol=1e-4)
    found = _operations.attention_backward(
        torch.ones_like(out), query, key, value, None, [out, *rest], 0.0, causal, None
    )
    torch.testing.assert_close(found, grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=on_cuda)])
def test_the_gradient_of_cross_entropy(device: str) -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    target = torch.tensor([0, 1, 2, -100, 1], device=device)
    losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    (expected,) = torch.autograd.grad(losses.sum(), logits)
    logs = torch.log_softmax(logits.detach(), 1)
    found = _compat.cross_entropy_backward(torch.ones(5, device=device), logs, target, -100)
    torch.testing.assert_close(found, expected)


def test_operations_are_dispatched_to_a_mode() -> None:
    seen: list[str] = []

    class Mode(_compat.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2).mul(2)
    assert seen == ["aten.ones.default", "aten.mul.Tensor"]


def test_operations_tell_what_they_do() -> None:
    aten = torch.ops.aten
    views = aten.view.default, aten.t.default, aten.unbind.int, *_operations.VIEWS
    numbers = aten.add.Tensor, aten.gelu.default, aten.where.self, aten.relu_.default, *_operations.COPIES
    others = aten.mm.default, aten.sum.dim_IntList, aten.cumsum.default, aten.native_layer_norm.default
    assert all(map(_operations.is_view, views)) and not any(map(_operations.is_view, (*numbers, *others)))
    assert all(map(_operations.is_pointwise, numbers)) and not any(map(_operations.is_pointwise, (*views, *others)))
    assert _operations.writes(aten.add_.Tensor) == _operations.writes(aten.copy_.default) == [0]
    assert not any(map(_operations.writes, (*views, *others))) and _operations.writes(aten.mm.out) == [2]


def test_operations_that_differ_between_trials_are_named() -> None:
    aten, one = torch.ops.aten, torch.ones(1, 1, 2, 4)
    obstacle = _operations.obstacle
    assert obstacle(aten._local_scalar_dense.default, [one]) == "reads values"
    assert obstacle(aten.native_dropout.default, [one, 0.5, True]) == "draws random numbers"
    assert obstacle(aten.native_batch_norm.default, [one]) == "keeps statistics"
    assert obstacle(aten.mm.default, [one, one]) == ""
    for operation in _operations.ATTENTION:
        plain = operation is aten._scaled_dot_product_flash_attention_for_cpu.default
        inputs = [one, one, one] if plain else [one, one, one, None, True]
        assert obstacle(operation, [*inputs, 0.0]) == obstacle(operation, inputs) == ""
        assert plain or obstacle(operation, [*inputs, 0.5]) == "draws random numbers"


@on_cuda
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_gradients_of_attention_are_those_of_deterministic_algorithms(causal: bool, mask: bool) -> None:
    if causal and mask:
        pytest.skip("torch refuses both")
    shape = 2, 3, 300, 16
    inputs = [torch.randn(shape, device="cuda").requires_grad_() for _ in range(3)]
    added = torch.randn(2, 3, 300, 304, device="cuda")[..., :300].requires_grad_() if mask else None
    wanted = [*inputs, *([] if added is None else [added])]

    def gradients() -> tuple[torch.Tensor, ...]:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            found = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=added, is_causal=causal)
        return torch.autograd.grad(found.square().sum(), wanted)

    usual = gradients()
    torch.use_deterministic_algorithms(True)
    try:
        expected = gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    with repeatable_kernels():
        found = gradients()
        assert all(map(torch.equal, found, gradients()))
    assert all(map(torch.equal, found, expected))
    for one, other in zip(usual, gradients(), strict=True):
        torch.testing.assert_close(one, other)


def test_only_deterministic_for_a_while() -> None:
    assert torch.utils.deterministic.fill_uninitialized_memory
    with _operations.only_deterministic():
        assert torch.get_deterministic_debug_mode() == 2
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_kernels_that_are_removed() -> None:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("nll_loss2d_forward", lambda *inputs: (torch.tensor(7.0), torch.tensor(1.0)), "CPU")
    inputs = torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64)
    assert torch.nn.functional.nll_loss(*inputs) == 7
    _operations.remove(library)
    assert torch.nn.functional.nll_loss(*inputs) == 0


@on_cuda
def test_flash_attention_has_the_gradients_of_torch() -> None:
    inputs = [torch.randn(2, 3, 64, 32, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        expected = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*inputs).sum(), inputs)
        with repeatable_kernels():
            found = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*inputs).sum(), inputs)
    torch.testing.assert_close(found, expected)


def test_operations_are_noted() -> None:
    with _operations.Noted() as noted:
        torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 1, 2, 8))
    assert noted.operations & _operations.ATTENTION


WRAPPED = """
import sys
import hopfleet.frameworks.torch.uncompiled
import torch
from hopfleet.frameworks.torch import _operations

class Wrapped(_operations.WrapperTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(torch.ones(2) if isinstance(one, Wrapped) else one for one in args), **(kwargs or {}))

_operations.begin_wrappers().join()
before = set(sys.modules)
assert torch.equal(_operations.wrapper(Wrapped, torch.ones(2)) * 2, torch.full((2,), 2.0))
late = {name for name in set(sys.modules) - before if name.startswith("torch.")}
assert not late, late
"""


@pytest.mark.slow
def test_what_wrappers_need_is_imported_in_advance() -> None:
    subprocess.run([sys.executable, "-c", WRAPPED], check=True, timeout=120)


COMPILED = """
import torch
from hopfleet.frameworks.torch import _compat

seen = []
import torch._inductor

torch._inductor.compile = lambda traced, inputs, options: (seen.append((inputs, options)), traced)[1]
quick = _compat.inductor(lambda x: [x * 2], [torch.ones(2)])
assert quick(torch.ones(2))[0].tolist() == [2, 2] and seen[0][1] == {"fallback_random": True}
"""


@pytest.mark.slow
def test_a_function_is_traced_for_the_compiler() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=120)


def test_internals_are_used_in_two_modules_only() -> None:
    package = Path(hopfleet.__file__).parent
    internal = re.compile(r"(?<!frameworks\.)\btorch(?:\.\w+)*\._\w+|\baten\._\w+|from torch\S* import _\w+")
    found = {path.name: internal.findall(path.read_text()) for path in package.rglob("*.py")}
    assert {name for name, some in found.items() if some} == {"_compat.py", "_operations.py"}
