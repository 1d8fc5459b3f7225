"""Compiled programs: a training step and an evaluation step, shared by all trials whose code is the same.

A program depends on the configuration in two ways. Numbers with a fractional part that only the optimizer reads, such
as a learning rate, are arguments. All other values, such as the width of a layer or the rate of dropout, are part of
the code: a compiler that knows a number may round differently, and the bits must be those of a plain loop. Which
numbers the loss reads is learned when it is compiled for the first time.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hopfleet.domain.batching import Batching
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.process_settings import Changes, alike
from hopfleet.frameworks.tracked_config import TrackedConfig
from hopfleet.frameworks.whole_set import WholeSet
from hopfleet.phrases import shown

MOST = 64
"""Programs that a worker keeps: each takes megabytes of memory."""

Pytree = Any
"""Arrays in nested containers that JAX knows."""

LINEN = "variables of Flax Linen"
"""The structure of a model that is a mapping of collections of variables."""

STATISTICS = "batch_stats"
"""The collection with the statistics of batches."""

Names = AbstractSet[str]
"""Dotted paths of numbers in a configuration."""

Numbers = dict[str, Any]
"""The numbers of a configuration that are arguments of a program, by their dotted paths."""

jax.tree_util.register_pytree_node_class(WholeSet)


class Hooks(Protocol):
    """A task as a program sees it."""

    def init(self, config: Config, key: Any) -> Pytree: ...
    def optimizer(self, config: Config) -> Any: ...
    def loss(self, params: Pytree, batch: Batch, key: Any) -> Any: ...
    def metrics(self, params: Pytree, batch: Batch) -> Mapping[str, Any]: ...
    def for_trial(self, config: Config) -> Self: ...
    @property
    def batching(self) -> Batching | None: ...


class State(NamedTuple):
    """Everything that a step changes, and the key from which the keys of all steps derive."""

    params: Pytree
    #: Variables of a module that are not trained: statistics of batches, counters of random keys.
    rest: Pytree
    optimizer: Pytree
    #: The data of the key: JAX calls programs faster if their arguments are plain arrays.
    key: Any
    #: Steps made so far.
    count: Any


def split(config: dict[str, Any]) -> tuple[Numbers, dict[str, Any]]:
    """Split a configuration into the numbers with a fractional part and the rest, both by dotted paths."""
    numbers: Numbers = {}
    rest: dict[str, Any] = {}

    def visit(values: dict[str, Any], prefix: str) -> None:
        for name, value in dict.items(values):
            if isinstance(value, dict):
                visit(value, f"{prefix}{name}.")
            elif isinstance(value, float):
                numbers[prefix + name] = value
            else:
                rest[prefix + name] = value

    visit(config, "")
    return numbers, rest


def _replaced(config: dict[str, Any], numbers: Numbers, prefix: str = "") -> dict[str, Any]:
    """Return a configuration with other numbers."""
    return {
        name: _replaced(value, numbers, f"{prefix}{name}.")
        if isinstance(value, dict)
        else numbers.get(prefix + name, value)
        for name, value in dict.items(config)
    }


class Programs:
    """The programs that were used last on a worker: one part of its engine cache."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Program] = OrderedDict()
        #: For each kind of configuration, the numbers that must be constants.
        self._constants: defaultdict[str, set[str]] = defaultdict(set)
        #: Counts the times that numbers became constants, so that the programs of configurations may be others.
        self.changes = 0
        #: The own settings of trials, by number: a program has in it what its code read of them when it was compiled.
        self._settings: OrderedDict[int, Changes] = OrderedDict({0: {}})
        self._numbers = itertools.count(1)

    def number_of(self, own: Changes) -> int:
        """Return a number that trials with the same settings of their own have in common; 0 for none."""
        for number, known in self._settings.items():
            if alike(known, own):
                return number
        if len(self._settings) > MOST:
            self._settings.pop(next(number for number in self._settings if number))
        number = next(self._numbers)
        self._settings[number] = own
        return number

    def of(
        self, work: str, task: Hooks, config: TrackedConfig, threads: int, settings: int, branches: Callable[[], bool]
    ) -> Program:
        """Return the program of a configuration for some work, "step" or "measure".

        ``branches`` tells whether the optimizer does.
        """
        key = kind_of(task, config, work, threads, settings)
        if key not in self._constants and work == "step" and branches():
            # Each branch is compiled by itself: a compiler that knows its numbers may round differently.
            self._constants[key] = {*split(config)[0]}
        names = split(config)[0].keys() - self._constants[key]
        return self._get(key, names, False, lambda: Program(work, task, config, names, threads, key), config)

    def of_stack(
        self, work: str, task: Hooks, configs: Sequence[TrackedConfig], threads: int, settings: int = 0
    ) -> Program:
        """Return the program of several configurations of one kind; numbers that differ are arguments everywhere."""
        values = [split(config)[0] for config in configs]
        names = {name for name, value in values[0].items() if any(other[name] != value for other in values)}
        first, key = configs[0], kind_of(task, configs[0], work, threads, settings)
        for place, program in self._kept.items():  # more arguments do no harm
            if place == (key, _constants(first, program.names), True) and names <= program.names:
                names = set(program.names)
        return self._get(key, names, True, lambda: Program(work, task, first, names, threads, key, stacked=True), first)

    def _get(
        self, key: str, names: Names, stacked: bool, make: Callable[[], Program], config: TrackedConfig
    ) -> Program:
        place = key, _constants(config, names), stacked
        if place not in self._kept:
            self._kept[place] = make()
        self._kept.move_to_end(place)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return self._kept[place]

    def fixed(self, program: Program, names: Names) -> bool:
        """Whether some numbers of a kind of configuration are constants already."""
        return names <= self._constants[program.key]

    def fix(self, program: Program, names: Names) -> None:
        """Make some numbers of a kind of configuration constants from now on."""
        key = program.key
        self._constants[key] |= names
        self.changes += 1
        for place in [place for place, kept in self._kept.items() if kept is program]:
            del self._kept[place]
        if program.reads_alone(names):
            self._kept[key, _constants(program.config, program.names - self._constants[key]), False] = program


