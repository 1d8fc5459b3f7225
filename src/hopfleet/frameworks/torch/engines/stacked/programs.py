"""Programs: the operations of a function on tensors, written down once and then run without the Python around them.

A recorder looks on while the function runs and notes every operation, beneath all that PyTorch does to find out which
ones they are. A program does what the function did, with other tensors of the same shapes. If the function goes by
numbers that it reads from tensors, there can be no program.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

LOOKS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""What is said of operations whose outcome is a number, or has a shape that depends on values."""

WARMING = 2
"""Runs after which TorchScript does what it will do from then on."""


class Unwritable(Exception):
    """Why there can be no program."""


def recorded(function: Callable[..., Any], inputs: Sequence[Any]) -> GraphModule:
    """What ``function`` does with tensors like ``inputs``. It is called once."""
    recorder = Recorder(inputs)
    with recorder:
        result = function(*inputs)
    if recorder.reason:
        raise Unwritable(recorder.reason)
    recorder.graph.output(map_aggregate(result, recorder.named))
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.constants, recorder.graph)


def quickened(program: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The same, run by TorchScript, where Python would take longer to call small operations than they take.

    TorchScript is said to be on its way out. Without it a program is slower, and does the same. It runs a few times.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quick: Callable[..., Any] = torch.jit.trace(  # type: ignore[no-untyped-call]
                program, tuple(inputs), check_trace=False
            )
            for _ in range(WARMING):
                quick(*inputs)
            return quick
    except (AttributeError, RuntimeError):
        return program


def compiled(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """The same by PyTorch's compiler, which takes its time, and may round otherwise."""
    from torch._inductor import compile as inductor  # which take seconds, and few need them
    from torch.fx.experimental.proxy_tensor import make_fx

    written = make_fx(function)(*inputs)
    written.graph.eliminate_dead_code()
    written.recompile()
    # What is drawn by chance is drawn as it would be without a compiler.
    result: Callable[..., Any] = inductor(written, list(inputs), options={"fallback_random": True})
    return result


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations on tensors as nodes of a graph. Tensors that lie in the same places are one node."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        #: Tensors from elsewhere, by the names of their nodes.
        self.constants: dict[str, Any] = {}
        self.reason = "" if len({id(value) for value in inputs}) == len(inputs) else "two inputs are the same tensor"
        self._nodes: Any = WeakIdKeyDictionary()
        #: For each node the one whose memory it shares, and the first node of each place there.
        self._memory: dict[Node, Node] = {}
        self._places: dict[Any, Node] = {}
        for number, value in enumerate(inputs):
            self._note(value, self.graph.placeholder(f"input_{number}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if LOOKS & set(func.tags):
            self.reason = f"{func} goes by values"
        node = self.graph.call_function(func, map_aggregate(args, self.named), map_aggregate(kwargs, self.named))
        given = [value for value in _flat((*args, *kwargs.values())) if torch.is_tensor(value)]
        if torch.is_tensor(found):
            self._note(found, node, given)
        elif isinstance(found, tuple | list):
            for number, value in enumerate(found):
                if torch.is_tensor(value):
                    self._note(value, self.graph.call_function(operator.getitem, (node, number)), given)
        return found

    def named(self, value: Any) -> Any:
        """The node of a tensor; anything else as it is."""
        if not torch.is_tensor(value):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._note(value, self.graph.get_attr(name))
        return self._nodes[value]

    def _note(self, value: Any, node: Node, given: Sequence[Any] = ()) -> None:
        if value in self._nodes:
            return  # an argument that was written into
        storage = value.untyped_storage()._cdata
        bases = [self._nodes[other] for other in given if other.untyped_storage()._cdata == storage]
        memory = self._memory[node] = self._memory[bases[0]] if bases else node
        place = value.storage_offset(), value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg()
        self._nodes[value] = self._places.setdefault((memory, *place), node)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value
