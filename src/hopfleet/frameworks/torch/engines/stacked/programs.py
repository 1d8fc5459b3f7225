"""Programs: the operations of a function on tensors, recorded once and then run without the Python around them.

A recorder observes the function while it runs and notes every operation, beneath everything that PyTorch does to find
out which operations they are. A program repeats them with other tensors of the same shapes. A function that decides by
numbers that it reads from tensors has no program.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils.weak import WeakIdKeyDictionary

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch._compat import TorchDispatchMode
from hopfleet.frameworks.torch._operations import Operation, Value

READS_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Tags of operations whose outcome is a number, or has a shape that depends on values."""

WARMUP = 2
"""Runs after which TorchScript does not optimize any further."""


class Unwritable(Exception):
    """The reason why a function has no program."""


def recorded(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> GraphModule:
    """Record what ``function`` does with tensors like ``inputs``; call it once. Raises Unwritable."""
    recorder = Recorder(inputs)
    with recorder:
        result = function(*inputs)
    if recorder.reason:
        raise Unwritable(recorder.reason)
    recorder.graph.output(map_aggregate(result, recorder.named))  # type: ignore[type-var, arg-type]
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.constants, recorder.graph)


def quickened(program: GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """Return a program that TorchScript runs: calling small operations from Python takes longer than their arithmetic.

    The program runs a few times. Where a later release of torch has no TorchScript, return the program itself.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quick: Callable[..., list[torch.Tensor]] = torch.jit.trace(  # type: ignore[no-untyped-call]
                program, tuple(inputs), check_trace=False
            )
            for _ in range(WARMUP):
                quick(*inputs)
            return quick
    except (AttributeError, RuntimeError):
        return program


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that notes operations on tensors as nodes of a graph. Equal views of the same memory are one node."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        #: Tensors from outside the function, by the names of their nodes.
        self.constants: dict[str, torch.Tensor] = {}
        self.reason = "" if len({id(value) for value in inputs}) == len(inputs) else "two inputs are the same tensor"
        self._nodes = WeakIdKeyDictionary()
        #: For each node the node whose memory it shares, and the first node of each view of that memory.
        self._memory: dict[Node, Node] = {}
        self._places: dict[Hashable, Node] = {}
        for number, value in enumerate(inputs):
            self._note(value, self.graph.placeholder(f"input_{number}"))

    def __torch_dispatch__(self, func: Operation, types: object, args: Value = (), kwargs: Value = None) -> object:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if READS_VALUES & set(func.tags):
            self.reason = f"{func} depends on values"
        node = self.graph.call_function(func, map_aggregate(args, self.named), map_aggregate(kwargs, self.named))  # type: ignore[arg-type]
        given = [value for value in _flat((*args, *kwargs.values())) if isinstance(value, torch.Tensor)]
        if torch.is_tensor(found):
            self._note(found, node, given)
        elif isinstance(found, tuple | list):
            for number, value in enumerate(found):
                if torch.is_tensor(value):
                    self._note(value, self.graph.call_function(operator.getitem, (node, number)), given)
        return found

    def named(self, value: object) -> object:
        """Return the node of a tensor, and any other value as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._note(value, self.graph.get_attr(name))
        return self._nodes[value]

    def _note(self, value: torch.Tensor, node: Node, given: Sequence[torch.Tensor] = ()) -> None:
        if value in self._nodes:
            return  # an argument that the operation wrote into
        storage = _compat.memory_of(value)
        bases = [self._nodes[other] for other in given if _compat.memory_of(other) == storage]
        memory = self._memory[node] = self._memory[bases[0]] if bases else node
        place = value.storage_offset(), value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg()
        self._nodes[value] = self._places.setdefault((memory, *place), node)


def _flat(values: Sequence[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value