def _constants(config: TrackedConfig, names: Names) -> tuple[tuple[str, float], ...]:
    """Return the numbers of a configuration other than those in ``names``."""
    return tuple(sorted((name, value) for name, value in split(config)[0].items() if name not in names))


def kind_of(task: Hooks, config: TrackedConfig, work: str, threads: int, settings: int) -> str:
    """Return everything that a program depends on except the values of numbers, as text.

    ``settings`` is the number of the trial's own settings.
    """
    numbers, rest = split(config)
    # The schedule of an optimizer may be as long as the steps of a trial.
    steps = task.batching and [task.batching.of(config).steps_per_epoch(), task.batching.epochs]
    return json.dumps([work, rest, sorted(numbers), threads, steps, settings], sort_keys=True, default=repr)


class Program:
    """The work of all trials that share their code: a training step or an evaluation step.

    The program of a stack takes the states of several trials, and makes steps on several batches with one call.
    ``names`` are the numbers that are arguments of the program: for the optimizer alone or, in a stack, everywhere.
    """

    def __init__(
        self,
        work: str,
        task: Hooks,
        config: TrackedConfig,
        names: Names,
        threads: int,
        key: str,
        *,
        stacked: bool = False,
    ) -> None:
        self.work = work
        self.config = config
        self.names = frozenset(names)
        self.key = key
        self._task = task
        self._stacked = stacked
        #: Numbers of trials, with shapes of batches, that the program has been compiled for.
        self.compiled: set[tuple[int, Hashable]] = set()
        #: Keys of the configuration that the optimizer and the loss read while they were compiled, and absent keys.
        self._seen: set[str] = set()
        self._seen_by_loss: set[str] = set()
        self._absent: set[str] = set()
        function = self._step if work == "step" else self._measure
        # Sums that several threads share may be taken in another order.
        options: dict[str, Any] = {"xla_cpu_multi_thread_eigen": threads > 1, "xla_gpu_deterministic_ops": True}
        self.run = jax.jit(
            _over_trials(function, work == "step") if stacked else function, static_argnums=0, compiler_options=options
        )

    def sizes(self) -> list[int]:
        """Return the numbers of trials that the program of a stack has been compiled for."""
        return [size for size, _ in list(self.compiled)]

    def read_by_loss(self) -> Names:
        """Return the arguments that the loss reads, as constants of the configuration that the program was made for."""
        return frozenset() if self._stacked else self.names & self._seen_by_loss

    def reads_alone(self, names: Names) -> bool:
        """Whether the loss reads these numbers and the optimizer does not, so that they are constants already."""
        return names <= self._seen_by_loss and not names & self._seen

    def tell(self, config: TrackedConfig) -> None:
        """Count the keys that the code read as read of a configuration."""
        config.share(TrackedConfig({}, self._seen | self._seen_by_loss, absent=self._absent))

    def _for_loss(self, numbers: Numbers) -> Hooks:
        """Return the task for a loss or metrics."""
        values = _replaced(self.config, numbers if self._stacked else {})
        return self._task.for_trial(TrackedConfig(values, self._seen_by_loss, absent=self._absent))

    def _optimizer(self, numbers: Numbers) -> Any:
        config = TrackedConfig(_replaced(self.config, numbers), self._seen, absent=self._absent)
        return optax.with_extra_args_support(self._task.for_trial(config).optimizer(config))

    def _step(self, graph: Any, state: State, batch: Batch, numbers: Numbers) -> tuple[State, Any]:
        task = self._for_loss(numbers)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.count)

        def loss_of(params: Pytree) -> tuple[Any, Pytree]:
            model = assembled(graph, params, state.rest, trains=True)
            loss = task.loss(model, dict(batch), key)
            if graph == LINEN:
                return _with_collections(loss, state.rest)
            _check_loss(loss)
            return loss, state.rest if graph is None else taken_apart(model)[2]

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        updates, changed = self._optimizer(numbers).update(
            gradients, state.optimizer, state.params, value=loss, grad=gradients, value_fn=lambda at: loss_of(at)[0]
        )
        params = optax.apply_updates(state.params, updates)
        return strong(State(params, rest, changed, state.key, state.count + 1)), loss

    def _measure(self, graph: Any, state: State, batch: Batch, numbers: Numbers) -> dict[str, Any]:
        metrics = self._for_loss(numbers).metrics(assembled(graph, state.params, state.rest, trains=False), dict(batch))
        if not isinstance(metrics, Mapping):
            raise TaskError(
                f"metrics() returned {shown(metrics)}: must be a dict of names to numbers, e.g. {{'accuracy': 0.9}}"
            )
        for name, value in metrics.items():
            if not isinstance(value, WholeSet) and jnp.shape(value) != ():
                raise TaskError(
                    f"metric {name!r} is an array of shape {jnp.shape(value)}: must be one number; return its mean"
                )
        return dict(metrics)


