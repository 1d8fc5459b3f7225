"""What users keep in attributes besides weights: counters, lists of an epoch, metrics. It hops with the model.

Values are found in the attributes of the module, its parts and its callbacks, and of objects of the user's own classes,
metrics and generators of random numbers that they hold. Other objects stay where they are: one that ``build`` did not
make is refused, because the next worker would not have it. Parts that libraries define keep numbers and texts alone,
such as the rate of a dropout.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch

from hopfleet.errors import TaskError
from hopfleet.frameworks.lightning.metrics import is_metric
from hopfleet.frameworks.lightning.refusals import PACKAGES, base_of, overrides
from hopfleet.frameworks.state.tree import PLAIN, Tree
from hopfleet.support.user_code import is_users

MISSING = object()

CONSTANTS = (torch.device, torch.dtype, Enum, PurePath, type)
"""Types whose objects are the same if they are equal."""

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)

KINDS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict, Counter)
}
FACTORIES: Mapping[Any, Any] = {kind.__name__: kind for kind in (list, dict, set, deque, int, float)} | {None: None}

REMEDY = (
    "keep numbers, texts, tensors, arrays and containers of them, set it to None when the step is over, or save it in "
    "on_save_checkpoint()"
)


class Stream(dict[str, Any]):
    """The state of a generator of random numbers, as something that holds a value."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        legacy = {"legacy": False} if isinstance(generator, np.random.RandomState) else {}
        if isinstance(generator, np.random.Generator):
            super().__init__(state=generator.bit_generator.state)
        else:
            read = getattr(generator, "get_state", None) or generator.getstate
            super().__init__(state=read(**legacy))

    def __setitem__(self, key: str, state: Any) -> None:
        if isinstance(self._generator, np.random.Generator):
            self._generator.bit_generator.state = state
        else:
            write = getattr(self._generator, "set_state", None) or self._generator.setstate
            write(state)


class Found(NamedTuple):
    """A value at its place."""

    #: The attributes or the container that have the value, the path to them, and the key.
    holder: Any
    path: str
    key: Any
    value: Any
    #: The value as a version stores it; MISSING for an object that no version can store.
    packed: Any
    #: Changes with the value.
    mark: object
    #: Whether the user's own code has put it there.
    own: bool

    @property
    def name(self) -> str:
        return f"{self.path}.{self.key}"

    @property
    def in_list(self) -> bool:
        """Whether the value is a member of a list, and not an attribute."""
        return not isinstance(self.holder, dict)


