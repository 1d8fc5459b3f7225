"""Differences between the backends of Keras: process-wide threads and random streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
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


DEFAULTS = {"floatx": "float32", "image_data_format": "channels_last", "dtype_policy": "float32"}
"""Settings of the process, as Keras starts with them."""


def settings() -> dict[str, Any]:
    """Return the settings of the process that differ from the defaults."""
    config = keras.config
    policy = config.dtype_policy().name
    found = {"floatx": config.floatx(), "image_data_format": config.image_data_format(), "dtype_policy": policy}
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


def make(wanted: Mapping[str, Any]) -> None:
    """Make some settings, and return the others to their defaults."""
    chosen = {**DEFAULTS, **wanted}
    keras.config.set_floatx(chosen["floatx"])
    keras.config.set_image_data_format(chosen["image_data_format"])
    keras.config.set_dtype_policy(chosen["dtype_policy"])