def branches(optimizer: Any, params: Pytree, state: Pytree) -> bool:
    """Whether a transformation has branches or loops, as those have that add up the gradients of several batches."""

    def update(params: Pytree, state: Pytree) -> Any:
        found = optax.with_extra_args_support(optimizer)
        loss = jnp.float32(0)
        return found.update(params, state, params, value=loss, grad=params, value_fn=lambda _: loss)

    try:
        text = str(jax.make_jaxpr(update)(params, state))
    except Exception:  # the program tells what is wrong
        return False
    return any(f" {name}[" in text for name in ("cond", "while", "scan"))


def _over_trials(function: Callable[..., Any], steps: bool) -> Callable[..., Any]:
    """Let a step take the states and numbers of several trials, stacked along a new first axis, and several batches.

    The batches are stacked along a new first axis as well; ``count`` of them are used. What a step finds is stacked by
    batches and trials. Return the new states, if the function ``steps``, and everything found.
    """

    def stacked(graph: Any, states: State, batches: Batch, count: Any, numbers: Numbers) -> Any:
        def take(states: State, number: Any) -> tuple[State, Any]:
            batch = jax.tree.map(lambda column: jax.lax.dynamic_index_in_dim(column, number, keepdims=False), batches)
            found = jax.vmap(lambda state, own: function(graph, state, batch, own))(states, numbers)
            return found if steps else (states, found)

        def next_batch(number: Any, before: tuple[State, Any]) -> tuple[State, Any]:
            states, found = take(before[0], number)
            return states, jax.tree.map(lambda every, one: every.at[number].set(one), before[1], found)

        most = len(next(iter(batches.values())))
        found = jax.tree.map(
            lambda one: jnp.zeros((most, *one.shape), one.dtype), jax.eval_shape(lambda: take(states, 0))[1]
        )
        states, found = jax.lax.fori_loop(0, count, next_batch, (states, found))
        return (states, found) if steps else found

    return stacked


