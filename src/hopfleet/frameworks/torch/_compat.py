"""PyTorch internals, and nothing else: every use of a private name of torch is here, so that a release of torch that
renames one is adapted to in one place. ``tests/frameworks/test_compat.py`` has a test for each.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as _optimizers
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_unflatten as tree_unflatten

# ------------------------------------------------------------------------------------------ schedules of schedules


def last_schedule(schedule: lr_scheduler.SequentialLR, steps: int, begins: int) -> tuple[LRScheduler, int, int]:
    """Return the last one of schedules in a row, with the steps that it takes itself, and the step that it begins with.

    ``steps`` and ``begins`` are those of the whole row.
    """
    first = schedule._milestones[-1]
    return schedule._schedulers[-1], steps - first, begins + first


def chained_schedules(schedule: lr_scheduler.ChainedScheduler) -> Sequence[LRScheduler]:
    """Return the schedules that a chain steps at the same time."""
    return schedule._schedulers


# ------------------------------------------------------------------------------------- operations on lists of tensors

Tensors = list[torch.Tensor]


def foreach_lerp_(tensors: Tensors, ends: Tensors, weight: float) -> None:
    torch._foreach_lerp_(tensors, ends, weight)


def foreach_copy_(tensors: Tensors, values: Tensors) -> None:
    torch._foreach_copy_(tensors, values)


def foreach_mul_(tensors: Tensors, factor: float) -> None:
    torch._foreach_mul_(tensors, factor)


def foreach_addcdiv_(tensors: Tensors, dividends: Tensors, divisors: Tensors, factors: Sequence[float]) -> None:
    torch._foreach_addcdiv_(tensors, dividends, divisors, factors)


def foreach_add(tensors: Tensors, others: Tensors, *, alpha: float) -> tuple[torch.Tensor, ...]:
    return torch._foreach_add(tensors, others, alpha=alpha)


def foreach_add_(tensors: Tensors, number: float) -> None:
    torch._foreach_add_(tensors, number)


def flatten_dense_tensors(tensors: Tensors) -> torch.Tensor:
    """Copy tensors of one type into one long tensor."""
    flat: torch.Tensor = torch._utils._flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return flat


def written(tensor: torch.Tensor) -> int:
    """Count the writes into a tensor so far."""
    return tensor._version


def memory_of(tensor: torch.Tensor) -> int:
    """Identify the memory of a tensor; views of one tensor share it."""
    return int(tensor.untyped_storage()._cdata)


# ----------------------------------------------------------------------------------------------------------- modules


BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm
"""The base class of all modules that normalize over the rows of a batch."""


def convolves(model: torch.nn.Module) -> bool:
    """Whether a model contains convolutions."""
    return any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in model.modules())


# -------------------------------------------------------------------------------------------------------- optimizers

FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose update of one member's weights is a single operation of torch."""


def fused_update(*, decoupled: bool) -> Callable[..., None]:
    """Return the operation that updates all weights of one member; ``decoupled`` as AdamW decays weights."""
    update: Callable[..., None] = torch._fused_adamw_ if decoupled else torch._fused_adam_
    return update


def fused_momentum() -> Callable[..., None]:
    """Return the operation that updates weights of one type and device as a fused SGD does."""
    update: Callable[..., None] = torch._fused_sgd_
    return update


def begin_kernel(source: str, name: str, device: torch.device) -> Future[tuple[bytes, str]]:
    """Begin to compile a kernel for a device, in a thread of its own, which does not use the device."""
    return _binary(source, name, "".join(map(str, torch.cuda.get_device_capability(device))))


@functools.cache
def _binary(source: str, name: str, capability: str) -> Future[tuple[bytes, str]]:
    future: Future[tuple[bytes, str]] = Future()

    def compile_it() -> None:
        try:
            future.set_result(torch.cuda._utils._nvrtc_compile(source, name, compute_capability=capability))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=compile_it, name="compiler", daemon=True).start()
    return future


def compiled_kernel(source: str, name: str, device: torch.device) -> Callable[..., None]:
    """Compile a kernel for a device. Raises AttributeError, OSError or RuntimeError where torch cannot do that."""
    try:
        binary, entry = begin_kernel(source, name, device).result()
        with torch.cuda.device(device):
            kernel: Callable[..., None] = getattr(torch.cuda._utils._cuda_load_module(binary), entry)
    except (TypeError, ValueError) as error:  # another release of torch
        raise RuntimeError(str(error)) from error
    return kernel


