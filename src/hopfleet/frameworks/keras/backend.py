"""Differences between the backends of Keras: process-wide threads and random streams."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import global_seed_generator


def seeded(seed: int) -> dict[str, Any]:
    """Return the streams of a new trial that Keras has besides those of Python and NumPy."""
    found = {"keras": np.array([seed % 2**31, 0], np.int64)}
    if keras.backend.backend() == "torch":
        import torch

        found["torch"] = torch.Generator().manual_seed(seed).get_state().numpy().copy()
    return found


def streams() -> dict[str, Any]:
    """Return the process's streams: that of operations without a seed and, on that backend, that of PyTorch.

    Layers of other backends draw from variables of the model.
    """
    found = {"keras": np.array(keras.ops.convert_to_numpy(global_seed_generator().state.value), np.int64)}
    if keras.backend.backend() == "torch":
        import torch

        found["torch"] = torch.get_rng_state().numpy().copy()
    return found


def put_streams(wanted: Mapping[str, Any]) -> None:
    """Set the process's streams."""
    # Versions of older releases have no stream of operations without a seed.
    global_seed_generator().state.assign(wanted.get("keras", [0, 0]))
    if keras.backend.backend() == "torch":
        import torch

        torch.set_rng_state(torch.from_numpy(wanted["torch"]))


@contextlib.contextmanager
def numeric_threads(count: int) -> Iterator[None]:
    """Have this many threads in place. TensorFlow takes the number only before its first operation."""
    if keras.backend.backend() == "torch":
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
        return
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        with contextlib.suppress(RuntimeError):
            tensorflow.config.threading.set_intra_op_parallelism_threads(count)
            tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    yield


NAMES = "object_name_uids"


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Number the names of new objects from the start, as in a new process.

    Otherwise the metric of a second model would be called ``auc_1`` where that of the first is called ``auc``.
    """
    before = global_state.get_global_attribute(NAMES)
    global_state.set_global_attribute(NAMES, defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(NAMES, before)


DEFAULTS = {"floatx": "float32", "image_data_format": "channels_last", "dtype_policy": "float32", "epsilon": 1e-7}
"""Settings of the process that change results, as Keras starts with them."""

POLICY = "dtype_policy"


def settings() -> dict[str, Any]:
    """Return the settings of the process that differ from the defaults."""
    config = keras.config
    found = {name: getattr(config, name)() for name in DEFAULTS if name != POLICY}
    policy = own_policy()
    found[POLICY] = config.floatx() if policy is None else policy.name
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


def make(wanted: Mapping[str, Any]) -> None:
    """Make some settings, and return the others to their defaults."""
    chosen = {**DEFAULTS, **wanted}
    for name, value in chosen.items():
        if name != POLICY:
            getattr(keras.config, f"set_{name}")(value)
    set_policy(None if chosen[POLICY] == chosen["floatx"] else chosen[POLICY])


def own_policy() -> Any:
    """Return the dtype policy of the process; None if it follows ``floatx``.

    Keras keeps the policy that it derives from ``floatx`` when the first layer is made, and ``set_floatx`` does not
    change it any more. It is derived again for each trial, so that what a trial gets does not depend on others.
    """
    policy = global_state.get_global_attribute(POLICY)
    if policy is None or policy.name == keras.config.floatx():
        global_state.set_global_attribute(POLICY, None)
        return None
    return policy


def set_policy(policy: Any) -> None:
    """Set the dtype policy; None lets it follow ``floatx``."""
    if policy is None:
        global_state.set_global_attribute(POLICY, None)
    else:
        keras.config.set_dtype_policy(policy)
