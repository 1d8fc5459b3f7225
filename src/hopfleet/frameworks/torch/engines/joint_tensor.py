"""Tensors of several members behind one: an operation on it is computed for all members, with the bits of each alone.

Code that computes with such a tensor sees the shape of one member's. What it does comes here beneath autograd:

* Operations that compute each number, or each row, by itself are *folded*: the tensors of all members lie side by side,
  and one kernel computes them.
* All others, products above all, run for each member as they would alone, on streams of their own. The streams are
  joined as late as possible: before the next operation that is folded.

What cannot be computed for all members at once, because it draws random numbers, reads values or writes into tensors
from outside, raises Unfit.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from hopfleet.frameworks.torch import _operations as operations
from hopfleet.frameworks.torch._compat import (
    TorchDispatchMode,
    memory_of,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)
from hopfleet.frameworks.torch._operations import Operation, Value, WrapperTensor, wrapper
from hopfleet.frameworks.torch.engines.capture_backend import Context, GraphCache

Arguments = tuple[Value, ...]
Options = dict[str, Value]


class Unfit(Exception):
    """The reason why code cannot compute with the tensors of several members at once."""


class Lanes:
    """The streams on which operations run for each of several members."""

    def __init__(self, count: int, cache: GraphCache, device: torch.device) -> None:
        self.count = count
        #: Whether an operation on tensors of the lanes is being computed.
        self.busy = False
        self._backend = cache.backend
        self._streams = cache.streams(device)[:count]
        self._apart = False
        #: Tensors that work on the streams uses: their memory is not used again before the streams are joined.
        self._held: list[object] = []

    def each(self) -> Iterator[tuple[int, Context]]:
        """Yield the number of each member and the context in which its work is queued."""
        if not self._apart:
            here = self._backend.current_stream()
            for stream in self._streams:
                stream.wait_stream(here)
            self._apart = True
        for number in range(self.count):
            yield number, self._backend.on_stream(self._streams[number % len(self._streams)])

    def hold(self, *tensors: object) -> None:
        """Keep tensors until the streams are joined."""
        self._held.append(tensors)

    def join(self) -> None:
        """Let work that is queued from now on come after that of all members."""
        if self._apart:
            here = self._backend.current_stream()
            for stream in self._streams:
                here.wait_stream(stream)
            self._apart = False
            self._held.clear()


class JoinsFirst(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which operations on other tensors wait for the streams of members."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lanes = lanes

    def __torch_dispatch__(self, func: Operation, types: Value, args: Arguments = (), kwargs: Value = None) -> Value:
        if JointTensor in types:
            return NotImplemented
        if not self._lanes.busy:
            self._lanes.join()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def computing(lanes: Lanes) -> Iterator[None]:
    """Compute with tensors of members inside; afterwards, their streams are joined."""
    try:
        with JoinsFirst(lanes):
            yield
    finally:
        lanes.join()  # the memory of unfinished work is about to be freed


class JointTensor(WrapperTensor):
    """One tensor for each of several members, of the same shape, behind one tensor of that shape.

    They lie side by side at the same distance, in elements; or, if the distance is None, anywhere.
    """

    lanes: Lanes
    #: The tensor of the first member, and the distance between those of two members.
    first: torch.Tensor
    distance: int | None
    #: Whether they are given from outside, so that nothing may be written into them.
    given: bool
    _parts: list[torch.Tensor]

    @classmethod
    def _made(cls, lanes: Lanes, first: torch.Tensor, distance: int | None) -> JointTensor:
        made = wrapper(cls, first)
        made.lanes, made.first, made.distance, made.given, made._parts = lanes, first, distance, False, []
        return made

    @classmethod
    def of_rows(cls, lanes: Lanes, table: torch.Tensor) -> JointTensor:
        """Return the rows of a table, one for each member, as one tensor."""
        return cls._made(lanes, table[0], table.stride(0))

    @classmethod
    def of_parts(cls, lanes: Lanes, parts: Sequence[torch.Tensor], *, given: bool = False) -> JointTensor:
        """Return tensors that lie anywhere as one."""
        first = parts[0]
        if any(part.shape != first.shape or part.dtype != first.dtype for part in parts):
            raise Unfit("tensors of members have different shapes or types")
        made = cls._made(lanes, first, None)
        made.given, made._parts = given, list(parts)
        return made

    def viewed(self, first: torch.Tensor) -> JointTensor:
        """Return the same tensors, side by side, in another way, which is given for the first one."""
        if first.element_size() != self.first.element_size():
            raise Unfit("a view has elements of another size")  # and the distance is a number of elements
        return self._made(self.lanes, first, self.distance)

    @property
    def parts(self) -> list[torch.Tensor]:
        """The tensor of each member."""
        self._parts = self._parts or list(self.table.unbind())
        return self._parts

    @property
    def table(self) -> torch.Tensor:
        """The tensors of all members in one; those that do not lie side by side are copied."""
        if self.distance is None:
            return torch.stack(self._parts)
        shape, strides = (self.lanes.count, *self.first.shape), (self.distance, *self.first.stride())
        return self.first.as_strided(shape, strides, self.first.storage_offset())

    def __repr__(self) -> str:  # type: ignore[override]
        return f"JointTensor({self.lanes.count} x {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Operation, types: Value, args: Arguments = (), kwargs: Value = None
    ) -> Value:
        lanes = next(one.lanes for one in tree_leaves((args, kwargs)) if isinstance(one, JointTensor))
        lanes.busy = True
        try:
            return _computed(lanes, func, args, kwargs or {})
        finally:
            lanes.busy = False


def _computed(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Compute an operation for all members."""
    if func is operations.CHOICE_OF_ATTENTION:
        return func(*[one.first if isinstance(one, JointTensor) else one for one in args], **kwargs)
    if reason := operations.obstacle(func, args):
        raise Unfit(f"{func} {reason}")
    if places := operations.writes(func):
        return _written(lanes, func, args, kwargs, places)
    if operations.is_view(func):
        return _viewed(func, args, kwargs)
    rule = RULES.get(func, _pointwise if operations.is_pointwise(func) else None)
    found = None if rule is None else rule(lanes, func, args, kwargs)
    return _of_each(lanes, func, args, kwargs) if found is None else found


