"""The tasks that users write for JAX."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, Task
from hopfleet.frameworks.views import ModelT

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise MissingExtra("JAX with Optax", "jax") from error

from hopfleet.frameworks.jax.framework import JaxFramework

Params = Any
"""The parameters as hooks receive them: the pytree that ``init`` returned, or the Flax NNX module."""


class JaxTask(Task[ModelT]):
    """A training task in JAX. Override ``init``, ``optimizer`` and ``loss``; ``metrics`` has a default.

    ``loss`` and ``metrics`` are compiled with ``jax.jit``, so they must be pure: everything that they use comes from
    their arguments, from ``self.config`` or from attributes of the task that never change. Trials of a worker share
    the compiled programs. Therefore numbers with a fractional part in ``self.config`` are arguments of the programs
    and not constants; where the code needs their values, as ``if self.config["dropout"] > 0`` does, they are constants
    and each value has a program of its own.
    """

    #: The imports must not run an operation of JAX: processes that are forked afterwards would hang.
    preload: Sequence[str] = ("jax", "optax", "hopfleet.frameworks.jax.task")

    #: The configuration of the trial at hand, in every hook.
    config: Config = {}  # noqa: RUF012

    def init(self, config: Config, key: Any) -> Params:
        """Return the parameters of a new model: a pytree of arrays, or a Flax NNX module. ``key`` is a random key.

        Variables of Flax Linen with ``batch_stats`` are taken whole; only their ``params`` are trained.
        """
        raise TaskError(f"{type(self).__name__}: override init(self, config, key) and return parameters")

    def optimizer(self, config: Config) -> Any:
        """Return the Optax gradient transformation that trains the model, e.g. ``optax.adam(config["lr"])``."""
        raise TaskError(f"{type(self).__name__}: override optimizer(self, config), e.g. return optax.adam(1e-3)")

    def loss(self, params: Params, batch: Batch, key: Any) -> Any:
        """Return the loss of one mini-batch, a scalar. ``key`` is another one in each step, and None in evaluation.

        With ``batch_stats`` of Flax Linen, return the loss and the changed collections, as ``apply`` returns them.
        """
        raise TaskError(f"{type(self).__name__}: override loss(self, params, batch, key) and return a scalar")

    def metrics(self, params: Params, batch: Batch) -> Mapping[str, Any]:
        """Return the metrics of one mini-batch of validation data; they are averaged over rows. Default: the loss."""
        found = self.loss(params, batch, None)
        return {"loss": found[0] if isinstance(found, tuple) else found}

    # ----------------------------------------------------------------------------------------------- for workers

    def for_trial(self, config: Config) -> Self:
        """Return a copy of this task whose ``config`` is that of a trial."""
        view = copy.copy(self.for_config(config))
        view.config = config
        return view

    @property
    def framework(self) -> JaxFramework:
        return JaxFramework(self)
