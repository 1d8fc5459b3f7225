"""Fitted estimators as JSON and arrays, without pickle.

An estimator is the content of its ``__dict__``. Objects inside it are stored once each, so two attributes that share an
optimizer's arrays or a random generator share them again after loading. Only classes of scikit-learn and numbers,
random generators and types of NumPy are stored, and only these are made again when a version is loaded.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from hopfleet.errors import CheckpointError
from hopfleet.frameworks.state import arrays as files
from hopfleet.frameworks.state.tree import Arrays, Tree, flatten, unflatten

GENERATORS = (np.random.RandomState, np.random.Generator)

_GLOBAL = check_random_state(None)
"""NumPy's own generator."""

Encoded = dict[str, Tree]
"""One object: a tag that tells how it is made again, and what it is made from."""


def encode(values: Mapping[str, Any]) -> Tree:
    """Return the attributes of an estimator as text and arrays."""
    found = Arrays(_is_whole, _identity)
    tree = flatten(dict(sorted(values.items())), found, "")
    objects: dict[str, Encoded] = {}
    named: dict[str, files.Array] = {}
    # Encoding an object may find further objects, which are added at the end.
    while waiting := [name for name in found.named if name not in objects and name not in named]:
        for name in waiting:
            value = found.named[name]
            if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
                named[name] = value
            else:
                objects[name] = _encode(value, found, name)
    _check_overlap(named)
    return {"text": json.dumps({"tree": tree, "objects": objects}), "arrays": named}


def _check_overlap(named: Mapping[str, files.Array]) -> None:
    """Raise CheckpointError for two arrays that share part of their memory: they would be apart after loading."""
    owners: dict[int, str] = {}
    for name, array in named.items():
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        other = owners.setdefault(id(owner), name)
        if other != name and np.may_share_memory(array, named[other]):
            raise CheckpointError(
                f"{name.lstrip('.')} shares memory with {other.lstrip('.')}, so the estimator cannot be saved: use "
                "another estimator"
            )


def decode(state: Tree) -> dict[str, Any]:
    """Invert ``encode``."""
    text = json.loads(state["text"])
    made: dict[str, Any] = dict(state["arrays"])

    def whole(name: str) -> Any:
        if name not in made:
            ((tag, content),) = text["objects"][name].items()
            if tag == "object":  # known before its attributes are: one of them may lead back to it
                module, kind, values = content
                made[name] = _class(module, kind).__new__(_class(module, kind))
                vars(made[name]).update(unflatten(values, whole))
            else:
                made[name] = DECODERS[tag](content, whole)
        return made[name]

    values: dict[str, Any] = unflatten(text["tree"], whole)
    return values


def is_generator(value: object) -> bool:
    """Whether a value is a random generator, which training changes even if it is a parameter of an estimator."""
    return isinstance(value, GENERATORS)


def _identity(value: Any) -> Hashable:
    return files.identity(value) if isinstance(value, np.ndarray) else id(value)


def _is_whole(value: Any) -> bool:
    """Whether a value is stored under a name of its own rather than as a part of the tree."""
    kinds = (np.ndarray, np.generic, np.dtype, *GENERATORS)
    return isinstance(value, kinds) or _is_type(value) or _is_sparse(value) or _from_sklearn(type(value))


def _is_type(value: Any) -> bool:
    return isinstance(value, type) and (value.__module__ == "numpy" or value in (bool, int, float, str, object))


def _is_sparse(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr")


def _from_sklearn(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "sklearn"


def _encode(value: Any, found: Arrays, name: str) -> Encoded:
    if isinstance(value, np.ndarray):
        return {"text": [value.dtype.str, list(value.shape), flatten(value.ravel().tolist(), found, name)]}
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if isinstance(value, type):
        return {"type": [value.__module__, value.__name__]}
    if value is _GLOBAL:  # estimators without a seed draw from it, and its stream is the trial's already
        return {"global": None}
    if isinstance(value, np.random.RandomState):
        return {"random": flatten(value.get_state(legacy=False), found, name)}
    if isinstance(value, np.random.Generator):
        return {"generator": flatten(value.bit_generator.state, found, name)}
    if _is_sparse(value):
        rows = value.tocsr()
        return {
            "sparse": [value.format, list(rows.shape), flatten([rows.data, rows.indices, rows.indptr], found, name)]
        }
    kind = type(value)
    if hasattr(value, "__dict__"):
        return {"object": [kind.__module__, kind.__qualname__, flatten(dict(sorted(vars(value).items())), found, name)]}
    maker, given, *_ = value.__reduce__()  # a compiled object, such as a loss function
    if maker is not kind:
        raise CheckpointError(
            f"{name}: a {kind.__name__} cannot be saved without pickle; leave it to build(), as part of a pipeline"
        )
    return {"made": [kind.__module__, kind.__qualname__, flatten(list(given), found, name)]}


def _class(module: str, name: str) -> Any:
    """Return a class of scikit-learn. Raise LookupError for any other."""
    if module.partition(".")[0] != "sklearn":
        raise LookupError(f"{module}.{name} is not a class of scikit-learn")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not _from_sklearn(found):
        raise LookupError(f"{module}.{name} is not a class of scikit-learn")
    return found


def _type(module: str, name: str) -> Any:
    found = getattr(importlib.import_module({"numpy": "numpy"}.get(module, "builtins")), name)
    if not _is_type(found):
        raise LookupError(f"{module}.{name} is not a type of numbers or text")
    return found


def _random(state: Tree) -> np.random.RandomState:
    generator = np.random.RandomState()
    generator.set_state(state)
    return generator


def _generator(state: Tree) -> np.random.Generator:
    kind = getattr(np.random, state["bit_generator"])
    if not issubclass(kind, np.random.BitGenerator):
        raise LookupError(f"{state['bit_generator']} is not a generator of NumPy")
    bits = kind()
    bits.state = state
    return np.random.Generator(bits)


def _sparse(layout: str, shape: Tree, parts: Tree) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(tuple(parts), shape=tuple(shape)).asformat(layout)


def _text(dtype: str, shape: Tree, items: Tree) -> files.Array:
    array = np.empty(len(items), dtype)
    array[:] = items
    return array.reshape(shape)


Whole = Callable[[str], Any]

DECODERS: Mapping[str, Callable[[Tree, Whole], Any]] = {
    "text": lambda content, whole: _text(content[0], content[1], unflatten(content[2], whole)),
    "scalar": lambda content, whole: np.frombuffer(bytes.fromhex(content[1]), content[0])[0],
    "dtype": lambda content, whole: np.dtype(content),
    "type": lambda content, whole: _type(*content),
    "global": lambda content, whole: _GLOBAL,
    "random": lambda content, whole: _random(unflatten(content, whole)),
    "generator": lambda content, whole: _generator(unflatten(content, whole)),
    "sparse": lambda content, whole: _sparse(content[0], content[1], unflatten(content[2], whole)),
    "made": lambda content, whole: _class(content[0], content[1])(*unflatten(content[2], whole)),
}
"""Decoders by tag, except that of objects with attributes."""
