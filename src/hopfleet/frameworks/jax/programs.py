"""Compiled programs: a training step and an evaluation step, shared by all trials whose code is the same.

A program depends on the configuration in two ways. Numbers with a fractional part, such as a learning rate, are
arguments; everything else, such as the width of a layer, is part of the code. If the code of a task needs the values of
those numbers while it is compiled, they become part of the code too.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, TrackedConfig
from hopfleet.phrases import shown

MOST = 64
"""Programs that a worker keeps: each takes megabytes of memory."""

Pytree = Any
"""Arrays in nested containers that JAX knows."""

Numbers = dict[str, Any]
"""The numbers of a configuration that are arguments of a program, by their dotted paths."""


class Hooks(Protocol):
    """A task as a program sees it."""

    def init(self, config: Config, key: Any) -> Pytree: ...
    def optimizer(self, config: Config) -> Any: ...
    def loss(self, params: Pytree, batch: Batch, key: Any) -> Any: ...
    def metrics(self, params: Pytree, batch: Batch) -> Mapping[str, Any]: ...
    def for_trial(self, config: Config) -> Self: ...


class State(NamedTuple):
    """Everything that a step changes, and the key from which the keys of all steps derive."""

    params: Pytree
    #: Variables of a module that are not trained: statistics of batches, counters of random keys.
    rest: Pytree
    optimizer: Pytree
    key: Any
    #: Steps made so far.
    count: Any


def split(config: Config) -> tuple[Numbers, dict[str, Any]]:
    """Split a configuration into the numbers with a fractional part and the rest, both by dotted paths."""
    numbers: Numbers = {}
    rest: dict[str, Any] = {}

    def visit(values: Mapping[str, Any], prefix: str) -> None:
        for name, value in dict.items(values):  # type: ignore[arg-type]
            if isinstance(value, Mapping):
                visit(value, f"{prefix}{name}.")
            elif isinstance(value, float):
                numbers[prefix + name] = value
            else:
                rest[prefix + name] = value

    visit(config, "")
    return numbers, rest


def _replaced(config: Mapping[str, Any], numbers: Numbers, prefix: str = "") -> dict[str, Any]:
    """Return a configuration with other numbers."""
    return {
        name: _replaced(value, numbers, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else numbers.get(prefix + name, value)
        for name, value in dict.items(config)  # type: ignore[arg-type]
    }


class Programs:
    """The programs that were used last on a worker: one part of its engine cache."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Program] = OrderedDict()
        #: Rests of configurations whose numbers must be constants.
        self._constant: set[str] = set()

    def of(self, task: Hooks, config: TrackedConfig, threads: int) -> Program:
        """Return the program of a configuration; compile one if there is none."""
        numbers, rest = split(config)
        key = json.dumps([rest, sorted(numbers), threads], sort_keys=True, default=repr)
        constant = key in self._constant
        name = json.dumps([key, numbers]) if constant else key
        if name not in self._kept:
            self._kept[name] = Program(task, config, key, () if constant else tuple(numbers), threads)
        self._kept.move_to_end(name)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return self._kept[name]

    def make_constant(self, program: Program) -> None:
        """Compile programs like this one with the numbers of each configuration as constants."""
        self._constant.add(program.key)
        self._kept.pop(program.key, None)