class Belongings:
    """The belongings of one module and its callbacks."""

    def __init__(self, module: Any, callbacks: Sequence[Any]) -> None:
        parts = {f"self.{name}".rstrip("."): part for name, part in module.named_modules()}
        self._roots = parts | {f"callback {number} {type(one).__name__}": one for number, one in enumerate(callbacks)}
        #: The packages of the user's modules and callbacks, which may be installed.
        bases = [root for root in self._roots.values() if base_of(root, "LightningModule") or base_of(root, "Callback")]
        self._packages = {_package(type(root)) for root in bases} - {*PACKAGES}
        self._usual = frozenset([*vars(torch.nn.Module()), *vars(base_of(module, "LightningModule")()), "log"])
        #: Whether the user saves objects that cannot be packed.
        self._saved = overrides(module, "on_save_checkpoint", "LightningModule") or any(
            overrides(one, "state_dict", "Callback") for one in callbacks
        )
        found, self._holders = self._found()
        self._built = _copied(found)

    def state(self) -> Tree:
        """Return what has changed since the module was built. Raises TaskError for what cannot travel."""
        found = self._found()[0]
        changed = [one for name, one in found.items() if not _equal(one, self._built.get(name))]
        gone = [one for name, one in self._built.items() if name not in found]
        # Members of a list of objects may change, but not their number.
        lost = [one for one in changed if one.packed is MISSING or (one.in_list and one.name not in self._built)]
        fewer = [one for one in gone if one.in_list and one.path in found and found[one.path].packed is MISSING]
        for one in [] if self._saved else [*lost, *fewer]:
            raise TaskError(
                f"{one.name} has another {type(one.value).__name__} than the one that build() made, which cannot hop "
                f"with the model: {REMEDY}"
            )
        left = {one.name for one in lost}
        kept = [one for one in changed if one.name not in left and one.path in self._holders]
        return {
            "values": [[one.path, _packed(one.key), one.packed] for one in kept],
            "gone": [one.name for one in gone],
        }

    def restore(self, state: Tree) -> None:
        """Bring back what ``state`` returned; all else becomes what it was when the module was built."""
        saved = {f"{path}.{_unpacked(key)}" for path, key, _ in state["values"]}
        self._put({name: one for name, one in self._built.items() if name not in state["gone"]}, keep=saved)
        holders = self._found()[1]
        for path, key, packed in state["values"]:
            if path not in holders:
                raise TaskError(f"build() returned a module without {path}, which the saved version has")
            holders[path][_unpacked(key)] = _unpacked(packed)

    @contextlib.contextmanager
    def unchanged(self, *, strict: bool) -> Iterator[None]:
        """Undo what an evaluation changes. If it is ``strict``, raise TaskError for a value that it accumulates.

        A tensor or object that takes the place of another one only passes values on within a step.
        """
        # A tensor that is changed in place has lost its value, unless there is a copy.
        found = self._found(own=True)[0]
        before = found if strict else _copied(found)
        yield
        now = self._found(own=True)[0]
        if before.keys() != now.keys() or not all(_same(one, now[name]) for name, one in before.items()):
            self._put(before)
        for name in {**before, **now} if strict else ():
            one, other = now.get(name), before.get(name)
            if one is None or other is None or not (_same(one, other) or _passes(one, other)):
                raise TaskError(
                    f"validation_step() changes {name}: partitions of the validation data are evaluated apart, on any "
                    "worker, so that nothing can be accumulated; log values or metrics with self.log(), and change "
                    "attributes only if self.training"
                )

    def _put(self, wanted: Mapping[str, Found], keep: set[str] | frozenset[str] = frozenset()) -> None:
        """Put values in their places, and remove others, except for some names."""
        now = self._found()[0]
        for name, one in now.items():
            if name not in wanted and name not in keep and one.own and not one.in_list:
                del one.holder[one.key]
        for name, one in wanted.items():
            if name not in keep and not _same(now.get(name), one) and not isinstance(one.holder, tuple):
                whole = one.packed is MISSING or (torch.is_tensor(one.value) and _mark(one.value) == one.mark)
                one.holder[one.key] = one.value if whole else _unpacked(one.packed)

    def _found(self, *, own: bool = False) -> tuple[dict[str, Found], dict[str, Any]]:
        """Return the values by name, or the user's own alone, and what holds values by path."""
        found: dict[str, Found] = {}
        holders: dict[str, Any] = {}
        seen = {id(root) for root in self._roots.values()}

        def visit(path: str, holder: Any, own: bool, usual: frozenset[str] = frozenset()) -> None:
            holders[path] = holder
            # A configuration notes who reads its values in a way of its own.
            for key, value in list(dict.items(holder) if isinstance(holder, dict) else enumerate(holder)):
                if (not own and type(value) not in PLAIN) or (isinstance(key, str) and key in usual):
                    continue
                packed = _packed(value)
                one = Found(holder, path, key, value, packed, None if packed is MISSING else _mark(value), own)
                found[one.name] = one
                if packed is not MISSING or id(value) in seen:
                    continue
                seen.add(id(value))
                if isinstance(value, list | tuple | dict):
                    visit(one.name, value, own)
                elif isinstance(value, GENERATORS):
                    visit(one.name, Stream(value), own)
                elif is_metric(value) or (self._own(value) and not isinstance(value, torch.nn.Module)):
                    visit(one.name, vars(value), own, self._usual | _cached(type(value)))

        for path, root in self._roots.items():
            if (users := self._own(root)) or not own:
                visit(path, vars(root), users, self._usual | (_cached(type(root)) if users else set()))
        return found, holders

    def _own(self, value: Any) -> bool:
        """Whether the attributes of an object are the user's own, or a metric's."""
        if isinstance(value, type) or not hasattr(value, "__dict__"):
            return False
        return is_metric(value) or is_users(type(value)) or _package(type(value)) in self._packages


