"""Parameters, floating-point operations and the longest path of a model, from one pass over real batches.

PyTorch's formulas give the operations of each call. The longest path follows from which tensor goes into which call:
no graph of the model is traced, so any Python code will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Batches
from hopfleet.frameworks.estimate import ResourceEstimate
from hopfleet.frameworks.torch._compat import OpOverload, TorchDispatchMode, in_backward, tree_leaves
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.sparse import REMEDY, sparse_module


def estimate(session: TorchSession, batches: Batches) -> ResourceEstimate:
    """Train on some batches and count."""
    if found := sparse_module(session.model):
        raise UsageError(f"{found}: {REMEDY}")
    counter = OperationCounter()
    with counter:
        session.train(batches, last=False)
    operations = counter.total or counter.elements
    trained = [parameter for parameter in session.model.parameters() if parameter.requires_grad]
    return ResourceEstimate(
        sum(parameter.numel() * parameter.element_size() for parameter in trained),
        operations / batches.rows,
        counter.longest / counter.forward if counter.forward else 1.0,
    )


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of all calls inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Operations, all and those of forward passes.
        self.total = 0.0
        self.forward = 0.0
        #: Numbers that all calls made: what to go by if none of them has a formula, as in a factorization.
        self.elements = 0
        self._longest = 0.0
        self._earlier = 0.0
        #: Operations on the longest path to each tensor of the present forward pass.
        self._paths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @property
    def longest(self) -> float:
        """The operations on the longest paths of all forward passes, one after another."""
        return self._earlier + self._longest

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        flops = float(formula(*args, **(kwargs or {}), out_val=out)) if formula else 0.0
        self.total += flops
        self.elements += sum(each.numel() for each in tree_leaves(out) if isinstance(each, torch.Tensor))
        if in_backward():
            self._end_pass()
            return out
        self.forward += flops
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        path = max((self._paths[each] for each in inputs if each in self._paths), default=0.0) + flops
        self._longest = max(self._longest, path)
        if path:
            for each in tree_leaves(out):
                if isinstance(each, torch.Tensor):
                    self._paths[each] = path
        return out

    def _end_pass(self) -> None:
        """Count the longest path of the forward pass that came before; the weights that it changes begin anew."""
        self._earlier, self._longest = self.longest, 0.0
        self._paths = WeakTensorKeyDictionary()