class Program:
    """The steps of all trials that share their code. ``names`` are the numbers that are arguments."""

    def __init__(self, task: Hooks, config: TrackedConfig, key: str, names: tuple[str, ...], threads: int) -> None:
        self.key = key
        self.names = names
        self._task = task
        self._config = config
        #: Keys of the configuration that the code read while it was compiled, and keys that it asked for in vain.
        self._seen: set[str] = set()
        self._absent: set[str] = set()
        # Sums that several threads share may be taken in another order.
        options: dict[str, Any] = {"xla_cpu_multi_thread_eigen": threads > 1}
        self.step = jax.jit(self._step, static_argnums=0, compiler_options=options)
        self.measure = jax.jit(self._measure, static_argnums=0, compiler_options=options)
        self.stacked_step = jax.jit(_over_trials(self._step), static_argnums=0, compiler_options=options)
        self.stacked_measure = jax.jit(_over_trials(self._measure), static_argnums=0, compiler_options=options)

    def tell(self, config: TrackedConfig) -> None:
        """Count the keys that the code read as read of a configuration."""
        config.share(TrackedConfig({}, self._seen, absent=self._absent))

    def _view(self, numbers: Numbers) -> tuple[Hooks, TrackedConfig]:
        """Return the task for the configuration with these numbers."""
        config = TrackedConfig(_replaced(self._config, numbers), self._seen, absent=self._absent)
        return self._task.for_trial(config), config

    def _step(self, graph: Any, state: State, batch: Batch, numbers: Numbers) -> tuple[State, Any]:
        task, config = self._view(numbers)
        key = jax.random.fold_in(state.key, state.count)

        def loss_of(params: Pytree) -> tuple[Any, Pytree]:
            model = assembled(graph, params, state.rest, trains=True)
            loss = task.loss(model, dict(batch), key)
            _check_loss(loss)
            return loss, state.rest if graph is None else taken_apart(model)[2]

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        optimizer = optax.with_extra_args_support(task.optimizer(config))
        updates, changed = optimizer.update(gradients, state.optimizer, state.params, value=loss)
        params = optax.apply_updates(state.params, updates)
        return strong(State(params, rest, changed, state.key, state.count + 1)), loss

    def _measure(self, graph: Any, state: State, batch: Batch, numbers: Numbers) -> dict[str, Any]:
        task, _ = self._view(numbers)
        metrics = task.metrics(assembled(graph, state.params, state.rest, trains=False), dict(batch))
        if not isinstance(metrics, Mapping):
            raise TaskError(
                f"metrics() returned {shown(metrics)}: must be a dict of names to numbers, e.g. {{'accuracy': 0.9}}"
            )
        for name, value in metrics.items():
            if jnp.shape(value) != ():
                raise TaskError(
                    f"metric {name!r} is an array of shape {jnp.shape(value)}: must be one number; return its mean"
                )
        return dict(metrics)


def _over_trials(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a step take the states and numbers of several trials, stacked along a new first axis, and one batch."""

    def stacked(graph: Any, states: State, batch: Batch, numbers: Numbers) -> Any:
        return jax.vmap(lambda state, own: function(graph, state, batch, own))(states, numbers)

    return stacked


def taken_apart(model: Pytree) -> tuple[Any, Pytree, Pytree]:
    """Return the structure of a Flax NNX module, its parameters and the rest; a pytree is parameters alone."""
    if not _is_module(model):
        return None, model, ()
    from flax import nnx

    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return graph, params, rest


def assembled(graph: Any, params: Pytree, rest: Pytree, *, trains: bool) -> Pytree:
    """Invert ``taken_apart``: a module in the mode of training or of evaluation, or the pytree."""
    if graph is None:
        return params
    from flax import nnx

    # Flax lets only code at the place where its variables were made change them: make them here.
    model = nnx.merge(graph, *jax.tree.map(lambda leaf: leaf, (params, rest)))
    (model.train if trains else model.eval)()
    return model


def _is_module(model: Pytree) -> bool:
    """Whether a model is a Flax NNX module, without importing Flax: a module cannot exist before that."""
    return any(kind.__module__.startswith("flax.nnx") and kind.__name__ == "Module" for kind in type(model).__mro__)


def strong(tree: Pytree) -> Pytree:
    """Return a pytree whose arrays all have a type of their own, as arrays that come out of a file have."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype) if _plain(leaf) else leaf, tree)


def _plain(leaf: Any) -> bool:
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def arrays(tree: Pytree) -> list[np.ndarray[Any, Any]]:
    """Return the leaves of a pytree as numpy arrays, random keys as their data."""
    return [np.asarray(leaf if _plain(leaf) else jax.random.key_data(leaf)) for leaf in jax.tree.leaves(tree)]


def _check_loss(loss: Any) -> None:
    if loss is None:
        raise TaskError("loss() returned None: must be a scalar; its return statement may be missing")
    if not isinstance(loss, jax.Array):
        raise TaskError(f"loss() returned a {type(loss).__name__}: must be a scalar that depends on the parameters")
    if loss.ndim:
        raise TaskError(f"loss() returned an array of shape {loss.shape}: must be a scalar; average it")