def _viewed(func: Operation, args: Arguments, kwargs: Options) -> Value:
    """View the tensors of all members in another way; nothing is computed."""
    one, *rest = args
    if one.distance is not None:
        found = func(one.first, *rest, **kwargs)
        return [one.viewed(each) for each in found] if isinstance(found, tuple | list) else one.viewed(found)
    return _joined(one.lanes, [func(part, *rest, **kwargs) for part in one.parts], given=one.given)


def _written(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options, places: list[int]) -> Value:
    """Write into the tensors of all members."""
    target = args[0]
    if places != [0] or not isinstance(target, JointTensor) or target.given:
        raise Unfit(f"{func} writes into tensors from outside")
    if target.distance is None:
        _of_each(lanes, func, args, kwargs)
    elif not operations.is_pointwise(func) or _pointwise(lanes, func, args, kwargs) is None:
        raise Unfit(f"{func} is not known to write each number by itself")
    return target


def _of_each(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Compute an operation for each member, as it would be alone. Large results are put side by side."""
    shape = SHAPES[func](*args) if func in SHAPES else None
    table = None if shape is None else torch.empty(lanes.count, *shape, dtype=args[-1].dtype, device=args[-1].device)
    flat, form = tree_flatten((args, kwargs))
    columns = [one.parts if isinstance(one, JointTensor) else [one] * lanes.count for one in flat]
    found: list[Value] = []
    for number, context in lanes.each():
        of_one, options = tree_unflatten([column[number] for column in columns], form)
        with context:
            if table is None:
                found.append(func(*of_one, **options))
            else:
                operations.INTO[func](*of_one, **options, out=table[number])
    lanes.hold(columns, found, table)
    return _joined(lanes, found) if table is None else JointTensor.of_rows(lanes, table)


def _joined(lanes: Lanes, found: Sequence[Value], *, given: bool = False) -> Value:
    """Return what an operation returns for each member as one value."""
    if all(isinstance(value, torch.Tensor) for value in found):
        return JointTensor.of_parts(lanes, found, given=given)
    if all(isinstance(value, tuple | list) for value in found):
        return [_joined(lanes, values, given=given) for values in zip(*found, strict=True)]
    if all(value is None for value in found):
        return None
    raise Unfit("an operation returns a value that is not a tensor")


# ---------------------------------------------------------------------------------------------- operations that fold


def _pointwise(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Compute each number by itself."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if len({one.dtype for one in tensors}) > 1 and any(one.ndim == 0 for one in tensors):
        return None  # the type of the result depends on which tensors are single numbers
    most = max(one.ndim for one in tensors)

    def lifted(value: Value) -> Value:
        if not isinstance(value, JointTensor):
            return value
        return value.table[(slice(None), *[None] * (most - value.ndim))]

    lanes.join()
    found = func(*tree_map(lifted, args), **tree_map(lifted, kwargs))
    return JointTensor.of_rows(lanes, found) if isinstance(found, torch.Tensor) else None


def _along(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Compute each row along a dimension by itself."""
    place = operations.ALONG[func]
    given = args[:place]
    if not all(isinstance(one, JointTensor) and one.ndim for one in given):
        return None
    lanes.join()
    rest = args[place] % given[0].ndim + 1, *args[place + 1 :]
    return JointTensor.of_rows(lanes, func(*[one.table for one in given], *rest, **kwargs))


def _like(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Make a tensor of the form of another."""
    lanes.join()
    return JointTensor.of_rows(lanes, func(args[0].table, *args[1:], **kwargs))


def _combined(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Combine tensors along a dimension, or along a new one."""
    tensors, along = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not all(isinstance(one, JointTensor) for one in tensors):
        return None
    stacks = func is operations.STACK
    along %= tensors[0].ndim + stacks
    if stacks and (there := _side_by_side(tensors, along)) is not None:
        return there
    lanes.join()
    return JointTensor.of_rows(lanes, func([one.table for one in tensors], along + 1))


def _side_by_side(tensors: Sequence[JointTensor], along: int) -> JointTensor | None:
    """Return a stack of tensors that lie in memory as in a stack already, as the gradients of attention do."""
    first, places = tensors[0].first, [one.first.storage_offset() for one in tensors]
    forms = {(one.distance, one.first.shape, one.first.stride(), memory_of(one.first)) for one in tensors}
    steps = {after - before for before, after in itertools.pairwise(places)}
    if len(forms) > 1 or len(steps) != 1 or tensors[0].distance is None or min(steps) <= 0:
        return None
    shape, strides = list(map(int, first.shape)), list(map(int, first.stride()))
    shape.insert(along, len(tensors))
    strides.insert(along, int(steps.pop()))
    return tensors[0].viewed(first.as_strided(shape, strides, places[0]))


def _attention(lanes: Lanes, func: Operation, args: Arguments, kwargs: Options) -> Value:
    """Attend in all members: to attention, members are merely more sequences."""
    query, *others = (one for one in args if isinstance(one, torch.Tensor) and one.ndim)
    if not all(isinstance(one, JointTensor) for one in (query, *others)) or kwargs.get("attn_mask") is not None:
        return None
    lanes.join()
    merged = [one.table.flatten(0, 1) if isinstance(one, JointTensor) else one for one in args]
    back = func in operations.ATTENTION_BACKWARD
    found = operations.repeatable_backward(func, *merged, **kwargs) if back else func(*merged, **kwargs)
    return [_unmerged(lanes, one) for one in found]


def _unmerged(lanes: Lanes, value: torch.Tensor | None) -> Value:
    """Return the outcome for all members; numbers, say of a seed, as they are."""
    if value is None or value.ndim == 0:
        return value
    return JointTensor.of_rows(lanes, value.view(lanes.count, -1, *value.shape[1:]))


RULES: dict[Operation, Callable[[Lanes, Operation, Arguments, Options], Value]] = {
    **dict.fromkeys(operations.ALONG, _along),
    **dict.fromkeys(operations.LIKE, _like),
    **dict.fromkeys((operations.STACK, operations.CAT), _combined),
    **dict.fromkeys((*operations.ATTENTION, *operations.ATTENTION_BACKWARD), _attention),
}
"""How operations are folded. A rule returns None where it does not apply."""

SHAPES: dict[Operation, Callable[..., tuple[int, ...]]] = {
    operations.PRODUCT: lambda one, other: (one.shape[0], other.shape[1]),
    operations.PRODUCT_AND_SUM: lambda added, one, other: (one.shape[0], other.shape[1]),
    operations.PRODUCTS: lambda one, other: (*one.shape[:2], other.shape[2]),
}
"""Operations of each member whose results are large, and the shape of these."""
