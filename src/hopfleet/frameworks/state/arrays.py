"""Nested state with numpy arrays in safetensors files, for adapters whose arrays can be had as numpy arrays.

An array keeps its memory layout, since the bits of a product may depend on the layout. Two arrays on the same memory
are stored once and are one array again after loading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hopfleet.errors import CheckpointError, describe
from hopfleet.frameworks.state.tree import Arrays, Tree, flatten, unflatten
from hopfleet.support.files import open_plain, overwrite

Array = np.ndarray[Any, np.dtype[Any]]

STORED = frozenset(
    [
        "bool",
        "float16",
        "float32",
        "float64",
        "complex64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ]
)
"""Types that safetensors files have. Arrays of other types, such as bfloat16, are stored as bytes."""


def identity(array: Array) -> Hashable:
    """Return a key that two arrays share if they are the same memory, seen in the same way."""
    pointer = array.__array_interface__["data"][0] if array.size else id(array)
    return pointer, array.shape, array.strides, array.dtype.str


def packed(state: Tree, kind: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Return copies of the arrays in a state, by name, and the rest of the state as text under the name ``kind``."""
    arrays = Arrays(lambda value: isinstance(value, np.ndarray), identity)
    tree = flatten(state, arrays, "state")
    fortran: list[str] = []
    other: dict[str, list[Any]] = {}
    stored: dict[str, Array] = {}
    for name, array in arrays.named.items():
        if array.dtype.kind in "OUS":
            raise CheckpointError(f"{name}: an array of {array.dtype} cannot be saved without pickle; use numbers")
        if array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous:
            fortran.append(name)
            array = array.T
        array = np.array(array, order="C", copy=True)
        if array.dtype.name not in STORED:
            other[name] = [array.dtype.name, list(array.shape)]
            array = np.frombuffer(array.tobytes(), np.uint8)
        stored[name] = array
    return stored, {kind: json.dumps({"tree": tree, "fortran": fortran, "other": other})}


def write(path: Path, arrays: Mapping[str, Array], text: Mapping[str, str]) -> None:
    """Write what ``packed`` returned; the same state always gives the same bytes."""
    overwrite(path, [save(dict(arrays), metadata=dict(text))])


def read(path: Path, kind: str, restore: Callable[[Tree], None]) -> None:
    """Pass the state in a file to ``restore``. Raise CheckpointError for a file that is damaged or of another kind."""
    try:
        with open_plain(path, links=True) as file:
            content = file.read()
        stored = load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from error
    if kind not in metadata:
        raise CheckpointError(f"{path}: is not a {kind} checkpoint")
    try:
        text = json.loads(metadata[kind])
        restore(unflatten(text["tree"], _loaded(stored, set(text["fortran"]), text["other"])))
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be loaded ({describe(error)}); the file is damaged, or the task has changed"
        ) from error


def _loaded(stored: Mapping[str, Array], fortran: set[str], other: Mapping[str, list[Any]]) -> Callable[[str], Array]:
    """Return a function that returns the array of a name: a copy, and the same one each time."""
    made: dict[str, Array] = {}

    def array(name: str) -> Array:
        if name not in made:
            found = stored[name]
            if name in other:
                kind, shape = other[name]
                found = np.frombuffer(found.tobytes(), _dtype(kind)).reshape(shape)
            made[name] = found.copy().T if name in fortran else found.copy()
        return made[name]

    return array


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # which JAX and TensorFlow bring along, and with them such arrays

        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return kind