def _copied(found: Mapping[str, Found]) -> dict[str, Found]:
    return {name: one._replace(packed=_packed(_unpacked(one.packed))) for name, one in found.items()}


def _cached(kind: type) -> frozenset[str]:
    """Return the attributes that a class computes when they are needed first."""
    named = [pair for base in kind.__mro__ for pair in vars(base).items()]
    return frozenset(name for name, value in named if isinstance(value, functools.cached_property))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _same(one: Found | None, other: Found | None) -> bool:
    if one is None or other is None:
        return False
    if one.packed is MISSING or other.packed is MISSING:
        equal = isinstance(one.value, CONSTANTS) and one.value == other.value
        return one.value is other.value or equal
    return one.mark == other.mark


def _equal(one: Found, other: Found | None) -> bool:
    """Whether a value is the same, or a tensor with the same numbers as the copy of another one."""
    mine, theirs = one.packed, None if other is None else other.packed
    if _same(one, other) or not torch.is_tensor(mine) or not torch.is_tensor(theirs):
        return _same(one, other)
    return mine.device == theirs.device and mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def _passes(one: Found, other: Found) -> bool:
    """Whether an object has taken the place of another one of its type, or a generator has drawn a number."""
    if one.value is other.value or type(one.value) is not type(other.value):
        return False
    return isinstance(one.holder, Stream) or torch.is_tensor(one.value) or one.packed is MISSING


class _Marks(pickle.Pickler):
    """Writes what differs if a value has changed: tensors by their memory and the writes to it."""

    def reducer_override(self, value: Any) -> Any:
        if not torch.is_tensor(value):
            return NotImplemented
        writes = id(value) if value.is_inference() else value._version
        return str, (f"{value.data_ptr()} {tuple(value.shape)} {writes}",)


def _mark(value: Any) -> object:
    if type(value) in PLAIN:
        return type(value), value
    buffer = io.BytesIO()
    _Marks(buffer, protocol=5).dump(value)
    return hashlib.blake2b(buffer.getbuffer()).digest()


def _packed(value: Any) -> Any:
    """Return a value in types that versions store, containers as lists with their names; MISSING if that fails."""
    kind = type(value)
    if kind in PLAIN or kind in (bytes, complex):
        return value
    if kind is torch.Tensor:
        return value.detach() if value.layout is torch.strided and not value.is_quantized else MISSING
    if isinstance(value, np.ndarray | np.generic):
        try:
            return ["numpy", isinstance(value, np.generic), torch.from_numpy(np.array(value))]
        except (TypeError, ValueError):
            return MISSING
    if KINDS.get(kind.__name__) is not kind:
        return MISSING
    about: Any = getattr(value, "maxlen", None)
    if kind is defaultdict:
        about = next((name for name, made in FACTORIES.items() if made is value.default_factory), MISSING)
    pairs = isinstance(value, dict)
    members = value.items() if pairs else sorted(value, key=repr) if kind in (set, frozenset) else value
    items = [[_packed(part) for part in each] for each in members] if pairs else [_packed(each) for each in members]
    unknown = any(each is MISSING for item in items for each in (item if pairs else [item]))
    return MISSING if unknown or about is MISSING else [kind.__name__, about, items]


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed.clone() if torch.is_tensor(packed) else packed
    name, about, content = packed
    if name == "numpy":
        array = content.cpu().numpy().copy()
        return array[()] if about else array
    kind = KINDS[name]
    if name == "deque":
        return deque(map(_unpacked, content), about)
    if not issubclass(kind, dict):
        return kind(map(_unpacked, content))
    pairs = {_unpacked(key): _unpacked(value) for key, value in content}
    return defaultdict(FACTORIES[about], pairs) if kind is defaultdict else kind(pairs)