def children(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return the modules that a module consists of, with one that occurs twice listed twice."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def unchecked(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function of torch that does not ask whether it is overridden; functions that it calls do."""
    assert isinstance(function, FunctionType)
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    without = {**function.__globals__, **dict.fromkeys(names, lambda *args: False)}
    found = FunctionType(function.__code__, without, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def as_written() -> contextlib.AbstractContextManager[object]:
    """Return a context in which code that torch.compile was asked to compile runs as it is written."""
    stance = getattr(torch.compiler, "set_stance", None)
    there = sys.modules.get(COMPILER)
    if stance is None or there is None or isinstance(there, CompilerStandIn):  # an import would take seconds
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[object] = stance("force_eager")
    return found


def unsaved_buffers(module: torch.nn.Module) -> list[str]:
    """Return the names of a module's own buffers that are not part of its state."""
    unsaved: set[str] = module._non_persistent_buffers_set
    return sorted(name for name in unsaved if module._buffers.get(name) is not None)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether code of others runs when a module is called."""
    return any(bool(value) for name, value in vars(module).items() if name.endswith("hooks"))


def has_gradient_hooks(weight: torch.Tensor) -> bool:
    """Whether code of others runs when a weight gets a gradient."""
    return bool(weight._backward_hooks) or bool(getattr(weight, "_post_accumulate_grad_hooks", None))


def has_step_hooks(optimizer: Optimizer, known: object = None) -> bool:
    """Whether code other than methods of ``known`` runs before or after the steps of an optimizer, or replaces them."""
    tables = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *(_optimizers._global_optimizer_pre_hooks, _optimizers._global_optimizer_post_hooks),
    )
    hooks = [hook for table in tables for hook in table.values()]
    if known is not None:
        hooks = [hook for hook in hooks if getattr(hook, "__self__", None) is not known]
    replaced = "step" in vars(optimizer) and not hasattr(vars(optimizer)["step"], "_wrapped_by_lr_sched")
    return any(hooks) or replaced


def supports_scaling(optimizer: Optimizer) -> None:
    """Let a gradient scaler leave the scaling of gradients to a fused update, which reads no values."""
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def scaler_tensors(scaler: torch.amp.GradScaler | None) -> list[torch.Tensor]:
    """Return the tensors that a gradient scaler changes after each update."""
    found = [] if scaler is None else [scaler._scale, scaler._growth_tracker]
    return [tensor for tensor in found if tensor is not None]


def abandon_update(scaler: torch.amp.GradScaler | None) -> None:
    """Let a gradient scaler forget an update that was begun and not finished."""
    if scaler is not None:
        scaler._per_optimizer_states.clear()


def count_as_stepped(optimizer: Optimizer) -> None:
    """Keep schedules from warning that an optimizer never steps, when its updates are made elsewhere."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- libraries


def clear_cublas_workspaces() -> None:
    """Let cuBLAS allocate new workspaces for the next stream or capture."""
    torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def allocating_from(pool: tuple[int, int], device: torch.device) -> Iterator[None]:
    """Allocate from the memory of CUDA graphs, in all threads; older releases of torch use other memory."""
    begin = getattr(torch._C, "_cuda_beginAllocateToPool", None)
    if begin is None:
        yield
        return
    index = device.index or 0
    begin(index, pool)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)


def onednn_enabled() -> bool:
    return torch._C._get_mkldnn_enabled()


def enable_onednn(enabled: bool) -> None:
    torch._C._set_mkldnn_enabled(enabled)


@contextlib.contextmanager
def own_generator(device: torch.device, generator: torch.Generator) -> Iterator[None]:
    """Let captured code draw from ``generator`` where it draws from the device's default generator."""
    default = torch.cuda.default_generators[device.index or 0]
    kept = default.graphsafe_get_state()
    default.graphsafe_set_state(generator)
    try:
        yield
    finally:
        default.graphsafe_set_state(kept)


# ----------------------------------------------------------------------------------------------------- cross entropy


def cross_entropy_backward(
    grad: torch.Tensor, logs: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    """Return the gradient of logits, given those of the losses of all rows and the logarithms of probabilities."""
    aten = torch.ops.aten
    unused = grad.new_zeros(())  # the total weight, which only means need
    grads = aten.nll_loss_backward(grad, logs, target, None, 0, ignore_index, unused)
    found: torch.Tensor = aten._log_softmax_backward_data(grads, logs, 1, logs.dtype)
    return found


# ------------------------------------------------------------------------------------------------------------- norms


def layer_norm(x: torch.Tensor, shape: Sequence[int], eps: float) -> tuple[torch.Tensor, ...]:
    """Normalize the last dimensions; also return the means and the inverse deviations."""
    return torch.ops.aten.native_layer_norm(x, shape, None, None, eps)  # type: ignore[no-any-return]


def layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, means: torch.Tensor, scales: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    """Return the gradient of what ``layer_norm`` normalized."""
    mask = [True, False, False]
    found = torch.ops.aten.native_layer_norm_backward(grad, x, shape, means, scales, None, None, mask)
    return found[0]  # type: ignore[no-any-return]


def fuses_rms_norm(x: torch.Tensor) -> bool:
    """Whether torch normalizes by the root mean square in one operation on the device of a tensor."""
    return x.is_cuda and hasattr(torch.ops.aten, "_fused_rms_norm_backward")


def rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the last dimensions by their root mean square; also return the inverse roots."""
    found = torch.ops.aten._fused_rms_norm(x, shape, weight, eps)
    return found[0], found[1]


def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor | None, shape: Sequence[int]
) -> torch.Tensor:
    """Return the gradient of what ``rms_norm`` divided."""
    found = torch.ops.aten._fused_rms_norm_backward(grad, x, shape, scales, weight, [True, False])
    return found[0]  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------- the compiler

COMPILER = "torch._dynamo"

COMPILER_MODULE = "torch._dynamo.config"
"""The module whose import loads the real compiler instead of its stand-in."""

DISABLED = "__dynamo_disable"
"""The attribute in which torch keeps the compiler's wrapper of a function that is excluded from compilation."""


def inductor(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """Compile a function for tensors like ``inputs``. Compilation takes seconds, and rounding may differ."""
    from torch._inductor import compile as compile_graph  # takes seconds to import, and few processes need it
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function)(*inputs)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    # Random numbers are drawn in the same order as without a compiler.
    compiled: Callable[..., list[torch.Tensor]] = compile_graph(traced, list(inputs), options={"fallback_random": True})
    return compiled


class CompiledAutograd:
    """A stand-in for the compiler of backward passes, with the one name that ``torch.func`` uses."""

    def _disable(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: nothing is compiled."""
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> object:
        return getattr(real_compiler().compiled_autograd, name)


class CompilerStandIn(ModuleType):
    """A stand-in for ``torch._dynamo`` with the names that optimizers use.

    The first optimizer of a process imports ``torch._dynamo`` only to exclude its methods from compilation, and so do
    functions that differentiate others. The import takes as long as the import of torch, and tens of megabytes. The
    stand-in records the exclusions instead. Any other name loads the real compiler and repeats the exclusions there.
    """

    def __init__(self) -> None:
        super().__init__(COMPILER, __doc__)
        self.__file__ = __file__
        #: Packages have a path; without one, submodules are not looked for.
        self.__path__: list[str] = []
        self._excluded: list[Callable[..., object]] = []
        self.compiled_autograd = CompiledAutograd()

    def disable(self, function: Any = None, recursive: bool = True, **options: object) -> object:
        if not callable(function):
            return real_compiler().disable(function, recursive, **options)
        self._excluded.append(function)
        return function

    def graph_break(self, *reason: object, **options: object) -> None:
        """Do nothing: nothing is compiled."""

    def __getattr__(self, name: str) -> object:
        return getattr(real_compiler(), name)

    def give_way(self) -> ModuleType:
        """Import the real compiler in place of the stand-in; return it."""
        for function in self._excluded:
            function.__dict__.pop(DISABLED, None)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, CompilerFinder)]
        del sys.modules[COMPILER], torch._dynamo
        real = importlib.import_module(COMPILER)
        # References to the stand-in that remain elsewhere work like the real compiler.
        self.__dict__.update(real.__dict__)
        return real


class CompilerFinder(MetaPathFinder):
    """A finder that loads the real compiler when one of its submodules is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}."):
            return None
        real_compiler()
        module = importlib.import_module(fullname)
        return ModuleSpec(fullname, LoadedModule(module), origin=module.__file__)


class LoadedModule(Loader):
    """A loader for a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def real_compiler() -> ModuleType:
    """Return the real compiler, and import it if the stand-in is in its place."""
    there = sys.modules.get(COMPILER)
    return there.give_way() if isinstance(there, CompilerStandIn) else importlib.import_module(COMPILER)


def keep_compiler_out() -> None:
    """Put the stand-in in place, unless the compiler is loaded already."""
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = torch._dynamo = CompilerStandIn()
        sys.meta_path.insert(0, CompilerFinder())


def in_backward() -> bool:
    """Whether this code runs in a backward pass."""
    return torch._C._current_autograd_node() is not None
