"""Differences between the backends of Keras: process-wide threads and random streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras


def torch_streams(seed: int | None = None, put: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the stream of PyTorch, from which layers may draw on that backend: the present one, or one by its seed.

    With ``put``, set the stream instead. On other backends there is none: layers draw from variables of the model.
    """
    if keras.backend.backend() != "torch":
        return {}
    import torch

    if put is not None:
        torch.set_rng_state(torch.from_numpy(put["torch"]))
        return {}
    state = torch.get_rng_state() if seed is None else torch.Generator().manual_seed(seed).get_state()
    return {"torch": state.numpy().copy()}


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