def taken_apart(model: Pytree) -> tuple[Any, Pytree, Pytree]:
    """Return the structure of a model, its parameters, and the rest, which is not trained.

    Models are Flax NNX modules, variables of Flax Linen that have statistics of batches, and pytrees, which are
    parameters alone.
    """
    if isinstance(model, Mapping) and {"params", STATISTICS} <= set(model):
        return LINEN, model["params"], {name: each for name, each in model.items() if name != "params"}
    if not _is_module(model):
        return None, model, ()
    from flax import nnx

    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return graph, params, rest


def assembled(graph: Any, params: Pytree, rest: Pytree, *, trains: bool) -> Pytree:
    """Invert ``taken_apart``: a module in the mode of training or of evaluation, or the pytree."""
    if graph is None:
        return params
    if graph == LINEN:
        return {"params": params, **rest}
    from flax import nnx

    # Flax lets only code at the place where its variables were made change them: make them here.
    model = nnx.merge(graph, *jax.tree.map(lambda leaf: leaf, (params, rest)))
    (model.train if trains else model.eval)()
    return model


def statistics(graph: Any, rest: Pytree) -> Pytree:
    """Return what a Flax NNX module has beside its parameters and random streams, such as the means of batches."""
    if graph is None or graph == LINEN:
        return rest
    from flax import nnx

    return nnx.filter_state(rest, nnx.Not(nnx.RngState))


def _is_module(model: Pytree) -> bool:
    """Whether a model is a Flax NNX module, without importing Flax: a module cannot exist before that."""
    return any(kind.__module__.startswith("flax.nnx") and kind.__name__ == "Module" for kind in type(model).__mro__)


def strong(tree: Pytree) -> Pytree:
    """Return a pytree whose arrays all have a type of their own, as arrays that come out of a file have."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype) if _plain(leaf) else leaf, tree)


def _plain(leaf: Any) -> bool:
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def on_host(leaf: Any) -> bool:
    """Whether NumPy can read an array in place, which needs no compiled program."""
    return _plain(leaf) and leaf.device.platform == "cpu"


def arrays(tree: Pytree) -> list[np.ndarray[Any, Any]]:
    """Return the leaves of a pytree as numpy arrays, random keys as their data."""
    return [np.asarray(leaf if _plain(leaf) else jax.random.key_data(leaf)) for leaf in jax.tree.leaves(tree)]


def _with_collections(found: Any, rest: Mapping[str, Any]) -> tuple[Any, Pytree]:
    """Return the loss, and the collections of variables as ``loss()`` changed them."""
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        raise TaskError(
            f"loss() returned {shown(found)}: the variables have {STATISTICS!r}, which training changes; return "
            f"(loss, updates), as in logits, updates = model.apply(params, x, mutable=[{STATISTICS!r}])"
        )
    loss, updates = found
    _check_loss(loss)
    for name, each in updates.items():
        if name not in rest or jax.tree.structure(each) != jax.tree.structure(rest[name]):
            raise TaskError(
                f"loss() returned {name!r} with other variables than init(), which has {', '.join(map(repr, rest))}; "
                "return the collections of init() alone"
            )
    return loss, {**rest, **updates}


def _check_loss(loss: Any) -> None:
    if loss is None:
        raise TaskError("loss() returned None: must be a scalar; its return statement may be missing")
    if not isinstance(loss, jax.Array):
        raise TaskError(f"loss() returned a {type(loss).__name__}: must be a scalar that depends on the parameters")
    if loss.ndim:
        raise TaskError(f"loss() returned an array of shape {loss.shape}: must be a scalar; average it")
