"""Keras' settings that a trial's code may change, as rows of the table of ``worker/surroundings``.

The settings of the backend are among them: Keras computes with PyTorch, JAX or TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from hopfleet.frameworks.keras import backend
from hopfleet.frameworks.process_settings import ProcessSetting, patches

PLAIN = ("floatx", "epsilon", "image_data_format", "max_epochs", "max_steps_per_epoch")
"""Settings that a function of ``keras.config`` with their name reads; ``set_`` before the name makes them."""


def process_settings() -> list[ProcessSetting]:
    """Return the rows of Keras and of its backend."""
    return [
        ProcessSetting("settings of Keras", _settings, _make, keys=True, glance=keras.config.floatx),
        *_rows_of_backend(),
        patches("patches of Keras", keras.layers, keras.ops, keras.losses, keras.optimizers, keras.activations),
    ]


def _settings() -> dict[str, Any]:
    found = {name: getattr(keras.config, name)() for name in PLAIN if hasattr(keras.config, name)}
    found["flash_attention"] = keras.config.is_flash_attention_enabled()
    return {**found, backend.POLICY: backend.own_policy()}


def _make(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name == backend.POLICY:
            backend.set_policy(value)
        elif name == "flash_attention":
            (keras.config.disable_flash_attention if value is False else keras.config.enable_flash_attention)()
        else:
            getattr(keras.config, f"set_{name}")(value)


def _rows_of_backend() -> list[ProcessSetting]:
    if keras.backend.backend() == "torch":
        from hopfleet.frameworks.torch import surroundings as torch_rows

        return torch_rows.process_settings()
    if keras.backend.backend() == "jax":
        from hopfleet.frameworks.jax import surroundings as jax_rows

        return jax_rows.process_settings()
    return [ProcessSetting("settings of TensorFlow", _tensorflow, _make_tensorflow, keys=True)]


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.python.eager import context

    return {
        "seed": context.global_seed(),
        "run_functions_eagerly": tf.config.functions_run_eagerly(),
        "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "jit": tf.config.optimizer.get_jit(),
    }


def _make_tensorflow(values: Mapping[str, Any]) -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context

    for name, value in values.items():
        if name == "run_functions_eagerly":
            tf.config.run_functions_eagerly(value)
        elif name == "tensor_float_32":
            tf.config.experimental.enable_tensor_float_32_execution(value)
        elif name == "jit":
            tf.config.optimizer.set_jit(value or False)
        elif value is None:
            context.context()._seed = None
        else:
            tf.random.set_seed(value)
