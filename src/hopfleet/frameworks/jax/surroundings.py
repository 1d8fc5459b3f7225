"""JAX's settings that a trial's code may change, as rows of the table of ``worker/surroundings``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hopfleet.frameworks.process_settings import ABSENT, ProcessSetting, patches


def process_settings() -> list[ProcessSetting]:
    """Return the rows of JAX. Its random streams are keys, which no trial can change for another."""
    return [
        ProcessSetting("settings of JAX", lambda: jax.config.values, _update, keys=True, glance=_glance),
        patches("patches of JAX", jax, jnp, jax.lax, jax.nn, jax.nn.initializers, jax.random),
    ]


def _update(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not ABSENT:  # a setting that a library has defined meanwhile
            with contextlib.suppress(RuntimeError):  # some settings stay once JAX has used its devices
                jax.config.update(name, value)


def _glance() -> object:
    config = jax.config
    return config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_disable_jit
